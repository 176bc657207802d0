"""When a baseline adapts, and how the world that it runs in follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ranloom.training.baselines.policy import Baseline, BaselinePlan, Reaction, predicted_step_s
from ranloom.training.costs import LayerCosts
from ranloom.training.placement import PlacementProblem


@dataclass(frozen=True)
class Order:
    """What a baseline wants done.

    Args:
        stall_s: everything stops for that long.
        boundaries: boundaries to change to, None to keep the present ones.
    """

    stall_s: float
    boundaries: tuple[int, ...] | None


class Watch:
    """Asks a baseline, every second, whether it wants to adapt.

    Args:
        baseline: the system.
        reaction: its detection and planning times.
        plan: what it set out with.
        problem: sites and links.
        costs: of the layers.
        tflops: usable compute by site and second [S, K].
        hop_s: mean time of a hand-over.
    """

    def __init__(
        self,
        baseline: Baseline,
        reaction: Reaction,
        plan: BaselinePlan,
        problem: PlacementProblem,
        costs: LayerCosts,
        tflops: np.ndarray,
        hop_s: float,
    ) -> None:
        self._baseline = baseline
        self._reaction = reaction
        self._plan = plan
        self._problem = problem
        self._costs = costs
        self._tflops = tflops
        self._hop_s = hop_s
        self._planned_s = predicted_step_s(plan, costs, problem.seconds_per_flop, hop_s)
        self._slow_since_s = np.inf
        self._quiet_until_s = 0.0

    def look(self, now_s: float, opened_s: float | None) -> Order | None:
        """One look.

        Args:
            now_s: present time.
            opened_s: opening of the step under way, None between steps.
        """
        second = int(now_s) % self._tflops.shape[1]
        pace = 1.0 / (np.maximum(self._tflops[:, second], 1e-6) * 1e12)
        step_s = predicted_step_s(self._plan, self._costs, pace, self._hop_s)
        if step_s <= self._planned_s * self._reaction.slowdown:
            self._slow_since_s = np.inf
            return None
        self._slow_since_s = min(self._slow_since_s, now_s)
        if now_s - self._slow_since_s < self._reaction.detect_s or now_s < self._quiet_until_s:
            return None
        answer = self._baseline.adapt(self._plan, self._problem, self._costs, pace)
        self._quiet_until_s = now_s + self._reaction.quiet_s
        self._slow_since_s = np.inf
        if answer is None:
            return None
        stall_s = answer.stall_s
        if answer.loses_step and opened_s is not None:
            stall_s += now_s - opened_s
        self._quiet_until_s += stall_s
        if answer.boundaries is not None:
            layout = self._plan.layout.with_boundaries(0, answer.boundaries)
            self._plan = replace(self._plan, layout=layout)
        self._planned_s = predicted_step_s(self._plan, self._costs, pace, self._hop_s)
        return Order(stall_s, answer.boundaries)
