"""From step to step: queue, quotas, deadline, versions, checkpoints, and the way back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from ranloom.training.checkpoint_tracker import INITIAL_WEIGHTS, CheckpointTracker
from ranloom.training.layout_keeper import LayoutKeeper
from ranloom.training.ledger import Fate, StepLedger
from ranloom.training.membership import Members
from ranloom.training.messages import Action, Apply, DropStep, Note, NoteKind, WeightsFrom
from ranloom.training.mlr import DeferralTrigger
from ranloom.training.quotas import DebtQuotas
from ranloom.training.sample_queue import MicroBatchQueue
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.step_cycle import StepCycle, StepPhase, StepPlan
from ranloom.training.timing import NominalStep


class RunPhase(StrEnum):
    """State of the run."""

    GATHERING = "gathering"
    TRAINING = "training"
    STALLED = "stalled"
    RECOVERING = "recovering"
    CLOSING = "closing"
    FINISHED = "finished"


@dataclass(slots=True)
class RunStatistics:
    """Counters over the run."""

    reroutes: int = 0
    speculations: int = 0
    deferrals: int = 0
    reopened: int = 0
    skipped_steps: int = 0
    layout_commits: int = 0
    replans: int = 0
    roll_backs: int = 0
    sites_lost: int = 0
    recoveries: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


class RunCycle:
    """Opens steps, closes them, and goes back to a checkpoint when it must.

    Args:
        settings: of the coordinator.
        keeper: of the layout.
        members: the sites.
    """

    def __init__(
        self, settings: CoordinatorSettings, keeper: LayoutKeeper, members: Members
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._members = members
        self.phase = RunPhase.GATHERING
        self.coordinator = 1
        self.cycle: StepCycle | None = None
        self.queue = MicroBatchQueue(settings.micro_batch_limit)
        self.checkpoints = CheckpointTracker(members)
        self.trigger = DeferralTrigger(
            settings.mlr_threshold, settings.mlr_weight, settings.mlr_patience_steps
        )
        self.quotas = DebtQuotas(np.ones(1), settings.debt_gain, settings.max_debt_samples)
        self.nominal = NominalStep(0.0, settings.error_weight)
        self.statistics = RunStatistics()
        self.model_version = 0
        self.applied_steps = 0
        self.last_apply: dict[int, list[Apply]] = {}
        self._last_version = 0
        self._next_step = 0
        self._next_attempt = 0
        self._skips = 0

    def begin(self, now_s: float) -> list[Action]:
        """All sites are there: start from the initial weights."""
        self.phase = RunPhase.TRAINING
        installs = self._keeper.install(self.model_version, WeightsFrom.SEED)
        self._plan_anew()
        return [*installs, *self._open(now_s)]

    def _plan_anew(self) -> None:
        """Base quotas, nominal step time and trigger from the present layout and budgets."""
        settings = self._settings
        samples = settings.step_micro_batches * settings.micro_batch_samples
        base = samples * self._keeper.shares()
        self.quotas = DebtQuotas(base, settings.debt_gain, settings.max_debt_samples)
        self.nominal.replan(self._keeper.timing().step_s)
        self.trigger.reset()

    def advance(self, now_s: float) -> list[Action]:
        """Go on as far as the step allows: find owners, reduce, apply, open the next one."""
        actions: list[Action] = []
        while self.cycle is not None and self.phase == RunPhase.TRAINING:
            cycle, change = self.cycle, self._keeper.change
            if cycle.lacks_owner and cycle.phase in (StepPhase.OPEN, StepPhase.SEALED):
                actions.extend(cycle.control(self._keeper.timing(), now_s))
            if cycle.phase == StepPhase.SEALED:
                if change is not None and not cycle.reduction.begun:
                    change.seal()
                actions.extend(cycle.reduce(change.shadows() if change is not None else ()))
            if cycle.phase == StepPhase.REDUCED:
                actions.extend(self._apply(cycle))
            elif cycle.phase == StepPhase.SKIPPED:
                actions.extend(self._skip(cycle))
            else:
                break
            actions.extend(self._close(cycle, now_s))
            actions.extend(self._between_steps(now_s))
            actions.extend(self._open(now_s))
        return actions

    def _apply(self, cycle: StepCycle) -> list[Action]:
        """The step is reduced: everybody updates to the next version of the weights."""
        self._last_version += 1
        self.model_version = self._last_version
        self.applied_steps += 1
        sealed = cycle.ledger.sealed_set()
        samples = len(sealed) * self._settings.micro_batch_samples
        self.queue.applied(self.model_version, sealed)
        step, change = cycle.ledger.step, self._keeper.change
        norm = cycle.reduction.squared_norm
        actions: list[Action] = [Note(NoteKind.STEP_REDUCED, step, value=float(samples))]
        loss = cycle.mean_loss
        if loss is not None:
            actions.append(Note(NoteKind.STEP_LOSS, step, value=loss))
        self.last_apply = {}
        for stage, pool in enumerate(self._keeper.pools):
            token = cycle.reduction.token(stage)
            what = (step, stage, token, samples, norm, self.model_version)
            copying = change.receivers_of(stage) if change is not None else ()
            for site in (*pool, *copying):
                apply = Apply(site, int(self._members.incarnation[site]), *what)
                self.last_apply.setdefault(site, []).append(apply)
                actions.append(apply)
        return actions

    def _skip(self, cycle: StepCycle) -> list[Action]:
        self.statistics.skipped_steps += 1
        self.queue.put_back(cycle.ledger.sealed_set())
        return [
            DropStep(site, int(self._members.incarnation[site]), cycle.ledger.step)
            for pool in self._keeper.pools
            for site in pool
        ]

    def _close(self, cycle: StepCycle, now_s: float) -> list[Action]:
        """Take a finished step into averages and counters; see whether MLR fires."""
        ledger = cycle.ledger
        deferred = cycle.deferred
        self.queue.put_back(deferred)
        self._skips = self._skips + 1 if cycle.phase == StepPhase.SKIPPED else 0
        self._count(cycle)
        disturbed = bool(deferred or cycle.statistics.reroutes or cycle.statistics.reopened)
        if cycle.phase == StepPhase.REDUCED and not (disturbed and self.nominal.known):
            observed_s = cycle.statistics.last_commit_s - cycle.plan.opened_s
            self.nominal.observe(observed_s, cycle.plan.predicted_s)
        if len(ledger.micro_batches) == self._settings.step_micro_batches:
            self.quotas.settle(self._contributions(ledger))
        fired = self.trigger.observe(len(deferred), len(ledger.micro_batches))
        self.cycle = None
        if not (fired and self._settings.rebalancing):
            return []
        self.statistics.replans += 1
        average = self.trigger.average
        if self._keeper.rebalance(now_s):
            self.trigger.reset()
        else:
            self._plan_anew()
        return [Note(NoteKind.REBALANCED, ledger.step, value=average)]

    def _count(self, cycle: StepCycle) -> None:
        self._next_attempt = cycle.dispatcher.next_attempt
        self.statistics.reroutes += cycle.statistics.reroutes
        self.statistics.speculations += cycle.statistics.speculations
        self.statistics.reopened += cycle.statistics.reopened
        self.statistics.deferrals += len(cycle.deferred)
        self.statistics.rejected.update(cycle.statistics.rejected)

    def _contributions(self, ledger: StepLedger) -> np.ndarray:
        """Samples that each replica's own sites contributed, averaged over the stages [D]."""
        layout = self._keeper.layout
        done = np.zeros(layout.replicas)
        complete = ledger.rows_of_fate(Fate.COMPLETE)
        for replica, stage, site in layout.holders():
            done[replica] += np.count_nonzero(ledger.records["holder"][complete, stage] == site)
        return np.asarray(done * self._settings.micro_batch_samples / layout.stages)

    def _between_steps(self, now_s: float) -> list[Action]:
        """Checkpoint, and a change of layout one phase further."""
        actions: list[Action] = []
        period = self._settings.checkpoint_steps
        if period and self.applied_steps % period == 0 and not self._skips:
            actions.extend(self.checkpoints.begin(self.model_version, self._keeper.pools))
        self._keeper.refill(now_s)
        moved, committed = self._keeper.move(self.model_version, now_s)
        actions.extend(moved)
        if committed:
            self.statistics.layout_commits += 1
            self._plan_anew()
        return actions

    def _open(self, now_s: float) -> list[Action]:
        """Open the next step, or close the run when nothing is left to draw."""
        settings, keeper = self._settings, self._keeper
        fresh = self.applied_steps < settings.max_steps
        drawn = self.queue.draw(settings.step_micro_batches, fresh)
        if not drawn:
            self.phase = RunPhase.CLOSING
            return self.checkpoints.begin(self.model_version, keeper.pools)
        layout = keeper.layout
        ledger = StepLedger(self._next_step, self.model_version, layout.epoch, layout.stages, drawn)
        self._next_step += 1
        self._deal(ledger)
        forward, backward = keeper.stage_flop()
        timing = keeper.timing()
        plan = StepPlan(
            forward,
            backward,
            opened_s=now_s,
            predicted_s=timing.step_s,
            deadline_s=now_s + self._allowance_s(),
            least=min(settings.min_step_micro_batches, len(drawn)),
        )
        self.cycle = StepCycle(
            settings,
            self._members,
            keeper.pools,
            plan,
            ledger,
            self.coordinator,
            self._next_attempt,
        )
        note = Note(NoteKind.STEP_OPENED, ledger.step, value=float(len(drawn)))
        return [note, *self.cycle.control(timing, now_s)]

    def _deal(self, ledger: StepLedger) -> None:
        """Deal the micro-batches to the replicas by quota, evenly over the step."""
        counts = self.quotas.micro_batches(len(ledger.micro_batches))
        turns = sorted(
            ((turn + 0.5) / count, replica)
            for replica, count in enumerate(counts)
            for turn in range(count)
        )
        for row, (_, replica) in enumerate(turns):
            ledger.replica[row] = replica
            ledger.records["owner"][row] = self._keeper.layout.lanes[replica]

    def _allowance_s(self) -> float:
        """Time that a step may take: T_bar + largest slack + control interval (Eq. 2)."""
        settings = self._settings
        if not self.nominal.known or not settings.rerouting:
            return np.inf
        nominal_s = self.nominal.step_s * 2.0**self._skips
        return nominal_s * (1.0 + settings.slack_fraction) + settings.control_interval_s

    def roll_back(self) -> list[Action]:
        """The last holder of a stage is lost: back to the checkpoint, under a new version.

        Without a layout for the survivors the run stalls until another site joins.
        """
        actions = self._keeper.abort("roll_back")
        cycle, self.cycle = self.cycle, None
        if cycle is not None:
            self._count(cycle)
            self.queue.put_back(cycle.ledger.micro_batches)
        self.checkpoints.give_up()
        returned = self.queue.roll_back()
        self.applied_steps -= returned.steps
        self.last_apply = {}
        if not self._keeper.rebuild():
            self.phase = RunPhase.STALLED
            living = float(len(self._members.living()))
            return [*actions, Note(NoteKind.STALLED, value=living)]
        self.phase = RunPhase.TRAINING
        self.statistics.roll_backs += 1
        self._last_version += 1
        self.model_version = self._last_version
        version = self.checkpoints.version
        source = WeightsFrom.SEED if version == INITIAL_WEIGHTS else WeightsFrom.CHECKPOINT
        actions.append(Note(NoteKind.ROLLED_BACK, value=float(returned.micro_batches)))
        actions.extend(self._keeper.install(self.model_version, source, version))
        return actions

    def reopen(self, now_s: float) -> list[Action]:
        """Open the first step after a roll-back."""
        if self.phase != RunPhase.TRAINING:
            return []
        self._plan_anew()
        return [*self._open(now_s), *self.advance(now_s)]
