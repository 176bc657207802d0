"""The packet layer as the planner sees it: independent parts with one or more bottlenecks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.transport.cover import Cover, lessen, relieve, swap_in
from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.network import Network
from ranloom.transport.packet import Segments, Server
from ranloom.transport.packet_routes import fluid_edf
from ranloom.transport.points import Points


@dataclass(frozen=True)
class Part:
    """Demands that compete for packet capacity with each other and nobody else.

    Args:
        rows: demand rows, by release.
        covers: one per binding link; one alone makes the demand bound exact.
    """

    rows: IntArray
    covers: tuple[Cover, ...]


class PacketSide:
    """Admission to the granted packet capacity.

    Args:
        demands: the demands.
        network: routes and granted rates.
        pair_of: [n] pair of each demand.
        points: candidate windows of the demands.
    """

    def __init__(
        self, demands: Demands, network: Network, pair_of: IntArray, points: Points
    ) -> None:
        self._demands = demands
        self._network = network
        self._pair_of = pair_of
        self.parts: list[Part] = []
        self.part_of: IntArray = np.zeros(len(demands), dtype=np.int64)
        for shared in network.bottlenecks:
            for rows in stretches(demands, np.flatnonzero(shared.pairs[pair_of])):
                covers = []
                for link, pairs in shared.users:
                    passing = rows[pairs[pair_of[rows]]]
                    if len(passing) == 0:
                        continue  # nothing of this stretch of time
                    server = Server.of(
                        passing,
                        demands.bytes,
                        demands.release_ns,
                        demands.deadline_ns,
                        float(network.granted_gbps[link]),
                    )
                    covers.append(Cover.of(server, points))
                self.part_of[rows] = len(self.parts)
                self.parts.append(Part(rows, tuple(covers)))

    def fits(self, part: int, packet: BoolArray) -> bool:
        """Whether the rows of a part for which ``packet`` is set arrive in time."""
        covers = self.parts[part].covers
        if not all(cover.server.fits(packet[cover.server.rows]) for cover in covers):
            return False
        return len(covers) == 1 or self._late(part, packet) < 0

    def _late(self, part: int, packet: BoolArray) -> int:
        rows = self.parts[part].rows
        rows = rows[packet[rows]]
        _, _, late = self._route(rows, stop_when_late=True)
        return int(rows[late]) if late >= 0 else -1

    def _route(self, rows: IntArray, *, stop_when_late: bool) -> tuple[IntArray, Segments, int]:
        return fluid_edf(
            self._demands.release_ns[rows],
            self._demands.deadline_ns[rows],
            self._demands.bytes[rows],
            self._pair_of[rows],
            self._network.binding,
            self._network.granted_gbps,
            stop_when_late=stop_when_late,
        )

    def relieve(
        self, part: int, packet: BoolArray, may_go: BoolArray, sheddable: BoolArray, points: Points
    ) -> BoolArray:
        """Take rows off the packet layer until the rest of a part arrives in time.

        Args:
            part: index of the part.
            packet: [n] rows on the packet layer; cleared where they are taken off.
            may_go: [points] candidate windows that may be lit.
            sheddable: [n] rows that may be shed alone; with all of them the rest always fits.
            points: the candidates.

        Returns:
            [points] candidates that were chosen; their riders left the packet layer.
        """
        chosen = np.zeros(len(may_go), dtype=np.bool_)
        covers = self.parts[part].covers
        for cover in covers:
            rows = cover.server.rows
            alive = packet[rows]
            gone, _ = relieve(cover, alive, may_go & ~chosen, sheddable[rows])
            packet[rows] = alive
            for point in np.flatnonzero(gone):
                packet[points.riders(int(point))] = False
            chosen |= gone
        if len(covers) > 1:
            while (late := self._late(part, packet)) >= 0 and sheddable[late]:
                packet[late] = False
        return chosen

    def swap_in(self, part: int, packet: BoolArray, waiting: BoolArray) -> None:
        """Serve more of a part by exchanging rows, in ``packet`` in place.

        With several bottlenecks, rows only come in.

        Args:
            part: index of the part.
            packet: [n] rows on the packet layer, which fit.
            waiting: [n] rows that may come in or go out.
        """
        covers = self.parts[part].covers
        if len(covers) > 1:
            out = np.flatnonzero(waiting & ~packet)
            for row in out[np.argsort(-self._demands.bytes[out], kind="stable")]:
                packet[row] = True
                packet[row] = self.fits(part, packet)
            return
        rows = covers[0].server.rows
        packet[rows] = swap_in(covers[0], packet[rows], waiting[rows])

    def lessen(
        self,
        part: int,
        base: BoolArray,
        may_go: BoolArray,
        chosen: BoolArray,
        *,
        iterations: int,
    ) -> BoolArray:
        """Fewer candidates that relieve a part with one bottleneck as well.

        Args:
            part: index of the part.
            base: [n] rows that are to be served.
            may_go: [points] candidates that may be lit.
            chosen: [points] candidates that suffice.
            iterations: rounds of the search.
        """
        covers = self.parts[part].covers
        if len(covers) > 1 or chosen.sum() < 1:
            return chosen
        (cover,) = covers
        return lessen(cover, base[cover.server.rows], may_go, chosen, iterations)

    def schedule(self, packet: BoolArray) -> tuple[IntArray, Segments]:
        """Rates over time for rows that fit.

        Returns:
            [n] finish in ns, -1 for rows that are not sent, and the segments by start.
        """
        finish = np.full(len(packet), -1, dtype=np.int64)
        found = []
        for part in self.parts:
            rows = part.rows[packet[part.rows]]
            if len(rows) == 0:
                continue
            if len(part.covers) == 1:
                server = part.covers[0].server
                alive = packet[server.rows]
                ends, segments = server.schedule(alive)
                finish[server.rows[alive]] = ends[alive]
                found.append(segments)
            else:
                ends, segments, _ = self._route(rows, stop_when_late=False)
                finish[rows] = ends
                found.append(
                    Segments(rows[segments.row], segments.start_ns, segments.end_ns, segments.gbps)
                )
        row, start, end, gbps = (
            np.concatenate([np.empty(0, dtype=dtype), *(getattr(s, name) for s in found)])
            for name, dtype in (
                ("row", np.int64),
                ("start_ns", np.int64),
                ("end_ns", np.int64),
                ("gbps", np.float64),
            )
        )
        order = np.lexsort((row, start))
        return finish, Segments(row[order], start[order], end[order], gbps[order])


def stretches(demands: Demands, rows: IntArray) -> list[IntArray]:
    """Rows by release, split where everything is due before anything else is released.

    Before such a moment every schedule is done with what came earlier, so the stretches do
    not compete.
    """
    if len(rows) == 0:
        return []
    rows = rows[np.argsort(demands.release_ns[rows], kind="stable")]
    due = np.maximum.accumulate(demands.deadline_ns[rows])
    breaks = np.flatnonzero(demands.release_ns[rows[1:]] >= due[:-1]) + 1
    return np.split(rows, breaks)
