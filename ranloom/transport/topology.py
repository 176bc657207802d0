"""Transport topology: fibre graph between gNB sites, offices and the hub.

A topology is an undirected :class:`networkx.Graph`. Node attributes: ``kind``
(``gnb``, ``aggregation``, ``hub``, ``node``), optional ``lat``/``lon`` in degrees.
Edge attributes: ``km`` of fibre, ``packet_gbps`` of the packet layer in each direction,
``wavelengths`` (the link carries channels ``0 .. wavelengths - 1`` in each direction).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ranloom.errors import InputError


@dataclass(frozen=True)
class LinkDefaults:
    """What a link carries where a file states only its length.

    Args:
        packet_gbps: packet-layer rate of a link in each direction.
        wavelengths: channels of a link in each direction.
    """

    packet_gbps: float
    wavelengths: int


@dataclass(frozen=True)
class Topology:
    """A checked topology.

    Args:
        graph: connected graph with the attributes named in the module docstring.
        hub: node that runs the federated server, destination of the aggregates.
    """

    graph: nx.Graph
    hub: str

    def require(self, names: Iterable[str], where: str) -> None:
        """Refuse names that are no nodes.

        Raises:
            InputError: a name is unknown.
        """
        for name in names:
            if name not in self.graph:
                raise InputError(where, name, f"a node of the topology ({_some(self.graph)})")

    def without_link(self, a: str, b: str) -> Topology:
        """The topology after fibre ``a``-``b`` was cut; parts may be disconnected then."""
        self.require((a, b), "cut link")
        if not self.graph.has_edge(a, b):
            raise InputError("cut link", f"{a}-{b}", "a link of the topology")
        graph = self.graph.copy()
        graph.remove_edge(a, b)
        return Topology(graph, self.hub)


class _Node(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(min_length=1)
    kind: str
    lat: float | None = Field(default=None, ge=-90, le=90)
    lon: float | None = Field(default=None, ge=-180, le=180)


class _Link(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    a: str
    b: str
    km: float
    packet_gbps: float
    wavelengths: int


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    nodes: list[_Node]
    links: list[_Link]
    hub: str


def _some(graph: nx.Graph, limit: int = 6) -> str:
    names = [str(n) for n in graph]
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def checked(graph: nx.Graph, hub: str, where: str) -> Topology:
    """Topology from a graph, or the fault that it has.

    Args:
        graph: graph with the attributes named in the module docstring.
        hub: name of the hub.
        where: file or key, for error messages.

    Raises:
        InputError: no nodes, hub missing, a link without length, with zero capacity or
            without wavelengths, a loop, or a part that does not reach the hub.
    """
    if graph.number_of_nodes() == 0:
        raise InputError(where, "nodes", "at least the hub and one more node")
    if hub not in graph:
        raise InputError(f"{where}: hub", hub, f"a node of the topology ({_some(graph)})")
    for a, b, link in graph.edges(data=True):
        place = f"{where}: link {a}-{b}"
        if a == b:
            raise InputError(place, a, "two different ends")
        for key, low in (("km", 0.0), ("packet_gbps", None), ("wavelengths", None)):
            value = link.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                raise InputError(f"{place}: {key}", value, "a number")
            if value == float("inf") or (value < low if low is not None else value <= 0):
                raise InputError(
                    f"{place}: {key}", value, "at least 0" if low is not None else "greater than 0"
                )
    reached = nx.node_connected_component(graph, hub)
    if len(reached) < len(graph):
        stranded = next(n for n in graph if n not in reached)
        raise InputError(
            f"{where}: node", stranded, f"every node reaches the hub {hub} over links (it does not)"
        )
    return Topology(graph, hub)


def from_document(document: Any, where: str) -> Topology:
    """Topology from the project's own JSON document.

    Args:
        document: ``{"nodes": [{name, kind, lat?, lon?}], "links": [{a, b, km, packet_gbps,
            wavelengths}], "hub": name}``.
        where: file name for error messages.

    Raises:
        InputError: the document does not follow the schema, names a node twice or not at
            all, or the topology cannot be used (see :func:`checked`).
    """
    try:
        parsed = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "document"
        raise InputError(f"{where}: {key}", first["input"], first["msg"]) from None
    graph = nx.Graph()
    for node in parsed.nodes:
        if node.name in graph:
            raise InputError(f"{where}: nodes", node.name, "each name once")
        place = {} if node.lat is None or node.lon is None else {"lat": node.lat, "lon": node.lon}
        graph.add_node(node.name, kind=node.kind, **place)
    for link in parsed.links:
        for end in (link.a, link.b):
            if end not in graph:
                raise InputError(f"{where}: link {link.a}-{link.b}", end, "a name in nodes")
        if graph.has_edge(link.a, link.b):
            raise InputError(f"{where}: links", f"{link.a}-{link.b}", "each pair once")
        graph.add_edge(
            link.a,
            link.b,
            km=link.km,
            packet_gbps=link.packet_gbps,
            wavelengths=link.wavelengths,
        )
    return checked(graph, parsed.hub, where)


def to_document(topology: Topology) -> dict[str, Any]:
    """The project's own JSON document of a topology; inverse of :func:`from_document`."""
    nodes = []
    for name, data in topology.graph.nodes(data=True):
        node: dict[str, Any] = {"name": str(name), "kind": str(data.get("kind", "node"))}
        if "lat" in data and "lon" in data:
            node |= {"lat": float(data["lat"]), "lon": float(data["lon"])}
        nodes.append(node)
    links = [
        {
            "a": a,
            "b": b,
            "km": float(link["km"]),
            "packet_gbps": float(link["packet_gbps"]),
            "wavelengths": int(link["wavelengths"]),
        }
        for a, b, link in topology.graph.edges(data=True)
    ]
    return {"hub": topology.hub, "nodes": nodes, "links": links}


def read_json(path: Path, where: str | None = None) -> Any:
    """A JSON file.

    Raises:
        InputError: it is missing, empty, truncated or not JSON.
    """
    name = where or str(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(name, str(path), "an existing file") from None
    except (IsADirectoryError, PermissionError) as error:
        raise InputError(name, str(path), f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start}", "UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}", error.msg, "valid JSON") from None
