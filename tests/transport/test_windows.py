"""Window durations, clusters, placement and wavelengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ranloom.transport.generators import ring
from ranloom.transport.occupancy import Occupancy
from ranloom.transport.reservation import Reservation
from ranloom.transport.topology import LinkDefaults
from ranloom.transport.wavelengths import colour_intervals, counting_suffices
from ranloom.transport.windows import Job, WindowRules, orders

from .networks import demands, network_of, settings, star_of

S = 1_000_000_000


def rules(rows, **changes) -> WindowRules:
    made = demands(rows)
    return WindowRules(made, network_of(star_of(3), made, settings(**changes)), 0)


def every(made: WindowRules) -> np.ndarray:
    return np.arange(len(made.demands), dtype=np.int64)


def test_window_lasts_setup_and_transmission_and_starts_so_late_that_light_never_waits() -> None:
    # At 8 Gb/s a gigabyte takes one second.
    made = rules(
        [("gnb_00", 10**9, 10.0, 60.0), ("gnb_00", 2 * 10**9, 40.0, 90.0)],
        circuit_gbps=8.0,
        setup_s=5.0,
    )
    job = made.job(0, every(made))
    assert job.length_ns == (5 + 1 + 2) * S
    assert job.first_start_ns == (42 - 8) * S  # the second rider ends at 42 at the earliest
    assert job.last_start_ns == (60 - 8) * S  # the first deadline
    # Started at the earliest: set-up until 39, the first rider until 40, the second until 42.
    assert made.rider_finish_ns(job, job.first_start_ns).tolist() == [40 * S, 42 * S]


def test_window_may_be_set_up_before_the_release_but_not_before_now() -> None:
    made = rules([("gnb_00", 10**9, 3.0, 60.0)], circuit_gbps=8.0, setup_s=5.0)
    job = made.job(0, every(made))
    assert job.first_start_ns == 0
    late = WindowRules(
        made.demands, network_of(star_of(3), made.demands, settings(setup_s=5.0)), 7 * S
    )
    assert late.job(0, every(made)).first_start_ns == 7 * S


def test_riders_whose_times_do_not_meet_cannot_share() -> None:
    made = rules([("gnb_00", 10**9, 0.0, 20.0), ("gnb_00", 10**9, 21.0, 60.0)], setup_s=1.0)
    assert not made.job(0, every(made)).feasible
    cluster, count = made.clusters(np.zeros(2, dtype=np.int64))
    assert count == 2
    assert sorted(cluster.tolist()) == [0, 1]


def test_clusters_are_fewest_for_long_slack() -> None:
    rows = [
        ("gnb_00", 10**6, 0.0, 30.0),
        ("gnb_00", 10**6, 10.0, 50.0),
        ("gnb_00", 10**6, 29.0, 100.0),
        ("gnb_00", 10**6, 40.0, 90.0),
        ("gnb_00", 10**6, 89.0, 200.0),
    ]
    made = rules(rows)
    cluster, count = made.clusters(np.zeros(5, dtype=np.int64))
    assert count == 2  # points 30 and 90 stab all
    assert cluster.tolist() == [0, 0, 0, 1, 1]


def test_hopeless_demand_has_no_cluster() -> None:
    made = rules([("gnb_00", 10**9, 0.0, 5.0)], setup_s=10.0)
    assert made.clusters(np.zeros(1, dtype=np.int64)) == (pytest.approx([-1]), 0)


def placing(sites: int, rows, wavelengths: int = 4, reservations=(), **changes):
    made = demands(rows)
    network = network_of(star_of(sites, wavelengths), made, settings(**changes))
    rule = WindowRules(made, network, 0)
    pair_of = network.pair_of(made)
    jobs = [rule.job(int(pair_of[k]), np.array([k])) for k in range(len(made))]
    per_pair = np.bincount(pair_of, minlength=len(network.pairs))
    return jobs, Occupancy(network, per_pair, reservations)


def test_hub_ports_are_shared_with_the_guard_between() -> None:
    rows = [(f"gnb_{k:02d}", 10**9, 0.0, 100.0) for k in range(3)]
    jobs, occupancy = placing(3, rows, circuit_gbps=8.0, setup_s=1.0, guard_s=0.5, hub_ports=2)
    starts = [seat.start_ns for job in jobs if (seat := occupancy.seat(job))]
    assert starts == [0, 0, int(2.5 * S)]


def test_site_port_is_shared_and_lifted_windows_leave_room() -> None:
    rows = [("gnb_00", 10**9, 0.0, 100.0)] * 3
    jobs, occupancy = placing(1, rows, circuit_gbps=8.0, setup_s=1.0, guard_s=0.0, hub_ports=4)
    seats = [occupancy.seat(job) for job in jobs]
    assert [seat.start_ns for seat in seats if seat] == [0, 2 * S, 4 * S]
    assert seats[1] is not None
    occupancy.lift(jobs[1], seats[1])
    again = occupancy.seat(jobs[1])
    assert again == seats[1]
    occupancy.clear()
    assert occupancy.seat(jobs[2]) == seats[0]


def test_no_place_before_the_deadline_is_no_place() -> None:
    rows = [("gnb_00", 10**9, 0.0, 3.0)] * 2
    jobs, occupancy = placing(1, rows, circuit_gbps=8.0, setup_s=1.0, guard_s=0.0)
    assert occupancy.seat(jobs[0]) is not None
    assert occupancy.seat(jobs[1]) is None


def test_reserved_channels_and_ports_are_left_alone() -> None:
    rows = [("gnb_00", 10**9, 0.0, 100.0)]
    link = (("gnb_00", "core"),)
    channel = Reservation((), link, 0, 0, 50 * S)
    jobs, occupancy = placing(1, rows, reservations=(channel,))
    seat = occupancy.seat(jobs[0])
    assert seat is not None
    assert (seat.channel, seat.start_ns) == (1, 0)
    port = Reservation(("gnb_00",), (), 3, 0, 50 * S)
    jobs, occupancy = placing(1, rows, reservations=(channel, port))
    seat = occupancy.seat(jobs[0])
    assert seat is not None
    assert (seat.channel, seat.start_ns) == (0, 50 * S)


def test_counting_suffices_only_where_paths_run_together() -> None:
    links = LinkDefaults(10.0, 4)
    topology = ring(6, 8.0, links, sites_per_office=1, spur_km=2.0)
    made = demands([(f"gnb_{k:02d}", 10**6, 0.0, 9.0) for k in range(6)])
    assert counting_suffices(network_of(topology, made, settings(candidate_paths=1)))
    # Both ways round: a site's spur is followed by one of two fibres.
    assert not counting_suffices(network_of(topology, made, settings(candidate_paths=2)))
    uneven = topology.graph.copy()
    uneven.edges["gnb_00", "agg_00"]["wavelengths"] = 2
    assert not counting_suffices(
        network_of(type(topology)(uneven, topology.hub), made, settings(candidate_paths=1))
    )


intervals = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 15)), min_size=1, max_size=25
)


@given(intervals)
@examples(max_examples=200, deadline=None)
def test_colouring_needs_as_many_channels_as_windows_overlap(items) -> None:
    link, start, length = (np.array(c, dtype=np.int64) for c in zip(*items, strict=True))
    end = start + length
    channel = colour_intervals(link, start, end)
    for which in set(link.tolist()):
        mine = np.flatnonzero(link == which)
        most = max(((start[mine] <= t) & (end[mine] > t)).sum() for t in start[mine])
        assert channel[mine].max() + 1 == most
        for a in mine:
            for b in mine:
                if a < b and channel[a] == channel[b]:
                    assert end[a] <= start[b] or end[b] <= start[a]


def test_orders_are_permutations_without_repeats() -> None:
    jobs = [Job(0, np.array([k]), 5 - k, k, 10 + k, k) for k in range(4)]
    found = orders(jobs)
    assert 1 < len(found) <= 6
    assert all(sorted(order.tolist()) == [0, 1, 2, 3] for order in found)
    assert len({order.tobytes() for order in found}) == len(found)
