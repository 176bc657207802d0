"""Built-in topologies: star, ring and tree of gNB sites round one hub."""

from __future__ import annotations

import networkx as nx

from ranloom.errors import InputError
from ranloom.transport.topology import LinkDefaults, Topology, checked

HUB = "core"


def site_name(index: int) -> str:
    """Name of the gNB site with that index: ``gnb_00``, ``gnb_01``, ..."""
    return f"gnb_{index:02d}"


def star(sites: int, km: float, defaults: LinkDefaults) -> Topology:
    """Every site on its own fibre of ``km`` to the hub.

    Raises:
        InputError: fewer than one site or a negative length.
    """
    graph = _with_hub(sites)
    for index in range(sites):
        _attach(graph, site_name(index), HUB, km, defaults)
    return checked(graph, HUB, "star topology")


def ring(
    sites: int, hop_km: float, defaults: LinkDefaults, *, sites_per_office: int, spur_km: float
) -> Topology:
    """Offices on one ring through the hub, with gNB sites on spurs.

    Args:
        sites: number of gNB sites.
        hop_km: fibre between neighbours on the ring.
        defaults: packet rate and wavelengths of every link.
        sites_per_office: sites that share one ring node.
        spur_km: fibre from a site to its office.

    Raises:
        InputError: fewer than one site or site per office, or a negative length.
    """
    if sites_per_office < 1:
        raise InputError("ring topology: sites_per_office", sites_per_office, "at least 1")
    graph = _with_hub(sites)
    offices = max(2, -(-sites // sites_per_office))
    names = [f"agg_{office:02d}" for office in range(offices)]
    for name in names:
        graph.add_node(name, kind="aggregation")
    for a, b in zip([HUB, *names], [*names, HUB], strict=True):
        _link(graph, a, b, hop_km, defaults)
    for index in range(sites):
        _attach(graph, site_name(index), names[index // sites_per_office], spur_km, defaults)
    return checked(graph, HUB, "ring topology")


def tree(sites: int, fanout: int, km: float, defaults: LinkDefaults) -> Topology:
    """A complete tree: offices split with ``fanout`` until the leaves hold all sites.

    Raises:
        InputError: fewer than one site, a fan-out below 2, or a negative length.
    """
    if fanout < 2:
        raise InputError("tree topology: fanout", fanout, "at least 2")
    graph = _with_hub(sites)
    level, offices = [HUB], 0
    while len(level) * fanout < sites:
        below = []
        for parent in level:
            for _ in range(fanout):
                name = f"agg_{offices:02d}"
                offices += 1
                graph.add_node(name, kind="aggregation")
                _link(graph, name, parent, km, defaults)
                below.append(name)
        level = below
    for index in range(sites):
        _attach(graph, site_name(index), level[index % len(level)], km, defaults)
    return checked(graph, HUB, "tree topology")


def _with_hub(sites: int) -> nx.Graph:
    if sites < 1:
        raise InputError("topology: sites", sites, "at least 1")
    graph = nx.Graph()
    graph.add_node(HUB, kind="hub")
    return graph


def _attach(graph: nx.Graph, site: str, to: str, km: float, defaults: LinkDefaults) -> None:
    graph.add_node(site, kind="gnb")
    _link(graph, site, to, km, defaults)


def _link(graph: nx.Graph, a: str, b: str, km: float, defaults: LinkDefaults) -> None:
    graph.add_edge(a, b, km=km, packet_gbps=defaults.packet_gbps, wavelengths=defaults.wavelengths)
