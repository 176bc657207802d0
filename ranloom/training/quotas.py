"""Shares of the replicas in a step, corrected by what each still owes (Eqs. 4, 5, 11)."""

from __future__ import annotations

import numpy as np


class DebtQuotas:
    """Contribution debt and next-step quota of each replica.

    ``d(t+1) = d(t) + n_target - n(t)`` and ``q(t+1) = clip(q_base + kappa d(t+1))``, with the
    baseline as target. With noise bounded by Xi the unclipped debt stays within
    ``(1 - kappa)^t |d(0)| + Xi / kappa``; anti-windup holds it at ``max_debt`` where a replica
    cannot catch up at all (a persistent loss, which rebalancing has to mend).

    Args:
        base_samples: baseline quota of each replica from placement [D]; its sum is B*.
        gain: kappa, between 0 and 1.
        max_debt: bound d_max in samples; infinite for none.
    """

    def __init__(self, base_samples: np.ndarray, gain: float, max_debt: float) -> None:
        self.base = np.asarray(base_samples, dtype=np.float64)
        self.gain = gain
        self.max_debt = max_debt
        self.debt = np.zeros_like(self.base)

    def settle(self, done_samples: np.ndarray, target_samples: np.ndarray | None = None) -> None:
        """Take a step's contributions into the debt.

        Args:
            done_samples: samples that each replica contributed, n [D].
            target_samples: what it should have [D]; the baseline if not given.
        """
        target = self.base if target_samples is None else target_samples
        owed = self.debt + target - np.asarray(done_samples, dtype=np.float64)
        self.debt = np.clip(owed, -self.max_debt, self.max_debt)

    def samples(self) -> np.ndarray:
        """Quota of each replica in samples [D], never negative."""
        return np.asarray(np.maximum(self.base + self.gain * self.debt, 0.0))

    def micro_batches(self, total: int) -> np.ndarray:
        """Whole micro-batches for each replica [D], summing to ``total``, by largest remainder."""
        quota = self.samples()
        weight = quota if quota.sum() > 0.0 else np.ones_like(quota)
        exact = total * weight / weight.sum()
        counts = np.floor(exact).astype(np.int64)
        remainder = exact - counts
        order = np.lexsort((np.arange(len(exact)), -remainder))
        counts[order[: total - int(counts.sum())]] += 1
        return np.asarray(counts)

    def rebase(self, base_samples: np.ndarray) -> None:
        """New baselines after a change of layout; debts of the old one are void."""
        self.base = np.asarray(base_samples, dtype=np.float64)
        self.debt = np.zeros_like(self.base)
