"""Strategies against each other, execution on realised releases, energy and use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ranloom.transport.baselines import (
    AGGREGATE_ALWAYS_WINDOW,
    AGGREGATE_PACKET,
    AGGREGATE_SELECTIVE,
    AGGREGATE_STRATEGIES,
    aggregate_plan,
    per_ue_packet,
    per_ue_static_circuits,
)
from ranloom.transport.calendar import calendar_of
from ranloom.transport.demands import Demands
from ranloom.transport.execution import execute
from ranloom.transport.forecast import regret
from ranloom.transport.measures import PortPower, measures
from ranloom.transport.plan import MISSED, PACKET, WINDOW
from ranloom.transport.play import Background, background_streams, play
from ranloom.transport.validator import validate

from .networks import demands, network_of, random_instance, settings, star_of

S = 1_000_000_000
POWER = PortPower(transponder_w=60.0, packet_port_w=12.0)


def shifted(made: Demands, seconds: float, rows: slice = slice(None)) -> Demands:
    release = made.release_ns.copy()
    release[rows] += round(seconds * S)
    return made.released(release)


def test_flows_share_the_granted_rate_and_the_late_ones_are_missed() -> None:
    # 10 Mb/s shared by two flows of 1.25 MB: half each, done at 2 s; the third comes later.
    made = demands(
        [
            ("gnb_00", 1_250_000, 0.0, 1.5),
            ("gnb_00", 1_250_000, 0.0, 3.0),
            ("gnb_00", 1_250_000, 10.0, 12.0),
        ]
    )
    plan = per_ue_packet(made, network_of(star_of(1), made, settings(packet_share=0.001)))
    assert plan.finish_ns / S == pytest.approx([2.0, 2.0, 11.0])
    assert plan.mode.tolist() == [MISSED, PACKET, PACKET]
    assert plan.missed_bytes == 1_250_000


def test_static_circuits_are_held_for_the_whole_time_by_the_busiest_sites() -> None:
    rows = [(f"gnb_{k:02d}", (k + 1) * 10**8, 20.0, 100.0) for k in range(4)]
    made = demands(rows)
    chosen = settings(circuit_gbps=8.0, setup_s=5.0, hub_ports=2, packet_share=0.001)
    plan = per_ue_static_circuits(made, network_of(star_of(4), made, chosen))
    assert sorted(w.source for w in plan.windows) == ["gnb_02", "gnb_03"]
    assert all((w.start_ns, w.end_ns) == (15 * S, 100 * S) for w in plan.windows)
    assert plan.finish_ns[3] == round(20.4 * S)
    assert plan.mode.tolist() == [PACKET, MISSED, WINDOW, WINDOW]  # 80 s and 160 s at 10 Mb/s
    assert validate(calendar_of(plan, shaped=False), made, star_of(4), chosen) == []


@pytest.mark.parametrize("seed", range(8))
def test_selective_misses_no_more_than_either_pure_strategy(seed: int) -> None:
    made, topology, chosen = random_instance(300 + seed)
    network = network_of(topology, made, chosen)
    plans = {s: aggregate_plan(s, made, network, effort=300) for s in AGGREGATE_STRATEGIES}
    assert plans[AGGREGATE_PACKET].setups == 0
    assert not (plans[AGGREGATE_ALWAYS_WINDOW].mode == PACKET).any()
    best = min(plans[s].missed_bytes for s in (AGGREGATE_PACKET, AGGREGATE_ALWAYS_WINDOW))
    assert plans[AGGREGATE_SELECTIVE].missed_bytes <= best


def mixed() -> tuple[Demands, object]:
    """Five demands of a site of which packets carry one: a window for the others."""
    made = demands([("gnb_00", 10**7, 5.0, 20.0)] * 5)
    return made, network_of(star_of(1), made, settings(packet_share=0.001, setup_s=1.0))


def test_execution_without_slips_is_the_plan() -> None:
    for seed in range(6):
        made, topology, chosen = random_instance(400 + seed)
        network = network_of(topology, made, chosen)
        plan = aggregate_plan(AGGREGATE_SELECTIVE, made, network, effort=300)
        done = execute(plan, made, network)
        assert done.missed_bytes <= plan.missed_bytes
        kept = plan.mode != MISSED
        assert (done.mode[kept] == plan.mode[kept]).all()
        riding = plan.mode == WINDOW
        assert (done.finish_ns[riding] == plan.finish_ns[riding]).all()
        assert validate(calendar_of(done, shaped=True), made, topology, chosen) == []


def test_early_releases_never_hurt_and_windows_stay_where_they_are() -> None:
    made, network = mixed()
    plan = aggregate_plan(AGGREGATE_SELECTIVE, made, network, effort=300)
    done = execute(plan, shifted(made, -4.0), network)
    assert done.missed_bytes == 0
    assert [(w.start_ns, w.end_ns) for w in done.windows] == [
        (w.start_ns, w.end_ns) for w in plan.windows
    ]


@pytest.mark.parametrize(("earlier_s", "mode"), [(0.0, MISSED), (4.0, PACKET)])
def test_a_late_rider_falls_back_to_packets_if_they_have_room(earlier_s: float, mode: int) -> None:
    made, network = mixed()
    plan = aggregate_plan(AGGREGATE_SELECTIVE, made, network, effort=300)
    riders = np.flatnonzero(plan.mode == WINDOW)
    # A packet takes 8 s. From 5 s to 20 s there is room for one, from 1 s for two.
    release = made.release_ns.copy()
    release[plan.mode == PACKET] -= round(earlier_s * S)
    release[riders[0]] = plan.windows[0].end_ns
    realised = made.released(release)
    done = execute(plan, realised, network)
    assert done.window_of[riders[0]] == -1
    assert done.mode[riders].tolist() == [mode, WINDOW, WINDOW, WINDOW]
    calendar = calendar_of(done, shaped=True)
    assert validate(calendar, realised, star_of(1), network.settings) == []


def test_late_packets_do_not_push_out_those_on_time() -> None:
    made = demands([("gnb_00", 10**7, 0.0, 9.0), ("gnb_00", 10**7, 8.0, 18.0)])
    network = network_of(star_of(1), made, settings(packet_share=0.001))
    plan = aggregate_plan(AGGREGATE_PACKET, made, network, effort=0)
    assert plan.missed_bytes == 0
    done = execute(plan, shifted(made, 3.0, slice(0, 1)), network)
    assert done.mode.tolist() == [MISSED, PACKET]
    done = execute(plan, shifted(made, 0.9, slice(0, 1)), network)
    assert done.mode.tolist() == [PACKET, PACKET]


def test_without_packets_a_late_rider_is_missed() -> None:
    made, network = mixed()
    plan = aggregate_plan(AGGREGATE_ALWAYS_WINDOW, made, network, effort=0)
    late = made.release_ns.copy()
    late[0] = plan.windows[0].end_ns
    done = execute(plan, made.released(late), network, packet=False)
    assert done.mode.tolist() == [MISSED] + [WINDOW] * 4


def test_regret_is_the_difference_to_the_oracle() -> None:
    made, network = mixed()
    oracle = aggregate_plan(AGGREGATE_SELECTIVE, made, network, effort=300)
    same = regret(oracle, oracle)
    assert (same.missed_pct, same.setups, same.circuit_seconds) == (0.0, 0, 0.0)
    worse = replace(oracle, mode=np.full(5, MISSED, dtype=np.int8), windows=())
    costs = regret(worse, oracle)
    assert costs.missed_pct == 100.0
    assert costs.setups == -1
    assert costs.circuit_seconds == pytest.approx(-oracle.circuit_ns / S)


def test_energy_and_use_by_hand() -> None:
    # One window: 1 s set-up and 1 s of sending at 8 Gb/s, two transponders of 60 W.
    made = demands([("gnb_00", 10**9, 0.0, 9.0), ("gnb_01", 1_250_000, 0.0, 9.0)])
    chosen = settings(circuit_gbps=8.0, packet_share=0.001)
    network = network_of(star_of(2), made, chosen)
    plan = aggregate_plan(AGGREGATE_SELECTIVE, made, network, effort=0)
    numbers = measures(plan, network, POWER)
    assert numbers["circuit_seconds"] == 2.0
    assert numbers["utilisation_pct"] == pytest.approx(50.0)
    # 10 Mbit on one hop of 10 Gb/s keep two ports busy for 1 ms.
    assert numbers["energy_kj"] == pytest.approx((2 * 60 * 2.0 + 2 * 12 * 1e-3) / 1e3)
    assert (numbers["setups"], numbers["missed_bytes"], numbers["flows"]) == (1, 0, 2)


BACKGROUND = Background(
    load=0.5, stream_mbps=100, mean_stream_s=5, buffer_ms=50, flow_mbps=1000, bin_ms=100
)


@pytest.mark.parametrize("strategy", AGGREGATE_STRATEGIES)
def test_planned_and_simulated_arrival_agree_when_nothing_slips(strategy: str) -> None:
    made, topology, chosen = random_instance(500)
    network = network_of(topology, made, chosen)
    plan = aggregate_plan(strategy, made, network, effort=300)
    streams = background_streams(network, BACKGROUND, 300.0, np.random.default_rng(1))
    result = play(plan, network, streams, BACKGROUND, shaped=True)
    sent = plan.finish_ns >= 0
    assert sent.any()
    # Rates are whole nanoseconds; a demand that fits into them fits into the simulation.
    assert np.abs(result.plan.finish_ns[sent] - plan.finish_ns[sent]).max() <= 1_000
    assert (result.plan.mode == plan.mode).all()


def test_elastic_flows_beside_background_are_slower_than_alone() -> None:
    made = demands([("gnb_00", 125_000_000, 0.0, 100.0)])
    network = network_of(star_of(1), made, settings(packet_share=0.01))
    plan = per_ue_packet(made, network)
    quiet = replace(BACKGROUND, load=0.0)
    rng = np.random.default_rng(1)
    alone = play(plan, network, background_streams(network, quiet, 60.0, rng), quiet, shaped=False)
    assert alone.plan.finish_ns[0] == pytest.approx(1.0 * S)  # a UE's flow gets 1 Gb/s
    busy = replace(BACKGROUND, load=1.0, flow_mbps=10_000)
    streams = background_streams(network, busy, 60.0, rng)
    beside = play(plan, network, streams, busy, shaped=False)
    assert beside.plan.finish_ns[0] > 2 * S
    assert beside.fluid.background_loss_pct > 0
