"""Background streams of the fluid simulation: they come and go by themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.transport.demands import FloatArray, IntArray


@dataclass(frozen=True)
class Streams:
    """Background streams.

    Args:
        route: [n] route of each stream.
        start_s: [n] arrival.
        end_s: [n] end.
        gbps: rate that each offers.
    """

    route: IntArray
    start_s: FloatArray
    end_s: FloatArray
    gbps: float


def no_streams() -> Streams:
    """No background traffic."""
    none = np.empty(0)
    return Streams(np.empty(0, dtype=np.int64), none, none, 1.0)


def poisson_streams(
    mean_gbps: FloatArray,
    *,
    stream_gbps: float,
    mean_s: float,
    horizon_s: float,
    rng: np.random.Generator,
) -> Streams:
    """Streams that arrive as Poisson processes and last exponentially long, in steady state.

    Args:
        mean_gbps: [routes] mean offered rate of each route.
        stream_gbps: rate of one stream.
        mean_s: mean duration.
        horizon_s: arrivals stop then.
        rng: random stream.
    """
    there = rng.poisson(mean_gbps / stream_gbps)
    later = rng.poisson(mean_gbps / stream_gbps * horizon_s / mean_s)
    count = there + later
    total = int(count.sum())
    route = np.repeat(np.arange(len(mean_gbps)), count)
    start = rng.uniform(0.0, horizon_s, total)
    # The first ones of each route run already; what is left of them is exponential again.
    before = np.cumsum(count) - count
    start[np.arange(total) - before[route] < there[route]] = 0.0
    return Streams(route, start, start + rng.exponential(mean_s, total), stream_gbps)
