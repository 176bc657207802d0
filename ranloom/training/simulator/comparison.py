"""All systems on the same sites, each with its own best plan and its own way to share the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ranloom.errors import InputError
from ranloom.training.baselines.asteroid import Asteroid
from ranloom.training.baselines.confidant import Confidant, ConfidantStar
from ranloom.training.baselines.diloco import Diloco
from ranloom.training.baselines.dtfm import Dtfm
from ranloom.training.baselines.policy import Baseline, BaselinePlan, Reaction
from ranloom.training.baselines.static import StaticPipeline
from ranloom.training.placement import CostsOf, Placement, PlacementProblem, place
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.experiment import (
    Experiment,
    SystemRun,
    run_compiled,
    run_system,
)

WEAVER = "weaver"
BASELINES = ("static", "dtfm", "asteroid", "confidant", "confidant_star", "diloco")
SYSTEMS = (WEAVER, *BASELINES)


@dataclass(frozen=True)
class Compared:
    """What the compared systems are given.

    Args:
        settings: of WEAVER's coordinator.
        micro_batch_samples: sizes that every system may choose from.
        least_replicas: replicas that WEAVER has to have.
        least_sites: sites that every placement has to use.
        unmerged_limits: unmerged gradients that a site of WEAVER holds at most, to choose from.
        reaction: detection and planning times of the baselines.
        storage_gbps: at which DTFM loads a checkpoint.
        epoch_samples: samples between two averagings of Confidant.
        copy_memory_share: share of memory for Confidant's weight copies.
        local_steps: steps between two averagings of DiLoCo.
        population: of DTFM's genetic search.
        trials: of DTFM's genetic search.
        seed: of DTFM's genetic search.
    """

    settings: CoordinatorSettings
    micro_batch_samples: tuple[int, ...]
    least_replicas: int
    least_sites: int
    unmerged_limits: tuple[int, ...]
    reaction: Reaction
    storage_gbps: float
    epoch_samples: int
    copy_memory_share: float
    local_steps: int
    population: int
    trials: int
    seed: int

    def baseline(self, name: str) -> Baseline:
        """A baseline by name.

        Raises:
            InputError: unknown name.
        """
        sizes, reaction = self.micro_batch_samples, self.reaction
        if name == "static":
            return StaticPipeline(sizes)
        if name == "dtfm":
            search = (self.population, self.trials, self.seed)
            return Dtfm(sizes, reaction, self.storage_gbps, *search)
        if name == "diloco":
            return Diloco(sizes, self.local_steps)
        if name == "asteroid":
            return Asteroid(sizes, reaction)
        if name in ("confidant", "confidant_star"):
            kind = Confidant if name == "confidant" else ConfidantStar
            return kind(sizes, self.epoch_samples, self.copy_memory_share, reaction)
        raise InputError("systems", name, f"allowed: {', '.join(SYSTEMS)}")


def costs_by_size(experiment: Experiment, unmerged_limit: int) -> CostsOf:
    """Costs of the experiment's model by micro-batch size."""
    return lambda samples: experiment.costs(samples, unmerged_limit)


def weaver_plan(
    experiment: Experiment, compared: Compared, problem: PlacementProblem
) -> BaselinePlan:
    """WEAVER's initial placement as a plan: the limit of unmerged gradients is part of it.

    Raises:
        InputError: no placement fits the memory of the sites.
    """
    best: tuple[float, int, Placement] | None = None
    for limit in compared.unmerged_limits:
        try:
            found = place(problem, costs_by_size(experiment, limit), compared.micro_batch_samples)
        except InputError:
            continue
        if best is None or found.estimate.step_s < best[0]:
            best = (found.estimate.step_s, limit, found)
    if best is None:
        raise InputError(
            "placement", experiment.shape.name, "allowed: a model that fits the sites' memory"
        )
    _, limit, found = best
    samples = found.micro_batch_samples
    return BaselinePlan(
        found.layout,
        samples,
        found.window,
        problem.step_samples // samples,
        forward_first=False,
        unmerged_limit=limit,
    )


def run_weaver(
    experiment: Experiment,
    compared: Compared,
    tflops: np.ndarray,
    name: str = WEAVER,
    record_tasks: bool = False,
    compiled: bool = False,
    failures: Sequence[tuple[float, int, float]] = (),
) -> SystemRun:
    """WEAVER with its own placement, on the event path (where sites can fail) or compiled."""
    fanout = compared.settings.reduce_fanout
    least = (compared.least_replicas, compared.least_sites)
    plan = weaver_plan(experiment, compared, experiment.problem(tflops, fanout, *least))
    settings = with_hop(compared.settings, experiment, plan)
    if compiled:
        return run_compiled(experiment, name, plan, settings, tflops)
    return run_system(
        experiment, name, plan, settings, tflops, record_tasks=record_tasks, failures=failures
    )


def run_baseline(
    experiment: Experiment,
    compared: Compared,
    tflops: np.ndarray,
    name: str,
    start: BaselinePlan | None = None,
    record_tasks: bool = False,
    compiled: bool = False,
) -> SystemRun:
    """A baseline with its own adaptation.

    Args:
        experiment: what all systems have in common.
        compared: what the systems are given.
        tflops: usable compute by site and second [N, K].
        name: of the baseline.
        start: plan to start with instead of the baseline's own; its order of tasks and its interval
            of synchronisation stay its own.
        record_tasks: whether to keep the executed tasks.
        compiled: on the fast path, which keeps no tasks.
    """
    settings = replace(compared.settings, rerouting=False, rebalancing=False, speculate=False)
    baseline = compared.baseline(name)
    problem = experiment.problem(tflops, settings.reduce_fanout, 1, compared.least_sites)
    if start is None:
        plan = baseline.plan(problem, costs_by_size(experiment, 0))
    else:
        local = name.startswith("confidant")
        samples = compared.epoch_samples if local else experiment.step_samples
        plan = replace(
            start,
            forward_first=name == "dtfm",
            step_micro_batches=samples // start.micro_batch_samples,
            unmerged_limit=0,
            averages_weights=local,
        )
    settings = with_hop(settings, experiment, plan)
    if compiled:
        return run_compiled(experiment, name, plan, settings, tflops, baseline, compared.reaction)
    return run_system(
        experiment, name, plan, settings, tflops, baseline, compared.reaction, record_tasks
    )


