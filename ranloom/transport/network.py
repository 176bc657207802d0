"""What planning needs of a topology: routes, candidate paths, granted rates, limits.

Links are directed: the two directions of a fibre pair are separate resources, in the
packet layer and in the optical one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import networkx as nx
import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import NS_PER_S, BoolArray, Demands, FloatArray, IntArray
from ranloom.transport.topology import Topology


@dataclass(frozen=True)
class TransportSettings:
    """Rates, times and limits under which transfers are planned.

    Args:
        setup_s: time from a window's start to light that carries data.
        guard_s: time for which ports and channels stay blocked after a window.
        circuit_gbps: rate of an optical circuit.
        site_ports: optical ports (transceivers) of every node but the hub.
        hub_ports: optical ports of the hub.
        candidate_paths: paths per node pair that a window may take.
        packet_share: share of each packet link's rate that is granted to these transfers.
    """

    setup_s: float
    guard_s: float
    circuit_gbps: float
    site_ports: int
    hub_ports: int
    candidate_paths: int
    packet_share: float

    def __post_init__(self) -> None:
        for name in ("setup_s", "guard_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(name, getattr(self, name), "at least 0 s")
        if not 0 < self.circuit_gbps < float("inf"):
            raise InputError("circuit_gbps", self.circuit_gbps, "greater than 0")
        for name in ("site_ports", "hub_ports", "candidate_paths"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "at least 1")
        if not 0 < self.packet_share <= 1:
            raise InputError("packet_share", self.packet_share, "above 0 and at most 1")

    @property
    def setup_ns(self) -> int:
        """Set-up time in ns, rounded up."""
        return int(np.ceil(self.setup_s * NS_PER_S))

    @property
    def guard_ns(self) -> int:
        """Guard time in ns, rounded up."""
        return int(np.ceil(self.guard_s * NS_PER_S))


@dataclass(frozen=True)
class LightPath:
    """A candidate path of light.

    Args:
        nodes: node names from source to destination.
        links: indices of its directed links.
        km: fibre length.
        wavelengths: channels ``0 .. wavelengths - 1`` exist on all of its links.
    """

    nodes: tuple[str, ...]
    links: tuple[int, ...]
    km: float
    wavelengths: int


@dataclass(frozen=True)
class Bottlenecks:
    """Binding links whose traffic competes with each other's and nobody else's.

    Args:
        pairs: [pairs] which pairs use any of them.
        users: (link, [pairs] which pairs use it), by link.
    """

    pairs: BoolArray
    users: tuple[tuple[int, BoolArray], ...]


@dataclass(frozen=True)
class Network:
    """A topology seen by demands between given pairs of nodes.

    Args:
        nodes: node names; positions are node indices.
        ports: optical ports per node.
        links: directed links as (from, to) node names.
        granted_gbps: packet rate per link that these transfers may use.
        packet_gbps: packet rate per link.
        wavelengths: channels per link.
        pairs: (source, destination) of each pair.
        routes: packet route of each pair: indices of directed links, least km.
        paths: candidate paths of each pair for windows, least km first.
        binding: links of each pair's route whose packet limit is not implied by another
            link: one for every pair of a network with one bottleneck per route.
        settings: the settings that it was built for.
    """

    nodes: tuple[str, ...]
    ports: IntArray
    links: tuple[tuple[str, str], ...]
    granted_gbps: FloatArray
    packet_gbps: FloatArray
    wavelengths: IntArray
    pairs: tuple[tuple[str, str], ...]
    routes: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[LightPath, ...], ...]
    binding: tuple[tuple[int, ...], ...]
    settings: TransportSettings

    @cached_property
    def bottlenecks(self) -> tuple[Bottlenecks, ...]:
        """Binding links that share routes, directly or over others, with the pairs on each."""
        links = nx.Graph()
        for binding in self.binding:
            nx.add_path(links, binding)
        found = []
        for members in nx.connected_components(links):
            users = tuple(
                (link, np.array([link in binding for binding in self.binding], dtype=np.bool_))
                for link in sorted(members)
            )
            pairs = np.logical_or.reduce([uses for _, uses in users])
            found.append(Bottlenecks(pairs, users))
        return tuple(found)

    def pair_of(self, demands: Demands) -> IntArray:
        """Pair index of each demand.

        Raises:
            InputError: the network was built without that pair.
        """
        index = {pair: position for position, pair in enumerate(self.pairs)}
        found = np.empty(len(demands), dtype=np.int64)
        ends = zip(demands.source, demands.destination, strict=True)
        for row, pair in enumerate(ends):
            if pair not in index:
                raise InputError("demand", f"{pair[0]} to {pair[1]}", "a pair of the network")
            found[row] = index[pair]
        return found

    def route_rate_gbps(self, pair: int) -> float:
        """Packet rate left on the pair's route when nothing else of ours uses it."""
        return float(min(self.granted_gbps[link] for link in self.routes[pair]))


