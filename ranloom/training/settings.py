"""Settings of the coordinator core."""

from __future__ import annotations

from dataclasses import dataclass

from ranloom.errors import InputError


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Everything that the core decides by. Times in seconds of the driver's clock.

    Args:
        micro_batch_samples: samples in a micro-batch m.
        step_micro_batches: micro-batches that a step aims at, B* / m.
        min_step_micro_batches: a step that has fewer at its deadline is skipped (B_min / m).
        max_steps: steps to apply before draining.
        micro_batch_limit: micro-batches in the global queue of the run; -1 for no end.
        window: micro-batches in work at a time in a replica; it bounds the unmerged gradients.
        hop_s: predicted time to hand a tensor to another site.
        reduce_fanout: children of a node in the reduction tree.
        control_interval_s: AIR control interval (Eq. 2).
        slack_fraction: largest elastic slack over the nominal barrier deadline, theta_AIR (Eq. 2).
        steal_gain: predicted gain, as a share of the nominal step time, from which pending work
            moves to a less loaded equivalent-stage executor; infinite switches stealing off.
        exact_assignment: largest task x slot matrix that is solved exactly; above it greedily.
        speculate: whether the last micro-batches are executed twice when their owner runs late.
        error_weight: weight of the newest completion-time error in its moving average.
        margin_errors: mean absolute errors added to a predicted completion time.
        debt_gain: kappa of Eq. 5, between 0 and 1.
        max_debt_samples: anti-windup bound d_max.
        mlr_threshold: deferral fraction above which the layout is rebalanced, theta_MLR.
        mlr_weight: weight of the newest step in the moving average of the deferral fraction.
        mlr_patience_steps: consecutive steps above the threshold before it fires.
        mlr_min_gain: smallest predicted gain in step time that is worth a move.
        lease_s: silence after which a site is lost.
        checkpoint_steps: applied steps between checkpoints; 0 for none but the initial weights.
        tied_embeddings: whether the first and last stage share a weight.
        rerouting: False switches AIR off (fixed replicas), for comparison.
        rebalancing: False switches MLR off.

    Raises:
        InputError: a value out of range.
    """

    micro_batch_samples: int
    step_micro_batches: int
    min_step_micro_batches: int
    max_steps: int
    micro_batch_limit: int
    window: int
    hop_s: float
    reduce_fanout: int
    control_interval_s: float
    slack_fraction: float
    steal_gain: float
    exact_assignment: int
    speculate: bool
    error_weight: float
    margin_errors: float
    debt_gain: float
    max_debt_samples: float
    mlr_threshold: float
    mlr_weight: float
    mlr_patience_steps: int
    mlr_min_gain: float
    lease_s: float
    checkpoint_steps: int
    tied_embeddings: bool
    rerouting: bool
    rebalancing: bool

    def __post_init__(self) -> None:
        at_least = {
            "micro_batch_samples": 1,
            "step_micro_batches": 1,
            "min_step_micro_batches": 1,
            "max_steps": 1,
            "micro_batch_limit": -1,
            "window": 1,
            "hop_s": 0.0,
            "reduce_fanout": 1,
            "slack_fraction": 0.0,
            "steal_gain": 0.0,
            "exact_assignment": 0,
            "margin_errors": 0.0,
            "max_debt_samples": 0.0,
            "mlr_patience_steps": 1,
            "mlr_min_gain": 0.0,
            "checkpoint_steps": 0,
        }
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise InputError(name, getattr(self, name), f"allowed: at least {least}")
        for name in ("control_interval_s", "lease_s", "mlr_threshold"):
            if not getattr(self, name) > 0.0:
                raise InputError(name, getattr(self, name), "allowed: above 0")
        for name in ("error_weight", "mlr_weight"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(name, getattr(self, name), "allowed: above 0, at most 1")
        if not 0.0 < self.debt_gain < 1.0:
            raise InputError("debt_gain", self.debt_gain, "allowed: between 0 and 1 (Eq. 11)")
        if self.min_step_micro_batches > self.step_micro_batches:
            raise InputError(
                "min_step_micro_batches",
                self.min_step_micro_batches,
                f"allowed: at most step_micro_batches, {self.step_micro_batches}",
            )
