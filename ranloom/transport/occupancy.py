"""Ports, links and channels over time: where a window fits.

Every resource is a step function of time that counts its users against a limit. A window
takes the first start at which all resources of one path are free for its whole length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.transport.demands import IntArray
from ranloom.transport.network import Network
from ranloom.transport.reservation import Reservation
from ranloom.transport.seating import (
    Space,
    Steps,
    Ways,
    occupy,
    push_in,
    seat_all,
    seat_in,
    use,
)
from ranloom.transport.wavelengths import counting_suffices
from ranloom.transport.windows import Job

_LONG_AGO = -(2**62)


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
        self._ways = Ways(
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
        self._space = Space(
            np.full(int(room.sum()), _LONG_AGO, dtype=np.int64),
            np.zeros(int(room.sum()), dtype=np.int64),
            offset,
            np.ones(len(limits), dtype=np.int64),
            limits,
        )
        for reservation in reservations:
            for resource in self._reserved(reservation, node_index, link_index):
                occupy(self._space, resource, reservation.start_ns, reservation.end_ns, 1)
        #: What is held without any window.
        self.empty = self.snapshot()

    @property
    def tables(self) -> tuple[Space, Ways, int, int, int]:
        """What :func:`seat_in` needs besides a window: space, paths, nodes, grid, guard in ns."""
        return self._space, self._ways, self._n_nodes, self._grid, self._guard_ns

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

    def snapshot(self) -> Steps:
        """All steps, to :meth:`restore`."""
        space = self._space
        return Steps(space.times.copy(), space.level.copy(), space.size.copy())

    def restore(self, snapshot: Steps) -> None:
        """Go back to a snapshot."""
        self._space.times[:] = snapshot.times
        self._space.level[:] = snapshot.level
        self._space.size[:] = snapshot.size

    def clear(self) -> None:
        """Lift all windows; reservations stay."""
        self.restore(self.empty)

    def seat(self, job: Job) -> Seat | None:
        """Find the earliest place for a job and take it; None where there is none."""
        if not job.feasible:
            return None
        path, channel, start = seat_in(
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
        use(
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
        columns = job_columns(jobs)
        seats = np.full((3, len(jobs)), -1, dtype=np.int64)
        seat_all(
            self._space,
            self._ways,
            order,
            columns,
            self._guard_ns,
            self._n_nodes,
            self._grid,
            seats,
        )
        return [seat if seat.path >= 0 else None for seat in self._seats(columns, seats)]

    def push_in(self, jobs: list[Job], begun_ns: IntArray) -> list[Seat] | None:
        """Seat jobs anew in sequence with the last one pushed in between.

        Args:
            jobs: the windows that are there, by start, and one more.
            begun_ns: the starts.

        Returns:
            None where it has no place; nothing is changed then.
        """
        back = self.snapshot()
        columns = job_columns(jobs)
        seats = np.full((3, len(jobs)), -1, dtype=np.int64)
        if push_in(
            self._space,
            self.empty,
            self._ways,
            columns,
            begun_ns,
            self._guard_ns,
            self._n_nodes,
            self._grid,
            seats,
        ):
            return self._seats(columns, seats)
        self.restore(back)
        return None

    def _seats(self, columns: IntArray, seats: IntArray) -> list[Seat]:
        path = np.where(seats[0] < 0, -1, seats[0] - self._first_path[columns[0]])
        places = zip(path.tolist(), seats[1].tolist(), seats[2].tolist(), strict=True)
        return [Seat(*place) for place in places]


def job_columns(jobs: list[Job]) -> IntArray:
    """Pair, first and last start and length of each job [4, jobs]."""
    rows = [(j.pair, j.first_start_ns, j.last_start_ns, j.length_ns) for j in jobs]
    return np.array(rows, dtype=np.int64).reshape(len(jobs), 4).T.copy()
