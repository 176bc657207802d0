"""One training system on one trace: what it set out with, what it did, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ranloom.training.baselines.confidant import copy_bytes
from ranloom.training.baselines.policy import Baseline, BaselinePlan, Reaction
from ranloom.training.costs import LayerCosts
from ranloom.training.layer_profile import ProfiledLayers
from ranloom.training.links import Links
from ranloom.training.messages import Note, NoteKind
from ranloom.training.model_shapes import ModelShape, TrainingBytes, layer_costs
from ranloom.training.placement import PlacementProblem
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.fast_run import FastRun, FastWorld
from ranloom.training.simulator.network import CircuitWindow, Network
from ranloom.training.simulator.watch import Watch
from ranloom.training.simulator.world import Occupation, SimulatedWorld, WorldSettings

NEVER_S = 1e9
NEVER = 1 << 30


@dataclass(frozen=True)
class Experiment:
    """What all compared systems have in common.

    Args:
        shape: model.
        sizes: bytes a parameter takes.
        sequence: tokens of a sample.
        step_samples: samples of a step B*.
        activation: links that carry activations.
        sync: links that carry sums, totals and layers.
        windows: circuits that add to ``sync``.
        chunks: parts in which sums stream through a reduction tree.
        memory_bytes: memory of a site for training state.
        peak_tflops: peak of a site's device.
        duration_s: virtual time.
        plan_seconds: seconds of the trace whose mean is known when plans are made.
        tied: whether the first and last stage share a weight.
        task_overhead_s: time that a task costs beside its work.
        budget_period_s: how often sites report.
        ends_on_host: whether embeddings and head lie in host memory and take none of the device.
        hidden_share: share of the pipeline's time behind which sums are exchanged already; on the
            fast path and in plans.
        profiled: times of the layers instead of the operations of their shape.
    """

    shape: ModelShape
    sizes: TrainingBytes
    sequence: int
    step_samples: int
    activation: Links
    sync: Links
    windows: tuple[CircuitWindow, ...]
    chunks: int
    memory_bytes: int
    peak_tflops: float
    duration_s: float
    plan_seconds: int
    tied: bool
    task_overhead_s: float
    budget_period_s: float
    ends_on_host: bool = False
    hidden_share: float = 0.0
    profiled: ProfiledLayers | None = None

    def costs(self, samples: int, unmerged_limit: int) -> LayerCosts:
        """Costs of the model's layers for a micro-batch of that size."""
        shape, sizes = self.shape, self.sizes
        costs = layer_costs(shape, samples, self.sequence, sizes, unmerged_limit)
        if self.profiled is not None:
            costs = self.profiled.costs(costs, shape, samples, self.sequence)
        if not self.ends_on_host:
            return costs
        parameters = np.full(shape.layers, float(shape.block_parameters))
        return replace(
            costs,
            weight_bytes=parameters * sizes.weights,
            gradient_bytes=parameters * sizes.gradient,
        )

    def problem(
        self, tflops: np.ndarray, fanout: int, least_replicas: int = 1, least_sites: int = 1
    ) -> PlacementProblem:
        """Placement on the mean capacities that are known in advance."""
        known = np.maximum(tflops[:, : self.plan_seconds].mean(axis=1), 1e-6)
        return PlacementProblem(
            sites=tuple(range(len(tflops))),
            seconds_per_flop=1.0 / (known * 1e12),
            memory_bytes=np.full(len(tflops), self.memory_bytes, dtype=np.int64),
            activation=self.activation,
            sync=self.sync,
            step_samples=self.step_samples,
            tied=self.tied,
            fanout=fanout,
            chunks=self.chunks,
            least_replicas=least_replicas,
            least_sites=least_sites,
            hidden_share=self.hidden_share,
        )


@dataclass(frozen=True)
class StepRow:
    """One step.

    Args:
        step: number of the step.
        start_s: its opening.
        end_s: when its sum was reduced.
        samples: samples merged.
        reroutes: tasks that got another owner.
        deferred: micro-batches that had to wait.
        mlr: whether a new layout was committed right before it.
    """

    step: int
    start_s: float
    end_s: float
    samples: int
    reroutes: int
    deferred: int
    mlr: bool


