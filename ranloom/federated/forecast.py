"""Forecast of release times from earlier rounds.

An aggregate's release is known only when its wave closes, while a transport planner wants to
know it when the round begins. The forecast is an order statistic of what happened in earlier
rounds: of n earlier values the ceil(p (n + 1))-th smallest. If rounds are exchangeable, the next
release comes no later with probability p at least (the conformal quantile; Vovk et al. 2005). It
exists from n = ceil(p / (1 - p)) on: 19 for 95 %. While a gNB has fewer values of its own,
those of all gNBs are taken together, and while these are too few, the latest of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ranloom.errors import InputError


def rank(count: int, p: float) -> int:
    """Which of ``count`` ascending values (from 1) is the p quantile; may exceed ``count``."""
    # the tolerance keeps a product like 19.000000000000004 from asking for the 20th
    return max(1, math.ceil(p * (count + 1) - 1e-9))


def conformal_quantile(values: Sequence[float], p: float) -> float:
    """The ceil(p (n + 1))-th smallest of n values, at most the largest.

    Raises:
        InputError: no values, or p outside (0, 1).
    """
    if not values:
        raise InputError("forecast", [], "allowed: at least one earlier value")
    if not 0.0 < p < 1.0:
        raise InputError("forecast.p", p, "allowed: above 0, below 1")
    return sorted(values)[min(rank(len(values), p), len(values)) - 1]


@dataclass
class ReleaseHistory:
    """Earlier release offsets: seconds after the begin of their round."""

    _own: dict[tuple[Hashable, Hashable], list[float]] = field(default_factory=dict)
    _all: dict[Hashable, list[float]] = field(default_factory=dict)

    def add(self, gnb: Hashable, kind: Hashable, offset_s: float) -> None:
        """Record what happened.

        Args:
            gnb: where.
            kind: what is comparable, e.g. the index of the wave in its round.
            offset_s: release minus begin of the round.
        """
        self._own.setdefault((gnb, kind), []).append(offset_s)
        self._all.setdefault(kind, []).append(offset_s)

    def forecast_s(self, gnb: Hashable, kind: Hashable, p: Sequence[float]) -> list[float] | None:
        """Quantiles of the release offset, all from the same values.

        Args:
            gnb: where.
            kind: what is comparable.
            p: ascending probabilities.

        Returns:
            None when nothing comparable has happened anywhere.
        """
        own = self._own.get((gnb, kind), [])
        values = own if rank(len(own), p[-1]) <= len(own) else self._all.get(kind, [])
        return [conformal_quantile(values, q) for q in p] if values else None
