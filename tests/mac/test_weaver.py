"""Algorithm 1, one branch after another, called slot by slot as a live scheduler would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.mac.controllers.decision import DECISION, REASONS
from ranloom.mac.controllers.weaver import WeaverParams, decide_weaver, weaver
from ranloom.mac.model import CellModel
from ranloom.mac.proportional_fair import (
    add_backlogged,
    add_retransmission,
    slot_grants,
    slot_request,
)

MCS = 28
PUBLISHED = WeaverParams()


class Scheduler:
    """A live scheduler: the same compiled function, one call a slot."""

    def __init__(self, model: CellModel, params: WeaverParams, sm: int = 8, mcs: float = MCS):
        self.model = model
        self.state = weaver(
            params, 8, ul_slots_per_s=400.0, ul_share=0.2, sm_min=8, initial_mcs=mcs
        )
        self.state.memory[0] = sm

    def slot(
        self,
        *backlogs: int,
        mcs: int | Sequence[int] = MCS,
        retransmission: tuple[int, int] | None = None,
    ) -> tuple[int, str, int, int]:
        """(reserved SMs, reason, passes, PRBs) of a slot with UEs of these backlogs."""
        model = self.model
        request, grants, decision = slot_request(8), slot_grants(8), np.zeros(1, DECISION)
        if retransmission:
            add_retransmission(request, *retransmission, model.tables)
        indices = [mcs] * len(backlogs) if isinstance(mcs, int) else mcs
        for ue, (backlog, index) in enumerate(zip(backlogs, indices, strict=True)):
            add_backlogged(
                request, ue, backlog, index, 100.0 - ue, 106, model.scheduler,
                model.blocks.tbs_bytes,
            )  # fmt: skip
        decide_weaver(
            self.state, request, model.scheduler, model.tables, model.blocks.tbs_bytes, grants,
            decision,
        )  # fmt: skip
        answer = decision[0]
        self.mcs_average = grants.head["mcs_prb"][0] / max(grants.head["n_prb"][0], 1)
        return (
            int(answer["sm"]),
            REASONS[answer["reason"]],
            int(answer["passes"]),
            int(grants.head["n_prb"][0]),
        )


def budget(model: CellModel, sm: int, mcs: int = MCS) -> int:
    return int(model.tables.max_prb[mcs, sm])


def test_hold_below_the_threshold(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED)
    # a backlog that the budget of 8 SMs cannot serve, but below 64 KB: absorbed
    assert live.slot(60_000) == (8, "hold", 1, budget(model, 8))


def test_ramp_up_drains_in_the_same_slot(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED)
    sm, reason, passes, n_prb = live.slot(70_000)
    assert (sm, reason, n_prb) == (24, "ramp_up", 106)
    assert passes == 2  # allocated for 8 SMs, then again for 24
    assert model.tables.min_sm[MCS, 106] == 24


def test_ramp_up_needs_one_ue_above_the_threshold(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED)
    assert live.slot(60_000, 60_000, 60_000)[:2] == (8, "hold")


def test_no_ramp_up_while_the_budget_serves_all(model: CellModel) -> None:
    # MCS 9: 106 PRBs fit 8 SMs, so that a small UE above a tiny threshold is simply served
    live = Scheduler(model, replace(PUBLISHED, backlog_threshold_bytes=100), mcs=9)
    size = int(model.blocks.tbs_bytes[9, 50])
    assert live.slot(size, mcs=9)[:2] == (8, "hold")


def test_residual_above_the_threshold_ramps_up_without_an_exhausted_budget(
    model: CellModel,
) -> None:
    # UE 0 may use 20 PRBs only (power), the budget is not used up, its residual is large
    params = replace(PUBLISHED, backlog_threshold_bytes=20_000)
    live = Scheduler(model, params)
    request, grants, decision = slot_request(8), slot_grants(8), np.zeros(1, DECISION)
    tbs = model.blocks.tbs_bytes
    add_backlogged(request, 0, 60_000, MCS, 1.0, 20, model.scheduler, tbs)
    decide_weaver(live.state, request, model.scheduler, model.tables, tbs, grants, decision)
    assert REASONS[decision["reason"][0]] == "ramp_up"
    assert decision["sm"][0] == 24


def test_line_15_may_lower_as_printed(model: CellModel) -> None:
    # the estimate of the previous MCS is far below: LUT_SM of it is 8 although 24 are in force
    kept = Scheduler(model, PUBLISHED, sm=24, mcs=9)
    literal = Scheduler(model, replace(PUBLISHED, never_lower_on_ramp_up=False, max_iterations=1),
                        sm=24, mcs=9)  # fmt: skip
    assert kept.slot(70_000)[0] == 24
    sm, reason, _, n_prb = literal.slot(70_000)
    # one pass only: lowered to 8, which 106 PRBs of MCS 28 exceed: the safeguard mends it
    assert (sm, reason, n_prb) == (24, "safeguard", 106)


def test_ramp_down_after_the_patience_one_step_at_a_time(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED, sm=24)
    small = int(model.blocks.tbs_bytes[MCS, 10])
    answers = [live.slot(small)[:2] for _ in range(13)]
    # 30 slots are 6 UL slots
    assert answers[:5] == [(24, "hold")] * 5
    assert answers[5] == (16, "ramp_down")
    assert answers[6:11] == [(16, "hold")] * 5
    assert answers[11] == (8, "ramp_down")
    assert answers[12] == (8, "hold")


def test_a_slot_that_needs_the_tier_resets_the_patience(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED, sm=24)
    small, large = (int(model.blocks.tbs_bytes[MCS, n]) for n in (10, 104))
    answers = [live.slot(size)[0] for size in [small] * 5 + [large] + [small] * 5]
    assert answers == [24] * 11
    assert live.slot(small)[:2] == (16, "ramp_down")


def test_ramp_down_goes_no_lower_than_the_backlog_asks(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED, sm=24)
    live.state.memory[1] = 6  # the counter is full, yet a large backlog waits
    sm, reason, _, _ = live.slot(60_000, mcs=MCS)
    assert (sm, reason) == (24, "hold")


def test_patience_in_ul_slots_and_counted_by_pass(model: CellModel) -> None:
    ul = Scheduler(model, replace(PUBLISHED, patience_unit="ul_slots"), sm=16)
    assert [ul.slot(0x100)[0] for _ in range(30)] == [16] * 29 + [8]
    literal = replace(PUBLISHED, succeed_when_served=False)
    # line 41 as printed loops five times on a slot that leaves slack: per pass it counts five
    per_slot = Scheduler(model, literal, sm=16)
    assert [per_slot.slot(300)[0] for _ in range(6)] == [16] * 5 + [8]
    per_pass = Scheduler(model, replace(literal, patience_count="literal"), sm=16)
    first = per_pass.slot(300)
    assert first[2] == 5
    assert per_pass.slot(300)[0] == 8


def test_fast_exit_of_an_idle_slot(model: CellModel) -> None:
    params = replace(PUBLISHED, high_tier_cap_sm=8)
    live = Scheduler(model, params, sm=24)
    assert live.slot()[:2] == (16, "fast_exit")  # one tier a slot
    assert live.slot()[:2] == (8, "fast_exit")
    assert live.slot()[:2] == (8, "hold")
    patient = Scheduler(model, PUBLISHED, sm=24)  # a cap of 24 is not exceeded
    assert patient.slot()[:2] == (24, "hold")
    busy = Scheduler(model, params, sm=24)
    assert busy.slot(300)[:2] == (24, "hold")


def test_fast_exit_stops_at_the_cap_while_backlog_is_large(model: CellModel) -> None:
    # nothing fits beside the retransmission, so no new PRBs: not idle, no exit
    params = replace(PUBLISHED, high_tier_cap_sm=8)
    live = Scheduler(model, params, sm=24)
    sm, reason, _, _ = live.slot(retransmission=(40, MCS))
    assert (sm, reason) == (24, "hold")


def test_retransmissions_hold_the_target_up(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED)
    assert live.slot(retransmission=(100, MCS))[:2] == (24, "retransmission")
    # ... and a full patience counter does not take it down again while they need it
    live.state.memory[1] = 6
    assert live.slot(retransmission=(100, MCS))[0] == 24


def test_mcs_dependency_is_broken_by_a_second_pass(model: CellModel) -> None:
    # the last slot was MCS 9: the first budget is the whole carrier, too much for MCS 28
    live = Scheduler(model, PUBLISHED, mcs=9)
    assert live.slot(60_000) == (8, "hold", 2, budget(model, 8))
    assert live.state.mcs_prev[0] == MCS
    # and the other way round: a budget for MCS 28 leaves a UE of MCS 9 short, then widens
    live = Scheduler(model, PUBLISHED)
    assert live.slot(60_000, mcs=9) == (8, "hold", 2, 106)


def test_average_mcs_is_weighted_by_prb(model: CellModel) -> None:
    live = Scheduler(model, PUBLISHED, sm=24)
    tbs = model.blocks.tbs_bytes
    live.slot(int(tbs[28, 60]), int(tbs[4, 20]), mcs=(28, 4))
    assert live.state.mcs_prev[0] == pytest.approx((28 * 60 + 4 * 20) / 80)
    live.slot()  # an empty slot keeps it
    assert live.state.mcs_prev[0] == pytest.approx(22.0)


def test_conservative_exit(model: CellModel) -> None:
    # one pass: a budget for MCS 28 leaves a UE of MCS 9 short, and the bound ends it there
    live = Scheduler(model, replace(PUBLISHED, max_iterations=1))
    assert live.slot(60_000, mcs=9) == (8, "hold", 1, budget(model, 8))


def test_safeguard(model: CellModel) -> None:
    live = Scheduler(model, replace(PUBLISHED, max_iterations=1), mcs=9)
    assert live.slot(60_000) == (24, "safeguard", 1, 106)


def test_tolerance_accepts_a_small_slack(model: CellModel) -> None:
    # MCS falls from 28 to 27: the new budget is a few PRBs wider, which PRB_TOL accepts
    wider = budget(model, 8, 27) - budget(model, 8, 28)
    assert 0 < wider <= PUBLISHED.prb_tolerance
    assert Scheduler(model, PUBLISHED).slot(60_000, mcs=27)[2:] == (1, budget(model, 8, 28))
    strict = replace(PUBLISHED, prb_tolerance=0)
    assert Scheduler(model, strict).slot(60_000, mcs=27)[2:] == (2, budget(model, 8, 27))


def test_residual_backlog_as_the_estimate(model: CellModel) -> None:
    # total: 70,000 bytes ask for the whole carrier; residual: what 8 SMs left, still as much
    live = Scheduler(model, replace(PUBLISHED, sum_backlog="residual"))
    assert live.slot(70_000)[:2] == (24, "ramp_up")
    # after a slot that serves everything nothing is left: ramp down to the floor at once
    live = Scheduler(model, replace(PUBLISHED, sum_backlog="residual"), sm=24)
    live.state.memory[1] = 5
    assert live.slot(int(model.blocks.tbs_bytes[MCS, 45]))[:2] == (16, "ramp_down")


def test_delay_thresholds_by_ue(model: CellModel) -> None:
    delays = (10.0, *[1000.0] * 7)
    live = Scheduler(model, replace(PUBLISHED, delay_threshold_ms=delays))
    per_slot = int(model.blocks.tbs_bytes[MCS, budget(model, 8)])
    # 10 ms are 4 UL slots of the present budget
    assert live.slot(4 * per_slot - 100)[:2] == (8, "hold")
    assert live.slot(4 * per_slot + 100)[:2] == (24, "ramp_up")
    patient = Scheduler(model, replace(PUBLISHED, delay_threshold_ms=delays[::-1]))
    assert patient.slot(10 * per_slot)[:2] == (8, "hold")


@pytest.mark.parametrize("seed", range(10))
def test_what_is_emitted_fits_the_reservation(model: CellModel, seed: int) -> None:
    """Whatever happens, the grants of a slot decode within the budget at its reservation."""
    rng = np.random.default_rng(seed)
    live = Scheduler(model, PUBLISHED)
    for _ in range(300):
        n = int(rng.integers(0, 5))
        backlogs = (rng.integers(1, 200_000, n)).tolist()
        mcs = rng.integers(0, 29, n).tolist()
        retx = (int(rng.integers(5, 60)), int(rng.integers(0, 29))) if rng.random() < 0.1 else None
        sm, _, passes, n_prb = live.slot(*backlogs, mcs=mcs, retransmission=retx)
        assert 1 <= passes <= 5
        assert sm in model.tables.levels
        assert model.tables.min_sm[int(np.ceil(live.mcs_average - 1e-9)), n_prb] <= sm


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("patience", 0),
        ("patience_unit", "frames"),
        ("max_iterations", 0),
        ("backlog_threshold_bytes", -1),
        ("delay_threshold_ms", ()),
        ("sum_backlog", "both"),
    ],
)
def test_bad_values(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"weaver.{field}"):
        WeaverParams(**{field: value})


def test_one_delay_threshold_or_one_a_ue(model: CellModel) -> None:
    with pytest.raises(InputError, match="allowed: 1 or 8 values"):
        Scheduler(model, replace(PUBLISHED, delay_threshold_ms=(1.0, 2.0)))
