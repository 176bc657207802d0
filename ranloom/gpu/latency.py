"""Latency of LDPC decoding on a number of SMs: ``T_p99 = a + k W / s + b W``.

W is the decoder work of a slot (code blocks x lifting size) and s the number of SMs: a fixed
launch cost, a part that spreads over SMs, and a part that does not. The same formula drives the
lookup table and the simulated cell, but the cell never reads the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError


@njit(cache=True)
def decode_p99_us(work: float, sm: float, a_us: float, k_us_sm: float, b_us: float) -> float:
    """P99 decode latency of one slot; no work takes no time.

    Args:
        work: code blocks x lifting size.
        sm: streaming multiprocessors, above 0.
        a_us: fixed cost.
        k_us_sm: cost per unit of work that spreads over SMs, us x SM.
        b_us: cost per unit of work that does not spread.
    """
    if work <= 0:
        return 0.0
    return a_us + k_us_sm * work / sm + b_us * work


@dataclass(frozen=True)
class LatencyModel:
    """Decode latency of a slot on a number of SMs.

    Args:
        a_us: fixed cost of a decode.
        k_us_sm: parallel cost per unit of work, us x SM.
        b_us: serial cost per unit of work.
        p99_over_mean: ratio of the 99th percentile to the mean; the median is taken to be the
            mean.
    """

    a_us: float
    k_us_sm: float
    b_us: float
    p99_over_mean: float

    def p99_us(self, work: Any, sm: Any) -> NDArray[np.float64]:
        """99th percentile in us; ``work`` and ``sm`` broadcast. No work takes no time."""
        work = np.asarray(work, dtype=np.float64)
        latency = self.a_us + self.k_us_sm * work / np.asarray(sm) + self.b_us * work
        return np.where(work > 0, latency, 0.0)

    def p50_us(self, work: Any, sm: Any) -> NDArray[np.float64]:
        """Median in us: the 99th percentile over ``p99_over_mean``."""
        return self.p99_us(work, sm) / self.p99_over_mean

    def min_sm(
        self, work: Any, levels: NDArray[np.int64], budget_us: float, infeasible: int
    ) -> NDArray[np.int64]:
        """Fewest SMs whose P99 meets a budget.

        Args:
            work: any shape.
            levels: SM counts of the card, ascending.
            budget_us: latency budget; a latency equal to it meets it.
            infeasible: returned where no level meets the budget.

        Returns:
            int64 array of the shape of ``work``; the lowest level where there is no work.
        """
        work = np.asarray(work, dtype=np.float64)
        meets = self.p99_us(work[..., None], levels) <= budget_us
        return np.where(meets.any(axis=-1), levels[np.argmax(meets, axis=-1)], infeasible)


@dataclass(frozen=True)
class Match:
    """How a model compares with a profiled table of minimum SM counts.

    Args:
        matched: cells where the model gives the same SM count.
        cells: cells in the table.
        min_margin_us: smallest distance, over the matched cells, of the model's latency from
            the budget, at the SM count (below) and at the next lower level (above).
        margins_us: that distance per cell; negative where the cell is not matched.
    """

    matched: int
    cells: int
    min_margin_us: float
    margins_us: NDArray[np.float64]


def match_table(
    model: LatencyModel,
    work: NDArray[np.integer],
    min_sm: NDArray[np.integer],
    levels: NDArray[np.int64],
    budget_us: float,
) -> Match:
    """Compare a model with profiled minimum SM counts.

    Args:
        model: the model.
        work: int64[n], decoder work of each cell.
        min_sm: int64[n], profiled SM count; each is a level, or above all where none is enough.
        levels: SM counts of the card.
        budget_us: latency budget of the table.
    """
    position = np.searchsorted(levels, min_sm)
    lower = levels[np.maximum(position - 1, 0)]
    feasible = min_sm <= levels[-1]
    below = np.where(feasible, budget_us - model.p99_us(work, min_sm), np.inf)
    above = np.where(position > 0, model.p99_us(work, lower) - budget_us, np.inf)
    margins = np.minimum(below, above)
    # the budget itself counts as met, at the next lower level as well
    matched = (below >= 0) & (above > 0)
    return Match(
        matched=int(matched.sum()),
        cells=len(margins),
        min_margin_us=float(margins[matched].min()) if matched.any() else 0.0,
        margins_us=np.where(matched, margins, np.minimum(margins, 0.0)),
    )


def fit_latencies(
    work: NDArray[np.int64],
    sm: NDArray[np.int64],
    p99_us: NDArray[np.float64],
    p99_over_mean: float,
) -> LatencyModel:
    """Fit the model to measured latencies: non-negative least squares of the relative error.

    Args:
        work: int64[n].
        sm: int64[n].
        p99_us: float64[n], above 0.
        p99_over_mean: ratio that the model carries on.

    Raises:
        InputError: the points do not tell the three terms apart.
    """
    terms = np.stack([np.ones(len(work)), work / sm, work.astype(np.float64)], axis=1)
    # columns of like size keep the active-set solver well conditioned
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-12)
    if np.linalg.matrix_rank(terms / scale) < 3:
        raise InputError(
            "profile",
            f"{len(np.unique(sm))} SM count(s), {len(np.unique(work))} size(s) of work",
            "needed: at least 3 points, 2 SM counts and 2 sizes of work to fit a, k, b",
        )
    from scipy.optimize import nnls  # slow to import, and most runs fit nothing

    solution, _ = nnls(terms / scale / p99_us[:, None], np.ones(len(work)))
    a_us, k_us_sm, b_us = (float(v) for v in solution / scale)
    return LatencyModel(a_us, k_us_sm, b_us, p99_over_mean)


def fit_table(
    work: NDArray[np.int64],
    min_sm: NDArray[np.int64],
    levels: NDArray[np.int64],
    budget_us: float,
    a_us: float,
    p99_over_mean: float,
) -> LatencyModel:
    """Fit the model to a table of minimum SM counts: most matched cells, then widest margin.

    Such a table only says on which side of the budget a latency lies, so it fixes k and b for a
    given fixed cost; that cost must come from a measured latency. Two mixed-integer programs
    (HiGHS, deterministic): the first counts, the second widens the margin of as many cells.

    Args:
        work: int64[n], decoder work of each cell.
        min_sm: int64[n], profiled SM count.
        levels: SM counts of the card.
        budget_us: latency budget of the table.
        a_us: fixed cost of a decode, below the budget.
        p99_over_mean: ratio that the model carries on.

    Raises:
        InputError: the fixed cost leaves nothing of the budget.
    """
    if not 0 <= a_us < budget_us:
        raise InputError("a_us", a_us, f"allowed: 0 up to below the budget of {budget_us} us")
    from scipy.optimize import Bounds, LinearConstraint, milp

    n = len(work)
    rest = budget_us - a_us
    position = np.searchsorted(levels, min_sm)
    lower = levels[np.maximum(position - 1, 0)].astype(np.float64)

    # variables: k, b, margin, z_1..z_n with z = 1 for a matched cell; a constraint of a cell
    # with z = 0 is switched off by a constant that exceeds any latency
    big = 20.0 * budget_us
    meets = np.zeros((n, 3 + n))
    meets[:, 0], meets[:, 1], meets[:, 2] = work / min_sm, work, 1.0
    meets[np.arange(n), 3 + np.arange(n)] = big
    needs = np.zeros((n, 3 + n))
    needs[:, 0], needs[:, 1], needs[:, 2] = -work / lower, -work, 1.0
    needs[np.arange(n), 3 + np.arange(n)] = big
    needs = needs[position > 0]
    constraints = [
        LinearConstraint(meets, -np.inf, rest + big),
        LinearConstraint(needs, -np.inf, big - rest),
    ]
    limits = Bounds(
        np.concatenate([[0.0, 0.0, 1e-3], np.zeros(n)]),
        np.concatenate([[rest * float(levels[-1]), rest, rest], np.ones(n)]),
    )
    integral = np.concatenate([np.zeros(3), np.ones(n)])

    def solve(cost: NDArray[np.float64]) -> NDArray[np.float64]:
        # never infeasible: all z = 0. Presolve prints to the console in some versions.
        found = milp(
            cost,
            constraints=constraints,
            bounds=limits,
            integrality=integral,
            options={"presolve": False},
        )
        return np.asarray(found.x, dtype=np.float64)

    matched = integral
    most = round(float(matched @ solve(-matched)))
    constraints.append(LinearConstraint(matched[None, :], most, np.inf))
    margin = np.zeros(3 + n)
    margin[2] = 1.0
    k_us_sm, b_us = (float(v) for v in solve(-margin)[:2])
    return LatencyModel(a_us, k_us_sm, b_us, p99_over_mean)
