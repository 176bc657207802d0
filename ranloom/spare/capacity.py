"""Smoothed report of spare capacity for the inter-site coordinator (WEAVER section 6.2)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ranloom.errors import InputError


@dataclass(frozen=True)
class CapacityReport:
    """Spare capacity of a site over a window.

    Args:
        site: name of the site.
        until_slot: end of the window, not included.
        slots: length of the window; shorter only while a site starts.
        mean_sm: mean spare SMs.
        least_sm: fewest.
        changes: changes of the budget within the window.
    """

    site: str
    until_slot: int
    slots: int
    mean_sm: float
    least_sm: int
    changes: int


class CapacityWindow:
    """Spare SMs of the last slots, from what subscribers hear of the budget.

    Args:
        site: name of the site.
        slots: length of the window.

    Raises:
        InputError: an empty window.
    """

    def __init__(self, site: str, slots: int) -> None:
        if slots < 1:
            raise InputError("capacity window: slots", slots, "allowed: 1 or more")
        self._site, self._slots = site, slots
        self._parts: deque[tuple[int, int]] = deque()  # (first slot, SMs), ascending

    def add(self, slot: int, sm: int) -> None:
        """The budget from a slot on.

        Raises:
            InputError: a slot before the last one, or a negative budget.
        """
        if sm < 0:
            raise InputError("capacity window: sm", sm, "allowed: 0 or more")
        if self._parts and slot < self._parts[-1][0]:
            raise InputError(
                "capacity window: slot", slot, f"allowed: from slot {self._parts[-1][0]} on"
            )
        if self._parts and slot == self._parts[-1][0]:
            self._parts.pop()
        if not self._parts or self._parts[-1][1] != sm:
            self._parts.append((slot, sm))

    def report(self, until_slot: int) -> CapacityReport:
        """The window that ends before a slot; slots before the first value do not count.

        Raises:
            InputError: nothing was added before that slot.
        """
        begin = until_slot - self._slots
        while len(self._parts) > 1 and self._parts[1][0] <= begin:
            self._parts.popleft()
        parts = [(slot, sm) for slot, sm in self._parts if slot < until_slot]
        if not parts:
            raise InputError("capacity window", until_slot, "needed: a budget before that slot")
        starts = [max(slot, begin) for slot, _ in parts]
        ends = [*starts[1:], until_slot]
        total = sum(
            (end - start) * sm for start, end, (_, sm) in zip(starts, ends, parts, strict=True)
        )
        slots = until_slot - starts[0]
        return CapacityReport(
            self._site,
            until_slot,
            slots,
            total / slots,
            min(sm for _, sm in parts),
            len(parts) - 1,
        )