@dataclass(frozen=True)
class SystemRun:
    """What came of a system.

    Args:
        name: of the system.
        model: name of the model.
        plan: what it set out with.
        steps: closed steps.
        tasks: executed tasks.
        notes: everything noted.
        completions_s: when each micro-batch was complete, ascending.
        peak_bytes: largest memory of a site.
        replans: how often MLR fired.
        replan_steps: after which steps.
        prepares_s: from the decision for a new layout until its layers start to travel.
        copies_s: from then until it is in force.
    """

    name: str
    model: str
    plan: BaselinePlan
    steps: tuple[StepRow, ...]
    tasks: tuple[Occupation, ...]
    notes: tuple[tuple[float, Note], ...]
    completions_s: np.ndarray
    peak_bytes: float
    replans: int
    replan_steps: frozenset[int] = frozenset()
    prepares_s: tuple[float, ...] = ()
    copies_s: tuple[float, ...] = ()

    def tokens_per_s(self, sequence: int, duration_s: float) -> float:
        """Tokens of complete micro-batches over the whole duration."""
        done = int(np.count_nonzero(self.completions_s <= duration_s))
        return done * self.plan.micro_batch_samples * sequence / duration_s

    def applied_tokens_per_s(self, sequence: int, duration_s: float) -> float:
        """Tokens of closed steps over the whole duration, less what went back to a checkpoint."""
        lost = sum(note.value for _, note in self.notes if note.kind is NoteKind.ROLLED_BACK)
        samples = sum(row.samples for row in self.steps) - lost * self.plan.micro_batch_samples
        return samples * sequence / duration_s

    def step_rates(self, step_samples: int) -> np.ndarray:
        """Samples a second of consecutive portions of B* samples."""
        portion = max(step_samples // self.plan.micro_batch_samples, 1)
        ends = np.concatenate([[0.0], self.completions_s[portion - 1 :: portion]])
        spans = np.diff(ends)
        return portion * self.plan.micro_batch_samples / spans[spans > 0.0]


def run_system(
    experiment: Experiment,
    name: str,
    plan: BaselinePlan,
    settings: CoordinatorSettings,
    tflops: np.ndarray,
    baseline: Baseline | None = None,
    reaction: Reaction | None = None,
    record_tasks: bool = False,
    failures: Sequence[tuple[float, int, float]] = (),
) -> SystemRun:
    """Train on virtual time.

    Args:
        experiment: what all systems have in common.
        name: of the system.
        plan: its plan.
        settings: of the coordinator core; sizes are taken from the plan.
        tflops: usable compute by site and second [N, K].
        baseline: policy that adapts the plan, None where the core does.
        reaction: when the policy is asked.
        record_tasks: whether to keep the executed tasks.
        failures: time of the death of a site, the site, and when it is back.
    """
    costs = experiment.costs(plan.micro_batch_samples, plan.unmerged_limit)
    settings = _sized(experiment, plan, settings)
    network = Network(experiment.activation, experiment.sync, experiment.windows, experiment.chunks)
    world = SimulatedWorld(
        settings,
        WorldSettings(
            budget_period_s=experiment.budget_period_s,
            memory_bytes=experiment.memory_bytes,
            task_overhead_s=experiment.task_overhead_s,
            forward_first=plan.forward_first,
            unmerged_limit=plan.unmerged_limit or NEVER,
        ),
        plan.layout,
        costs,
        network,
        Capacity(tflops, 1.0),
        record_tasks=record_tasks,
    )
    if baseline is not None and reaction is not None:
        problem = experiment.problem(tflops, settings.reduce_fanout)
        watch = Watch(baseline, reaction, plan, problem, costs, tflops, settings.hop_s)
        _Watched(world, watch).start()
    world.start()
    for at_s, site, back_s in failures:
        world.engine.at(at_s, world.kill, site)
        world.engine.at(back_s, world.boot, site)
    world.run_until(experiment.duration_s)
    notes = tuple(world.record.notes)
    return SystemRun(
        name,
        experiment.shape.name,
        plan,
        step_rows(notes),
        tuple(world.record.occupations),
        notes,
        completion_times(notes, plan.layout.stages),
        peak_bytes(costs, plan),
        world.coordinator.statistics.replans,
        frozenset(note.step for _, note in notes if note.kind is NoteKind.REBALANCED),
        tuple(note.value for _, note in notes if note.kind is NoteKind.LAYOUT_COPY),
        tuple(note.value for _, note in notes if note.kind is NoteKind.LAYOUT_COMMIT),
    )


class _Watched:
    """A world on the event path under the eyes of a baseline."""

    def __init__(self, world: SimulatedWorld, watch: Watch) -> None:
        self._world = world
        self._watch = watch

    def start(self) -> None:
        """Look once a second from now on."""
        self._world.engine.at(self._world.engine.now_s + 1.0, self._look)

    def _look(self) -> None:
        cycle = self._world.coordinator.cycle
        opened_s = None if cycle is None else cycle.plan.opened_s
        order = self._watch.look(self._world.engine.now_s, opened_s)
        if order is not None:
            self._world.halt(order.stall_s)
            if order.boundaries is not None:
                self._world.request_layout(order.boundaries)
        self.start()


def run_compiled(
    experiment: Experiment,
    name: str,
    plan: BaselinePlan,
    settings: CoordinatorSettings,
    tflops: np.ndarray,
    baseline: Baseline | None = None,
    reaction: Reaction | None = None,
) -> SystemRun:
    """Train on virtual time, on the fast path; arguments as for ``run_system``."""
    costs = experiment.costs(plan.micro_batch_samples, plan.unmerged_limit)
    settings = _sized(experiment, plan, settings)
    local = plan.step_micro_batches * plan.micro_batch_samples > experiment.step_samples
    world = FastWorld(
        experiment.activation,
        experiment.sync,
        experiment.windows,
        experiment.chunks,
        experiment.memory_bytes,
        experiment.budget_period_s,
        experiment.task_overhead_s,
        plan.forward_first,
        plan.unmerged_limit or NEVER,
        0.0 if local or plan.averages_weights else experiment.hidden_share,
    )
    run = FastRun(settings, world, plan.layout, costs, tflops)
    if baseline is not None and reaction is not None:
        problem = experiment.problem(tflops, settings.reduce_fanout)
        watch = Watch(baseline, reaction, plan, problem, costs, tflops, settings.hop_s)

        def look() -> None:
            order = watch.look(run.now_s, run.opened_s)
            if order is not None:
                run.halt(order.stall_s)
                if order.boundaries is not None:
                    run.request_layout(order.boundaries)

        run.every_s, run.look = 1.0, look
    record = run.run_until(experiment.duration_s)
    rows = tuple(
        StepRow(s.step, s.start_s, s.end_s, s.samples, s.reroutes, s.deferred, s.moved)
        for s in record.steps
    )
    done_s = np.sort(np.concatenate([np.zeros(0), *record.completions_s]))
    return SystemRun(
        name,
        experiment.shape.name,
        plan,
        rows,
        (),
        (),
        done_s,
        peak_bytes(costs, plan),
        len(record.replans),
        frozenset(record.replans),
        tuple(record.prepares_s),
        tuple(record.copies_s),
    )


def peak_bytes(costs: LayerCosts, plan: BaselinePlan) -> float:
    """Largest memory of a site."""
    if plan.averages_weights:
        return float(copy_bytes(costs, plan.layout, plan.window).max())
    return float(costs.stage_bytes(plan.layout, plan.window).max())


def _sized(
    experiment: Experiment, plan: BaselinePlan, settings: CoordinatorSettings
) -> CoordinatorSettings:
    """Settings with the sizes of a plan."""
    return replace(
        settings,
        micro_batch_samples=plan.micro_batch_samples,
        step_micro_batches=plan.step_micro_batches,
        min_step_micro_batches=min(settings.min_step_micro_batches, plan.step_micro_batches),
        window=plan.window,
        tied_embeddings=experiment.tied and plan.layout.stages > 1,
        lease_s=NEVER_S,
    )


def step_rows(notes: tuple[tuple[float, Note], ...]) -> tuple[StepRow, ...]:
    """Steps from what was noted."""
    rows: list[StepRow] = []
    opened: dict[int, float] = {}
    reroutes: dict[int, int] = {}
    deferred: dict[int, int] = {}
    moved = False
    for time_s, note in notes:
        if note.kind is NoteKind.STEP_OPENED:
            opened[note.step] = time_s
        elif note.kind is NoteKind.REROUTED:
            reroutes[note.step] = reroutes.get(note.step, 0) + 1
        elif note.kind is NoteKind.DEFERRED:
            deferred[note.step] = deferred.get(note.step, 0) + 1
        elif note.kind is NoteKind.LAYOUT_COMMIT:
            moved = True
        elif note.kind is NoteKind.STEP_REDUCED:
            counts = (reroutes.get(note.step, 0), deferred.get(note.step, 0))
            start_s = opened[note.step]
            rows.append(StepRow(note.step, start_s, time_s, int(note.value), *counts, moved))
            moved = False
    return tuple(rows)


def completion_times(notes: tuple[tuple[float, Note], ...], stages: int) -> np.ndarray:
    """When each micro-batch had all its stages committed for the first time, ascending."""
    seen: dict[tuple[int, int], set[int]] = {}
    times: list[float] = []
    for time_s, note in notes:
        if note.kind is NoteKind.COMMITTED:
            done = seen.setdefault((note.step, note.micro_batch), set())
            if len(done) < stages:
                done.add(note.stage)
                if len(done) == stages:
                    times.append(time_s)
    return np.asarray(times)
