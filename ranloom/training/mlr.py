"""Model layout rebalancing: when it fires, and where the boundaries go.

The trigger is a moving average of the per-step deferral fraction above its threshold in consecutive
steps (section 6.1, Fig. 13). New boundaries are those with the shortest predicted step under the
memory limits of the holders. How a layout is put in force: ``layout_change``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb

import numpy as np

from ranloom.errors import InputError
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.timing import pool_rates, stage_timing

_LONG_RUNS_UP_TO = 8
_EXHAUSTIVE_UP_TO = 300


class DeferralTrigger:
    """Fires on sustained deferral, not on a spike.

    Args:
        threshold: deferral fraction theta_MLR.
        weight: weight of the newest step in the moving average z_t.
        patience_steps: consecutive steps with z_t above the threshold.
    """

    def __init__(self, threshold: float, weight: float, patience_steps: int) -> None:
        self._threshold = threshold
        self._weight = weight
        self._patience = patience_steps
        self._above = 0
        self.average = 0.0

    def observe(self, deferred: int, candidates: int) -> bool:
        """Take in a step; whether rebalancing should start now.

        Args:
            deferred: micro-batches deferred in the step.
            candidates: micro-batches that it set out with.
        """
        fraction = deferred / candidates if candidates else 0.0
        self.average += self._weight * (fraction - self.average)
        self._above = self._above + 1 if self.average > self._threshold else 0
        return self._above >= self._patience

    def reset(self) -> None:
        """Start anew, after the layout or its plan has changed."""
        self.average = 0.0
        self._above = 0


def plan_boundaries(
    layout: Layout,
    costs: LayerCosts,
    seconds_per_flop: np.ndarray,
    memory_bytes: np.ndarray,
    micro_batches: int,
    window: int,
    hop_s: float,
) -> tuple[int, ...]:
    """Boundaries with the shortest predicted step for the present holders of the stages.

    Few cuts are all tried. Else: from the cut with the smallest bottleneck (dynamic programming
    over layers), the present one and the even one, layers move across boundaries as long as the
    predicted step gets shorter.

    Args:
        layout: present holders.
        costs: costs of the layers.
        seconds_per_flop: predicted pace by site.
        memory_bytes: memory for training state by site.
        micro_batches: micro-batches of a step.
        window: micro-batches in work at a time in a replica.
        hop_s: time to hand a tensor to the next stage.

    Raises:
        InputError: no cut fits the memory of the holders.
    """
    room = np.array(
        [_smallest_memory(layout, stage, memory_bytes) for stage in range(layout.stages)]
    )
    rates = pool_rates(layout, seconds_per_flop)
    cut = smallest_bottleneck(costs, rates, room, window)
    if cut is None:
        raise InputError(
            "layout.memory",
            [int(value) for value in room],
            f"allowed: enough memory for {costs.layers} layers on {layout.stages} stages",
        )

    def step_s(boundaries: tuple[int, ...]) -> float:
        tried = layout.with_boundaries(layout.epoch, boundaries)
        if np.any(costs.stage_bytes(tried, window) > room):
            return float("inf")
        forward, backward = costs.stage_flop(tried)
        timing = stage_timing(tried, forward, backward, seconds_per_flop, micro_batches, hop_s)
        return timing.step_s

    if comb(costs.layers - 1, layout.stages - 1) <= _EXHAUSTIVE_UP_TO:
        inner = combinations(range(1, costs.layers), layout.stages - 1)
        return min((step_s((0, *at, costs.layers)), (0, *at, costs.layers)) for at in inner)[1]
    even = tuple(round(i * costs.layers / layout.stages) for i in range(layout.stages + 1))
    found = [_descend(start, step_s) for start in {cut: 0, layout.boundaries: 0, even: 0}]
    return min(found)[1]


def _descend(
    boundaries: tuple[int, ...], step_s: Callable[[tuple[int, ...]], float]
) -> tuple[float, tuple[int, ...]]:
    """Shift runs of neighbouring boundaries by one layer as long as the step gets shorter."""
    best_s, best = step_s(boundaries), boundaries
    inner = range(1, len(boundaries) - 1)
    longest = len(inner) if len(inner) <= _LONG_RUNS_UP_TO else 2
    runs = [(a, b) for a in inner for b in inner if a <= b < a + longest]
    improved = True
    while improved:
        improved = False
        for first, last in runs:
            for shift in (-1, 1):
                moved = tuple(
                    layer + shift if first <= index <= last else layer
                    for index, layer in enumerate(best)
                )
                if moved[first - 1] < moved[first] and moved[last] < moved[last + 1]:
                    moved_s = step_s(moved)
                    if moved_s < best_s * (1.0 - 1e-12):
                        best_s, best, improved = moved_s, moved, True
    return best_s, best


def _smallest_memory(layout: Layout, stage: int, memory_bytes: np.ndarray) -> float:
    return min((float(memory_bytes[site]) for site in layout.pool(stage)), default=0.0)


def smallest_bottleneck(
    costs: LayerCosts, rates: np.ndarray, room_bytes: np.ndarray, window: int
) -> tuple[int, ...] | None:
    """Cut whose slowest stage is fastest under the memory limits, None if nothing fits.

    Args:
        costs: costs of the layers [L].
        rates: operations a second of each stage's pool [P].
        room_bytes: memory of the smallest holder of each stage [P].
        window: micro-batches in work at a time in a replica.
    """
    layers, stages = costs.layers, len(rates)
    work = np.concatenate([[0.0], np.cumsum(costs.forward_flop + costs.backward_flop)])
    size = np.concatenate([[0.0], np.cumsum(costs.layer_bytes(window))])
    fixed_bytes = costs.transit_bytes(window)
    best = np.full(layers + 1, np.inf)
    best[0] = 0.0
    origin = np.zeros((stages, layers + 1), dtype=np.int64)
    for stage in range(stages):
        if rates[stage] <= 0.0:
            return None
        reached = np.full(layers + 1, np.inf)
        for end in range(stage + 1, layers - (stages - stage - 1) + 1):
            starts = np.arange(stage, end)
            cost = np.maximum(best[starts], (work[end] - work[starts]) / rates[stage])
            cost[size[end] - size[starts] + fixed_bytes > room_bytes[stage]] = np.inf
            pick = int(np.argmin(cost))
            reached[end] = cost[pick]
            origin[stage, end] = starts[pick]
        best = reached
    if not np.isfinite(best[layers]):
        return None
    cut = [layers]
    for stage in range(stages - 1, -1, -1):
        cut.append(int(origin[stage, cut[-1]]))
    return tuple(reversed(cut))
