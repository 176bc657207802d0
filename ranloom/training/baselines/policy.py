"""What distinguishes one training system from another, as far as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.placement import CostsOf, PlacementProblem
from ranloom.training.timing import stage_timing


@dataclass(frozen=True)
class BaselinePlan:
    """Where and how a system trains.

    Args:
        layout: sites, stages and boundaries.
        micro_batch_samples: samples in a micro-batch m.
        window: micro-batches in work at a time in a replica.
        step_micro_batches: micro-batches between two synchronisations.
        forward_first: all forward before all backward tasks (flush) instead of 1F1B.
        unmerged_limit: unmerged gradients of a site; 0 where gradients are summed at once.
        averages_weights: whether micro-batches step weight copies of their own, which are averaged
            in the end: nothing of that can be exchanged before.
    """

    layout: Layout
    micro_batch_samples: int
    window: int
    step_micro_batches: int
    forward_first: bool
    unmerged_limit: int = 0
    averages_weights: bool = False


@dataclass(frozen=True)
class Adaptation:
    """How a system answers a lasting change of capacity.

    Args:
        stall_s: time in which nothing trains: detection, transfer of state, planning.
        loses_step: whether the step under way starts anew afterwards.
        boundaries: new boundaries, None to keep the present ones.
    """

    stall_s: float
    loses_step: bool
    boundaries: tuple[int, ...] | None


@dataclass(frozen=True)
class Reaction:
    """Times that the papers of the baselines leave open; the same for all of them.

    Args:
        slowdown: predicted over planned step time at which a system reacts.
        detect_s: until a slowdown is noticed.
        plan_s: to find a new plan.
        quiet_s: shortest time between two adaptations.
    """

    slowdown: float
    detect_s: float
    plan_s: float
    quiet_s: float


class Baseline(Protocol):
    """A training system."""

    @property
    def name(self) -> str:
        """In tables."""

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """Initial plan.

        Raises:
            InputError: nothing fits the memory of the sites.
        """

    def adapt(
        self,
        plan: BaselinePlan,
        problem: PlacementProblem,
        costs: LayerCosts,
        seconds_per_flop: np.ndarray,
    ) -> Adaptation | None:
        """Answer to capacities that have slowed the plan down; None to bear it."""


def predicted_step_s(
    plan: BaselinePlan, costs: LayerCosts, seconds_per_flop: np.ndarray, hop_s: float
) -> float:
    """Step time if every replica keeps its own share: the slowest site of a stage decides."""
    forward, backward = costs.stage_flop(plan.layout)
    worst = seconds_per_flop.copy()
    for stage in range(plan.layout.stages):
        pool = list(plan.layout.pool(stage))
        worst[pool] = seconds_per_flop[pool].max()
    count = plan.step_micro_batches
    return stage_timing(plan.layout, forward, backward, worst, count, hop_s).step_s


def state_transfer_s(
    problem: PlacementProblem, costs: LayerCosts, layers: int, source: int, target: int
) -> float:
    """Time to send weights and optimizer state of some layers."""
    mean_bytes = float(costs.weight_bytes.mean()) * layers
    return problem.sync.seconds(source, target, mean_bytes)
