"""Packet admission against the demand bound written out, and against a linear program."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ranloom.transport.packet import Server, work_ns
from ranloom.transport.packet_routes import fluid_edf

Jobs = list[tuple[int, int, int]]  # release, time to deadline, work

job = st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 8))


def bound_holds(jobs: Jobs) -> bool:
    """The demand bound, interval by interval."""
    for start in {r for r, _, _ in jobs}:
        for end in {r + d for r, d, _ in jobs}:
            inside = sum(w for r, d, w in jobs if r >= start and r + d <= end)
            if end > start and inside > end - start:
                return False
    return True


def server(jobs: Jobs) -> Server:
    release, span, work = (np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True))
    # 8 bytes at 64 Gb/s take 1 ns.
    rows = np.arange(len(jobs), dtype=np.int64)
    return Server.of(rows, 8 * work, release, release + span, 64.0)


def alive(count: int) -> np.ndarray:
    return np.ones(count, dtype=np.bool_)


@given(st.lists(job, min_size=1, max_size=9))
@settings(max_examples=300, deadline=None)
def test_edf_fits_exactly_what_the_demand_bound_allows(jobs: Jobs) -> None:
    assert server(jobs).fits(alive(len(jobs))) == bound_holds(jobs)


@given(st.lists(job, min_size=1, max_size=9))
@settings(max_examples=200, deadline=None)
def test_schedule_serves_one_at_a_time_between_release_and_deadline(jobs: Jobs) -> None:
    made = server(jobs)
    if not made.fits(alive(len(jobs))):
        return
    finish, segments = made.schedule(alive(len(jobs)))
    order = np.argsort(segments.start_ns)
    assert (segments.start_ns[order][1:] >= segments.end_ns[order][:-1]).all()
    for entry, row in enumerate(made.rows):
        release, span, work = jobs[row]
        mine = segments.row == row
        assert (segments.end_ns - segments.start_ns)[mine].sum() == work
        assert segments.start_ns[mine].min() >= release
        assert segments.end_ns[mine].max() == finish[entry] <= release + span


def test_work_is_rounded_up() -> None:
    assert work_ns(np.array([1, 125, 126], dtype=np.int64), 1.0).tolist() == [8, 1000, 1008]
    assert work_ns(np.array([1], dtype=np.int64), 100.0).tolist() == [1]


def lp_fits(jobs: Jobs, route: list[int], routes: tuple[tuple[int, ...], ...], cap: list[float]):
    """Whether some fluid schedule over all links meets the deadlines: a linear program."""
    edges = sorted({t for r, d, _ in jobs for t in (r, r + d)})
    spans = list(pairwise(edges))
    columns = [(k, s) for k in range(len(jobs)) for s in range(len(spans))]
    bounds = []
    for k, s in columns:
        r, d, _ = jobs[k]
        inside = spans[s][0] >= r and spans[s][1] <= r + d
        bounds.append((0, None if inside else 0))
    a_ub, b_ub = [], []
    for link in range(len(cap)):
        for s, (a, b) in enumerate(spans):
            a_ub.append([float(c == s and link in routes[route[k]]) for k, c in columns])
            b_ub.append(cap[link] * (b - a))
    a_eq = [[float(c == k) for c, _ in columns] for k in range(len(jobs))]
    b_eq = [float(w) for _, _, w in jobs]
    found = linprog(np.zeros(len(columns)), a_ub, b_ub, a_eq, b_eq, bounds, method="highs")
    return found.status == 0


@given(st.lists(st.tuples(job, st.integers(0, 1)), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None)
def test_routes_with_several_bottlenecks_never_promise_too_much(items) -> None:
    jobs = [item[0] for item in items]
    route = [item[1] for item in items]
    routes, capacity = ((0, 2), (1, 2)), [0.5, 0.75, 1.0]
    release, span, work = (np.array(c, dtype=np.int64) for c in zip(*jobs, strict=True))
    finish, segments, late = fluid_edf(
        release,
        release + span,
        work,  # one byte at 1 Gb/s is 8 ns: scale the capacity instead
        np.array(route, dtype=np.int64),
        routes,
        8.0 * np.array(capacity),
        stop_when_late=True,
    )
    if late >= 0:
        return
    assert (finish <= release + span).all()
    assert lp_fits(jobs, route, routes, capacity)
    # The segments keep to every link at every instant and carry every byte.
    for time in np.unique(segments.start_ns):
        now = (segments.start_ns <= time) & (segments.end_ns > time)
        for link, limit in enumerate(capacity):
            users = [link in routes[route[row]] for row in segments.row[now]]
            assert segments.gbps[now][users].sum() <= 8.0 * limit + 1e-9
    sent = np.bincount(
        segments.row,
        (segments.end_ns - segments.start_ns) * segments.gbps,
        minlength=len(jobs),
    )
    assert (sent >= 8.0 * work - 1e-6).all()


def test_server_keeps_rows_of_the_caller() -> None:
    made = Server.of(
        np.array([4, 2], dtype=np.int64),
        np.array([0, 0, 80, 0, 160], dtype=np.int64),
        np.array([0, 0, 5, 0, 0], dtype=np.int64),
        np.array([0, 0, 30, 0, 40], dtype=np.int64),
        64.0,
    )
    assert made.rows.tolist() == [4, 2]
    finish, segments = made.schedule(alive(2))
    # 4 sends 0..5, is preempted by 2 (due earlier) until 15, and ends at 30.
    assert finish.tolist() == [30, 15]
    assert segments.row.tolist() == [4, 2, 4]
    assert segments.start_ns.tolist() == [0, 5, 15]


def test_schedule_of_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AssertionError):
        server([(0, 1, 5)]).schedule(alive(1))
