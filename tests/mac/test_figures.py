"""KPIs, tables, background rates and site figures against direct computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ranloom.mac.background import capacity_mbps, served_mbps
from ranloom.mac.bar import Limits, judge
from ranloom.mac.config import PlantConfig
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.kpis import CellKpis, cell_kpis, ue_kpis
from ranloom.mac.model import CellModel
from ranloom.mac.offline import fewest_transitions, problem_of
from ranloom.mac.shared_gpu import summed
from ranloom.mac.simulate import CellRun, simulate
from ranloom.mac.sites import peak_overlap, peak_spare
from ranloom.mac.tables import (
    busiest_window,
    cell_columns,
    distribution_columns,
    offline_columns,
    performance_columns,
    reservation_columns,
    scenario_columns,
    shared_gpu_columns,
    stack,
    timeline_columns,
    ue_kpi_columns,
    ue_rate_columns,
)
from ranloom.traffic.channel import SinrTrace, constant
from ranloom.traffic.scenario import Scenario
from tests.mac.conftest import S, bursts

SECONDS = 6
K_US_SM = 2.332


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    arrivals = bursts(2, SECONDS * S, seed=4, bytes_each=80_000, every_us=300_000)
    return Scenario("test", 3, arrivals, constant([26.0, 20.0], SECONDS * S))


@pytest.fixture(scope="module")
def run(model: CellModel, scenario: Scenario) -> CellRun:
    return simulate(
        model, scenario.arrivals, scenario.channel, ControllerSpec("noctrl"), 2,
        trace=(0, 400 * SECONDS),
    )  # fmt: skip


def test_kpis(run: CellRun) -> None:
    kpis = cell_kpis([run], K_US_SM)
    delivered = run.packet_delay_us[run.packet_delay_us >= 0]
    assert kpis.delay_mean_ms == pytest.approx(delivered.mean() / 1e3)
    assert kpis.delay_p95_ms == pytest.approx(np.sort(delivered)[int(0.95 * len(delivered))] / 1e3,
                                              rel=0.01)  # fmt: skip
    assert kpis.throughput_mbps == pytest.approx(8 * run.ledger.delivered.sum() / SECONDS / 1e6)
    assert kpis.mean_sm == pytest.approx(run.trace[:, 2].mean())
    assert kpis.prb_used_pct == pytest.approx(100 * run.trace[:, 3].sum() / (400 * SECONDS * 106))
    busy_us = K_US_SM * run.trace[:, 5].sum()
    assert kpis.smu_pct == pytest.approx(100 * busy_us / (48 * SECONDS * 1e6))
    assert kpis.passes_1_to_3_pct == 100.0
    own = ue_kpis(run)
    mine = run.packet_delay_us[run.packet_ue == 1]
    assert own.jitter_ms[1] == pytest.approx(np.abs(np.diff(mine[mine >= 0])).mean() / 1e3)


def test_two_cells_together(run: CellRun) -> None:
    one, two = cell_kpis([run], K_US_SM), cell_kpis([run, run], K_US_SM)
    assert two.transitions == 2 * one.transitions
    assert two.throughput_mbps == pytest.approx(2 * one.throughput_mbps)
    for name in ("mean_sm", "delay_p95_ms", "smu_pct", "prb_used_pct", "jitter_ms"):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=0.005)


def test_hours_of_a_cell(run: CellRun) -> None:
    columns = cell_columns("test", 3, run, K_US_SM, hours=3)
    parts = run.trace.reshape(3, -1, run.trace.shape[1])
    np.testing.assert_allclose(columns["mean_sm"], parts[:, :, 2].mean(axis=1))
    np.testing.assert_allclose(columns["spare_pct"], 100 * (1 - columns["mean_sm"] / 48))
    np.testing.assert_allclose(
        columns["prb_used_pct"], 100 * parts[:, :, 3].sum(axis=1) / (800 * 106)
    )
    # a change in the first UL slot of an hour belongs to that hour
    changed = np.diff(run.trace[:, 2], prepend=run.trace[0, 2]) != 0
    np.testing.assert_array_equal(columns["transitions"], changed.reshape(3, -1).sum(axis=1))
    assert columns["transitions"].sum() == run.changes.transitions
    assert columns["decode_starts"].sum() == run.counters["scheduled_slots"]
    assert columns["offered_mbps"].sum() * 2 == pytest.approx(8e-6 * run.packet_bytes.sum())


def test_rows(model: CellModel, scenario: Scenario, run: CellRun) -> None:
    changes = reservation_columns("test", 3, run)
    assert changes["slot"][0] == 0
    assert set(changes["reason"]) <= {"start", "demand"}
    closing = scenario_columns(scenario, run)
    assert closing["slots"][0] == SECONDS * 2000
    held = np.diff(changes["slot"], append=closing["slots"][0])
    assert held.sum() == SECONDS * 2000
    ues = ue_kpi_columns("test", 3, run)
    terms = ("delivered", "queued", "in_flight", "dropped", "lost")
    np.testing.assert_array_equal(ues["offered_bytes"], sum(ues[f"{term}_bytes"] for term in terms))
    rates = ue_rate_columns(model, scenario, run)
    assert len(rates["second"]) == 2 * SECONDS
    both = stack([ues, ues])
    assert len(both["ue"]) == 4


def test_what_is_left_for_a_background_upload(
    model: CellModel, scenario: Scenario, run: CellRun
) -> None:
    capacity = capacity_mbps(model, run, scenario.channel)
    used = run.trace[:, 3].reshape(SECONDS, 400).sum(axis=1)
    required = model.link_rules.required_snr_db
    for ue, sinr in enumerate((26.0, 20.0)):
        mcs = np.flatnonzero(required <= sinr)[-1]
        rate = 8 * model.blocks.tbs_bytes[mcs, 106] / 106
        np.testing.assert_allclose(capacity[ue], rate * (400 * 106 - used) / 1e6)
    served = served_mbps(run)
    np.testing.assert_allclose(served.sum(axis=1) * 1e6 / 8, run.ledger.delivered)
    deaf = capacity_mbps(model, run, constant([-40.0, 26.0], SECONDS * S))
    assert (deaf[0] == 0).all()
    # a channel that changes within a second counts by its mean
    swing = np.tile(np.array([[20.0, 32.0]], np.float32), (2, SECONDS))
    mixed = capacity_mbps(model, run, SinrTrace(swing, S // 2))
    np.testing.assert_allclose(mixed[0], capacity[0])


def test_the_window_with_most_changes(run: CellRun) -> None:
    first = busiest_window(run, 100)
    reserved = run.trace[:, 2]
    counts = [np.count_nonzero(np.diff(reserved[i : i + 100])) for i in range(len(reserved) - 99)]
    assert counts[first] == max(counts)
    rows = timeline_columns("test", 3, run, first, 100)
    np.testing.assert_array_equal(rows["reserved_sm"], reserved[first : first + 100])
    assert set(rows["slot"] % 10) <= {8, 9}


KPIS = CellKpis(10.0, 1000, 99.9, 0.1, 5.0, 40.0, 100.0, 1.0, 0.0, 100.0, 20.0, 2.0, 1.0, 0)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"transitions": 250}, ()),
        ({"transitions": 251}, ("transitions",)),
        ({"transitions": 0}, ()),
        ({"transitions": 1, "mean_sm": 10.19}, ()),
        ({"transitions": 1, "mean_sm": 10.21}, ("mean_sm",)),
        ({"transitions": 1, "delay_p95_ms": 109.9}, ()),
        ({"transitions": 1, "delay_p95_ms": 110.1}, ("delay_p95",)),
        ({"transitions": 1, "throughput_mbps": 4.94}, ("throughput",)),
        ({"transitions": 1, "harq_met_pct": 99.88}, ("harq_met",)),
        ({"transitions": 1, "decode_over_1ms_pct": 0.12}, ("decode_over_1ms",)),
        ({"mean_sm": 12.0, "delay_p95_ms": 200.0}, ("transitions", "mean_sm", "delay_p95")),
    ],
)
def test_the_bar(change: dict[str, float], missed: tuple[str, ...]) -> None:
    verdict = judge(replace(KPIS, **change), KPIS, Limits())
    assert verdict.missed == missed
    assert verdict.passes == (not missed)


def test_slow_loads_may_be_slower_by_a_share() -> None:
    slow = replace(KPIS, delay_p95_ms=5000.0)
    for added, passes in ((49.0, True), (51.0, False)):
        verdict = judge(replace(slow, transitions=1, delay_p95_ms=5000.0 + added), slow, Limits())
        assert verdict.passes == passes


def test_sites() -> None:
    offered = np.array([[1.0, 8.0, 1.0], [9.0, 2.0, 8.5]])
    columns = {
        "controller": np.repeat(["weaver", "noctrl"], 6),
        "cell": np.tile([0, 0, 0, 1, 1, 1], 2),
        "hour": np.tile([0, 1, 2], 4),
        "offered_mbps": np.tile(offered.ravel(), 2),
        "spare_pct": np.concatenate([np.arange(6.0), np.full(6, -1.0)]),
        "smu_pct": np.concatenate([10.0 * np.arange(6), np.full(6, -1.0)]),
    }
    spare = peak_spare(columns, "weaver")
    assert (spare["busiest_site"], spare["busiest_hour"]) == (1, 0)
    assert spare["busiest_site_spare_reservation_pct"] == 3.0
    assert spare["busiest_site_spare_smu_pct"] == 70.0
    assert peak_overlap(columns, "weaver") == 0.0
    columns["offered_mbps"] = np.tile([[1, 8, 1, 9, 9, 1]], 2).ravel().astype(float)
    # site 0 peaks in hour 1, where site 1 does too; site 1 in hours 0 and 1, site 0 in one of them
    assert peak_overlap(columns, "weaver") == pytest.approx((1.0 + 0.5) / 2)


def test_distributions(run: CellRun) -> None:
    columns = distribution_columns("test", run, PlantConfig(), 800.0)
    of_kind = {kind: columns["kind"] == kind for kind in ("delay", "margin", "prb_mcs")}
    for kind in ("margin", "prb_mcs"):
        assert columns["share"][of_kind[kind]].sum() == pytest.approx(1.0)
    for ue in range(2):
        own = of_kind["delay"] & (columns["ue"] == ue)
        delays = run.packet_delay_us[(run.packet_ue == ue) & (run.packet_delay_us >= 0)] / 1e3
        x, share = columns["x"][own], columns["share"][own]
        assert (np.diff(x) >= 0).all()
        for at in (5, 15):
            later = (delays > x[at]).mean()
            assert later == pytest.approx(share[at], abs=0.02)
    # noctrl reserves what the table asks for: every decode keeps the budget
    assert columns["x"][of_kind["margin"]].min() >= -25.0
    rounds = columns["share"][columns["kind"] == "harq_round"]
    assert rounds[0] + rounds[1] == pytest.approx(1.0)
    assert 0.0 <= rounds[2] < 0.01


def test_the_yardstick_and_shared_gpus_as_rows(model: CellModel, run: CellRun) -> None:
    few = fewest_transitions(problem_of(run, model, 10.0), 1.05 * run.mean_sm, steps=4)
    rows = offline_columns("test", {10.0: few}, run.ul_slots)
    assert rows["within"].sum() == 1
    chosen = int(np.flatnonzero(rows["within"])[0])
    assert rows["transitions"][chosen] == few.plan.transitions
    assert rows["mean_sm"][chosen] <= 1.05 * run.mean_sm
    shared = shared_gpu_columns("noctrl", "summed", summed([run, run], 48))
    assert shared["cells"].tolist() == [2]
    assert shared["mean_sm"][0] == pytest.approx(2 * run.mean_sm)
    measured = performance_columns("test", 0, run)
    assert len(measured["measurement"]) == 2 * 5 + 7
