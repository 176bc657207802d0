"""Rolling re-planning: commitments stay, the rest moves, and no answer is worse than going on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.transport.calendar import calendar_of
from ranloom.transport.demands import Demands, ForecastDemands
from ranloom.transport.execution import execute
from ranloom.transport.generators import ring
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan
from ranloom.transport.planner import plan_transfers
from ranloom.transport.replan import ReplanRules, RollingPlan
from ranloom.transport.reservation import Reservation
from ranloom.transport.rolling import Faults, roll
from ranloom.transport.topology import LinkDefaults
from ranloom.transport.validator import validate

from .networks import demands, network_of, random_instance, settings, star_of

S = 1_000_000_000
RULES = ReplanRules(effort=100)


def forecast_of(plan: Plan, realised: Demands) -> ForecastDemands:
    """A forecast whose P95 is what the plan was made on, with a margin of 5 s."""
    p95 = plan.demands.release_ns
    return ForecastDemands(realised, p95 - 5 * S, p95)


def slipping(made: Demands, seed: int) -> Demands:
    """One in six releases is later than planned, the others a little earlier."""
    rng = np.random.default_rng(seed)
    late = rng.random(len(made)) < 1 / 6
    shift = np.where(late, rng.exponential(20.0, len(made)), -rng.exponential(5.0, len(made)))
    return made.released(np.maximum(0, made.release_ns + np.round(shift * S).astype(np.int64)))


def test_nothing_slips_and_the_plan_is_what_happens() -> None:
    for seed in (600, 601):
        made, topology, chosen = random_instance(seed)
        network = network_of(topology, made, chosen)
        plan = plan_transfers(made, network, strategy="x", effort=200)
        rolled = roll(plan, forecast_of(plan, made), topology, network, RULES)
        assert rolled.choices == ()
        assert rolled.plan.windows == plan.windows
        assert (rolled.plan.mode == plan.mode).all()
        assert (rolled.plan.finish_ns == plan.finish_ns).all()


def test_slips_cost_less_with_replanning_than_without() -> None:
    with_it = without = 0
    for seed in (2, 24, 39, 42, 43):
        made, topology, chosen = random_instance(seed, most=40)
        network = network_of(topology, made, chosen)
        plan = plan_transfers(made, network, strategy="x", effort=200)
        realised = slipping(made, seed)
        rolled = roll(plan, forecast_of(plan, realised), topology, network, RULES)
        assert rolled.never_worse
        assert any(choice.chosen < choice.kept for choice in rolled.choices) or not len(
            plan.windows
        )
        calendar = calendar_of(rolled.plan, shaped=True)
        assert validate(calendar, realised, topology, chosen) == []
        fixed = execute(plan, realised, network)
        assert rolled.plan.missed_bytes <= fixed.missed_bytes
        with_it += rolled.plan.missed_bytes
        without += fixed.missed_bytes
    assert with_it < 0.5 * without


def two_windows() -> tuple[Plan, Demands, object, object]:
    """Two sites, one transponder at the hub, 1 s of set-up, a second of sending each."""
    made = demands([("gnb_00", 10**9, 10.0, 20.0), ("gnb_01", 10**9, 20.0, 40.0)])
    chosen = settings(circuit_gbps=8.0, packet_share=1e-5, hub_ports=1)
    topology = star_of(2)
    network = network_of(topology, made, chosen)
    plan = plan_transfers(made, network, strategy="x")
    assert [(w.start_ns, w.end_ns) for w in plan.windows] == [(9 * S, 11 * S), (19 * S, 21 * S)]
    return plan, made, topology, network


def test_a_committed_window_stays_and_a_later_one_moves_with_its_demand() -> None:
    plan, _, topology, network = two_windows()
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(9 * S)
    rolling.learn(1, 25 * S)
    choice = rolling.replan()
    # Going on, the second window would be missed by its demand.
    assert (choice.kept[0], choice.chosen[0], choice.moved) == (10**9, 0, 1)
    rolling.advance(100 * S)
    result = rolling.result()
    assert [(w.start_ns, w.end_ns) for w in result.windows] == [(9 * S, 11 * S), (24 * S, 26 * S)]
    assert result.finish_ns.tolist() == [11 * S, 26 * S]
    assert result.missed_bytes == 0


def test_a_rider_that_slips_out_of_a_committed_window_gets_another() -> None:
    plan, _, topology, network = two_windows()
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(9 * S + 1)
    rolling.learn(0, 12 * S)
    assert rolling.replan().chosen[:2] == (0, 2)
    rolling.advance(100 * S)
    result = rolling.result()
    # The light that was lit for it shines in vain; set-up of the next can precede its release.
    assert [w.bytes for w in result.windows] == [0, 10**9, 10**9]
    assert result.windows[1].start_ns == 11 * S + network.settings.guard_ns
    assert result.missed_bytes == 0


def test_room_that_a_slipped_rider_leaves_is_given_to_a_waiting_one() -> None:
    made = demands([("gnb_00", 10**9, 10.0, 13.0), ("gnb_00", 10**9, 30.0, 40.0)])
    chosen = settings(circuit_gbps=8.0, packet_share=1e-5)
    topology = star_of(1)
    network = network_of(topology, made, chosen)
    plan = plan_transfers(made, network, strategy="x")
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(10 * S)
    rolling.learn(0, 50 * S)
    rolling.learn(1, 10 * S)
    rolling.replan()
    rolling.advance(100 * S)
    result = rolling.result()
    assert result.mode.tolist() == [MISSED, WINDOW]
    assert (result.setups, result.finish_ns[1]) == (1, 11 * S)


def test_a_failed_set_up_is_set_up_again_on_a_port_that_is_free() -> None:
    plan, made, topology, network = two_windows()
    rolled = roll(plan, forecast_of(plan, made), topology, network, RULES, Faults((0,)))
    first, again, second = rolled.plan.windows
    assert (first.start_ns, first.end_ns, first.bytes) == (9 * S, 10 * S, 0)
    assert again.start_ns >= first.end_ns + network.settings.guard_ns
    assert rolled.plan.missed_bytes == 0
    assert second.bytes == 10**9
    calendar = calendar_of(rolled.plan, shaped=True)
    assert validate(calendar, made, topology, network.settings) == []


def test_a_cut_fibre_moves_windows_and_packets_to_the_other_way() -> None:
    links = LinkDefaults(10.0, 1)
    topology = ring(4, 8.0, links, sites_per_office=1, spur_km=2.0)
    # A window for the first; packets of 10 Mb/s take 8 s for each of the others.
    made = demands(
        [("gnb_00", 10**9, 0.0, 30.0), ("gnb_00", 10**7, 0.0, 60.0), ("gnb_01", 10**7, 0.0, 60.0)]
    )
    chosen = settings(circuit_gbps=8.0, candidate_paths=2, packet_share=1e-3)
    network = network_of(topology, made, chosen)
    plan = plan_transfers(made, network, strategy="x")
    assert plan.mode.tolist() == [WINDOW, PACKET, PACKET]
    (window,) = plan.windows
    a, b = window.path[-2:]
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(window.start_ns + S)
    rolling.cut(a, b)
    assert rolling.replan().chosen[:2] == (0, 1)
    upcoming = rolling.upcoming()
    assert {a, b} not in [set(hop) for w in upcoming.windows for hop in pairwise(w.path)]
    calendar = calendar_of(upcoming, shaped=True)
    known = rolling.reservations()
    assert validate(calendar, upcoming.demands, rolling.topology, chosen, known) == []
    rolling.advance(100 * S)
    result = rolling.result()
    assert result.missed_bytes == 0
    assert result.setups == 2
    # What was sent before the cut need not be sent again.
    sent = np.bincount(
        result.segments.row,
        weights=(result.segments.end_ns - result.segments.start_ns) * result.segments.gbps,
    )
    assert sent[1:] == pytest.approx(8e7, rel=1e-6)


def test_a_site_that_is_cut_off_misses_what_it_has_left() -> None:
    plan, _, topology, network = two_windows()
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(5 * S)
    rolling.cut("gnb_00", "core")
    choice = rolling.replan()
    assert choice.chosen == choice.kept == (10**9, 1, 2 * S)
    rolling.advance(100 * S)
    assert rolling.result().mode.tolist() == [MISSED, WINDOW]


def test_a_transfer_that_has_begun_as_packets_does_not_change_to_a_window() -> None:
    # 10 Mb/s: 10 MB take 8 s; a second one of the same site is released late and urgent.
    made = demands([("gnb_00", 10**7, 0.0, 9.0), ("gnb_00", 10**7, 100.0, 120.0)])
    chosen = settings(circuit_gbps=8.0, packet_share=1e-3)
    topology = star_of(1)
    network = network_of(topology, made, chosen)
    plan = plan_transfers(made, network, strategy="x")
    assert plan.mode.tolist() == [PACKET, PACKET]
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(2 * S)
    rolling.learn(1, 2 * S)
    rolling.replan()
    assert rolling.upcoming().demands.bytes.tolist() == [7_500_000, 10**7]
    assert rolling.upcoming().mode.tolist() == [PACKET, PACKET]
    rolling.advance(200 * S)
    assert rolling.result().finish_ns.tolist() == [8 * S, 16 * S]


def test_what_others_reserved_is_respected_when_windows_move() -> None:
    plan, _, topology, network = two_windows()
    theirs = Reservation(("core",), (), 0, 24 * S, 33 * S)
    rules = ReplanRules(effort=100, reservations=(theirs,))
    rolling = RollingPlan(plan, topology, network, rules)
    rolling.advance(9 * S)
    rolling.learn(1, 25 * S)
    rolling.replan()
    rolling.advance(100 * S)
    assert rolling.result().windows[1].start_ns == 33 * S


def test_announced_windows_are_committed_with_notice() -> None:
    plan, _, topology, network = two_windows()
    rolling = RollingPlan(plan, topology, network, ReplanRules(effort=100, notice_ns=5 * S))
    assert rolling.next_start_ns() == 4 * S
    rolling.advance(15 * S)
    assert len(rolling.committed()) == 2
    rolling.learn(1, 25 * S)
    assert rolling.replan().chosen[:2] == (0, 1)
    rolling.advance(100 * S)
    # The announced one stays, in vain; the new one is announced 5 s ahead as well.
    assert [w.bytes for w in rolling.result().windows] == [10**9, 0, 10**9]


def test_time_that_runs_backwards_and_unknown_fibres_are_refused() -> None:
    plan, made, topology, network = two_windows()
    rolling = RollingPlan(plan, topology, network, RULES)
    rolling.advance(5 * S)
    with pytest.raises(InputError, match="to_ns"):
        rolling.advance(4 * S)
    with pytest.raises(InputError, match="cut link"):
        rolling.cut("gnb_00", "gnb_01")
    cuts = Faults(cuts=((S, "gnb_00", "nowhere"),))
    with pytest.raises(InputError, match="nowhere"):
        roll(plan, forecast_of(plan, made), topology, network, RULES, cuts)
