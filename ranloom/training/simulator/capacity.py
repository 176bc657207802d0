"""Usable compute of each site over virtual time."""

from __future__ import annotations

import numpy as np

from ranloom.errors import InputError
from ranloom.training.simulator import fast_step


class Capacity:
    """Piecewise constant compute, repeated when a run is longer than the trace.

    Args:
        tflops: usable compute by site and interval [N, K], in 1e12 operations a second.
        interval_s: length of an interval.

    Raises:
        InputError: a negative or missing value, or a site that never has any compute.
    """

    def __init__(self, tflops: np.ndarray, interval_s: float) -> None:
        self.tflops = np.atleast_2d(np.asarray(tflops, dtype=np.float64))
        self.interval_s = interval_s
        if not self.tflops.size or not np.all(np.isfinite(self.tflops) & (self.tflops >= 0.0)):
            raise InputError("usable_tflops", tflops, "allowed: finite numbers from 0")
        idle = np.flatnonzero(~self.tflops.any(axis=1))
        if len(idle):
            raise InputError("usable_tflops", int(idle[0]), "allowed: sites with some compute")
        self._per_interval = np.ascontiguousarray(self.tflops.T * interval_s)

    @property
    def length_s(self) -> float:
        """Length of the trace."""
        return float(self.tflops.shape[1] * self.interval_s)

    def at(self, site: int, time_s: float) -> float:
        """Usable compute of a site at a time, in 1e12 operations a second."""
        return float(self.tflops[site, int(time_s / self.interval_s) % self.tflops.shape[1]])

    def finish_s(self, site: int, start_s: float, flop: float) -> float:
        """When work that begins now will be done; the same kernel as on the fast path."""
        end = fast_step.finish_s(self._per_interval, site, start_s / self.interval_s, flop)
        return float(end * self.interval_s)
