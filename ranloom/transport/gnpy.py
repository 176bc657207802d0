"""Topologies in the JSON format of GNPy (Telecom Infra Project)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx

from ranloom.errors import InputError
from ranloom.transport.gml import most_connected
from ranloom.transport.topology import LinkDefaults, Topology, checked, read_json

_KM = {"km": 1.0, "m": 1e-3}


def load_gnpy(path: Path, hub: str | None, defaults: LinkDefaults) -> Topology:
    """Read a GNPy network: ROADMs become nodes, chains of fibres between them links.

    Amplifiers and fused spans are passed through; the length of a link is the sum of its
    fibres, the mean of both directions where both are given.

    Args:
        path: the file, ``{"elements": [...], "connections": [...]}``.
        hub: name of the hub: a ROADM's uid, or the uid without its leading ``roadm ``.
            None takes the ROADM with the most links.
        defaults: packet rate and wavelengths of every link.

    Raises:
        InputError: not that format, an unknown uid in a connection, a fibre without length,
            no ROADM, or see :func:`~ranloom.transport.topology.checked`.
    """
    return from_gnpy(read_json(path), hub, defaults, str(path))


def from_gnpy(document: Any, hub: str | None, defaults: LinkDefaults, where: str) -> Topology:
    """Topology from a parsed GNPy document; see :func:`load_gnpy`."""
    chains = nx.DiGraph()
    for row, element in enumerate(_rows(document, "elements", where)):
        uid, kind = element.get("uid"), element.get("type")
        if not isinstance(uid, str) or not isinstance(kind, str):
            raise InputError(f"{where}: elements[{row}]", element, "an element with uid and type")
        chains.add_node(uid, kind=kind, km=_fibre_km(element, where), place=_place(element))
    for row, connection in enumerate(_rows(document, "connections", where)):
        ends = (connection.get("from_node"), connection.get("to_node"))
        for end in ends:
            if end not in chains:
                raise InputError(f"{where}: connections[{row}]", end, "a uid in elements")
        chains.add_edge(*ends)

    sites = [uid for uid, kind in chains.nodes(data="kind") if kind == "Roadm"]
    if not sites:
        raise InputError(f"{where}: elements", "no Roadm", "at least two elements of type Roadm")
    names = {uid: uid.removeprefix("roadm ") for uid in sites}
    graph = nx.Graph()
    for uid in sites:
        graph.add_node(names[uid], kind="node", **chains.nodes[uid]["place"])
    lengths: dict[tuple[str, str], list[float]] = {}
    for uid in sites:
        for reached, km in _spans(chains, uid):
            pair = (names[uid], names[reached])
            lengths.setdefault((min(pair), max(pair)), []).append(km)
    for (a, b), kms in sorted(lengths.items()):
        graph.add_edge(
            a,
            b,
            km=sum(kms) / len(kms),
            packet_gbps=defaults.packet_gbps,
            wavelengths=defaults.wavelengths,
        )
    if hub is None:
        hub = most_connected(graph, where)
    return checked(graph, hub.removeprefix("roadm "), where)


def _rows(document: Any, key: str, where: str) -> list[dict[str, Any]]:
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{where}: {key}", rows, "a list of objects, as GNPy writes it")
    return rows


def _fibre_km(element: dict[str, Any], where: str) -> float:
    if element["type"] not in ("Fiber", "RamanFiber"):
        return 0.0
    params = element.get("params")
    params = params if isinstance(params, dict) else {}
    length, unit = params.get("length"), params.get("length_units", "km")
    if isinstance(length, bool) or not isinstance(length, int | float) or length < 0:
        raise InputError(f"{where}: {element['uid']}: length", length, "a length of at least 0")
    if unit not in _KM:
        raise InputError(f"{where}: {element['uid']}: length_units", unit, "km or m")
    return float(length) * _KM[unit]


def _place(element: dict[str, Any]) -> dict[str, float]:
    metadata = element.get("metadata")
    location = metadata.get("location") if isinstance(metadata, dict) else None
    if not isinstance(location, dict):
        return {}
    lat, lon = location.get("latitude"), location.get("longitude")
    if not isinstance(lat, int | float) or not isinstance(lon, int | float):
        return {}
    return {"lat": float(lat), "lon": float(lon)}


def _spans(chains: nx.DiGraph, start: str) -> list[tuple[str, float]]:
    """ROADMs that light leaving ``start`` reaches next, with the fibre km on the way."""
    found = []
    open_ends = [(successor, 0.0, frozenset((start,))) for successor in chains.successors(start)]
    while open_ends:
        uid, km, passed = open_ends.pop()
        data = chains.nodes[uid]
        if uid == start:  # back through a fused span that serves both directions
            continue
        if data["kind"] == "Roadm":
            found.append((uid, km))
        elif data["kind"] != "Transceiver":
            km += data["km"]
            open_ends += [
                (nxt, km, passed | {uid}) for nxt in chains.successors(uid) if nxt not in passed
            ]
    return found
