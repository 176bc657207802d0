"""How long a step takes: the one cost model of placement, deadlines and rebalancing.

A stage's pool shares its work freely (rerouting makes that true within a control interval), so a
stage runs at the sum of its holders' rates. The step takes, for the worst stage, the time until the
first micro-batch reaches it, its whole work, and the time until the last gradient has left it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ranloom.training.layout import Layout, holder_arrays


@dataclass(frozen=True)
class StageTiming:
    """Predicted times of a layout under given rates.

    Args:
        head_s: from the opening of a step until a stage can have its first input [P].
        work_s: all work of a stage, shared by its pool [P].
        tail_s: from a stage's last backward task until the micro-batch is complete [P].
    """

    head_s: np.ndarray
    work_s: np.ndarray
    tail_s: np.ndarray

    @property
    def step_s(self) -> float:
        """Time from the opening of a step to the completion of its last micro-batch."""
        return float(np.max(self.head_s + self.work_s + self.tail_s))

    @property
    def path_s(self) -> float:
        """Time of a single micro-batch through all stages and back, roughly."""
        return float(self.head_s[-1] + self.tail_s[-1])


def stage_timing(
    layout: Layout,
    forward_flop: np.ndarray,
    backward_flop: np.ndarray,
    seconds_per_flop: np.ndarray,
    micro_batches: int,
    hop_s: float,
) -> StageTiming:
    """Times of a layout's stages.

    Args:
        layout: boundaries and holders; a stage without holder takes for ever.
        forward_flop: work of a forward task by stage [P], 0 for the last.
        backward_flop: work of a backward task by stage [P].
        seconds_per_flop: predicted pace by site [S], infinite for a dead one.
        micro_batches: micro-batches of the step.
        hop_s: time to hand a tensor to the next stage.
    """
    sites, stages = holder_arrays(layout)
    times = stage_times(
        sites, stages, forward_flop, backward_flop, seconds_per_flop, micro_batches, hop_s
    )
    return StageTiming(*times)


@njit(cache=True)
def stage_times(
    sites: np.ndarray,
    stages: np.ndarray,
    forward_flop: np.ndarray,
    backward_flop: np.ndarray,
    pace: np.ndarray,
    micro_batches: int,
    hop_s: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Head, work and tail of each stage [P], [P], [P]; holders as (sites, stages) [H], [H]."""
    count = len(forward_flop)
    rate = np.zeros(count)
    members = np.zeros(count)
    for index in range(len(sites)):
        rate[stages[index]] += 1.0 / pace[sites[index]]
        members[stages[index]] += 1.0
    head_s = np.zeros(count)
    work_s = np.zeros(count)
    tail_s = np.zeros(count)
    before_s = 0.0
    after_s = 0.0
    for stage in range(count):
        head_s[stage] = before_s
        tail_s[stage] = after_s
        mean = members[stage] / rate[stage] if rate[stage] > 0.0 else np.inf
        total = (forward_flop[stage] + backward_flop[stage]) * micro_batches
        work_s[stage] = total / rate[stage] if rate[stage] > 0.0 else np.inf
        before_s += forward_flop[stage] * mean + hop_s
        after_s += backward_flop[stage] * mean + hop_s
    return head_s, work_s, tail_s


def pool_rates(layout: Layout, seconds_per_flop: np.ndarray) -> np.ndarray:
    """Operations a second of each stage's pool [P]."""
    sites, stages = holder_arrays(layout)
    rates = 1.0 / seconds_per_flop[sites]
    return np.bincount(stages, weights=rates, minlength=layout.stages)


class NominalStep:
    """Nominal barrier deadline T_bar (Eq. 2): the plan of the layout plus what it leaves out.

    The planned part is fixed when a layout is committed, from the budgets of that moment: a site
    that slows down later makes tasks late, and does not simply move the deadline. The rest
    (transfers, pipeline bubbles, control messages) is learned from steps that ran without trouble.

    Args:
        planned_s: step time by the cost model.
        weight: weight of the newest step in the moving average of the rest.
    """

    def __init__(self, planned_s: float, weight: float) -> None:
        self.planned_s = planned_s
        self._weight = weight
        self._overhead_s: float | None = None

    @property
    def known(self) -> bool:
        """Whether a step of this layout has been observed; before, there is no deadline."""
        return self._overhead_s is not None

    @property
    def step_s(self) -> float:
        """T_bar."""
        return self.planned_s + (self._overhead_s or 0.0)

    def replan(self, planned_s: float) -> None:
        """New plan after a change of layout or of the lasting budgets; what was learned stays."""
        self.planned_s = planned_s

    def observe(self, observed_s: float, predicted_s: float) -> None:
        """Learn from an undisturbed step.

        Args:
            observed_s: from its opening to its last completion.
            predicted_s: what the cost model gives for the budgets that it ran under.
        """
        overhead_s = max(observed_s - predicted_s, 0.0)
        if self._overhead_s is None:
            self._overhead_s = overhead_s
        else:
            self._overhead_s += self._weight * (overhead_s - self._overhead_s)
