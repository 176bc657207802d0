"""Local steps after DiLoCo (Douillard et al., arXiv 2311.08105): replicas that average sometimes.

Every replica is a pipeline that takes its own optimizer steps; the weights are averaged every so
many of them. In work are at most the micro-batches of one local step. That a local step ends with a
flush is left out, which favours it. Nothing adapts to a change of capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ranloom.training.baselines.policy import Adaptation, BaselinePlan
from ranloom.training.costs import LayerCosts
from ranloom.training.placement import CostsOf, PlacementProblem, place


@dataclass(frozen=True)
class Diloco:
    """Replicas with local steps.

    Args:
        micro_batch_samples: sizes to choose from.
        local_steps: steps between two averagings.
        name: in tables.
    """

    micro_batch_samples: Sequence[int]
    local_steps: int
    name: str = "diloco"

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """Best of all shapes and sizes for that many steps at a time.

        Raises:
            InputError: nothing fits the memory of the sites.
        """
        samples = problem.step_samples * self.local_steps
        found = place(
            replace(problem, step_samples=samples, hidden_share=0.0),
            costs_of,
            self.micro_batch_samples,
        )
        size = found.micro_batch_samples
        local = -(-problem.step_samples // (size * found.layout.replicas))
        return BaselinePlan(found.layout, size, min(found.window, local), samples // size, False)

    def adapt(
        self,
        plan: BaselinePlan,
        problem: PlacementProblem,
        costs: LayerCosts,
        seconds_per_flop: np.ndarray,
    ) -> Adaptation | None:
        """Never."""
        del plan, problem, costs, seconds_per_flop
        return None
