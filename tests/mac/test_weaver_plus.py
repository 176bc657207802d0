"""The two accounts of weaver_plus."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ranloom.errors import InputError
from ranloom.mac.controllers.decision import DECISION, REASONS
from ranloom.mac.controllers.weaver_plus import (
    BINS_PER_OCTAVE,
    WeaverPlusParams,
    _note_delay,
    decide_weaver_plus,
    weaver_plus,
)
from ranloom.mac.model import CellModel
from ranloom.mac.proportional_fair import (
    add_backlogged,
    add_retransmission,
    slot_grants,
    slot_request,
)

MCS = 28


class Scheduler:
    """The compiled function, one call a slot, with one UE at MCS 28."""

    def __init__(self, model: CellModel, **params: float):
        self.model = model
        self.state = weaver_plus(
            WeaverPlusParams(**params), model.blocks.tbs_bytes, ul_slots_per_s=400.0,
            open_bytes=150_000, sm_min=8, initial_mcs=MCS,
        )  # fmt: skip
        self.backlog = 0

    def slot(self, arrived: int = 0, retx_prb: int = 0) -> tuple[int, str]:
        model, tbs = self.model, self.model.blocks.tbs_bytes
        request, grants, decision = slot_request(1), slot_grants(1), np.zeros(1, DECISION)
        if retx_prb:
            add_retransmission(request, retx_prb, MCS, model.tables)
        self.backlog += arrived
        if self.backlog:
            add_backlogged(request, 0, self.backlog, MCS, 1.0, 106, model.scheduler, tbs)
        decide_weaver_plus(
            self.state, request, model.scheduler, model.tables, tbs, grants, decision
        )
        if self.backlog:
            self.backlog -= min(self.backlog, int(tbs[MCS, grants.rb[0]]))
        return int(decision["sm"][0]), REASONS[decision["reason"][0]]


def per_slot(model: CellModel, sm: int) -> int:
    return int(model.blocks.tbs_bytes[MCS, model.tables.max_prb[MCS, sm]])


def test_what_drains_within_the_target_asks_for_nothing(model: CellModel) -> None:
    live = Scheduler(model, delay_target_ms=20.0)  # 8 UL slots
    assert live.slot(int(7.8 * per_slot(model, 8))) == (8, "hold")
    for _ in range(10):
        assert live.slot()[0] == 8
    assert live.backlog == 0


def test_what_does_not_raises_to_the_lowest_that_will_do(model: CellModel) -> None:
    live = Scheduler(model, delay_target_ms=20.0, delay_ceiling_ms=20.0)
    # at 16 SMs (98 of 106 PRBs) the lag over the shadow stays within the allowance of 8 ms
    assert live.slot(100_000) == (16, "deadline")
    live = Scheduler(model, delay_target_ms=5.0, delay_ceiling_ms=5.0, delay_allowance_ms=0.0)
    assert live.slot(100_000) == (24, "deadline")


def test_a_backlog_of_unknown_size_gets_the_whole_carrier(model: CellModel) -> None:
    live = Scheduler(model, delay_target_ms=1000.0, delay_ceiling_ms=1000.0)
    assert live.slot(150_000)[0] == 8
    assert live.slot(120_000) == (24, "deadline")


def test_held_as_long_as_smoothing_has_paid(model: CellModel) -> None:
    live = Scheduler(model, delay_target_ms=20.0, sm_allowance=0.0)
    for _ in range(20):
        live.slot(per_slot(model, 8) * 2)  # more than 8 SMs carry: without control 24 each
    credit = live.state.account[2]
    held = 0
    while live.slot()[0] > 8:
        held += 1
    assert held >= 5
    assert live.slot() == (8, "hold")
    assert credit > 0
    # what was reserved is what the shadow would have reserved, within a slot's worth
    assert abs(live.state.account[2]) <= 2 * 16


def test_the_mean_stays_below_the_shadow(model: CellModel) -> None:
    rng = np.random.default_rng(2)
    live = Scheduler(model, sm_allowance=0.0, credit_limit_sm_s=1e6)
    reserved = [
        live.slot(int(rng.exponential(40_000)) if rng.random() < 0.1 else 0)[0] for _ in range(8000)
    ]
    # credit = demand of the shadow - reservation, summed
    demand = np.sum(reserved) + live.state.account[2]
    assert np.sum(reserved) <= demand + 24 * 20


def test_retransmissions_are_covered(model: CellModel) -> None:
    live = Scheduler(model)
    assert live.slot(retx_prb=100) == (24, "retransmission")


def test_the_percentile_of_the_shadow(model: CellModel) -> None:
    """The histogram's cursor against NumPy, also where old weights have faded."""
    live = Scheduler(model, percentile=95.0, memory_s=1e6)
    rng = np.random.default_rng(4)
    delays = rng.lognormal(3.0, 1.0, 5000)
    for delay in delays:
        _note_delay(delay, 10.0, live.state)
    lower_edge = 2.0 ** (live.state.cursor[1] / BINS_PER_OCTAVE)
    exact = np.quantile(delays, 0.95)
    assert lower_edge <= exact <= lower_edge * 2.0 ** (2 / BINS_PER_OCTAVE)
    faded = Scheduler(model, percentile=50.0, memory_s=1.0)
    for delay in (*[400.0] * 5000, *[20.0] * 5000):  # 10 PRB each: 1 s is 42,400 PRB
        _note_delay(delay, 10.0, faded.state)
    assert 2.0 ** (faded.state.cursor[1] / BINS_PER_OCTAVE) < 21.0


def test_the_histogram_never_overflows(model: CellModel) -> None:
    live = Scheduler(model, memory_s=0.01)
    for k in range(20_000):
        _note_delay(float(1 + k % 50), 106.0, live.state)
    assert np.isfinite(live.state.histogram).all()
    assert np.isfinite(live.state.cursor).all()
    assert stats.describe(live.state.histogram).minmax[0] >= 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("percentile", 0.0), ("down_share", 1.5), ("delay_ceiling_ms", 1.0), ("memory_s", 0.0)],
)
def test_bad_values(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"weaver_plus.{field}"):
        WeaverPlusParams(**{field: value})
