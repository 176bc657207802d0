"""Which nodes of a fibre graph are gNBs of a federated job, and which are near each other."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from ranloom.errors import InputError


def candidates(graph: nx.Graph, hub: str) -> list[str]:
    """Nodes that can be gNBs: those of kind ``gnb``, or all but the hub where none is."""
    kinds = nx.get_node_attributes(graph, "kind")
    nodes = [str(n) for n in graph if kinds.get(n) == "gnb"]
    return nodes or [str(n) for n in graph if n != hub]


def gnb_nodes(graph: nx.Graph, hub: str, count: int) -> list[str]:
    """Node names of the gNBs, evenly drawn from the :func:`candidates`.

    Raises:
        InputError: fewer nodes than gNBs.
    """
    nodes = candidates(graph, hub)
    if count > len(nodes):
        raise InputError("n_gnbs", count, f"allowed: up to {len(nodes)}")
    return [nodes[i * len(nodes) // count] for i in range(count)]


def nearest(graph: nx.Graph, names: Sequence[str], count: int) -> tuple[tuple[int, ...], ...]:
    """For each gNB the numbers of its nearest ones by fibre."""
    by_gnb = []
    for name in names:
        km = nx.single_source_dijkstra_path_length(graph, name, weight="km")
        others = sorted((km[other], i) for i, other in enumerate(names) if other != name)
        by_gnb.append(tuple(i for _, i in others[:count]))
    return tuple(by_gnb)
