"""Independent check of a calendar.

Shares no code with the planner: it reads the rows of a calendar as they are written, walks
the topology itself, and recomputes every limit from the settings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import networkx as nx
import numpy as np

from ranloom.transport.calendar import PATH_SEPARATOR, AssignmentRow, Calendar, WindowRow
from ranloom.transport.demands import Demands
from ranloom.transport.network import TransportSettings
from ranloom.transport.reservation import Reservation
from ranloom.transport.topology import Topology

#: Rounding of times in the rows: they are whole nanoseconds in double precision.
_TIME_S = 2e-9
_SHARE = 1e-6


@dataclass(frozen=True)
class CalendarFault:
    """One thing that is wrong.

    Args:
        kind: ``assignment``, ``bytes``, ``deadline``, ``release``, ``path``, ``setup``,
            ``too_short``, ``port``, ``wavelength``, ``guard``, ``packet_rate``,
            ``packet_capacity``.
        where: window or demand.
        detail: what was found.
    """

    kind: str
    where: str
    detail: str


@dataclass(frozen=True)
class _Demand:
    source: str
    destination: str
    bytes: int
    release_s: float
    deadline_s: float


def validate(
    calendar: Calendar,
    demands: Demands,
    topology: Topology,
    settings: TransportSettings,
    reservations: Sequence[Reservation] = (),
) -> list[CalendarFault]:
    """All faults of a calendar.

    Args:
        calendar: rows to check.
        demands: the demands it was made for, with the releases it was planned on.
        topology: the topology.
        settings: set-up and guard time, rates and limits.
        reservations: optical use by others, which windows must leave alone.

    Returns:
        Faults; empty for a calendar that can be carried out.
    """
    return list(_Check(calendar, demands, topology, settings, reservations).faults())


class _Check:
    def __init__(
        self,
        calendar: Calendar,
        demands: Demands,
        topology: Topology,
        settings: TransportSettings,
        reservations: Sequence[Reservation],
    ) -> None:
        self.calendar = calendar
        self.reservations = reservations
        self.graph, self.hub = topology.graph, topology.hub
        self.settings = settings
        self.demands = {
            demand_id: _Demand(source, destination, size, release / 1e9, deadline / 1e9)
            for demand_id, source, destination, size, release, deadline in zip(
                demands.ids.tolist(),
                demands.source.tolist(),
                demands.destination.tolist(),
                demands.bytes.tolist(),
                demands.release_ns.tolist(),
                demands.deadline_ns.tolist(),
                strict=True,
            )
        }
        self._route = cache(self._least_km)
        self.windows = {window.window_id: window for window in calendar.windows}
        self.riders: dict[int, list[AssignmentRow]] = defaultdict(list)
        for row in calendar.assignments:
            if row.window_id is not None:
                self.riders[row.window_id].append(row)

    def faults(self) -> Iterator[CalendarFault]:
        yield from self._assignments()
        for window in self.calendar.windows:
            yield from self._window(window)
        yield from self._ports()
        yield from self._wavelengths()
        yield from self._packets()

    # Demands and their fate

    def _assignments(self) -> Iterator[CalendarFault]:
        for window_id, times in Counter(w.window_id for w in self.calendar.windows).items():
            if times > 1:
                yield CalendarFault("assignment", f"window {window_id}", f"listed {times} times")
        seen = Counter(row.demand_id for row in self.calendar.assignments)
        for demand_id in self.demands:
            if seen[demand_id] != 1:
                yield CalendarFault(
                    "assignment", f"demand {demand_id}", f"assigned {seen[demand_id]} times"
                )
        for row in self.calendar.assignments:
            where = f"demand {row.demand_id}"
            if row.demand_id not in self.demands:
                yield CalendarFault("assignment", where, "is no demand")
            else:
                yield from self._assignment(row, self.demands[row.demand_id], where)

    def _assignment(
        self, row: AssignmentRow, demand: _Demand, where: str
    ) -> Iterator[CalendarFault]:
        if row.bytes != demand.bytes:
            yield CalendarFault("bytes", where, f"{row.bytes} of {demand.bytes} bytes")
        if row.missed_bytes != (demand.bytes if row.mode == "missed" else 0):
            yield CalendarFault("bytes", where, f"{row.mode} with {row.missed_bytes} bytes missed")
        if row.mode not in ("packet", "window", "missed"):
            yield CalendarFault("assignment", where, f"mode {row.mode}")
        if row.window_id is not None and row.window_id not in self.windows:
            yield CalendarFault("assignment", where, f"window {row.window_id} is not there")
        if (row.mode == "window" and row.window_id is None) or (
            row.mode == "packet" and row.window_id is not None
        ):
            yield CalendarFault("assignment", where, f"{row.mode} with window {row.window_id}")
        if row.finish_s is None:
            if row.mode != "missed" or row.window_id is not None:
                yield CalendarFault("assignment", where, f"{row.mode} without a finish")
            return
        if row.finish_s <= demand.release_s:
            yield CalendarFault("release", where, "arrives before it is released")
        late = row.finish_s > demand.deadline_s + _TIME_S
        if late and row.mode != "missed":
            yield CalendarFault(
                "deadline", where, f"finish {row.finish_s} after {demand.deadline_s}"
            )
        if not late and row.mode == "missed":
            yield CalendarFault("deadline", where, "missed but in time")

    # Windows one by one

    def _window(self, window: WindowRow) -> Iterator[CalendarFault]:
        where = f"window {window.window_id}"
        yield from self._path(window, where)
        riders = self.riders[window.window_id]
        if sum(row.bytes for row in riders) != window.bytes:
            carried = sum(row.bytes for row in riders)
            yield CalendarFault("bytes", where, f"{window.bytes} bytes, riders have {carried}")
        if window.setup_s < self.settings.setup_s - _TIME_S:
            yield CalendarFault("setup", where, f"set-up {window.setup_s} s")
        if window.start_s < 0 or window.end_s < window.start_s + window.setup_s - _TIME_S:
            yield CalendarFault("setup", where, f"from {window.start_s} to {window.end_s}")
        known = [row for row in riders if row.demand_id in self.demands]
        for row in known:
            demand = self.demands[row.demand_id]
            if (demand.source, demand.destination) != (window.source, window.destination):
                yield CalendarFault("path", where, f"demand {row.demand_id} has other ends")
        yield from self._carries(window, known, where)

    def _path(self, window: WindowRow, where: str) -> Iterator[CalendarFault]:
        nodes = window.path.split(PATH_SEPARATOR)
        if nodes[0] != window.source or nodes[-1] != window.destination or len(nodes) < 2:
            yield CalendarFault("path", where, f"{window.path} does not join its ends")
        if len(set(nodes)) < len(nodes):
            yield CalendarFault("path", where, f"{window.path} passes a node twice")
        for a, b in pairwise(nodes):
            if not self.graph.has_edge(a, b):
                yield CalendarFault("path", where, f"no fibre {a}-{b}")
            elif not 0 <= window.wavelength < self.graph.edges[a, b]["wavelengths"]:
                yield CalendarFault(
                    "wavelength", where, f"channel {window.wavelength} is not on {a}-{b}"
                )

    def _carries(
        self, window: WindowRow, riders: list[AssignmentRow], where: str
    ) -> Iterator[CalendarFault]:
        """Whether light suffices for the claimed finish times."""
        gbps = self.settings.circuit_gbps
        lit_s = window.start_s + window.setup_s
        served = []
        for row in riders:
            if row.finish_s is None:
                continue
            if row.finish_s > window.end_s + _TIME_S:
                yield CalendarFault("too_short", where, f"demand {row.demand_id} ends after it")
            ready_s = max(lit_s, self.demands[row.demand_id].release_s)
            served.append((ready_s, row.finish_s, row.bytes * 8e-9 / gbps))
        worst_s = _worst_overload(served, capacity=1.0)
        if worst_s > _TIME_S * (1 + len(served)):
            yield CalendarFault("too_short", where, f"by {worst_s:.9f} s")

    # Windows against each other

    def _ports(self) -> Iterator[CalendarFault]:
        by_node = defaultdict(list)
        for window in self.calendar.windows:
            for node in (window.source, window.destination):
                by_node[node].append(window)
        for node, windows in by_node.items():
            ports = self.settings.hub_ports if node == self.hub else self.settings.site_ports
            others = [
                (r.start_ns / 1e9, r.end_ns / 1e9) for r in self.reservations if node in r.nodes
            ]
            rest_s = self.settings.guard_s
            bare = _most_at_once([(w.start_s, w.end_s) for w in windows], others)
            guarded = _most_at_once([(w.start_s, w.end_s + rest_s) for w in windows], others)
            if bare > ports:
                yield CalendarFault("port", f"node {node}", f"{bare} windows on {ports} ports")
            elif guarded > ports:
                yield CalendarFault("guard", f"node {node}", "a port is reused too early")

    def _wavelengths(self) -> Iterator[CalendarFault]:
        by_channel = defaultdict(list)
        for window in self.calendar.windows:
            nodes = window.path.split(PATH_SEPARATOR)
            for hop in pairwise(nodes):
                by_channel[hop, window.wavelength].append(window)
        for (hop, channel), windows in by_channel.items():
            windows.sort(key=lambda w: (w.start_s, w.end_s))
            busy_until = float("-inf")
            for window in windows:
                if window.start_s < busy_until - _TIME_S:
                    yield CalendarFault(
                        "wavelength",
                        f"window {window.window_id}",
                        f"channel {channel} on {hop[0]}-{hop[1]} is in use",
                    )
                elif window.start_s < busy_until + self.settings.guard_s - _TIME_S:
                    yield CalendarFault(
                        "guard", f"window {window.window_id}", f"channel {channel} reused early"
                    )
                busy_until = max(busy_until, window.end_s)

        yield from self._others(by_channel)

    def _others(
        self, by_channel: Mapping[tuple[tuple[str, str], int], list[WindowRow]]
    ) -> Iterator[CalendarFault]:
        for reservation in self.reservations:
            start, end = reservation.start_ns / 1e9, reservation.end_ns / 1e9
            for link in reservation.links:
                for window in by_channel.get((link, reservation.wavelength), ()):
                    free_s = window.end_s + self.settings.guard_s
                    if window.start_s < end - _TIME_S and free_s > start + _TIME_S:
                        yield CalendarFault(
                            "wavelength",
                            f"window {window.window_id}",
                            f"channel {reservation.wavelength} is reserved on {link[0]}-{link[1]}",
                        )

    # Packets

    def _packets(self) -> Iterator[CalendarFault]:
        rows = [
            row
            for row in self.calendar.assignments
            if row.window_id is None and row.finish_s is not None and row.demand_id in self.demands
        ]
        if self.calendar.rates is not None:
            yield from self._rates(rows)
            return
        users = defaultdict(list)
        for row in rows:
            demand = self.demands[row.demand_id]
            for link in self._route(demand.source, demand.destination):
                assert row.finish_s is not None
                users[link].append((demand.release_s, row.finish_s, row.bytes * 8e-9))
        for link, served in users.items():
            over = _worst_overload(served, capacity=self._granted(link))
            if over > _SHARE * self._granted(link):
                yield CalendarFault(
                    "packet_capacity", f"link {link[0]}-{link[1]}", f"{over:.6f} Gbit too many"
                )

    def _rates(self, rows: list[AssignmentRow]) -> Iterator[CalendarFault]:
        assert self.calendar.rates is not None
        finish = {row.demand_id: row for row in rows}
        sent: dict[int | str, float] = defaultdict(float)
        changes: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for rate in self.calendar.rates:
            where = f"demand {rate.demand_id}"
            if rate.demand_id not in finish or rate.gbps <= 0 or rate.end_s <= rate.start_s:
                yield CalendarFault("packet_rate", where, f"{rate.gbps} Gb/s is not its to send")
                continue
            demand, row = self.demands[rate.demand_id], finish[rate.demand_id]
            assert row.finish_s is not None
            if rate.start_s < demand.release_s - _TIME_S:
                yield CalendarFault("release", where, f"sends at {rate.start_s}")
            if rate.end_s > row.finish_s + _TIME_S:
                yield CalendarFault("packet_rate", where, "sends after its finish")
            sent[rate.demand_id] += rate.gbps * (rate.end_s - rate.start_s)
            for link in self._route(demand.source, demand.destination):
                changes[link] += [(rate.start_s, rate.gbps), (rate.end_s, -rate.gbps)]
        for row in rows:
            gbit = row.bytes * 8e-9
            if abs(sent[row.demand_id] - gbit) > max(_SHARE * gbit, 1e-7):
                yield CalendarFault(
                    "packet_rate",
                    f"demand {row.demand_id}",
                    f"{sent[row.demand_id]:.9f} of {gbit:.9f} Gbit",
                )
        for link, steps in changes.items():
            level = 0.0
            for time_s, change in sorted(steps):
                level += change
                if level > self._granted(link) * (1 + _SHARE):
                    yield CalendarFault(
                        "packet_capacity", f"link {link[0]}-{link[1]}", f"{level} at {time_s} s"
                    )
                    break

    def _least_km(self, source: str, destination: str) -> Sequence[tuple[str, str]]:
        """Directed links of the packet route."""
        nodes = next(nx.shortest_simple_paths(self.graph, source, destination, weight="km"))
        return list(pairwise(nodes))

    def _granted(self, link: tuple[str, str]) -> float:
        gbps: float = self.graph.edges[link]["packet_gbps"]
        return gbps * self.settings.packet_share


def _most_at_once(
    ours: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]
) -> int:
    """Largest number of intervals that overlap by more than rounding, one of them ours."""
    steps = []
    for mine, intervals in ((1, ours), (0, others)):
        for start, end in intervals:
            steps += [(start + _TIME_S, 1, mine), (end - _TIME_S, -1, -mine)]
    level = most = present = 0
    for _, change, mine in sorted(steps):
        level += change
        present += mine
        if present:
            most = max(most, level)
    return most


def _worst_overload(served: list[tuple[float, float, float]], capacity: float) -> float:
    """Largest excess of work over capacity in any interval that must hold it.

    Args:
        served: (ready, finish, work) of each transfer.
        capacity: work per second.
    """
    if not served:
        return 0.0
    ready, finish, work = np.array(sorted(served, reverse=True)).T
    worst = 0.0
    for end in np.unique(finish):
        ends_by_then = finish <= end
        inside = np.cumsum(work[ends_by_then])
        worst = max(worst, float(np.max(inside - capacity * (end - ready[ends_by_then]))))
    return worst
