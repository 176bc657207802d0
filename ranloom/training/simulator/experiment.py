"""One training system on one trace: what it set out with, what it did, what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ranloom.training.baselines.policy import Baseline, BaselinePlan, Reaction, predicted_step_s
from ranloom.training.links import Links
from ranloom.training.messages import Note, NoteKind
from ranloom.training.model_shapes import ModelShape, TrainingBytes, layer_costs
from ranloom.training.placement import PlacementProblem
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.network import CircuitWindow, Network
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

    def tokens_per_s(self, sequence: int, duration_s: float) -> float:
        """Tokens of complete micro-batches over the whole duration."""
        done = int(np.count_nonzero(self.completions_s <= duration_s))
        return done * self.plan.micro_batch_samples * sequence / duration_s

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
    """
    costs = layer_costs(
        experiment.shape,
        plan.micro_batch_samples,
        experiment.sequence,
        experiment.sizes,
        plan.unmerged_limit,
    )
    settings = replace(
        settings,
        micro_batch_samples=plan.micro_batch_samples,
        step_micro_batches=plan.step_micro_batches,
        min_step_micro_batches=min(settings.min_step_micro_batches, plan.step_micro_batches),
        window=plan.window,
        tied_embeddings=experiment.tied and plan.layout.stages > 1,
        lease_s=NEVER_S,
    )
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
        _Watch(world, baseline, reaction, plan, problem, tflops, settings.hop_s).start()
    world.start()
    world.run_until(experiment.duration_s)
    notes = tuple(world.record.notes)
    peak = float(costs.stage_bytes(plan.layout, plan.window).max())
    return SystemRun(
        name,
        experiment.shape.name,
        plan,
        step_rows(notes),
        tuple(world.record.occupations),
        notes,
        completion_times(notes, plan.layout.stages),
        peak,
        world.coordinator.statistics.replans,
    )


class _Watch:
    """Asks a baseline every second whether it wants to adapt."""

    def __init__(
        self,
        world: SimulatedWorld,
        baseline: Baseline,
        reaction: Reaction,
        plan: BaselinePlan,
        problem: PlacementProblem,
        tflops: np.ndarray,
        hop_s: float,
    ) -> None:
        self._world = world
        self._baseline = baseline
        self._reaction = reaction
        self._plan = plan
        self._problem = problem
        self._tflops = tflops
        self._hop_s = hop_s
        self._costs = world.costs
        self._planned_s = predicted_step_s(plan, self._costs, problem.seconds_per_flop, hop_s)
        self._slow_since_s = np.inf
        self._quiet_until_s = 0.0

    def start(self) -> None:
        """Look once a second from now on."""
        self._world.engine.at(self._world.engine.now_s + 1.0, self._look)

    def _look(self) -> None:
        now_s = self._world.engine.now_s
        second = int(now_s) % self._tflops.shape[1]
        pace = 1.0 / (np.maximum(self._tflops[:, second], 1e-6) * 1e12)
        step_s = predicted_step_s(self._plan, self._costs, pace, self._hop_s)
        if step_s <= self._planned_s * self._reaction.slowdown:
            self._slow_since_s = np.inf
        else:
            self._slow_since_s = min(self._slow_since_s, now_s)
        lasting = now_s - self._slow_since_s >= self._reaction.detect_s
        if lasting and now_s >= self._quiet_until_s:
            self._adapt(pace, now_s)
        self.start()

    def _adapt(self, pace: np.ndarray, now_s: float) -> None:
        answer = self._baseline.adapt(self._plan, self._problem, self._costs, pace)
        self._quiet_until_s = now_s + self._reaction.quiet_s
        self._slow_since_s = np.inf
        if answer is None:
            return
        stall_s = answer.stall_s
        cycle = self._world.coordinator.cycle
        if answer.loses_step and cycle is not None:
            stall_s += now_s - cycle.plan.opened_s
        self._world.halt(stall_s)
        self._quiet_until_s += stall_s
        if answer.boundaries is not None:
            self._world.request_layout(answer.boundaries)
            layout = self._plan.layout.with_boundaries(0, answer.boundaries)
            self._plan = replace(self._plan, layout=layout)
        self._planned_s = predicted_step_s(self._plan, self._costs, pace, self._hop_s)


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
