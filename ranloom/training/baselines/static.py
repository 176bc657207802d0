"""Static PP + DP: a good plan for the initial capacities, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ranloom.training.baselines.policy import Adaptation, BaselinePlan
from ranloom.training.costs import LayerCosts
from ranloom.training.placement import CostsOf, PlacementProblem, place


@dataclass(frozen=True)
class StaticPipeline:
    """1F1B over fixed replicas.

    Args:
        micro_batch_samples: sizes to choose from.
        name: in tables.
    """

    micro_batch_samples: Sequence[int]
    name: str = "static"

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """The placement that WEAVER would start with."""
        found = place(problem, costs_of, self.micro_batch_samples)
        samples = found.micro_batch_samples
        return BaselinePlan(
            found.layout,
            samples,
            found.window,
            problem.step_samples // samples,
            forward_first=False,
        )

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