def with_hop(
    settings: CoordinatorSettings, experiment: Experiment, plan: BaselinePlan
) -> CoordinatorSettings:
    """Settings with the mean time of a hand-over along the plan's replicas."""
    costs = costs_by_size(experiment, 0)(plan.micro_batch_samples)
    hops = [
        experiment.activation.seconds(a, b, costs.boundary_bytes)
        for lane in plan.layout.lanes
        for a, b in pairwise(lane)
        if a >= 0 and b >= 0
    ]
    return replace(settings, hop_s=float(np.mean(hops)) if hops else 0.0)


@dataclass(frozen=True)
class Figures:
    """Headline figures of a run.

    Args:
        tokens_per_s: tokens of complete micro-batches a second.
        peak_share_pct: achieved operations over the peak of all devices.
        cv_pct: coefficient of variation of the rate over portions of B* samples.
        drop_pct: share of portions below 80 % of the mean rate.
    """

    tokens_per_s: float
    peak_share_pct: float
    cv_pct: float
    drop_pct: float


def figures(experiment: Experiment, run: SystemRun, sites: int) -> Figures:
    """Headline figures of a run."""
    tokens = run.tokens_per_s(experiment.sequence, experiment.duration_s)
    flop = experiment.shape.step_flop(1, experiment.sequence) * tokens
    peak = sites * experiment.peak_tflops * 1e12
    rates = run.step_rates(experiment.step_samples)
    if not len(rates):
        return Figures(tokens, 100.0 * flop / peak, 0.0, 0.0)
    mean = float(rates.mean())
    return Figures(
        tokens,
        100.0 * flop / peak,
        100.0 * float(rates.std()) / mean,
        100.0 * float(np.mean(rates < 0.8 * mean)),
    )


@dataclass(frozen=True)
class Adaptation:
    """How a run of WEAVER coped with changing capacity.

    Args:
        capacity_shifts: (site, step) pairs in which a site's capacity differs from the step
            before by more than the threshold.
        air_handled_pct: share of shifts in steps that did not set off MLR.
        air_stall_ms_median: median time by which steps with reroutes exceed the median quiet step.
        mlr_events: how often MLR fired.
        mlr_prepare_ms: mean time from a decision for a new layout until its layers start to travel.
        mlr_copy_ms: mean time from then until it is in force.
        mlr_moves: layouts committed.
        mlr_exposed_stall_ms: mean time between the reduction and the next opening at a commit.
    """

    capacity_shifts: int
    air_handled_pct: float
    air_stall_ms_median: float
    mlr_events: int
    mlr_prepare_ms: float
    mlr_copy_ms: float
    mlr_moves: int
    mlr_exposed_stall_ms: float


def adaptation(run: SystemRun, tflops: np.ndarray, threshold: float) -> Adaptation:
    """Shifts of capacity at the time scale of steps, and what answered them.

    Args:
        run: of WEAVER.
        tflops: usable compute by site and second [N, K], that it ran on.
        threshold: relative change from step to step that counts as a shift.
    """
    means = np.array([_mean_capacity(tflops, row.start_s, row.end_s) for row in run.steps])
    if len(means) < 2:
        return Adaptation(0, 100.0, 0.0, run.replans, 0.0, 0.0, 0, 0.0)
    change = np.abs(np.diff(means, axis=0)) / np.maximum(means[:-1], 1e-9)
    shifts = (change > threshold).sum(axis=1)
    escalated = sum(
        int(shifts[i]) for i, row in enumerate(run.steps[1:]) if row.step in run.replan_steps
    )
    escalated = min(escalated, run.replans)
    total = int(shifts.sum())
    spans = np.array([row.end_s - row.start_s for row in run.steps])
    busy = np.array([row.reroutes > 0 for row in run.steps])
    quiet = float(np.median(spans[~busy])) if (~busy).any() else float(spans.min())
    stalls = np.maximum(spans[busy] - quiet, 0.0)
    moves = [(a, b) for a, b in pairwise(run.steps) if b.mlr]
    exposed = [1000.0 * (b.start_s - a.end_s) for a, b in moves]
    return Adaptation(
        total,
        100.0 * (1.0 - escalated / total) if total else 100.0,
        1000.0 * float(np.median(stalls)) if len(stalls) else 0.0,
        run.replans,
        1000.0 * float(np.mean(run.prepares_s)) if run.prepares_s else 0.0,
        1000.0 * float(np.mean(run.copies_s)) if run.copies_s else 0.0,
        len(moves),
        float(np.mean(exposed)) if exposed else 0.0,
    )


def _mean_capacity(tflops: np.ndarray, start_s: float, end_s: float) -> np.ndarray:
    seconds = np.arange(int(start_s), max(int(np.ceil(end_s)), int(start_s) + 1))
    return np.asarray(tflops[:, seconds % tflops.shape[1]].mean(axis=1))
