"""Topologies in GML as TopoHub publishes them: Topology Zoo and SNDlib, ``dist`` in km."""

from __future__ import annotations

import math
from pathlib import Path

import networkx as nx

from ranloom.errors import InputError
from ranloom.transport.topology import LinkDefaults, Topology, checked

#: Fibre follows roads and rails: TopoHub's ``dist`` is a great circle, fibre is longer.
ROUTE_FACTOR = 1.3


def load_gml(
    path: Path, hub: str | None, defaults: LinkDefaults, *, route_factor: float = ROUTE_FACTOR
) -> Topology:
    """Read a GML topology.

    Args:
        path: the file; links carry their great-circle length as ``dist`` in km.
        hub: name of the hub; None takes the node with the most links (first of equals).
        defaults: packet rate and wavelengths of every link.
        route_factor: fibre km per great-circle km.

    Returns:
        The topology; node names are the labels of the file, stripped.

    Raises:
        InputError: not a GML file, a link without a ``dist`` that is a finite number of
            at least 0, a label twice, or see :func:`~ranloom.transport.topology.checked`.
    """
    try:
        parsed = nx.read_gml(path)
    except FileNotFoundError:
        raise InputError(str(path), str(path), "an existing file") from None
    except (nx.NetworkXError, UnicodeDecodeError, ValueError, TypeError, AttributeError) as error:
        raise InputError(str(path), str(error).split("\n")[0], "a GML graph") from None
    graph = nx.Graph()
    for label, data in parsed.nodes(data=True):
        name = str(label).strip()
        if name in graph:
            raise InputError(f"{path}: node", name, "each label once")
        known = {key: float(data[key]) for key in ("lat", "lon") if key in data}
        graph.add_node(name, kind="node", **(known if len(known) == 2 else {}))
    for a, b, data in parsed.edges(data=True):
        dist_km = data.get("dist")
        if not isinstance(dist_km, int | float) or not math.isfinite(dist_km) or dist_km < 0:
            raise InputError(f"{path}: edge {a}-{b}: dist", dist_km, "a length in km, at least 0")
        first, second = str(a).strip(), str(b).strip()
        if first == second:
            continue
        km = route_factor * float(dist_km)
        # Parallel links of a multigraph: light takes the shorter one.
        if not graph.has_edge(first, second) or graph.edges[first, second]["km"] > km:
            graph.add_edge(
                first,
                second,
                km=km,
                packet_gbps=defaults.packet_gbps,
                wavelengths=defaults.wavelengths,
            )
    if hub is None:
        hub = most_connected(graph, str(path))
    return checked(graph, hub, str(path))


def most_connected(graph: nx.Graph, where: str) -> str:
    """Node with the most links, the first one of equals.

    Raises:
        InputError: the graph has no nodes.
    """
    if graph.number_of_nodes() == 0:
        raise InputError(where, "nodes", "at least the hub and one more node")
    return str(max(graph.nodes, key=lambda node: int(graph.degree[node])))
