"""Seeded demand sets of federated rounds, for sweeps, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import NS_PER_S, Demands


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
