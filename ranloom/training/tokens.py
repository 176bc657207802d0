"""Names of the work and the fences that travel with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Direction(IntEnum):
    """Direction of a stage task."""

    FORWARD = 0
    BACKWARD = 1


@dataclass(frozen=True, slots=True, order=True)
class TaskKey:
    """One micro-batch on one pipeline stage in one step: the key of the commit ledger.

    The paper's key is (step, sample, stage) (App. C.2). A micro-batch never splits, so its number
    stands for its samples here; which samples these are follows from the seed of the run.

    Args:
        step: training step, counted over all attempts and never used twice.
        micro_batch: number in the global queue of the run (0, 1, ...); a deferred micro-batch
            keeps its number and comes back under a later step.
        stage: pipeline stage, 0 to P - 1.
    """

    step: int
    micro_batch: int
    stage: int


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """Fence of one authorised attempt (App. C.2, with the coordinator's incarnation added).

    Args:
        coordinator: incarnation of the coordinator that granted it; a restart raises it.
        layout_epoch: raised by every committed change of layout or membership of a stage.
        model_version: version of the weights that the attempt has to use; never used twice, also
            not after a roll-back.
        task_epoch: raised when an attempt is revoked; of a reduction: its number within the step.
        attempt: number of the grant, unique within an incarnation of the coordinator; two live
            attempts of one task epoch exist only under speculation.
    """

    coordinator: int
    layout_epoch: int
    model_version: int
    task_epoch: int
    attempt: int
