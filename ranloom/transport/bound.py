"""Lower bounds of the plan's objective by a linear program (HiGHS).

Transfers may be split between packet, window and missed. Windows are not placed: per pair
they are points in time, at the earliest deadline of their riders, and may be fractions. A
transfer rides only in windows whose point lies between its own release and deadline, ports
at both ends bound how many set-ups fit in front of a point, and the packet layer keeps its
demand bound. All of it holds for every plan, so the optimum is a bound. Windows are whole,
so the bound of their number is rounded up, for each part of the packet layer and each
stretch of time alone: these share nothing but the hub's ports.

Above a size limit releases are rounded down and deadlines up to a grid and equal transfers
are merged: a further relaxation that keeps the programme small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ranloom.transport.demands import NS_PER_S, Demands, FloatArray, IntArray
from ranloom.transport.network import Network
from ranloom.transport.packet_side import PacketSide
from ranloom.transport.plan import Plan
from ranloom.transport.points import no_points

#: Feasibility tolerance of the solver and rounding, relative to bytes or windows.
_SLACK = 1e-6


@dataclass(frozen=True)
class LowerBound:
    """What no plan can be below.

    Args:
        missed_bytes: missed bytes of any plan.
        setups: windows of any plan that misses no more than the given one.
        circuit_seconds: light of any plan that misses no more and sets up no more.
    """

    missed_bytes: int
    setups: int
    circuit_seconds: float


def lower_bound(
    plan: Plan,
    network: Network,
    *,
    packet: bool = True,
    windows: bool = True,
    now_ns: int = 0,
    most: int = 200,
) -> LowerBound:
    """Bounds for the demands of a plan.

    Args:
        plan: the plan to compare with.
        network: its network.
        packet: whether demands may travel as packets.
        windows: whether windows may be lit.
        now_ns: no window starts earlier.
        most: transfers above which releases and deadlines are put on a grid.
    """
    demands = plan.demands
    if len(demands) == 0:
        return LowerBound(0, 0, 0.0)
    whole = _Program(demands, network, packet, windows, now_ns, most)
    missed = whole.minimise(whole.missed)
    if not windows:
        return LowerBound(_bytes(missed), 0, 0.0)
    side = PacketSide(demands, network, network.pair_of(demands), no_points(len(demands)))
    setups = 0
    for part in side.parts:
        alone = _Program(demands.take(part.rows), network, packet, windows, now_ns, most)
        setups += _count(alone.minimise(alone.lit, missed_bytes=plan.missed_bytes))
    setups = max(setups, _count(whole.minimise(whole.lit, missed_bytes=plan.missed_bytes)))
    light = whole.minimise(whole.light, missed_bytes=plan.missed_bytes, least_lit=setups)
    return LowerBound(_bytes(missed), setups, max(0.0, light * (1 - _SLACK)))


def _bytes(gbit: float) -> int:
    return max(0, int(np.ceil(gbit * (1 - _SLACK) * 1.25e8 - 1.0)))


def _count(windows: float) -> int:
    return max(0, int(np.ceil(windows - 1e-4)))


class _Program:
    """Columns: packet share and ridden share per merged transfer, windows per (pair, point).

    Volumes are in Gbit and times in seconds, which keeps coefficients near one.
    """

    def __init__(
        self,
        demands: Demands,
        network: Network,
        packet: bool,
        windows: bool,
        now_ns: int,
        most: int,
    ) -> None:
        release, deadline = _gridded(demands, most)
        key = np.stack([network.pair_of(demands), release, deadline], axis=1)
        merged, member = np.unique(key, axis=0, return_inverse=True)
        self.network, self.now_ns = network, now_ns
        self.pair, self.release, self.deadline = merged.T
        self.n = len(merged)
        self.gbit = np.bincount(member.reshape(-1), weights=demands.bytes * 8e-9)
        ends = np.stack([self.pair, self.deadline], axis=1)
        self.points = np.unique(ends, axis=0) if windows else np.empty((0, 2), dtype=np.int64)
        self.columns = 2 * self.n + len(self.points)
        self._rows: list[tuple[IntArray, FloatArray, float]] = []
        setup_s = network.settings.setup_ns / NS_PER_S
        # Objectives over all columns; missed = offered - (packet + ridden).
        ones, none = np.ones(len(self.points)), np.zeros(2 * self.n)
        self.missed = np.concatenate([-self.gbit, -self.gbit, 0.0 * ones])
        self.lit = np.concatenate([none, ones])
        riding_s = self.gbit / network.settings.circuit_gbps
        self.light = np.concatenate([none[: self.n], riding_s, setup_s * ones])
        self._upper = np.concatenate(
            [np.full(self.n, float(packet)), np.full(self.n, float(windows)), np.inf * ones]
        )
        for i in range(self.n):
            self._add(np.array([i, self.n + i]), np.ones(2), 1.0)
        if packet:
            self._demand_bounds()
        if windows:
            self._rides()
            self._ports()

    def _add(self, columns: IntArray, values: FloatArray, limit: float) -> None:
        self._rows.append((columns, values, limit))

    def _demand_bounds(self) -> None:
        """Packet volume released after a and due by d, on every binding link."""
        network = self.network
        for link in sorted({link for binding in network.binding for link in binding}):
            users = [p for p, binding in enumerate(network.binding) if link in binding]
            rows = np.flatnonzero(np.isin(self.pair, users))
            rows = rows[np.argsort(self.release[rows], kind="stable")]
            for due in np.unique(self.deadline[rows]):
                inside = rows[self.deadline[rows] <= due]
                volume = self.gbit[inside]
                behind = np.cumsum(volume[::-1])[::-1]
                room = network.granted_gbps[link] * (due - self.release[inside]) / NS_PER_S
                for k in np.flatnonzero(behind > room):
                    if k and self.release[inside[k]] == self.release[inside[k - 1]]:
                        continue
                    self._add(inside[k:], volume[k:], float(room[k]))

    def _rides(self) -> None:
        """A transfer rides at most as often as windows have their point within its time."""
        for i in range(self.n):
            ready = max(int(self.release[i]), self.now_ns + self.network.settings.setup_ns)
            there = np.flatnonzero(
                (self.points[:, 0] == self.pair[i])
                & (self.points[:, 1] > ready)
                & (self.points[:, 1] <= self.deadline[i])
            )
            columns = np.concatenate(([self.n + i], 2 * self.n + there))
            self._add(columns, np.concatenate(([1.0], -np.ones(len(there)))), 0.0)

    def _ports(self) -> None:
        """Set-ups and guards that must lie between an earliest start and a point."""
        settings = self.network.settings
        guard_s = settings.guard_ns / NS_PER_S
        need_s = settings.setup_ns / NS_PER_S + guard_s
        if need_s == 0.0:
            return
        earliest = self._earliest_starts()
        ports = dict(zip(self.network.nodes, self.network.ports.tolist(), strict=True))
        ends = self.network.pairs
        for node in dict.fromkeys(node for pair in ends for node in pair):
            here = [p for p, pair in enumerate(ends) if node in pair]
            mine = np.flatnonzero(np.isin(self.points[:, 0], here))
            for due in np.unique(self.points[mine, 1]):
                by_then = mine[self.points[mine, 1] <= due]
                for start in np.unique(earliest[by_then]):
                    inside = by_then[earliest[by_then] >= start]
                    room_s = (int(due) - int(start)) / NS_PER_S + guard_s
                    self._add(
                        2 * self.n + inside,
                        np.full(len(inside), need_s),
                        max(ports[node] * room_s, 0.0),
                    )

    def _earliest_starts(self) -> IntArray:
        """Earliest start of a window with that point: its set-up may precede every rider."""
        circuit = self.network.settings.circuit_gbps
        starts = np.full(len(self.points), self.now_ns, dtype=np.int64)
        for k, (pair, point) in enumerate(self.points):
            riders = (self.pair == pair) & (self.deadline >= point) & (self.release < point)
            if riders.any():
                sending = self.gbit[riders].sum() * NS_PER_S / circuit
                first = self.release[riders].min() - self.network.settings.setup_ns - sending
                starts[k] = max(self.now_ns, int(np.floor(first)))
        return starts

    def minimise(
        self,
        objective: FloatArray,
        *,
        missed_bytes: int | None = None,
        least_lit: int | None = None,
    ) -> float:
        """Least value of an objective, 0 where the solver gives up.

        Args:
            objective: over all columns.
            missed_bytes: most missed bytes.
            least_lit: fewest windows.
        """
        rows = list(self._rows)
        every = np.arange(self.columns)
        offered = float(self.gbit.sum())
        if missed_bytes is not None:
            allowed = missed_bytes * 8e-9 + _SLACK * offered
            rows.append((every, self.missed, allowed - offered))
        if least_lit is not None:
            rows.append((every, -self.lit, -float(least_lit)))
        counts = [len(columns) for columns, _, _ in rows]
        matrix = csr_array(
            (
                np.concatenate([values for _, values, _ in rows]),
                np.concatenate([columns for columns, _, _ in rows]),
                np.concatenate(([0], np.cumsum(counts))),
            ),
            shape=(len(rows), self.columns),
        )
        limits = np.array([limit for _, _, limit in rows])
        result = milp(
            objective,
            constraints=LinearConstraint(matrix, -np.inf, limits),
            bounds=Bounds(0.0, self._upper),
        )
        base = offered if objective is self.missed else 0.0
        return base + float(result.fun) if result.status == 0 else 0.0


def _gridded(demands: Demands, most: int) -> tuple[IntArray, IntArray]:
    """Releases rounded down and deadlines up to a grid if there are many."""
    release, deadline = demands.release_ns, demands.deadline_ns
    if len(demands) <= most:
        return release, deadline
    begin, end = int(release.min()), int(deadline.max())
    step = max(1, -(-(end - begin) // max(1, most // 4)))
    down = begin + (release - begin) // step * step
    up = begin - (-(deadline - begin) // step) * step
    return down, up
