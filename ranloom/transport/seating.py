"""Use of resources over time, and the earliest place for a window in it: compiled functions.

Every resource (a node's ports, a link or one channel of it) is a step function of time against
a limit, all of them in flat arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ranloom.transport.demands import IntArray


class Space(NamedTuple):
    """Use of every resource over time, as step functions in flat arrays."""

    times: IntArray
    level: IntArray
    offset: IntArray
    size: IntArray
    limit: IntArray


class Steps(NamedTuple):
    """What a space holds at some moment."""

    times: IntArray
    level: IntArray
    size: IntArray


class Ways(NamedTuple):
    """Candidate paths of every pair in flat arrays."""

    first_path: IntArray
    first_link: IntArray
    links: IntArray
    channels: IntArray
    source: IntArray
    destination: IntArray


@njit(cache=True)
def _at(space: Space, resource: int, time: int) -> int:
    """Position of the step that covers a time."""
    low: int = space.offset[resource]
    high = low + space.size[resource]
    while high - low > 1:
        middle = (low + high) >> 1
        if space.times[middle] <= time:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True)
def _free_from(space: Space, resource: int, start: int, length: int, last: int) -> int:
    """Earliest start from which the resource is free for ``length``; past ``last`` if none."""
    step: int = _at(space, resource, start)
    stop = space.offset[resource] + space.size[resource]
    while True:
        if space.level[step] >= space.limit[resource]:
            if step + 1 == stop:
                return last + 1
            start = space.times[step + 1]
            if start > last:
                return start
        elif step + 1 == stop or space.times[step + 1] >= start + length:
            return start
        step += 1


@njit(cache=True)
def _cut(space: Space, resource: int, time: int) -> int:
    """Let a step begin at a time; returns its position."""
    step: int = _at(space, resource, time)
    if space.times[step] == time:
        return step
    stop = space.offset[resource] + space.size[resource]
    for position in range(stop, step + 1, -1):
        space.times[position] = space.times[position - 1]
        space.level[position] = space.level[position - 1]
    space.times[step + 1] = time
    space.level[step + 1] = space.level[step]
    space.size[resource] += 1
    return step + 1


@njit(cache=True)
def _join(space: Space, resource: int, step: int) -> None:
    """Remove a step that is level with the one before it."""
    if space.level[step] != space.level[step - 1]:
        return
    for position in range(step, space.offset[resource] + space.size[resource] - 1):
        space.times[position] = space.times[position + 1]
        space.level[position] = space.level[position + 1]
    space.size[resource] -= 1


@njit(cache=True)
def occupy(space: Space, resource: int, start: int, end: int, change: int) -> None:
    """Add to the use of a resource for some time."""
    first = _cut(space, resource, start)
    last = _cut(space, resource, end)
    for step in range(first, last):
        space.level[step] += change
    _join(space, resource, last)
    _join(space, resource, first)


@njit(cache=True)
def _resource(ways: Ways, path: int, hop: int, channel: int, n_nodes: int, grid: int) -> int:
    """Resource of a hop: the link itself (grid 0) or one channel of it."""
    link: int = ways.links[ways.first_link[path] + hop]
    return n_nodes + (link if grid == 0 else link * grid + channel)


@njit(cache=True)
def use(
    space: Space,
    ways: Ways,
    pair: int,
    path: int,
    channel: int,
    start: int,
    end: int,
    change: int,
    n_nodes: int,
    grid: int,
) -> None:
    """Add to the use of everything that a window on a path takes."""
    occupy(space, ways.source[pair], start, end, change)
    occupy(space, ways.destination[pair], start, end, change)
    for hop in range(ways.first_link[path + 1] - ways.first_link[path]):
        occupy(space, _resource(ways, path, hop, channel, n_nodes, grid), start, end, change)


@njit(cache=True)
def seat_in(
    space: Space,
    ways: Ways,
    pair: int,
    first: int,
    last: int,
    length: int,
    n_nodes: int,
    grid: int,
) -> tuple[int, int, int]:
    """Earliest start over paths and channels: (path or -1, channel or -1, start)."""
    best_path, best_channel, best_start = -1, -1, last + 1
    for path in range(ways.first_path[pair], ways.first_path[pair + 1]):
        hops = ways.first_link[path + 1] - ways.first_link[path]
        for channel in range(ways.channels[path] if grid else 1):
            start = first
            while True:
                asked = start
                start = _free_from(space, ways.source[pair], start, length, last)
                if start < best_start:
                    start = _free_from(space, ways.destination[pair], start, length, last)
                for hop in range(hops):
                    if start >= best_start:
                        break
                    resource = _resource(ways, path, hop, channel, n_nodes, grid)
                    start = _free_from(space, resource, start, length, last)
                if start >= best_start or start == asked:
                    break
            if start < best_start:
                best_path, best_start = path, start
                best_channel = channel if grid else -1
            if best_start == first:
                return best_path, best_channel, best_start
    return best_path, best_channel, best_start


@njit(cache=True)
def seat_all(
    space: Space,
    ways: Ways,
    order: IntArray,
    jobs: IntArray,
    guard: int,
    n_nodes: int,
    grid: int,
    seats: IntArray,
) -> None:
    """Seat jobs in an order; those that find no place get path -1.

    Args:
        space: where they are seated.
        ways: candidate paths.
        order: positions in ``jobs``.
        jobs: [4, jobs] pair, first and last start, length.
        guard: time for which a place stays taken after its job.
        n_nodes: number of nodes.
        grid: channels per link, 0 where links only count.
        seats: [3, jobs] path, channel and start; written.
    """
    for k in order:
        pair, first, last, length = jobs[:, k]
        path, channel, start = seat_in(
            space, ways, pair, first, last, length + guard, n_nodes, grid
        )
        seats[0, k], seats[1, k], seats[2, k] = path, channel, start
        if path >= 0:
            end = start + length + guard
            use(space, ways, pair, path, channel, start, end, 1, n_nodes, grid)


@njit(cache=True)
def push_in(
    space: Space,
    empty: Steps,
    ways: Ways,
    jobs: IntArray,
    begun: IntArray,
    guard: int,
    n_nodes: int,
    grid: int,
    seats: IntArray,
) -> bool:
    """Seat jobs in sequence with the last one pushed in between; False where that fails.

    Each position is tried, from where that job can begin; those behind it make way.

    Args:
        space: scratch, in the end with all jobs in their places.
        empty: what it holds without any of them.
        ways: candidate paths.
        jobs: [4, jobs] pair, first and last start, length.
        begun: [jobs - 1] where all but the last one are now, ascending.
        guard: time for which a place stays taken after its job.
        n_nodes: number of nodes.
        grid: channels per link, 0 where links only count.
        seats: [3, jobs] path, channel and start; written.
    """
    extra = len(begun)
    position = max(0, np.searchsorted(begun, jobs[1, extra]) - 1)
    while position <= extra:
        space.times[:], space.level[:], space.size[:] = empty.times, empty.level, empty.size
        failed = -1
        for turn in range(extra + 1):
            k = turn if turn < position else (extra if turn == position else turn - 1)
            pair, first, last, length = jobs[:, k]
            path, channel, start = seat_in(
                space, ways, pair, first, last, length + guard, n_nodes, grid
            )
            if path < 0:
                failed = k
                break
            seats[0, k], seats[1, k], seats[2, k] = path, channel, start
            end = start + length + guard
            use(space, ways, pair, path, channel, start, end, 1, n_nodes, grid)
        if failed < 0:
            return True
        if failed == extra:
            return False  # further back it is later still
        position += 1
    return False
