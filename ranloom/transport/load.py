"""One entry for topology files of every supported format."""

from __future__ import annotations

from pathlib import Path

from ranloom.errors import InputError
from ranloom.transport.gml import load_gml
from ranloom.transport.gnpy import from_gnpy
from ranloom.transport.topology import LinkDefaults, Topology, from_document, read_json


def load_topology(path: Path, hub: str | None, defaults: LinkDefaults) -> Topology:
    """Read a topology: GML by its suffix, else JSON in our own or GNPy's format by content.

    Args:
        path: ``.gml`` or ``.json``.
        hub: name of the hub. None takes the one that the file names, or else the node with
            the most links. A name given here wins over the file's.
        defaults: what a link carries where the file says nothing (GML, GNPy).

    Raises:
        InputError: the file cannot be read or the topology not be used; names both.
    """
    if not path.is_file():
        raise InputError("topology", str(path), "an existing .gml or .json file")
    suffix = path.suffix.lower()
    if suffix == ".gml":
        return load_gml(path, hub, defaults)
    if suffix != ".json":
        raise InputError("topology", str(path), "a .gml or .json file")
    document = read_json(path)
    if isinstance(document, dict) and "elements" in document:
        return from_gnpy(document, hub, defaults, str(path))
    if isinstance(document, dict) and hub is not None and "hub" in document:
        document = document | {"hub": hub}
    return from_document(document, str(path))
