"""Ports, links and channels over time: where a window fits.

Every resource is a step function of time that counts its users against a limit. A window
takes the first start at which all resources of one path are free for its whole length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from ranloom.transport.demands import IntArray
from ranloom.transport.network import Network
from ranloom.transport.reservation import Reservation
from ranloom.transport.wavelengths import counting_suffices
from ranloom.transport.windows import Job

_LONG_AGO = -(2**62)


class _Space(NamedTuple):
    """Use of every resource over time, as step functions in flat arrays."""

    times: IntArray
    level: IntArray
    offset: IntArray
    size: IntArray
    limit: IntArray


class _Ways(NamedTuple):
    """Candidate paths of every pair in flat arrays."""

    first_path: IntArray
    first_link: IntArray
    links: IntArray
    channels: IntArray
    source: IntArray
    destination: IntArray


@njit(cache=True)
def _at(space: _Space, resource: int, time: int) -> int:
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
def _free_from(space: _Space, resource: int, start: int, length: int, last: int) -> int:
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
def _cut(space: _Space, resource: int, time: int) -> int:
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
def _join(space: _Space, resource: int, step: int) -> None:
    """Remove a step that is level with the one before it."""
    if space.level[step] != space.level[step - 1]:
        return
    for position in range(step, space.offset[resource] + space.size[resource] - 1):
        space.times[position] = space.times[position + 1]
        space.level[position] = space.level[position + 1]
    space.size[resource] -= 1


@njit(cache=True)
def _occupy(space: _Space, resource: int, start: int, end: int, change: int) -> None:
    first = _cut(space, resource, start)
    last = _cut(space, resource, end)
    for step in range(first, last):
        space.level[step] += change
    _join(space, resource, last)
    _join(space, resource, first)


@njit(cache=True)
def _resource(ways: _Ways, path: int, hop: int, channel: int, n_nodes: int, grid: int) -> int:
    """Resource of a hop: the link itself (grid 0) or one channel of it."""
    link: int = ways.links[ways.first_link[path] + hop]
    return n_nodes + (link if grid == 0 else link * grid + channel)


@njit(cache=True)
def _use(
    space: _Space,
    ways: _Ways,
    pair: int,
    path: int,
    channel: int,
    start: int,
    end: int,
    change: int,
    n_nodes: int,
    grid: int,
) -> None:
    _occupy(space, ways.source[pair], start, end, change)
    _occupy(space, ways.destination[pair], start, end, change)
    for hop in range(ways.first_link[path + 1] - ways.first_link[path]):
        _occupy(space, _resource(ways, path, hop, channel, n_nodes, grid), start, end, change)


@njit(cache=True)
def _seat(
    space: _Space,
    ways: _Ways,
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
def _seat_all(
    space: _Space,
    ways: _Ways,
    order: IntArray,
    pair: IntArray,
    first: IntArray,
    last: IntArray,
    length: IntArray,
    guard: int,
    n_nodes: int,
    grid: int,
    path: IntArray,
    channel: IntArray,
    start: IntArray,
    stop: bool,
) -> int:
    """Seat jobs in an order; those that find no place get path -1. Returns their number.

    With ``stop`` the first of them ends it.
    """
    failed = 0
    for k in order:
        path[k], channel[k], start[k] = _seat(
            space, ways, pair[k], first[k], last[k], length[k] + guard, n_nodes, grid
        )
        if path[k] < 0:
            failed += 1
            if stop:
                return failed
            continue
        _use(
            space,
            ways,
            pair[k],
            path[k],
            channel[k],
            start[k],
            start[k] + length[k] + guard,
            1,
            n_nodes,
            grid,
        )
    return failed


@dataclass(frozen=True)
class Seat:
    """Where a window was placed.

    Args:
        path: index into the pair's candidate paths.
        channel: wavelength, or -1 where it is coloured afterwards.
        start_ns: start of the set-up.
    """

    path: int
    channel: int
    start_ns: int


class Occupancy:
    """Ports, links and channels over time: seats windows and lifts them again.

    Where all paths run together towards one destination, links only count their windows
    and channels are coloured afterwards; otherwise each (link, channel) is a resource of
    its own and a window keeps one channel on its whole path.

    Args:
        network: the network.
        windows_per_pair: [pairs] most windows of each pair at any moment of the search.
        reservations: use by others.
    """

    def __init__(
        self,
        network: Network,
        windows_per_pair: IntArray,
        reservations: tuple[Reservation, ...] = (),
    ) -> None:
        self._n_nodes = len(network.nodes)
        self._guard_ns = network.settings.guard_ns
        grid = int(network.wavelengths.max(initial=1))
        self._grid = 0 if not reservations and counting_suffices(network) else grid
        node_index = {name: index for index, name in enumerate(network.nodes)}
        link_index = {link: index for index, link in enumerate(network.links)}
        flat = [path for paths in network.paths for path in paths]
        counts = [len(paths) for paths in network.paths]
        self._first_path = np.cumsum([0, *counts]).astype(np.int64)
        self._ways = _Ways(
            self._first_path,
            np.cumsum([0, *(len(path.links) for path in flat)]).astype(np.int64),
            np.array([link for path in flat for link in path.links], dtype=np.int64),
            np.array([path.wavelengths for path in flat], dtype=np.int64),
            np.array([node_index[source] for source, _ in network.pairs], dtype=np.int64),
            np.array([node_index[end] for _, end in network.pairs], dtype=np.int64),
        )
        per_link = max(1, self._grid)
        limits = np.ones(self._n_nodes + len(network.links) * per_link, dtype=np.int64)
        limits[: self._n_nodes] = network.ports
        if not self._grid:
            limits[self._n_nodes :] = network.wavelengths
        touched = self._touched(network, windows_per_pair, per_link)
        for reservation in reservations:
            for resource in self._reserved(reservation, node_index, link_index):
                touched[resource] += 1
        room = 2 * touched + 3
        offset = np.concatenate(([0], np.cumsum(room)[:-1])).astype(np.int64)
        self._space = _Space(
            np.full(int(room.sum()), _LONG_AGO, dtype=np.int64),
            np.zeros(int(room.sum()), dtype=np.int64),
            offset,
            np.ones(len(limits), dtype=np.int64),
            limits,
        )
        for reservation in reservations:
            for resource in self._reserved(reservation, node_index, link_index):
                _occupy(self._space, resource, reservation.start_ns, reservation.end_ns, 1)
        self._empty = self.snapshot()

    @property
    def explicit(self) -> bool:
        """Whether channels are chosen while seating (and not coloured afterwards)."""
        return self._grid > 0

    def _touched(self, network: Network, windows: IntArray, per_link: int) -> IntArray:
        touched = np.zeros(self._n_nodes + len(network.links) * per_link, dtype=np.int64)
        for pair, paths in enumerate(network.paths):
            touched[self._ways.source[pair]] += windows[pair]
            touched[self._ways.destination[pair]] += windows[pair]
            for link in {link for path in paths for link in path.links}:
                first = self._n_nodes + link * per_link
                touched[first : first + per_link] += windows[pair]
        return touched

    def _reserved(
        self,
        reservation: Reservation,
        node_index: dict[str, int],
        link_index: dict[tuple[str, str], int],
    ) -> list[int]:
        ports = [node_index[node] for node in reservation.nodes if node in node_index]
        links = [link_index[link] for link in reservation.links if link in link_index]
        if not 0 <= reservation.wavelength < self._grid:
            links = []
        return ports + [
            self._n_nodes + link * self._grid + reservation.wavelength for link in links
        ]

    def snapshot(self) -> tuple[IntArray, IntArray, IntArray]:
        """All steps, to :meth:`restore`."""
        return self._space.times.copy(), self._space.level.copy(), self._space.size.copy()

    def restore(self, snapshot: tuple[IntArray, IntArray, IntArray]) -> None:
        """Go back to a snapshot."""
        times, level, size = snapshot
        self._space.times[:] = times
        self._space.level[:] = level
        self._space.size[:] = size

    def clear(self) -> None:
        """Lift all windows; reservations stay."""
        self.restore(self._empty)

    def seat(self, job: Job) -> Seat | None:
        """Find the earliest place for a job and take it; None where there is none."""
        if not job.feasible:
            return None
        path, channel, start = _seat(
            self._space,
            self._ways,
            job.pair,
            job.first_start_ns,
            job.last_start_ns,
            job.length_ns + self._guard_ns,
            self._n_nodes,
            self._grid,
        )
        if path < 0:
            return None
        seat = Seat(int(path - self._first_path[job.pair]), int(channel), int(start))
        self._change(job, seat, 1)
        return seat

    def take(self, job: Job, seat: Seat) -> None:
        """Take a given place, which must be free."""
        self._change(job, seat, 1)

    def lift(self, job: Job, seat: Seat) -> None:
        """Free the place of a window."""
        self._change(job, seat, -1)

    def _change(self, job: Job, seat: Seat, change: int) -> None:
        _use(
            self._space,
            self._ways,
            job.pair,
            int(self._first_path[job.pair]) + seat.path,
            seat.channel,
            seat.start_ns,
            seat.start_ns + job.length_ns + self._guard_ns,
            change,
            self._n_nodes,
            self._grid,
        )

    def seat_all(self, jobs: list[Job], order: IntArray) -> list[Seat | None]:
        """Seat jobs in an order, from what is occupied now; None for those without a place."""
        seats, _ = self._seats(jobs, _columns(jobs), order, stop=False)
        return seats

    def seat_every(self, jobs: list[Job], orders: list[IntArray]) -> list[Seat] | None:
        """Seat all jobs on an empty space by the first order that has a place for each.

        Returns:
            None where every order leaves one over; the space is then in an undefined state.
        """
        columns = _columns(jobs)
        for order in orders:
            self.clear()
            seats, failed = self._seats(jobs, columns, order, stop=True)
            if not failed:
                return [seat for seat in seats if seat is not None]
        return None

    def _seats(
        self, jobs: list[Job], columns: IntArray, order: IntArray, *, stop: bool
    ) -> tuple[list[Seat | None], int]:
        n = len(jobs)
        path, channel, start = (np.full(n, -1, dtype=np.int64) for _ in range(3))
        failed = _seat_all(
            self._space,
            self._ways,
            order,
            columns[0],
            columns[1],
            columns[2],
            columns[3],
            self._guard_ns,
            self._n_nodes,
            self._grid,
            path,
            channel,
            start,
            stop,
        )
        if failed and stop:
            return [], failed
        path -= self._first_path[columns[0]]
        places = zip(path.tolist(), channel.tolist(), start.tolist(), strict=True)
        return [None if way < 0 else Seat(way, ch, at) for way, ch, at in places], int(failed)


def _columns(jobs: list[Job]) -> IntArray:
    """Pair, first and last start and length of each job [4, jobs]."""
    rows = [(j.pair, j.first_start_ns, j.last_start_ns, j.length_ns) for j in jobs]
    return np.array(rows, dtype=np.int64).reshape(len(jobs), 4).T.copy()
