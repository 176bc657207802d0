"""How large a run is that is searched, and what may go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ranloom.training.settings import CoordinatorSettings

_FOREVER_S = 1e9


@dataclass(frozen=True)
class Scope:
    """What may happen in a run.

    Args:
        micro_batches: samples, one in a micro-batch.
        step_micro_batches: micro-batches of a step.
        deaths: sites that may die.
        returns: dead sites that may come back.
        moves: times that a boundary may move.
        crashes: crashes of the coordinator.
        cuts: times that a site's budget may change, so that work moves: the last change is a cut to
            an eighth, the one before it a rise to eight times, and so on.
        tied: whether first and last stage share a weight.
        instant_tasks: whether tasks and the exchange of their inputs take no time, so that only
            the coordinator's messages, sums, totals and copies interleave.
        unsynced: whether a crash may forget the last event although it was acted upon.
    """

    micro_batches: int = 2
    step_micro_batches: int = 2
    deaths: int = 0
    returns: int = 0
    moves: int = 0
    crashes: int = 0
    cuts: int = 0
    tied: bool = False
    instant_tasks: bool = True
    unsynced: bool = False


class Left(NamedTuple):
    """What may still happen."""

    deaths: int
    returns: int
    moves: int
    crashes: int
    cuts: int


def settings_of(scope: Scope) -> CoordinatorSettings:
    """Settings of the core for such a run; no clock makes anything happen."""
    return CoordinatorSettings(
        micro_batch_samples=1,
        step_micro_batches=scope.step_micro_batches,
        min_step_micro_batches=1,
        max_steps=1 << 30,
        micro_batch_limit=scope.micro_batches,
        window=scope.step_micro_batches,
        hop_s=0.0,
        reduce_fanout=2,
        control_interval_s=_FOREVER_S,
        slack_fraction=0.0,
        steal_gain=0.1,
        exact_assignment=100,
        speculate=False,
        error_weight=0.5,
        margin_errors=0.0,
        debt_gain=0.5,
        max_debt_samples=10.0,
        mlr_threshold=1.0,
        mlr_weight=0.5,
        mlr_patience_steps=1,
        mlr_min_gain=1.0,
        lease_s=_FOREVER_S,
        checkpoint_steps=1,
        tied_embeddings=scope.tied,
        rerouting=True,
        rebalancing=False,
    )
