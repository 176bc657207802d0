"""Seeded demand sets of federated rounds, for sweeps, benchmarks, soaks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import NS_PER_S, Demands
from ranloom.transport.generators import HUB, ring, site_name, star
from ranloom.transport.network import TransportSettings
from ranloom.transport.reservation import Reservation
from ranloom.transport.topology import LinkDefaults, Topology

#: Aggregates of LoRA rank 16 on q, v (fp16, fp32) and of all linear layers, rank 16 and 64.
_PAYLOADS = (16_777_216, 33_554_432, 80_000_000, 160_000_000, 320_000_000)


@dataclass(frozen=True)
class RoundShape:
    """What one federated job sends.

    Args:
        bytes: payload of one aggregate.
        period_s: length of a round; the deadline is its end.
        offset_s: start of the first round.
        ready_s: earliest and latest time after a round's start at which an aggregate is
            complete (training and radio upload of the sampled devices).
        waves: aggregates per site and round.
    """

    bytes: int
    period_s: float
    offset_s: float
    ready_s: tuple[float, float]
    waves: int


def federated_rounds(
    shapes: Sequence[RoundShape],
    sites: Sequence[str],
    hub: str,
    rounds: int,
    rng: np.random.Generator,
) -> Demands:
    """Demands of several concurrent jobs, every site taking part in every round.

    Args:
        shapes: one entry a job.
        sites: gNB names.
        hub: destination.
        rounds: rounds of each job.
        rng: random stream; releases are uniform over ``ready_s``.

    Raises:
        InputError: a round that ends before its last aggregate is complete.
    """
    ids, source, size, release, deadline = [], [], [], [], []
    for job, shape in enumerate(shapes):
        low, high = shape.ready_s
        if not 0 <= low <= high < shape.period_s:
            raise InputError("ready_s", shape.ready_s, f"within the period {shape.period_s} s")
        for turn in range(rounds):
            begin = shape.offset_s + turn * shape.period_s
            ready = rng.uniform(low, high, size=(len(sites), shape.waves))
            for index, site in enumerate(sites):
                for wave in range(shape.waves):
                    ids.append(f"j{job}r{turn}w{wave}:{site}")
                    source.append(site)
                    size.append(shape.bytes)
                    release.append(begin + ready[index, wave])
                    deadline.append(begin + shape.period_s)
    return Demands(
        ids=np.array(ids, dtype=object),
        source=np.array(source, dtype=object),
        destination=np.full(len(ids), hub, dtype=object),
        bytes=np.array(size, dtype=np.int64),
        release_ns=np.ceil(np.array(release) * NS_PER_S).astype(np.int64),
        deadline_ns=np.floor(np.array(deadline) * NS_PER_S).astype(np.int64),
    )


def random_instance(seed: int, most: int = 60) -> tuple[Demands, Topology, TransportSettings]:
    """Federated rounds on a random ring or star, from idle to overloaded.

    Args:
        seed: every seed is another instance.
        most: most demands.
    """
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
                int(rng.choice(_PAYLOADS)), period, float(rng.uniform(0, 60)), (low, high), waves
            )
        )
    made = federated_rounds(shapes, [site_name(k) for k in range(sites)], HUB, rounds, rng)
    chosen = TransportSettings(
        setup_s=float(rng.choice([0.0, 20e-6, 0.02, 1.0, 10.0, 30.0])),
        guard_s=float(rng.choice([0.0, 0.01, 2.0])),
        circuit_gbps=100.0,
        site_ports=int(rng.integers(1, 3)),
        hub_ports=int(rng.integers(1, 5)),
        candidate_paths=int(rng.integers(1, 4)),
        packet_share=float(rng.choice([0.001, 0.003, 0.01, 0.05])),
    )
    return made, topology, chosen


def scattered(demands: Demands, topology: Topology, rng: np.random.Generator) -> Demands:
    """The same demands, a third of them to a random other node instead of the hub."""
    nodes = [str(node) for node in topology.graph]
    target = demands.destination.copy()
    for row in np.flatnonzero(rng.random(len(demands)) < 1 / 3):
        others = [node for node in nodes if node != demands.source[row]]
        target[row] = others[int(rng.integers(len(others)))]
    return replace(demands, destination=target)


def random_reservations(
    topology: Topology, count: int, end_s: float, rng: np.random.Generator
) -> tuple[Reservation, ...]:
    """Single fibres that others use for up to a third of the time, one of their ports each."""
    edges = [(str(a), str(b)) for a, b in topology.graph.edges]
    found = []
    for _ in range(count):
        a, b = edges[int(rng.integers(len(edges)))]
        start = float(rng.uniform(0.0, end_s))
        found.append(
            Reservation(
                nodes=(a,) if rng.random() < 0.5 else (),
                links=((a, b), (b, a)),
                wavelength=int(rng.integers(topology.graph.edges[a, b]["wavelengths"])),
                start_ns=round(start * NS_PER_S),
                end_ns=round((start + float(rng.uniform(0.0, end_s / 3))) * NS_PER_S),
            )
        )
    return tuple(found)
