"""A plan under construction: modes, placed windows, and moves that can be taken back."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.network import Network
from ranloom.transport.occupancy import Occupancy, Seat
from ranloom.transport.packet_side import PacketSide
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan, Window, no_segments
from ranloom.transport.points import no_points, points_of
from ranloom.transport.reservation import Reservation
from ranloom.transport.wavelengths import colour_intervals
from ranloom.transport.windows import Job, WindowRules

#: Windows that a pair may hold beyond the fewest that carry all its demands.
_SPARE_WINDOWS = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a state was, to go back to."""

    mode: npt.NDArray[np.int8]
    window_of: IntArray
    placed: dict[int, tuple[Job, Seat]]
    light_ns: int
    moves: int


class PlanState:
    """Feasible assignment of demands; every public move leaves it feasible.

    Args:
        demands: the demands.
        network: their network.
        now_ns: no window starts earlier.
        packet: whether demands may travel as packets.
        windows: whether windows may be lit.
        reservations: optical use by others.
        may_ride: [n] demands that may ride in windows; None: all.
        windows_before: [pairs] windows that a pair has already and may keep; None: none.
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
        may_ride: BoolArray | None = None,
        windows_before: IntArray | None = None,
    ) -> None:
        n = len(demands)
        self.demands = demands
        self.network = network
        self.pair_of = network.pair_of(demands)
        self.rules = WindowRules(demands, network, now_ns)
        self.points = points_of(self.rules, self.pair_of, may_ride) if windows else no_points(n)
        self.side = PacketSide(demands, network, self.pair_of, self.points)
        self.mode = np.full(n, MISSED, dtype=np.int8)
        self.window_of = np.full(n, -1, dtype=np.int64)
        self.placed: dict[int, tuple[Job, Seat]] = {}
        self._of_pair: list[list[int]] = [[] for _ in network.pairs]
        self._next = 0
        self._light_ns = 0
        self._moves: list[tuple[Job, Seat, bool]] = []
        self.can_ride: BoolArray = self.points.first[1:] > self.points.first[:-1]
        self.can_packet: BoolArray = np.zeros(n, dtype=np.bool_)
        if packet:
            self.can_packet = self._fits_alone()
        #: Fewest windows per pair that carry all demands of it.
        self.fewest = np.zeros(len(network.pairs), dtype=np.int64)
        if windows:
            cluster, count = self.rules.clusters(self.pair_of)
            pair_of_cluster = np.zeros(count, dtype=np.int64)
            pair_of_cluster[cluster[cluster >= 0]] = self.pair_of[cluster >= 0]
            self.fewest = np.bincount(pair_of_cluster, minlength=len(network.pairs))
        self.most_windows: IntArray = self.fewest + _SPARE_WINDOWS
        if windows_before is not None:
            self.most_windows = np.maximum(self.most_windows, windows_before + _SPARE_WINDOWS)
        self.occupancy = Occupancy(network, self.most_windows, reservations)

    def emptied(self) -> PlanState:
        """A copy in which nothing is placed; it takes over this state's occupancy."""
        empty = copy(self)
        empty.mode = np.full(len(self.demands), MISSED, dtype=np.int8)
        empty.window_of = np.full(len(self.demands), -1, dtype=np.int64)
        empty.placed = {}
        empty._moves = []
        empty._light_ns = 0
        empty._of_pair = [[] for _ in self.network.pairs]
        empty.occupancy.clear()
        return empty

    def _fits_alone(self) -> BoolArray:
        fits = np.ones(len(self.demands), dtype=np.bool_)
        for part in self.side.parts:
            for server in (cover.server for cover in part.covers):
                fits[server.rows] &= server.release_ns + server.work <= server.deadline_ns
        return fits

    def job_of(self, rows: IntArray) -> Job:
        """The window for rows of one pair."""
        return self.rules.job(int(self.pair_of[rows[0]]), rows)

    @property
    def objective(self) -> tuple[int, int, int]:
        """Missed bytes, set-ups, circuit time in ns."""
        missed = int(self.demands.bytes[self.mode == MISSED].sum())
        return missed, len(self.placed), self._light_ns

    def windows_of(self, pair: int) -> list[int]:
        """Windows of a pair, the oldest first."""
        return list(self._of_pair[pair])

    @property
    def full(self) -> BoolArray:
        """[pairs] whether a pair may have no further window."""
        full: BoolArray = np.array([len(w) for w in self._of_pair]) >= self.most_windows
        return full

    # Going back

    def checkpoint(self) -> Checkpoint:
        """Remember the state."""
        return Checkpoint(
            self.mode.copy(),
            self.window_of.copy(),
            dict(self.placed),
            self._light_ns,
            len(self._moves),
        )

    def rollback(self, to: Checkpoint) -> None:
        """Go back to a checkpoint."""
        moved = len(self._moves) > to.moves
        while len(self._moves) > to.moves:
            job, seat, taken = self._moves.pop()
            if taken:
                self.occupancy.lift(job, seat)
            else:
                self.occupancy.take(job, seat)
        self.mode = to.mode.copy()
        self.window_of = to.window_of.copy()
        self._light_ns = to.light_ns
        if moved:
            self.placed = dict(to.placed)
            self._of_pair = [[] for _ in self.network.pairs]
            for window, (job, _) in self.placed.items():
                self._of_pair[job.pair].append(window)

    def _seat(self, job: Job) -> Seat | None:
        seat = self.occupancy.seat(job)
        if seat is not None:
            self._moves.append((job, seat, True))
        return seat

    def _take(self, job: Job, seat: Seat) -> None:
        self.occupancy.take(job, seat)
        self._moves.append((job, seat, True))

    def _lift(self, job: Job, seat: Seat) -> None:
        self.occupancy.lift(job, seat)
        self._moves.append((job, seat, False))

    # Packets

    def fits_with(self, rows: IntArray) -> bool:
        """Whether rows of one part fit into packets beside those that are there."""
        if not self.can_packet[rows].all():
            return False
        mask = self.mode == PACKET
        mask[rows] = True
        return self.side.fits(int(self.side.part_of[rows[0]]), mask)

    def to_packet(self, rows: IntArray) -> None:
        """Send rows as packets; the caller has checked that they fit."""
        self.mode[rows] = PACKET
        self.window_of[rows] = -1

    def repack(self, part: int) -> None:
        """Fill the packets of a part anew from all its rows that do not ride."""
        rows = self.side.parts[part].rows
        idle = rows[self.mode[rows] != WINDOW]
        waiting = np.zeros(len(self.mode), dtype=np.bool_)
        waiting[idle] = self.can_packet[idle]
        packet = waiting.copy()
        nothing = np.zeros(len(self.points), dtype=np.bool_)
        self.side.relieve(part, packet, nothing, waiting, self.points)
        if not packet[idle].all():
            self.side.swap_in(part, packet, waiting)
        self.mode[idle] = np.where(packet[idle], PACKET, MISSED)

    # Windows

    def open(self, rows: IntArray) -> int | None:
        """Light a window for rows; None where no place is found."""
        job = self.job_of(rows)
        if not job.feasible or len(self._of_pair[job.pair]) >= self.most_windows[job.pair]:
            return None
        seat = self._seat(job)
        return None if seat is None else self._register(job, seat)

    def open_near(self, job: Job, start_ns: int) -> int | None:
        """Light a window at or as soon as possible after a start; None where that is too late."""
        start = min(max(start_ns, job.first_start_ns), job.last_start_ns)
        seat = self._seat(replace(job, first_start_ns=start))
        return None if seat is None else self._register(job, seat)

    def open_at(self, job: Job, seat: Seat) -> int:
        """Light a window at a given place, which must be free."""
        self._take(job, seat)
        return self._register(job, seat)

    def sequence(self) -> list[tuple[Job, Seat]]:
        """All windows by start."""
        return sorted(self.placed.values(), key=lambda both: both[1].start_ns)

    def push_in(self, rows: IntArray) -> int | None:
        """Light a window for rows while others make way; None where they cannot."""
        extra = self.job_of(rows)
        if self.full[extra.pair] or not extra.feasible:
            return None
        windows = sorted(self.placed, key=lambda window: self.placed[window][1].start_ns)
        before = [self.placed[window] for window in windows]
        jobs = [*(job for job, _ in before), extra]
        begun = np.array([seat.start_ns for _, seat in before], dtype=np.int64)
        seats = self.occupancy.push_in(jobs, begun)
        if seats is None:
            return None
        placed = list(zip(jobs, seats, strict=True))
        self._moves += [(job, seat, False) for job, seat in before]
        self._moves += [(job, seat, True) for job, seat in placed]
        self.placed.update(zip(windows, placed, strict=False))
        return self._register(*placed[-1])

    def _register(self, job: Job, seat: Seat) -> int:
        window = self._next
        self._next += 1
        self.placed[window] = (job, seat)
        self._of_pair[job.pair].append(window)
        self._light_ns += job.length_ns
        self.mode[job.rows] = WINDOW
        self.window_of[job.rows] = window
        return window

    def join(self, window: int, rows: IntArray) -> bool:
        """Let further rows ride in a window, moved in time where needed."""
        job, seat = self.placed[window]
        larger = self.rules.job(job.pair, np.concatenate((job.rows, rows)))
        if not larger.feasible:
            return False
        self._lift(job, seat)
        found = self._seat(larger)
        if found is None:
            self._take(job, seat)
            return False
        self.placed[window] = (larger, found)
        self._light_ns += larger.length_ns - job.length_ns
        self.mode[rows] = WINDOW
        self.window_of[rows] = window
        return True

    def leave(self, window: int, rows: IntArray) -> None:
        """Take rows out of a window, which shrinks in place or goes dark; the rows are missed."""
        job, seat = self.placed[window]
        self._lift(job, seat)
        self.mode[rows] = MISSED
        self.window_of[rows] = -1
        rest = job.rows[~np.isin(job.rows, rows)]
        self._light_ns -= job.length_ns
        if len(rest) == 0:
            del self.placed[window]
            self._of_pair[job.pair].remove(window)
            return
        # What is left lies inside the old window: it ends no later and starts no earlier.
        smaller = self.rules.job(job.pair, rest)
        seat = Seat(seat.path, seat.channel, max(seat.start_ns, smaller.first_start_ns))
        self._take(smaller, seat)
        self._light_ns += smaller.length_ns
        self.placed[window] = (smaller, seat)

    def close(self, window: int) -> IntArray:
        """Take a window out; its riders are missed until they are moved. Returns them."""
        rows = self.placed[window][0].rows
        self.leave(window, rows)
        return rows

    def finished(self, strategy: str) -> Plan:
        """The plan: windows numbered by start, channels assigned, packets scheduled."""
        packet = self.mode == PACKET
        finish, segments = (
            self.side.schedule(packet)
            if packet.any()
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
