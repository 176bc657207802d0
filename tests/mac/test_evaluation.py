"""Verdicts over draws, conventions of counting, several cells on one GPU, lanes."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest
from scipy import stats

from ranloom.errors import InputError
from ranloom.mac.bar import Limits, judge
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import UNLIMITED_BYTES, WeaverParams
from ranloom.mac.evaluation import evaluate, interval
from ranloom.mac.kpis import cell_kpis
from ranloom.mac.lanes import run_lanes
from ranloom.mac.model import CellModel
from ranloom.mac.sensitivity import exact_sm, in_quanta, reservation, transition_counts
from ranloom.mac.shared_gpu import per_slot, pooled, summed
from ranloom.mac.simulate import CellRun, simulate
from ranloom.traffic.channel import constant
from ranloom.traffic.scenario import Scenario
from tests.mac.conftest import S, bursts

SECONDS = 10
K_US_SM, BUDGET_US = 2.332, 800.0


def draw(seed: int) -> Scenario:
    arrivals = bursts(3, SECONDS * S, seed=seed, bytes_each=90_000, every_us=300_000)
    return Scenario("test", 0, arrivals, constant([26.0, 24.0, 20.0], SECONDS * S))


@pytest.fixture(scope="module")
def traced(model: CellModel) -> list[CellRun]:
    length = 400 * SECONDS
    return [
        simulate(
            model, one.arrivals, one.channel, ControllerSpec("noctrl"), 1, trace=(0, length)
        )
        for one in (draw(1), draw(2), draw(3))
    ]  # fmt: skip


def test_lanes_keep_their_order_and_overlap() -> None:
    both = threading.Barrier(2, timeout=5)

    def meet(value: int) -> int:
        if value:
            both.wait()
        return value

    assert run_lanes([partial(meet, v) for v in (0, 1, 2)], workers=2) == [0, 1, 2]
    assert run_lanes([]) == []

    def fail() -> int:
        time.sleep(0.01)
        raise InputError("lane", 1, "needed: 0")

    with pytest.raises(InputError, match="lane"):
        run_lanes([partial(meet, 0), fail], workers=2)


def test_interval() -> None:
    values = [4.0, 5.0, 7.0, 8.0]
    low, high = stats.t.interval(0.95, 3, loc=6.0, scale=stats.sem(values))
    found = interval(values)
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx(
        (low, high)
    )
    assert interval([3.0]).half_width == 0.0


def test_shams_fail_where_control_matters(model: CellModel) -> None:
    never = WeaverParams(backlog_threshold_bytes=UNLIMITED_BYTES)
    specs = {
        "const_8": ControllerSpec("const_8"),
        "const_16": ControllerSpec("const_16"),
        "never": ControllerSpec("weaver", weaver=never),
        "weaver_plus": ControllerSpec("weaver_plus"),
        "yinyangran": ControllerSpec("yinyangran"),
    }
    draws = [draw(1), draw(2)]
    found = {one.controller: one for one in evaluate(model, draws, specs, Limits(), 1)}
    assert list(found) == ["noctrl", *specs]
    for sham in ("const_8", "never"):
        assert "delay_p95" in found[sham].verdict.missed
    assert "mean_sm" in found["const_16"].verdict.missed
    assert found["noctrl"].verdict.missed == ("transitions",)
    # the verdict is that of all draws together
    runs = [
        simulate(model, one.arrivals, one.channel, ControllerSpec("weaver_plus"), 1)
        for one in draws
    ]
    together = cell_kpis(runs, K_US_SM)
    assert found["weaver_plus"].together == together
    assert found["weaver_plus"].verdict == judge(together, found["noctrl"].together, Limits())
    added = [
        ours.delay_p95_ms - theirs.delay_p95_ms
        for ours, theirs in zip(found["weaver_plus"].draws, found["noctrl"].draws, strict=True)
    ]
    assert found["weaver_plus"].added_delay_p95_ms.mean == pytest.approx(np.mean(added))
    again = evaluate(model, draws, specs, Limits(), 1, workers=1)
    assert [one.together for one in again] == [one.together for one in found.values()]


def test_evaluation_needs_draws(model: CellModel) -> None:
    with pytest.raises(InputError, match="draws"):
        evaluate(model, [], {}, Limits(), 1)


def test_sampling_covers_the_peak() -> None:
    demand = np.array([8, 24, 8, 8, 16, 8, 8])
    empty = np.array([True, False, True, False, False, True, True])
    assert reservation(demand, empty, 1, False).tolist() == demand.tolist()
    assert reservation(demand, empty, 3, False).tolist() == [24, 24, 24, 16, 16, 16, 8]
    assert reservation(demand, empty, 1, True).tolist() == [8, 24, 24, 8, 16, 16, 16]


def test_exact_demand_is_that_of_the_latency_model(model: CellModel) -> None:
    work = np.array([0, 1, 2000, 4224, 90_000])
    sm = exact_sm(work, model.plant_config, BUDGET_US, 48)
    for w, s in zip(work[1:4], sm[1:4], strict=True):
        assert 200.0 + K_US_SM * w / s + 0.0084 * w == pytest.approx(BUDGET_US)
    assert sm[[0, 4]].tolist() == [0.0, 48.0]
    assert in_quanta(sm, 8, 48).tolist() == [8, 8, 8, 24, 48]
    assert in_quanta(sm, 1, 48)[2] == 8


def test_conventions_change_the_count(model: CellModel, traced: list[CellRun]) -> None:
    run = traced[0]
    counts = list(transition_counts(run, model, BUDGET_US, [2, 8], [1, 400]))
    by_key = {(c.demand, c.quantum_sm, c.every_ul_slots, c.hold_empty): c for c in counts}
    assert len(by_key) == len(counts) == (2 + 1 + 2) * 2 * 2
    plain = by_key["slot_total", 8, 1, False]
    assert plain.transitions == run.changes.transitions
    assert plain.mean_sm == pytest.approx(run.mean_sm)
    assert by_key["slot_total", 2, 1, False].transitions > plain.transitions
    assert by_key["slot_total", 8, 400, False].transitions < plain.transitions
    one = draw(1)
    bare = simulate(model, one.arrivals, one.channel, ControllerSpec("noctrl"), 1)
    with pytest.raises(InputError, match="trace"):
        list(transition_counts(bare, model, BUDGET_US, [8], [1]))


def test_cells_on_one_gpu(model: CellModel, traced: list[CellRun]) -> None:
    np.testing.assert_array_equal(per_slot(traced[0]), traced[0].trace[:, 2])
    total = sum(run.trace[:, 2] for run in traced)
    side_by_side = summed(traced, 40)
    assert side_by_side.cells == 3
    assert side_by_side.mean_sm == pytest.approx(total.mean())
    assert side_by_side.peak_sm == total.max()
    assert side_by_side.transitions == np.count_nonzero(np.diff(total))
    assert side_by_side.over_device_pct == pytest.approx(100 * (total > 40).mean())
    assert side_by_side.over_device_pct > 0
    together = pooled(traced, model, BUDGET_US)
    assert together.mean_sm < side_by_side.mean_sm  # one floor instead of three
    alone = pooled(traced[:1], model, BUDGET_US)
    # one cell alone asks for what its table says, up to blocks that share a slot
    assert alone.mean_sm == pytest.approx(traced[0].mean_sm, rel=0.02)
    with pytest.raises(InputError, match="equal length"):
        summed([], 48)
