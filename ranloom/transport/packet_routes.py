"""Packet schedule over routes with several binding links.

There the demand bound of each link is necessary, not sufficient. Earliest deadline first
over all links at once builds a schedule; where it meets every deadline, the schedule itself
is the proof. It may refuse sets that a linear program would carry: it never promises what
it cannot keep.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ranloom.transport.demands import FloatArray, IntArray
from ranloom.transport.packet import Segments


@njit(cache=True)
def _fluid_edf(
    release: IntArray,
    deadline: IntArray,
    size_bits: FloatArray,
    order: IntArray,
    start: IntArray,
    routes: IntArray,
    route_of: IntArray,
    capacity: FloatArray,
    finish: IntArray,
    segments: IntArray,
    gbps: FloatArray,
    stop_when_late: bool,
) -> tuple[int, int]:
    """EDF on several links at once; see :func:`fluid_edf`. Returns (segments, first late)."""
    n = len(release)
    left = size_bits.copy()
    done = np.zeros(n, dtype=np.bool_)
    free = capacity.copy()
    rate = np.zeros(n)
    since = np.zeros(n, dtype=np.int64)
    now = np.int64(0)
    count = 0
    remaining = n
    late = -1
    while remaining > 0:
        free[:] = capacity
        nxt = np.int64(2**62)
        for k in range(n):
            row = order[k]
            if done[row]:
                continue
            if release[row] > now:
                nxt = min(nxt, release[row])
                continue
            lo, hi = start[route_of[row]], start[route_of[row] + 1]
            r = np.inf
            for e in range(lo, hi):
                r = min(r, free[routes[e]])
            if r <= 1e-9:
                r = 0.0
            for e in range(lo, hi):
                free[routes[e]] -= r
            if r != rate[row]:
                if rate[row] > 0.0 and now > since[row]:
                    segments[count, 0] = row
                    segments[count, 1] = since[row]
                    segments[count, 2] = now
                    gbps[count] = rate[row]
                    count += 1
                    if count == len(segments):
                        return count, n
                rate[row] = r
                since[row] = now
            if r > 0.0:
                nxt = min(nxt, now + np.int64(np.ceil(left[row] / r)))
        for row in range(n):
            if done[row] or rate[row] == 0.0:
                continue
            left[row] -= rate[row] * (nxt - now)
            if left[row] <= 1e-6:
                segments[count, 0] = row
                segments[count, 1] = since[row]
                segments[count, 2] = nxt
                gbps[count] = rate[row]
                count += 1
                rate[row] = 0.0
                done[row] = True
                finish[row] = nxt
                remaining -= 1
                if nxt > deadline[row] and late < 0:
                    late = row
                    if stop_when_late:
                        return count, late
                if count == len(segments):
                    return count, n
        now = nxt
    return count, late


def fluid_edf(
    release_ns: IntArray,
    deadline_ns: IntArray,
    size_bytes: IntArray,
    route_of: IntArray,
    routes: tuple[tuple[int, ...], ...],
    capacity_gbps: FloatArray,
    *,
    stop_when_late: bool,
) -> tuple[IntArray, Segments, int]:
    """Serve demands over several links: earliest deadline first, each at what its route has left.

    Args:
        release_ns: [n] releases.
        deadline_ns: [n] deadlines.
        size_bytes: [n] payloads.
        route_of: [n] index into ``routes``.
        routes: links of each route.
        capacity_gbps: [links] rate for these demands.
        stop_when_late: end the schedule at the first demand that is late.

    Returns:
        [n] finish in ns, the segments (rows are positions in the inputs), and the first row
        that is late, or -1.
    """
    n = len(release_ns)
    flat = np.array([link for route in routes for link in route], dtype=np.int64)
    start = np.cumsum([0, *(len(route) for route in routes)]).astype(np.int64)
    order = np.lexsort((release_ns, deadline_ns)).astype(np.int64)
    finish = np.zeros(n, dtype=np.int64)
    room = 8 * n + 64
    while True:
        raw = np.empty((room, 3), dtype=np.int64)
        gbps = np.empty(room)
        count, late = _fluid_edf(
            release_ns,
            deadline_ns,
            size_bytes * 8.0,
            order,
            start,
            flat,
            route_of,
            capacity_gbps,
            finish,
            raw,
            gbps,
            stop_when_late,
        )
        if late < n:
            break
        room *= 4
    raw = raw[:count]
    return finish, Segments(raw[:, 0], raw[:, 1], raw[:, 2], gbps[:count]), int(late)
