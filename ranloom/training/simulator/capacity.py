"""Usable compute of each site over virtual time."""

from __future__ import annotations

import numpy as np

from ranloom.errors import InputError


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
        self._work = np.cumsum(self.tflops, axis=1) * interval_s * 1e12
        self._work = np.concatenate([np.zeros((len(self.tflops), 1)), self._work], axis=1)
        idle = np.flatnonzero(self._work[:, -1] <= 0.0)
        if len(idle):
            raise InputError("usable_tflops", int(idle[0]), "allowed: sites with some compute")

    @property
    def length_s(self) -> float:
        """Length of the trace."""
        return float(self.tflops.shape[1] * self.interval_s)

    def at(self, site: int, time_s: float) -> float:
        """Usable compute of a site at a time, in 1e12 operations a second."""
        return float(self.tflops[site, int(time_s / self.interval_s) % self.tflops.shape[1]])

    def finish_s(self, site: int, start_s: float, flop: float) -> float:
        """When work that begins now will be done."""
        done = self._work[site]
        cycles, offset_s = divmod(start_s, self.length_s)
        index = min(int(offset_s / self.interval_s), self.tflops.shape[1] - 1)
        inside = offset_s - index * self.interval_s
        target = done[index] + inside * self.tflops[site, index] * 1e12 + flop
        more, target = divmod(target, done[-1])
        end = int(np.searchsorted(done, target, side="left"))
        if end == 0:
            return float((cycles + more) * self.length_s)
        before = end - 1
        rest_s = (target - done[before]) / (self.tflops[site, before] * 1e12)
        return float((cycles + more) * self.length_s + before * self.interval_s + rest_s)
