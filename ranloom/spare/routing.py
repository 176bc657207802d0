"""Where an operator that is no matrix product runs: on the GPU or on idle host cores.

Each pool keeps the number of operators waiting in it and the mean of its last completion
times; an operator goes where it is expected to be done first (WEAVER App. E).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ranloom.errors import InputError


class OperatorRouter:
    """Least expected completion over pools.

    Args:
        first_guess_us: completion time of an operator assumed before one was seen, by pool.
        window: completions that the mean covers.

    Raises:
        InputError: no pool, or an empty window.
    """

    def __init__(self, first_guess_us: Mapping[str, float], window: int) -> None:
        if not first_guess_us:
            raise InputError("routing: pools", "none", "allowed: one or more")
        if window < 1:
            raise InputError("routing: window", window, "allowed: 1 or more")
        self._guess_us = dict(first_guess_us)
        self._seen_us = {pool: deque[float](maxlen=window) for pool in first_guess_us}
        self.depth = dict.fromkeys(first_guess_us, 0)

    def mean_us(self, pool: str) -> float:
        """Mean of the last completion times of a pool, or its first guess."""
        seen = self._seen_us[pool]
        return sum(seen) / len(seen) if seen else self._guess_us[pool]

    def submit(self) -> str:
        """Choose the pool of the next operator; ties go to the pool named first."""
        pool = min(self.depth, key=lambda p: (self.depth[p] + 1) * self.mean_us(p))
        self.depth[pool] += 1
        return pool

    def complete(self, pool: str, service_us: float) -> None:
        """An operator left a pool after so much time of service, waiting not counted.

        Raises:
            InputError: nothing was waiting there.
        """
        if self.depth.get(pool, 0) == 0:
            raise InputError("routing: completion", pool, "allowed: a pool with operators in it")
        self.depth[pool] -= 1
        self._seen_us[pool].append(service_us)
