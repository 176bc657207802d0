"""How bursty offered traffic is: coefficient of variation of the bytes per time bin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError


def spread_bursts(
    start_s: NDArray[np.float64],
    size_bytes: NDArray[np.float64],
    rate_gbps: float,
    seconds: int,
) -> NDArray[np.float64]:
    """Bytes per second of bursts that are sent at a line rate.

    Args:
        start_s: begin of each burst, from 0.
        size_bytes: its size.
        rate_gbps: line rate.
        seconds: length of the result; what comes later is left out.
    """
    offered = np.zeros(seconds)
    duration_s = 8.0 * size_bytes / (rate_gbps * 1e9)
    for begin, size, lasts in zip(start_s, size_bytes, duration_s, strict=True):
        edges = np.clip([begin, begin + lasts], 0.0, seconds)
        for second in range(int(edges[0]), min(int(np.ceil(edges[1])), seconds)):
            overlap = min(edges[1], second + 1.0) - max(edges[0], float(second))
            offered[second] += size * overlap / lasts
    return offered


def coefficient_of_variation(per_second: NDArray[np.float64], bin_s: int) -> float:
    """Standard deviation over mean of the bytes in bins of ``bin_s`` seconds.

    Args:
        per_second: bytes in each second, last axis; other axes are averaged over where there
            is any traffic.
        bin_s: width of a bin; an unfinished last bin is left out.

    Raises:
        InputError: the bin is longer than the series, or there is no traffic at all.
    """
    series = np.atleast_2d(per_second)
    if not 1 <= bin_s <= series.shape[-1]:
        raise InputError("bin_s", bin_s, f"allowed: 1 to {series.shape[-1]}")
    bins = series.shape[-1] // bin_s
    binned = series[..., : bins * bin_s].reshape(-1, bins, bin_s).sum(axis=-1)
    mean = binned.mean(axis=-1)
    if not mean.any():
        raise InputError("traffic", 0.0, "allowed: some bytes")
    used = mean > 0.0
    return float(np.mean(binned[used].std(axis=-1) / mean[used]))
