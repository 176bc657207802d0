"""Where one system stops being faster than another as a condition of the experiment changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def flips(
    values: Sequence[float], ours: Sequence[float], theirs: Sequence[float], log: bool
) -> tuple[float, ...]:
    """Values at which we begin or cease to be ahead, ascending; equal rates are not ahead.

    Between two neighbouring points the difference of the rates is taken to be linear: an estimate
    that is as fine as the points are dense. Beyond them nothing is said.

    Args:
        values: of the condition, in any order [K].
        ours: our rate at each [K].
        theirs: their rate at each [K].
        log: whether the difference is linear in the logarithm of the value, as for factors.
    """
    order = np.argsort(values)
    place = np.asarray(values, dtype=np.float64)[order]
    place = np.log(place) if log else place
    lead = (np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))[order]
    found = []
    for (x, a), (y, b) in pairwise(zip(place.tolist(), lead.tolist(), strict=True)):
        if (a > 0.0) != (b > 0.0):
            at = x + (y - x) * a / (a - b)
            found.append(float(np.exp(at)) if log else at)
    return tuple(found)


def nearest(found: Sequence[float], value: float, log: bool) -> float | None:
    """The flip that is nearest to a value, None where there is none."""

    def distance(one: float) -> float:
        return abs(np.log(one / value)) if log else abs(one - value)

    return min(found, key=distance, default=None)
