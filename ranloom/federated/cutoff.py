"""When a gNB stops waiting for the updates of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ranloom.errors import InputError

POLICIES = ("fixed", "quorum", "mad")


@dataclass(frozen=True)
class CutOff:
    """Cut-off rule; whatever the rule, a round ends once every expected update is there.

    ``fixed``: at ``max_s``. ``quorum``: when the share ``quorum`` of the expected updates is there.
    ``mad``: at median + ``mad_factor`` times the median absolute deviation of the arrival times,
    where an update that is still missing counts as infinitely late. The cut-off is therefore
    finite once more than half of the updates have arrived, and it can only move earlier as
    more come in (robust time-outs as asked for in hivemind's tracker, number 676).

    Args:
        policy: one of :data:`POLICIES`.
        min_s: earliest cut-off after the begin of the round (``quorum`` and ``mad``).
        max_s: latest cut-off, for every policy; infinity waits for all.
        quorum: share of expected updates, 0 < quorum <= 1.
        mad_factor: k of the ``mad`` rule, >= 0.

    Raises:
        InputError: a value out of range.
    """

    policy: str
    min_s: float
    max_s: float
    quorum: float
    mad_factor: float

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError("cut_off.policy", self.policy, f"allowed: {', '.join(POLICIES)}")
        if not 0.0 <= self.min_s <= self.max_s:
            raise InputError("cut_off.min_s", self.min_s, f"allowed: 0 to max_s ({self.max_s})")
        if not 0.0 < self.quorum <= 1.0:
            raise InputError("cut_off.quorum", self.quorum, "allowed: above 0, at most 1")
        if not 0.0 <= self.mad_factor < math.inf:
            raise InputError("cut_off.mad_factor", self.mad_factor, "allowed: at least 0")

    def due_s(self, arrivals_s: Sequence[float], expected: int) -> float:
        """Cut-off in seconds after the begin of the round, as far as known by now.

        Args:
            arrivals_s: arrival times of the counted updates, seconds after the begin, ascending.
            expected: updates that may still come or have come.
        """
        if expected and len(arrivals_s) >= expected:
            return min(arrivals_s[expected - 1], self.max_s)
        due = math.inf
        if self.policy == "quorum" and expected:
            needed = max(1, math.ceil(self.quorum * expected))
            if len(arrivals_s) >= needed:
                due = max(self.min_s, arrivals_s[needed - 1])
        elif self.policy == "mad" and expected:
            due = max(self.min_s, self._median_and_deviation(arrivals_s, expected))
        return min(due, self.max_s)

    def _median_and_deviation(self, arrivals_s: Sequence[float], expected: int) -> float:
        # upper median: known once more than half are there
        middle = expected // 2
        if len(arrivals_s) <= middle:
            return math.inf
        median = arrivals_s[middle]
        deviations = sorted(abs(t - median) for t in arrivals_s)
        return median + self.mad_factor * deviations[middle]
