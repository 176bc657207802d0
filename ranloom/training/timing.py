"""How long a step takes: the one cost model of placement, deadlines and rebalancing.

A stage's pool shares its work freely (rerouting makes that true within a control interval), so a
stage runs at the sum of its holders' rates. The step takes, for the worst stage, the time until the
first micro-batch reaches it, its whole work, and the time until the last gradient has left it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    rate = pool_rates(layout, seconds_per_flop)
    _, stages = holder_arrays(layout)
    members = np.maximum(np.bincount(stages, minlength=layout.stages), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(rate > 0.0, members / rate, np.inf)
        total = (forward_flop + backward_flop) * micro_batches
        work_s = np.where(rate > 0.0, total / rate, np.inf)
    forward_s = forward_flop * pace + hop_s
    backward_s = backward_flop * pace + hop_s
    head_s = np.concatenate([[0.0], np.cumsum(forward_s[:-1])])
    tail_s = np.concatenate([[0.0], np.cumsum(backward_s[:-1])])
    return StageTiming(head_s, work_s, tail_s)


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