def build_network(
    topology: Topology,
    pairs: Sequence[tuple[str, str]],
    settings: TransportSettings,
    *,
    down: frozenset[tuple[str, str]] = frozenset(),
) -> Network:
    """Routes, candidate paths and limits for the pairs.

    Args:
        topology: the topology.
        pairs: (source, destination) node names; duplicates are dropped, order is kept.
        settings: rates, times and limits.
        down: fibres (both directions) that carry neither packets nor light.

    Raises:
        InputError: an unknown node, or a pair without a path.
    """
    pairs = list(dict.fromkeys(pairs))
    topology.require((node for pair in pairs for node in pair), "demand")
    graph = topology.graph
    if down:
        graph = graph.copy()
        graph.remove_edges_from(down)
    nodes = tuple(str(node) for node in graph)
    links = tuple(d for a, b in graph.edges for d in ((a, b), (b, a)))
    index = {link: position for position, link in enumerate(links)}
    attributes = [graph.edges[link] for link in links]
    packet_gbps = np.array([link["packet_gbps"] for link in attributes], dtype=np.float64)
    wavelengths = np.array([link["wavelengths"] for link in attributes], dtype=np.int64)
    granted = packet_gbps * settings.packet_share

    candidates = []
    for source, destination in pairs:
        if not nx.has_path(graph, source, destination):
            raise InputError(
                "topology", f"{source} to {destination}", "a path between the ends of each demand"
            )
        found = islice(
            nx.shortest_simple_paths(graph, source, destination, weight="km"),
            settings.candidate_paths,
        )
        candidates.append(tuple(_path(graph, tuple(p), index, wavelengths) for p in found))
    routes = tuple(paths[0].links for paths in candidates)
    ports = [settings.hub_ports if n == topology.hub else settings.site_ports for n in nodes]
    return Network(
        nodes=nodes,
        ports=np.array(ports, dtype=np.int64),
        links=links,
        granted_gbps=granted,
        packet_gbps=packet_gbps,
        wavelengths=wavelengths,
        pairs=tuple(pairs),
        routes=routes,
        paths=tuple(candidates),
        binding=_binding_links(routes, granted),
        settings=settings,
    )


def _path(
    graph: nx.Graph, nodes: tuple[str, ...], index: dict[tuple[str, str], int], channels: IntArray
) -> LightPath:
    links = tuple(index[hop] for hop in pairwise(nodes))
    km = sum(float(graph.edges[hop]["km"]) for hop in pairwise(nodes))
    return LightPath(nodes, links, km, int(min(channels[link] for link in links)))


def _binding_links(
    routes: tuple[tuple[int, ...], ...], granted_gbps: FloatArray
) -> tuple[tuple[int, ...], ...]:
    """Drop each link whose limit another one implies: same or more users, same or less rate."""
    users: dict[int, set[int]] = {}
    for pair, route in enumerate(routes):
        for link in route:
            users.setdefault(link, set()).add(pair)
    implied = set()
    for link, mine in users.items():
        # Only links that every user of this one passes can imply its limit.
        shared = set.intersection(*(set(routes[pair]) for pair in mine)) - {link}
        for other in shared:
            same = users[other] == mine and granted_gbps[other] == granted_gbps[link]
            if granted_gbps[other] <= granted_gbps[link] and (not same or other > link):
                implied.add(link)
                break
    return tuple(tuple(link for link in route if link not in implied) for route in routes)
