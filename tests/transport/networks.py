"""Small networks and demand sets that the transport tests share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ranloom.transport.demands import NS_PER_S, Demands
from ranloom.transport.generators import HUB, ring, site_name, star
from ranloom.transport.instances import RoundShape, federated_rounds
from ranloom.transport.network import Network, TransportSettings, build_network
from ranloom.transport.topology import LinkDefaults, Topology

LINKS = LinkDefaults(packet_gbps=10.0, wavelengths=4)

#: Aggregates of LoRA rank 16 on q, v (fp16, fp32) and of all linear layers, rank 16 and 64.
PAYLOADS = (16_777_216, 33_554_432, 80_000_000, 160_000_000, 320_000_000)


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


def random_instance(seed: int, most: int = 60) -> tuple[Demands, Topology, TransportSettings]:
    """Federated rounds on a random ring or star, from idle to overloaded."""
    rng = np.random.default_rng(np.random.SeedSequence([77, seed]))
    sites = int(rng.integers(2, 20))
    jobs, waves = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    rounds = 2 if rng.random() < 0.5 else 1
    while sites * jobs * waves * rounds > most:
        sites = max(1, sites - 1)
        jobs = jobs if sites > 1 else 1
    links = LinkDefaults(10.0, int(rng.choice([1, 2, 16])))
    if rng.random() < 0.7:
        topology = ring(sites, 8.0, links, sites_per_office=3, spur_km=2.0)
    else:
        topology = star(sites, 5.0, links)
    shapes = []
    for _ in range(jobs):
        period = float(rng.choice([60.0, 120.0, 240.0]))
        low = float(rng.uniform(5.0, 20.0))
        high = float(rng.uniform(low, period - 5.0))
        shapes.append(
            RoundShape(
                int(rng.choice(PAYLOADS)), period, float(rng.uniform(0, 60)), (low, high), waves
            )
        )
    made = federated_rounds(shapes, [site_name(k) for k in range(sites)], HUB, rounds, rng)
    chosen = settings(
        setup_s=float(rng.choice([0.0, 20e-6, 0.02, 1.0, 10.0, 30.0])),
        guard_s=float(rng.choice([0.0, 0.01, 2.0])),
        site_ports=int(rng.integers(1, 3)),
        hub_ports=int(rng.integers(1, 5)),
        candidate_paths=int(rng.integers(1, 4)),
        packet_share=float(rng.choice([0.001, 0.003, 0.01, 0.05])),
    )
    return made, topology, chosen
