"""The sites: incarnations, leases, spare budget and how well their completion is predicted."""

from __future__ import annotations

import numpy as np

from ranloom.errors import InputError

MAX_SITES = 1 << 16
_SLOWEST_TFLOPS = 1e-9
_INITIAL_SITES = 8


class Members:
    """State of all sites, as arrays by site number.

    Args:
        lease_s: silence after which a site is lost.
        error_weight: weight of the newest completion-time error in the moving averages.
        margin_errors: mean absolute errors added to every prediction.
    """

    def __init__(self, lease_s: float, error_weight: float, margin_errors: float) -> None:
        self._lease_s = lease_s
        self._error_weight = error_weight
        self._margin_errors = margin_errors
        self.alive = np.zeros(_INITIAL_SITES, dtype=np.bool_)
        self.incarnation = np.zeros(_INITIAL_SITES, dtype=np.int32)
        self.memory_bytes = np.zeros(_INITIAL_SITES, dtype=np.int64)
        self.tflops = np.zeros(_INITIAL_SITES)
        self.error = np.zeros(_INITIAL_SITES)
        self.spread = np.zeros(_INITIAL_SITES)
        self.lease_until_s = np.zeros(_INITIAL_SITES)
        self._pace: np.ndarray | None = None

    def _grow(self, site: int) -> None:
        if not 0 <= site < MAX_SITES:
            raise InputError("site", site, f"allowed: 0 to {MAX_SITES - 1}")
        while site >= len(self.alive):
            for name in (
                "alive",
                "incarnation",
                "memory_bytes",
                "tflops",
                "error",
                "spread",
                "lease_until_s",
            ):
                values = getattr(self, name)
                setattr(self, name, np.concatenate([values, np.zeros_like(values)]))

    def knows(self, site: int, incarnation: int) -> bool:
        """Whether this incarnation of the site is the one alive."""
        return (
            0 <= site < len(self.alive)
            and bool(self.alive[site])
            and int(self.incarnation[site]) == incarnation
        )

    def is_alive(self, site: int) -> bool:
        """Whether some incarnation of the site is alive."""
        return 0 <= site < len(self.alive) and bool(self.alive[site])

    def living(self) -> list[int]:
        """Sites alive, ascending."""
        return [int(site) for site in np.flatnonzero(self.alive)]

    def join(self, site: int, memory_bytes: int, tflops: float, now_s: float) -> int:
        """Take a site in; its new incarnation.

        Raises:
            InputError: a site number out of range.
        """
        self._grow(site)
        self._pace = None
        self.incarnation[site] += 1
        self.alive[site] = True
        self.memory_bytes[site] = memory_bytes
        self.tflops[site] = max(tflops, _SLOWEST_TFLOPS)
        self.error[site] = 0.0
        self.spread[site] = 0.0
        self.lease_until_s[site] = now_s + self._lease_s
        return int(self.incarnation[site])

    def lose(self, site: int) -> None:
        """A site is gone; its incarnation never comes back."""
        self._pace = None
        self.alive[site] = False

    def renew(self, site: int, now_s: float) -> None:
        """Any message of a site renews its lease."""
        self.lease_until_s[site] = max(self.lease_until_s[site], now_s + self._lease_s)

    def extend_leases(self, now_s: float) -> None:
        """Once after a restart of the coordinator, which may have missed messages."""
        self.lease_until_s[self.alive] = now_s + self._lease_s

    def expired(self, now_s: float) -> list[int]:
        """Sites alive whose lease has run out."""
        over = self.alive & (self.lease_until_s < now_s)
        return over.nonzero()[0].tolist() if over.any() else []

    def report_budget(self, site: int, tflops: float) -> None:
        """New spare budget of a site."""
        self._pace = None
        self.tflops[site] = max(tflops, _SLOWEST_TFLOPS)

    def observe(self, site: int, flop: float, seconds: float) -> None:
        """Learn from a completion: signed relative error and its mean absolute deviation."""
        if flop <= 0.0 or seconds <= 0.0:
            return
        self._pace = None
        error = seconds * self.tflops[site] * 1e12 / flop - 1.0
        weight = self._error_weight
        deviation = abs(error - self.error[site])
        self.error[site] += weight * (error - self.error[site])
        self.spread[site] += weight * (deviation - self.spread[site])

    def seconds_per_flop(self) -> np.ndarray:
        """Predicted time of one floating-point operation by site [S]; infinite for dead ones."""
        if self._pace is not None:
            return self._pace
        factor = np.maximum(1.0 + self.error + self._margin_errors * self.spread, 0.05)
        pace = np.full(len(self.alive), np.inf)
        pace[self.alive] = factor[self.alive] / (self.tflops[self.alive] * 1e12)
        self._pace = pace
        return pace
