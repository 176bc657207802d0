"""What a step sets out with, the states that it goes through, and what is counted meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np


class StepPhase(StrEnum):
    """State of a step."""

    OPEN = "open"
    SEALED = "sealed"
    REDUCED = "reduced"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step sets out with.

    Args:
        forward_flop: work of a forward task by stage [P], 0 for the last.
        backward_flop: work of a backward task by stage [P].
        opened_s: time of its opening.
        predicted_s: step time by the cost model under the budgets of that moment.
        deadline_s: until when micro-batches may complete (Eq. 2); infinite for none.
        least: complete micro-batches that it needs; below, it is skipped.
    """

    forward_flop: np.ndarray
    backward_flop: np.ndarray
    opened_s: float
    predicted_s: float
    deadline_s: float
    least: int


@dataclass(slots=True)
class StepStatistics:
    """What happened in a step.

    Args:
        reroutes: stage tasks that got another owner than planned at the opening.
        speculations: stage tasks executed twice.
        reopened: keys that lost their holder.
        last_commit_s: time of the last commit.
        rejected: rejected results by reason.
    """

    reroutes: int = 0
    speculations: int = 0
    reopened: int = 0
    last_commit_s: float = 0.0
    rejected: Counter[str] = field(default_factory=Counter)
