"""Covering overloaded stretches: candidates, the greedy choice, and fewer by search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ranloom.transport.cover import Cover, lessen, relieve, swap_in
from ranloom.transport.packet import Server
from ranloom.transport.points import Points, points_of
from ranloom.transport.windows import WindowRules

from .networks import demands, network_of, settings, star_of
from .test_packet import bound_holds

item = st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 12), st.integers(1, 6))


def instance(items) -> tuple[Cover, Points, list[tuple[int, int, int]], np.ndarray]:
    """Jobs of (site, release, time to deadline, work in s) on one bottleneck of 8 Gb/s."""
    rows = [(f"gnb_{k:02d}", w * 10**9, float(r), float(r + d)) for k, r, d, w in items]
    made = demands(rows)
    chosen = settings(circuit_gbps=1e6, setup_s=0.0)
    network = network_of(star_of(3), made, chosen)
    points = points_of(WindowRules(made, network, 0), network.pair_of(made))
    server = Server.of(np.arange(len(rows)), made.bytes, made.release_ns, made.deadline_ns, 8.0)
    jobs = [(r, d, w) for _, r, d, w in items]
    return Cover.of(server, points), points, jobs, server.rows


def uncovered(points: Points, chosen: np.ndarray, jobs) -> list[tuple[int, int, int]]:
    gone = {int(row) for p in np.flatnonzero(chosen) for row in points.riders(int(p))}
    return [job for k, job in enumerate(jobs) if k not in gone]


@given(st.lists(item, min_size=1, max_size=9))
@examples(max_examples=150, deadline=None)
def test_candidates_are_the_deadlines_inside_each_demands_time(items) -> None:
    _, points, jobs, _ = instance(items)
    for k, (r, d, _) in enumerate(jobs):
        mine = points.of_row[points.first[k] : points.first[k + 1]]
        site = items[k][0]
        expected = {
            other[1] + other[2]
            for other in items
            if other[0] == site and r < other[1] + other[2] <= r + d
        }
        assert set((points.due_ns[mine] // 10**9).tolist()) == expected
        assert all(k in points.riders(int(p)) for p in mine)


@given(st.lists(item, min_size=1, max_size=8))
@examples(max_examples=150, deadline=None)
def test_what_is_chosen_relieves_and_search_finds_no_more(items) -> None:
    cover, points, jobs, _ = instance(items)
    everything = np.ones(len(jobs), dtype=np.bool_)
    may_go = np.ones(len(points), dtype=np.bool_)
    chosen, fits = relieve(cover, everything.copy(), may_go, ~everything)
    assert fits
    assert bound_holds(uncovered(points, chosen, jobs))
    fewer = lessen(cover, everything, may_go, chosen, 60)
    assert bound_holds(uncovered(points, fewer, jobs))
    assert fewer.sum() <= chosen.sum()
    if bound_holds(jobs):
        assert not fewer.any()


def test_search_finds_the_fewest_by_enumeration_on_small_instances() -> None:
    rng = np.random.default_rng(9)
    greedy = found = best = 0
    for _ in range(60):
        items = [
            (
                int(rng.integers(3)),
                int(rng.integers(12)),
                int(rng.integers(2, 10)),
                int(rng.integers(1, 6)),
            )
            for _ in range(int(rng.integers(3, 9)))
        ]
        cover, points, jobs, _ = instance(items)
        everything = np.ones(len(jobs), dtype=np.bool_)
        may_go = np.ones(len(points), dtype=np.bool_)
        chosen, _ = relieve(cover, everything.copy(), may_go, ~everything)
        greedy += int(chosen.sum())
        found += int(lessen(cover, everything, may_go, chosen, 200).sum())
        for count in range(len(points) + 1):
            picks = combinations(range(len(points)), count)
            if any(
                bound_holds(uncovered(points, np.isin(np.arange(len(points)), pick), jobs))
                for pick in picks
            ):
                best += count
                break
    assert best == found <= greedy


@given(st.lists(item, min_size=2, max_size=9))
@examples(max_examples=150, deadline=None)
def test_swapping_in_serves_more_and_still_fits(items) -> None:
    cover, _, _, _ = instance(items)
    server, everything = cover.server, np.ones(len(items), dtype=np.bool_)
    chosen = ~everything
    for k in np.argsort(server.work):  # the worst way to choose: the smallest first
        chosen[k] = True
        chosen[k] = server.fits(chosen)
    better = swap_in(cover, chosen, everything)
    assert server.fits(better)
    assert server.work[better].sum() >= server.work[chosen].sum()
    fixed = swap_in(cover, chosen, ~chosen)
    assert fixed[chosen].all()  # those that may not go out stay


def test_one_large_comes_in_for_several_small() -> None:
    # Ten seconds: four times 2 are in and 9 waits; with it there is room for none of them.
    cover, _, _, _ = instance([(0, 0, 10, 2)] * 4 + [(1, 0, 10, 9)])
    small = cover.server.work < 9 * 10**9
    assert (swap_in(cover, small, np.ones(5, dtype=np.bool_)) == ~small).all()


def test_largest_load_goes_first_and_the_least_that_suffices_is_shed() -> None:
    # Due at 10: sites 0, 1, 1 and 2 with 5, 3, 3 and 4 s of work: five too many.
    items = [(0, 0, 10, 5), (1, 0, 10, 3), (1, 0, 10, 3), (2, 0, 10, 4)]
    cover, points, _, rows = instance(items)
    alive = np.ones(4, dtype=np.bool_)
    chosen, _ = relieve(cover, alive, np.ones(3, dtype=np.bool_), np.ones(4, dtype=np.bool_))
    assert sorted(points.riders(int(np.flatnonzero(chosen)[0])).tolist()) == [1, 2]
    assert sorted(rows[alive].tolist()) == [0, 3]
    alive = np.ones(4, dtype=np.bool_)
    relieve(cover, alive, np.zeros(3, dtype=np.bool_), np.ones(4, dtype=np.bool_))
    assert sorted(rows[alive].tolist()) == [1, 2, 3]
