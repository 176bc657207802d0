"""Max-min fair rates of classes of flows (Bertsekas and Gallager, Data Networks, section 6.5)."""

from __future__ import annotations

import numpy as np
from numba import njit

from ranloom.transport.demands import FloatArray, IntArray


@njit(cache=True)
def max_min_share(
    free: FloatArray,
    first: IntArray,
    links: IntArray,
    count: FloatArray,
    cap: FloatArray,
    rate: FloatArray,
) -> None:
    """Max-min fair rate of each class' members; class j uses route ``j % routes``."""
    routes = len(first) - 1
    left = free.copy()
    weight = np.zeros(len(free))
    frozen = np.zeros(len(count), dtype=np.bool_)
    for j in range(len(count)):
        rate[j] = 0.0
        frozen[j] = count[j] == 0.0
        if not frozen[j]:
            for e in range(first[j % routes], first[j % routes + 1]):
                weight[links[e]] += count[j]
    while True:
        level = np.inf
        for link in range(len(free)):
            if weight[link] > 0.0:
                level = min(level, max(left[link], 0.0) / weight[link])
        capped = False
        least = np.inf
        for j in range(len(count)):
            if not frozen[j]:
                least = min(least, cap[j])
        if least <= level:
            level = least
            capped = True
        if level == np.inf:
            return
        for j in range(len(count)):
            if frozen[j]:
                continue
            lo, hi = first[j % routes], first[j % routes + 1]
            stops = capped and cap[j] <= level
            if not capped:
                for e in range(lo, hi):
                    link = links[e]
                    if max(left[link], 0.0) <= level * weight[link] * (1 + 1e-12):
                        stops = True
            if stops:
                frozen[j] = True
                rate[j] = level
        # Take the frozen classes off together, so that the test above sees one state.
        for link in range(len(free)):
            weight[link] = 0.0
            left[link] = free[link]
        for j in range(len(count)):
            for e in range(first[j % routes], first[j % routes + 1]):
                if count[j] > 0.0 and frozen[j]:
                    left[links[e]] -= count[j] * rate[j]
                elif count[j] > 0.0:
                    weight[links[e]] += count[j]
