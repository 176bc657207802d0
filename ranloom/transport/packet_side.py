"""The packet layer as the planner sees it: independent parts with one or more bottlenecks."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np

from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.network import Network
from ranloom.transport.packet import Segments, Server, relieve
from ranloom.transport.packet_routes import fluid_edf


@dataclass(frozen=True)
class Part:
    """Demands that compete for packet capacity with each other and nobody else.

    Args:
        rows: demand rows, ascending.
        servers: one per binding link; one alone makes the demand bound exact.
    """

    rows: IntArray
    servers: tuple[Server, ...]


class PacketSide:
    """Admission to the granted packet capacity.

    Args:
        demands: the demands.
        network: routes and granted rates.
        pair_of: [n] pair of each demand.
    """

    def __init__(self, demands: Demands, network: Network, pair_of: IntArray) -> None:
        self._demands = demands
        self._network = network
        self._pair_of = pair_of
        links = nx.Graph()
        for binding in network.binding:
            nx.add_path(links, binding)
            links.add_nodes_from(binding)
        part_of_link = {
            link: part
            for part, members in enumerate(nx.connected_components(links))
            for link in members
        }
        part_of_pair = np.array([part_of_link[b[0]] for b in network.binding], dtype=np.int64)
        self.part_of: IntArray = part_of_pair[pair_of]
        rows_of = _rows_by(pair_of, len(network.pairs))
        servers: dict[int, list[Server]] = {}
        for link in sorted(part_of_link):
            users = [rows_of[p] for p, b in enumerate(network.binding) if link in b]
            rows = np.sort(np.concatenate(users))
            server = Server.of(
                rows,
                demands.bytes,
                demands.release_ns,
                demands.deadline_ns,
                float(network.granted_gbps[link]),
            )
            servers.setdefault(part_of_link[link], []).append(server)
        parts = _rows_by(self.part_of, len(servers))
        self.parts = [Part(parts[k], tuple(servers[k])) for k in range(len(servers))]

    def fits(self, part: int, packet: BoolArray) -> bool:
        """Whether the rows of a part for which ``packet`` is set arrive in time."""
        servers = self.parts[part].servers
        if not all(server.fits(packet[server.rows]) for server in servers):
            return False
        return len(servers) == 1 or self._late(part, packet) < 0

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
        self,
        part: int,
        packet: BoolArray,
        group: IntArray,
        may_go: BoolArray,
        sheddable: BoolArray,
    ) -> bool:
        """Take rows off the packet layer until the rest of a part arrives in time.

        Args:
            part: index of the part.
            packet: [n] rows on the packet layer; cleared where they are taken off.
            group: [n] group that leaves as one, -1 for none.
            may_go: [groups] groups that may leave; cleared for those that did.
            sheddable: [n] rows that may be shed alone.

        Returns:
            Whether the rest fits; it always does when every row is sheddable.
        """
        servers = self.parts[part].servers
        for server in servers:
            rows = server.rows[packet[server.rows]]
            inside = packet[server.rows]
            gone, shed, fits = relieve(
                server.release_ns[inside],
                server.deadline_ns[inside],
                server.work[inside],
                group[rows],
                may_go,
                sheddable[rows],
            )
            packet[rows[shed]] = False
            packet[rows[(group[rows] >= 0) & gone[group[rows]]]] = False
            may_go &= ~gone
            if not fits:
                return False
        if len(servers) == 1:
            return True
        while (late := self._late(part, packet)) >= 0:
            together = group[late]
            if together >= 0 and may_go[together]:
                packet[group == together] = False
                may_go[together] = False
            elif sheddable[late]:
                packet[late] = False
            else:
                return False
        return True

    def schedule(self, packet: BoolArray) -> tuple[IntArray, Segments]:
        """Rates over time for rows that fit.

        Returns:
            [n] finish in ns, -1 for rows that are not sent, and the segments by start.
        """
        finish = np.full(len(packet), -1, dtype=np.int64)
        found = []
        for part in self.parts:
            rows = part.rows[packet[part.rows]]
            if len(part.servers) == 1:
                server = part.servers[0]
                alive = packet[server.rows]
                ends, segments = server.schedule(alive)
                finish[server.rows[alive]] = ends[alive]
                found.append(segments)
            elif len(rows):
                ends, segments, _ = self._route(rows, stop_when_late=False)
                finish[rows] = ends
                found.append(
                    Segments(rows[segments.row], segments.start_ns, segments.end_ns, segments.gbps)
                )
        row, start, end, gbps = (
            np.concatenate([getattr(s, name) for s in found] or [np.empty(0, dtype=dtype)])
            for name, dtype in (
                ("row", np.int64),
                ("start_ns", np.int64),
                ("end_ns", np.int64),
                ("gbps", np.float64),
            )
        )
        order = np.lexsort((row, start))
        return finish, Segments(row[order], start[order], end[order], gbps[order])


def _rows_by(key: IntArray, count: int) -> list[IntArray]:
    """Rows of each key value, ascending."""
    order = np.argsort(key, kind="stable")
    return [chunk.astype(np.int64) for chunk in np.split(order, _bounds(key, count))]


def _bounds(key: IntArray, count: int) -> IntArray:
    counts = np.bincount(key, minlength=count)
    bounds: IntArray = np.cumsum(counts)[:-1]
    return bounds
