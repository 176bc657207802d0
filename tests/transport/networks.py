"""Small networks and demand sets that the transport tests share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ranloom.transport.demands import NS_PER_S, Demands
from ranloom.transport.generators import HUB, star
from ranloom.transport.instances import random_instance
from ranloom.transport.network import Network, TransportSettings, build_network
from ranloom.transport.topology import LinkDefaults, Topology

__all__ = ["demands", "network_of", "random_instance", "settings", "star_of"]

LINKS = LinkDefaults(packet_gbps=10.0, wavelengths=4)


def settings(**changes: float) -> TransportSettings:
    """Plain settings with some changed."""
    values = {
        "setup_s": 1.0,
        "guard_s": 0.01,
        "circuit_gbps": 100.0,
        "site_ports": 1,
        "hub_ports": 2,
        "candidate_paths": 1,
        "packet_share": 0.01,
    }
    return TransportSettings(**(values | changes))  # type: ignore[arg-type]


def demands(rows: Sequence[tuple[str, int, float, float]], hub: str = HUB) -> Demands:
    """Demands from (source, bytes, release_s, deadline_s)."""
    source, size, release, deadline = zip(*rows, strict=True)
    return Demands(
        ids=np.array([f"d{k}" for k in range(len(rows))], dtype=object),
        source=np.array(source, dtype=object),
        destination=np.full(len(rows), hub, dtype=object),
        bytes=np.array(size, dtype=np.int64),
        release_ns=np.array([round(r * NS_PER_S) for r in release], dtype=np.int64),
        deadline_ns=np.array([round(d * NS_PER_S) for d in deadline], dtype=np.int64),
    )


def network_of(topology: Topology, made: Demands, chosen: TransportSettings) -> Network:
    """The network of these demands."""
    pairs = list(zip(made.source.tolist(), made.destination.tolist(), strict=True))
    return build_network(topology, pairs, chosen)


def star_of(sites: int, wavelengths: int = 4) -> Topology:
    """A star with 2 km arms."""
    return star(sites, 2.0, LinkDefaults(10.0, wavelengths))
