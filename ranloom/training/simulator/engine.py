"""Virtual time: a queue of things that will happen."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Engine:
    """Calls back in order of time; of what is due at one time, in order of scheduling."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.processed = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call; a time in the past means now."""
        entry = (max(time_s, self.now_s), next(self._order), call, arguments)
        heapq.heappush(self._queue, entry)

    def step(self) -> bool:
        """Let the next thing happen; False if there is none."""
        if not self._queue:
            return False
        self.now_s, _, call, arguments = heapq.heappop(self._queue)
        self.processed += 1
        call(*arguments)
        return True

    def next_time_s(self) -> float:
        """When the next thing will happen; infinite if there is none."""
        return self._queue[0][0] if self._queue else float("inf")
