"""The one global queue of a run: micro-batches by number, deferred ones first.

Numbers come in order 0, 1, 2, ...; which samples a number stands for follows from the seed of the
run (``SampleOrder``). Every number is in exactly one place: not drawn yet, deferred, in a step, or
applied. Applied numbers stay revocable until a checkpoint covers them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Returned:
    """What a roll-back took back.

    Args:
        steps: applied steps undone.
        micro_batches: micro-batches returned to the front of the queue.
    """

    steps: int
    micro_batches: int


class MicroBatchQueue:
    """Queue of micro-batch numbers.

    Args:
        limit: numbers in the queue, -1 for no end.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next = 0
        self._returned: set[int] = set()
        self._since_checkpoint: list[tuple[int, tuple[int, ...]]] = []

    @property
    def drawn(self) -> int:
        """Numbers drawn so far: 0 to ``drawn`` - 1."""
        return self._next

    @property
    def deferred(self) -> int:
        """Numbers that wait at the front."""
        return len(self._returned)

    def available(self, fresh: bool) -> int | None:
        """Numbers that can be drawn, None for no end; without fresh ones only the deferred."""
        if not fresh:
            return len(self._returned)
        return None if self._limit < 0 else len(self._returned) + self._limit - self._next

    def draw(self, count: int, fresh: bool = True) -> tuple[int, ...]:
        """Take up to ``count`` numbers, deferred ones first (lowest first), then fresh ones.

        Args:
            count: numbers wanted.
            fresh: whether numbers that were never drawn may be taken.
        """
        taken = sorted(self._returned)[:count]
        self._returned.difference_update(taken)
        if fresh:
            end = self._next + count - len(taken)
            if self._limit >= 0:
                end = min(end, self._limit)
            taken.extend(range(self._next, max(end, self._next)))
            self._next = max(end, self._next)
        return tuple(sorted(taken))

    def put_back(self, numbers: Iterable[int]) -> None:
        """Return deferred numbers to the front.

        Raises:
            ValueError: a number was never drawn, or waits already.
        """
        for number in numbers:
            if not 0 <= number < self._next or number in self._returned:
                raise ValueError(f"micro-batch {number} is not out of the queue")
            self._returned.add(number)

    def applied(self, model_version: int, numbers: Iterable[int]) -> None:
        """Note that the step which gave this model version consumed the numbers."""
        self._since_checkpoint.append((model_version, tuple(numbers)))

    def checkpointed(self, model_version: int) -> None:
        """A checkpoint holds this version: what it consumed is final."""
        self._since_checkpoint = [e for e in self._since_checkpoint if e[0] > model_version]

    def roll_back(self) -> Returned:
        """Return everything applied since the last checkpoint to the front."""
        undone, self._since_checkpoint = self._since_checkpoint, []
        for _, numbers in undone:
            self.put_back(numbers)
        return Returned(len(undone), sum(len(numbers) for _, numbers in undone))
