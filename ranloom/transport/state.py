"""A plan under construction: modes, placed windows, and moves that keep it feasible."""

from __future__ import annotations

from copy import copy

import numpy as np

from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.network import Network
from ranloom.transport.occupancy import Occupancy, Seat
from ranloom.transport.packet_side import PacketSide
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan, Window, no_segments
from ranloom.transport.reservation import Reservation
from ranloom.transport.wavelengths import colour_intervals
from ranloom.transport.windows import Job, WindowRules

#: Windows that a pair may hold beyond one per cluster, while moves rearrange them.
_SPARE_WINDOWS = 1


class PlanState:
    """Feasible assignment of demands; every public move leaves it feasible.

    Args:
        demands: the demands.
        network: their network.
        now_ns: no window starts earlier.
        packet: whether demands may travel as packets.
        windows: whether windows may be lit.
        reservations: optical use by others.
    """

    def __init__(
        self,
        demands: Demands,
        network: Network,
        *,
        now_ns: int,
        packet: bool,
        windows: bool,
        reservations: tuple[Reservation, ...] = (),
    ) -> None:
        n = len(demands)
        self.demands = demands
        self.network = network
        self.pair_of = network.pair_of(demands)
        self.rules = WindowRules(demands, network, now_ns)
        self.side = PacketSide(demands, network, self.pair_of)
        self.mode = np.full(n, MISSED, dtype=np.int8)
        self.window_of = np.full(n, -1, dtype=np.int64)
        self.placed: dict[int, tuple[Job, Seat]] = {}
        self.windows_of_pair: list[list[int]] = [[] for _ in network.pairs]
        self._next = 0
        if windows:
            self.cluster, self.n_clusters = self.rules.clusters(self.pair_of)
        else:
            self.cluster, self.n_clusters = np.full(n, -1, dtype=np.int64), 0
        self.can_packet: BoolArray = np.zeros(n, dtype=np.bool_)
        if packet:
            self.can_packet = self._fits_alone()
        grouped = self.cluster >= 0
        pair_of_cluster = np.zeros(self.n_clusters, dtype=np.int64)
        pair_of_cluster[self.cluster[grouped]] = self.pair_of[grouped]
        per_pair = np.bincount(pair_of_cluster, minlength=len(network.pairs)) + _SPARE_WINDOWS
        self.most_windows: IntArray = per_pair
        self.occupancy = Occupancy(network, per_pair, reservations)

    def emptied(self) -> PlanState:
        """A copy in which nothing is placed; it takes over this state's occupancy."""
        empty = copy(self)
        empty.mode = np.full(len(self.demands), MISSED, dtype=np.int8)
        empty.window_of = np.full(len(self.demands), -1, dtype=np.int64)
        empty.placed = {}
        empty.windows_of_pair = [[] for _ in self.network.pairs]
        empty.occupancy.clear()
        return empty

    def _fits_alone(self) -> BoolArray:
        fits = np.ones(len(self.demands), dtype=np.bool_)
        for part in self.side.parts:
            for server in part.servers:
                fits[server.rows] &= server.release_ns + server.work <= server.deadline_ns
        return fits

    def job_of(self, rows: IntArray) -> Job:
        """The window for rows of one pair."""
        return self.rules.job(int(self.pair_of[rows[0]]), rows)

    @property
    def packet_mask(self) -> BoolArray:
        """[n] rows that travel as packets."""
        mask: BoolArray = self.mode == PACKET
        return mask

    @property
    def objective(self) -> tuple[int, int, int]:
        """Missed bytes, set-ups, circuit time in ns."""
        missed = int(self.demands.bytes[self.mode == MISSED].sum())
        return missed, len(self.placed), sum(job.length_ns for job, _ in self.placed.values())

    def fits_with(self, *, add: IntArray, remove: IntArray | None = None) -> bool:
        """Whether the packet layer carries its rows with some added and some removed.

        All rows must belong to one part.
        """
        if not self.can_packet[add].all():
            return False
        mask = self.packet_mask
        if remove is not None:
            mask[remove] = False
        mask[add] = True
        return self.side.fits(int(self.side.part_of[add[0]]), mask)

    def to_packet(self, rows: IntArray) -> None:
        """Send rows as packets; the caller has checked that they fit."""
        self.mode[rows] = PACKET
        self.window_of[rows] = -1

    def drop(self, rows: IntArray) -> None:
        """Give packet rows up."""
        self.mode[rows] = MISSED
        self.window_of[rows] = -1

    def open(self, rows: IntArray) -> int | None:
        """Light a window for rows; None where no place is found."""
        job = self.job_of(rows)
        if len(self.windows_of_pair[job.pair]) >= self.most_windows[job.pair]:
            return None
        seat = self.occupancy.seat(job)
        return None if seat is None else self._register(job, seat)

    def open_seated(self, job: Job, seat: Seat) -> int:
        """Register a window whose place is taken already."""
        return self._register(job, seat)

    def _register(self, job: Job, seat: Seat) -> int:
        window = self._next
        self._next += 1
        self.placed[window] = (job, seat)
        self.windows_of_pair[job.pair].append(window)
        self.mode[job.rows] = WINDOW
        self.window_of[job.rows] = window
        return window

    def join(self, window: int, rows: IntArray) -> bool:
        """Let further rows ride in a window, moved in time where needed."""
        job, seat = self.placed[window]
        larger = self.rules.job(job.pair, np.concatenate((job.rows, rows)))
        if not larger.feasible:
            return False
        self.occupancy.lift(job, seat)
        found = self.occupancy.seat(larger)
        if found is None:
            self.occupancy.take(job, seat)
            return False
        self.placed[window] = (larger, found)
        self.mode[rows] = WINDOW
        self.window_of[rows] = window
        return True

    def leave(self, window: int, rows: IntArray) -> None:
        """Take rows out of a window, which shrinks in place or goes dark; the rows are missed."""
        job, seat = self.placed[window]
        self.occupancy.lift(job, seat)
        self.drop(rows)
        rest = job.rows[~np.isin(job.rows, rows)]
        if len(rest) == 0:
            del self.placed[window]
            self.windows_of_pair[job.pair].remove(window)
            return
        # What is left lies inside the old window: it ends no later and starts no earlier.
        smaller = self.rules.job(job.pair, rest)
        start = max(seat.start_ns, smaller.first_start_ns)
        seat = Seat(seat.path, seat.channel, start)
        self.occupancy.take(smaller, seat)
        self.placed[window] = (smaller, seat)

    def close(self, window: int) -> tuple[Job, Seat]:
        """Take a window out of the plan; its riders are missed until they are moved."""
        job, seat = self.placed[window]
        self.leave(window, job.rows)
        return job, seat

    def reopen(self, job: Job, seat: Seat) -> int:
        """Undo :meth:`close` while the place is still free."""
        self.occupancy.take(job, seat)
        return self._register(job, seat)

    def finished(self, strategy: str) -> Plan:
        """The plan: windows numbered by start, channels assigned, packets scheduled."""
        finish, segments = (
            self.side.schedule(self.packet_mask)
            if self.packet_mask.any()
            else (np.full(len(self.demands), -1, dtype=np.int64), no_segments())
        )
        placed = sorted(
            self.placed.values(), key=lambda p: (p[1].start_ns, p[0].pair, int(p[0].rows[0]))
        )
        paths = [self.network.paths[job.pair][seat.path] for job, seat in placed]
        start = np.array([seat.start_ns for _, seat in placed], dtype=np.int64)
        length = np.array([job.length_ns for job, _ in placed], dtype=np.int64)
        channel = np.array([seat.channel for _, seat in placed], dtype=np.int64)
        if not self.occupancy.explicit:
            last = np.array([path.links[-1] for path in paths], dtype=np.int64)
            channel = colour_intervals(last, start, start + length + self.network.settings.guard_ns)
        window_of = np.full(len(self.demands), -1, dtype=np.int64)
        windows = []
        for index, (job, seat) in enumerate(placed):
            window_of[job.rows] = index
            finish[job.rows] = self.rules.rider_finish_ns(job, seat.start_ns)
            windows.append(
                Window(
                    path=paths[index].nodes,
                    wavelength=int(channel[index]),
                    start_ns=seat.start_ns,
                    end_ns=seat.start_ns + job.length_ns,
                    setup_ns=self.rules.setup_ns,
                    bytes=job.bytes,
                )
            )
        return Plan(
            strategy=strategy,
            demands=self.demands,
            mode=self.mode.copy(),
            window_of=window_of,
            finish_ns=finish,
            windows=tuple(windows),
            segments=segments,
        )
