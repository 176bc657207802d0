"""One training step from its opening to its reduced sum: open -> sealed -> reduced, or skipped."""

from __future__ import annotations

from collections import Counter
from math import fsum

import numpy as np

from ranloom.training.air import AirInputs, AirPlan, plan_interval, plan_speculation
from ranloom.training.dispatch import Dispatcher
from ranloom.training.ledger import NOBODY, Fate, StepLedger, Verdict, forget_site
from ranloom.training.membership import Members
from ranloom.training.messages import (
    Action,
    Discard,
    InputMissing,
    Merge,
    Note,
    NoteKind,
    Recipient,
    Release,
    StageReduced,
    TaskCompleted,
    TotalHeld,
)
from ranloom.training.reduction import Reduction
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.step_plan import StepPhase, StepPlan, StepStatistics
from ranloom.training.timing import StageTiming
from ranloom.training.tokens import Direction

Shadows = tuple[tuple[int, Recipient, bool], ...]


class StepCycle:
    """State machine of one step; driven by the coordinator.

    Args:
        settings: of the coordinator.
        members: the sites.
        pools: living sites of each stage; the coordinator takes lost ones out.
        plan: costs and limits.
        ledger: of the step, with planned owners and replicas filled in.
        coordinator: incarnation of the coordinator.
        next_attempt: number of the next attempt.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        members: Members,
        pools: list[tuple[int, ...]],
        plan: StepPlan,
        ledger: StepLedger,
        coordinator: int,
        next_attempt: int,
    ) -> None:
        self.ledger = ledger
        self.plan = plan
        self.phase = StepPhase.OPEN
        self.statistics = StepStatistics(last_commit_s=plan.opened_s)
        self.dispatcher = Dispatcher(ledger, members, pools, coordinator, next_attempt)
        self.reduction = Reduction(
            ledger, members, pools, settings.tied_embeddings, settings.reduce_fanout
        )
        self._settings = settings
        self._members = members
        self._pools = pools
        self._coordinator = coordinator
        self._recovering = False
        self._may_lack_owner = True
        self._may_admit = True
        self._holders = np.full(0, NOBODY, dtype=np.int32)
        self._busy_since_s = np.full(0, np.nan)
        self._dirty: set[int] = set()
        self._loss: dict[int, float] = {}

    @property
    def deferred(self) -> tuple[int, ...]:
        """Numbers of the micro-batches deferred so far."""
        rows = self.ledger.rows_of_fate(Fate.DEFERRED)
        return tuple(self.ledger.micro_batches[row] for row in rows)

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of a sample over the complete micro-batches that reported theirs, if any did.

        A gradient that an inventory brought in after a restart comes without its loss.
        """
        complete = self.ledger.rows_of_fate(Fate.COMPLETE)
        known = [self._loss[row] for row in complete.tolist() if row in self._loss]
        if not known:
            return None
        return fsum(known) / (len(known) * self._settings.micro_batch_samples)

    @property
    def lacks_owner(self) -> bool:
        """Whether some key that must run has nobody to run it."""
        if self._may_lack_owner:
            records = self.ledger.records
            orphan = (records["owner"] < 0) & ~records["committed"]
            self._may_lack_owner = bool(orphan[self.ledger.fate != Fate.DEFERRED].any())
        return self._may_lack_owner

    # --- rerouting -----------------------------------------------------------------------------

    def control(self, timing: StageTiming, now_s: float) -> list[Action]:
        """One AIR control interval.

        Args:
            timing: of the layout under the present budgets.
            now_s: present time.
        """
        if self.phase not in (StepPhase.OPEN, StepPhase.SEALED):
            return []
        settings, plan = self._settings, self.plan
        pace = self._members.seconds_per_flop()
        nominal_s = plan.deadline_s - plan.opened_s
        steal_s = settings.steal_gain * (nominal_s if np.isfinite(nominal_s) else timing.step_s)
        inputs = AirInputs(
            stage_of=self._stage_of(len(pace)),
            forward_flop=plan.forward_flop,
            backward_flop=plan.backward_flop,
            seconds_per_flop=pace,
            busy_since_s=self._busy_since_s,
            tail_s=timing.tail_s,
            path_s=timing.path_s,
            now_s=now_s,
            left_s=plan.deadline_s - now_s if settings.rerouting else np.inf,
            steal_s=steal_s if settings.rerouting else np.inf,
            hop_s=settings.hop_s,
            exact_size=settings.exact_assignment,
        )
        found = plan_interval(self.ledger, inputs)
        actions = self._carry_out(found)
        if settings.speculate:
            actions.extend(self._speculate(inputs, found.owned_s))
        return actions + self.settle()

    def _stage_of(self, sites: int) -> np.ndarray:
        """Stage that each living site holds, -1 for none [S]; kept until a site is lost."""
        if len(self._holders) != sites:
            self._holders = np.full(sites, NOBODY, dtype=np.int32)
            for stage, pool in enumerate(self._pools):
                self._holders[list(pool)] = stage
            idle = np.full(sites, np.nan)
            known = min(sites, len(self._busy_since_s))
            idle[:known] = self._busy_since_s[:known]
            self._busy_since_s = idle
        return self._holders

    def _carry_out(self, plan: AirPlan) -> list[Action]:
        actions: list[Action] = []
        for row in plan.deferred_rows:
            actions.extend(self._defer(row))
        for move in plan.moves:
            begun = self.ledger.records[move.row, move.stage]["attempt"] != NOBODY
            actions.extend(self.dispatcher.reassign(move.row, move.stage, move.target))
            self._dirty.add(move.row)
            if move.source != NOBODY:
                self.statistics.reroutes += 1
                number = self.ledger.micro_batches[move.row]
                where = (self.ledger.step, move.target, move.stage, number)
                reason = "assigned" if begun else "planned"
                actions.append(Note(NoteKind.REROUTED, *where, float(move.source), reason))
        return actions

    def _speculate(self, inputs: AirInputs, owned_s: np.ndarray) -> list[Action]:
        actions: list[Action] = []
        for move in plan_speculation(self.ledger, inputs, owned_s):
            self.dispatcher.grant_backup(move.row, move.stage, move.target)
            self.statistics.speculations += 1
            self._dirty.add(move.row)
            number = self.ledger.micro_batches[move.row]
            where = (self.ledger.step, move.target, move.stage, number)
            actions.append(Note(NoteKind.SPECULATED, *where, float(move.source)))
        return actions

    def _defer(self, row: int) -> list[Action]:
        """Take a micro-batch that is not complete out of the step."""
        actions: list[Action] = []
        for stage in range(self.ledger.stages):
            actions.extend(self.dispatcher.drop_held(row, stage))
            actions.extend(self.dispatcher.withdraw(row, stage))
        self.ledger.decide(row, Fate.DEFERRED)
        self._may_admit = True
        self._dirty.discard(row)
        actions.extend(self._release(row, frozenset()))
        number = self.ledger.micro_batches[row]
        return [*actions, Note(NoteKind.DEFERRED, self.ledger.step, micro_batch=number)]

    def expire(self, now_s: float) -> list[Action]:
        """At the deadline: what is not complete waits for the next step."""
        if self.phase != StepPhase.OPEN or now_s <= self.plan.deadline_s:
            return []
        actions: list[Action] = []
        for row in self.ledger.rows_of_fate(Fate.WAITING, Fate.IN_WORK):
            actions.extend(self._defer(int(row)))
        return actions + self.settle()

    # --- progress ------------------------------------------------------------------------------

    def settle(self) -> list[Action]:
        """Admit, tell executors what changed, and seal the step if nothing is left to do."""
        if self._recovering:
            return []
        actions: list[Action] = []
        if self.phase == StepPhase.OPEN:
            self._admit()
        for row in sorted(self._dirty):
            actions.extend(self.dispatcher.reconcile(row))
        self._dirty.clear()
        if self.phase == StepPhase.OPEN and not self.ledger.undecided:
            complete = len(self.ledger.sealed_set())
            enough = complete >= self.plan.least
            self.phase = StepPhase.SEALED if enough else StepPhase.SKIPPED
            kind = NoteKind.STEP_SEALED if enough else NoteKind.STEP_SKIPPED
            actions.append(Note(kind, self.ledger.step, value=float(complete)))
        return actions

    def _admit(self) -> None:
        """Take waiting micro-batches into work as far as each replica's window allows."""
        ledger = self.ledger
        if not (self._may_admit and ledger.waiting):
            return
        self._may_admit = False
        in_work = Counter(ledger.replica[ledger.rows_of_fate(Fate.IN_WORK)].tolist())
        waiting = ledger.rows_of_fate(Fate.WAITING)
        replica_of = ledger.replica[waiting]
        admitted: list[int] = []
        # An epoch without a flush is one long step: thousands wait, a handful is admitted.
        for replica in range(int(replica_of.max()) + 1):
            room = self._settings.window - in_work[replica]
            if room > 0:
                admitted.extend(waiting[replica_of == replica][:room].tolist())
        for row in sorted(admitted):
            ledger.decide(row, Fate.IN_WORK)
            self._dirty.add(row)

    def task_completed(self, event: TaskCompleted, now_s: float) -> list[Action]:
        """A site reports a forward or backward task."""
        if event.site < len(self._busy_since_s):
            self._busy_since_s[event.site] = now_s
        ledger = self.ledger
        verdict = ledger.judge(event.key, event.token, event.site, self._coordinator)
        if verdict != Verdict.ACCEPTED:
            return self._reject(event, verdict)
        row, stage = ledger.rows[event.key.micro_batch], event.key.stage
        record = ledger.records[row, stage]
        output = record["output"]
        remade = self.dispatcher.remakes_output(row, stage, event.site)
        self.dispatcher.reported(row, stage, event.site, event.direction)
        if remade or record["owner"] != event.site or record["backup"] != NOBODY:
            self._dirty.add(row)  # its neighbours were told to expect the output elsewhere
        if event.direction == Direction.FORWARD or remade:
            if output[event.direction] == NOBODY:
                output[event.direction] = event.site
            return self.settle()
        verdict = ledger.commit_judged(
            event.key, event.token, event.site, event.incarnation, self._coordinator
        )
        if verdict != Verdict.ACCEPTED:
            return self._reject(event, verdict) + self.settle()
        output[Direction.BACKWARD] = event.site
        if stage == ledger.stages - 1:
            self._loss[row] = event.loss
        actions = self.dispatcher.withdraw(row, stage, keep_site=event.site)
        return actions + self.committed(row, stage, now_s) + self.settle()

    def committed(self, row: int, stage: int, now_s: float) -> list[Action]:
        """A key has been committed: see whether its micro-batch is complete, and merge."""
        ledger = self.ledger
        self.statistics.last_commit_s = now_s
        number = ledger.micro_batches[row]
        site = int(ledger.records[row, stage]["holder"])
        actions: list[Action] = [Note(NoteKind.COMMITTED, ledger.step, site, stage, number)]
        if ledger.fate[row] == Fate.COMPLETE:
            actions.append(self.merge(row, stage))
        elif ledger.all_committed(row):
            ledger.decide(row, Fate.COMPLETE)
            self._may_admit = True
            actions.extend(self.merge(row, at) for at in range(ledger.stages))
        if ledger.all_committed(row):
            holders = frozenset(int(holder) for holder in ledger.records[row]["holder"])
            actions.extend(self._release(row, holders))
        return actions

    def merge(self, row: int, stage: int) -> Action:
        """Have a committed gradient of a complete micro-batch merged at its holder.

        Raises:
            ValueError: the key is open.
        """
        held = self.ledger.holder(row, stage)
        if held is None:
            raise ValueError(f"{self.ledger.key(row, stage)} has no holder to merge at")
        return Merge(held[0], held[1], self.ledger.key(row, stage), held[2])

    def _release(self, row: int, holders: frozenset[int]) -> list[Action]:
        """Free retained outputs at sites that no ``Merge`` of the micro-batch reaches."""
        outputs = self.ledger.records[row]["output"]
        sites = {int(site) for site in outputs.ravel() if site >= 0} - holders
        outputs[:] = NOBODY
        numbers = (self.ledger.micro_batches[row],)
        return [
            Release(site, int(self._members.incarnation[site]), self.ledger.step, numbers)
            for site in sorted(sites)
            if self._members.is_alive(site)
        ]

    def _reject(self, event: TaskCompleted, verdict: Verdict) -> list[Action]:
        reason = verdict.name.lower()
        self.statistics.rejected[reason] += 1
        key = event.key
        note = Note(
            NoteKind.REJECTED, key.step, event.site, key.stage, key.micro_batch, reason=reason
        )
        if key.step == self.ledger.step and key.micro_batch in self.ledger.rows:
            held = self.ledger.holder(self.ledger.rows[key.micro_batch], key.stage)
            if held is not None and (held[0], held[2]) == (event.site, event.token):
                return [note]
        return [Discard(event.site, event.incarnation, key, event.token), note]

    def input_missing(self, event: InputMissing) -> list[Action]:
        """A producer does not have what it was thought to have: make it again.

        If it has been told to make it but does not know yet, the consumer is sent there again with
        whatever happens next, at the latest in the next control interval.
        """
        ledger = self.ledger
        if ledger.judge(event.key, event.token, event.site, self._coordinator) != Verdict.ACCEPTED:
            return []
        row, stage = ledger.rows[event.key.micro_batch], event.key.stage
        forward = event.direction == Direction.FORWARD
        producer = stage - 1 if forward else stage + 1
        self._dirty.add(row)
        actions: list[Action] = []
        if forward:  # whoever still needs this input does not keep what it made of it
            actions = self.dispatcher.lost_output(row, stage, event.site, Direction.FORWARD)
            if event.source == event.site:
                return actions + self.settle()
        self.dispatcher.retract(row, stage, event.site)
        if 0 <= producer < ledger.stages:
            actions += self.dispatcher.lost_output(row, producer, event.source, event.direction)
            if self.dispatcher.is_expected(row, producer, event.source, event.direction):
                return actions
        return actions + self.settle()

    # --- reduction -----------------------------------------------------------------------------

    def reduce(self, shadows: Shadows) -> list[Action]:
        """Begin the reductions that can begin, once the step is sealed."""
        if self.phase != StepPhase.SEALED:
            return []
        return self.reduction.start(self._coordinator, shadows)

    def stage_reduced(self, event: StageReduced) -> str:
        """The root of a stage has the total; empty if accepted, else the reason."""
        return self._counted(self.reduction.accept_total(event))

    def total_held(self, event: TotalHeld) -> str:
        """A holder keeps a total; empty if it counts, else the reason."""
        return self._counted(self.reduction.acknowledge(event))

    def _counted(self, reason: str) -> str:
        if reason:
            self.statistics.rejected[reason] += 1
        self._check_reduced()
        return reason

    def _check_reduced(self) -> None:
        if self.phase == StepPhase.SEALED and self.reduction.done:
            self.phase = StepPhase.REDUCED

    # --- faults --------------------------------------------------------------------------------

    def lose_site(self, site: int) -> list[Action]:
        """A site is dead (and out of the pools): reopen what was lost with it."""
        if self.phase in (StepPhase.REDUCED, StepPhase.SKIPPED):
            return []
        self.dispatcher.forget_site(site)
        self._holders = np.full(0, NOBODY, dtype=np.int32)
        self.reduction.lose_site(site)
        self._may_lack_owner = True
        touched = forget_site(self.ledger.records, site)
        self._dirty.update(int(row) for row in np.flatnonzero(touched))
        actions = self._reopen_lost()
        self._check_reduced()
        return actions + self.settle()

    def _reopen_lost(self) -> list[Action]:
        """Open the keys whose holder is dead, unless their sum survives in a total."""
        ledger = self.ledger
        actions: list[Action] = []
        for stage in range(ledger.stages):
            if self.reduction.is_safe(stage):
                continue
            for row in (int(row) for row in ledger.rows_of_fate(Fate.IN_WORK, Fate.COMPLETE)):
                held = ledger.holder(row, stage)
                if held is not None and not self._members.knows(held[0], held[1]):
                    actions.append(self.reopen(row, stage))
        return actions

    def reopen(self, row: int, stage: int) -> Action:
        """Open a committed key whose gradient is gone."""
        ledger = self.ledger
        holder = int(ledger.records[row, stage]["holder"])
        ledger.reopen(row, stage)
        self._may_lack_owner = True
        self._dirty.add(row)
        self.statistics.reopened += 1
        reason = Fate(ledger.fate[row]).name.lower()
        where = (ledger.step, holder, stage, ledger.micro_batches[row])
        return Note(NoteKind.REOPENED, *where, reason=reason)

    def restart(self, coordinator: int) -> list[Action]:
        """The coordinator came back under a new incarnation: nothing that it sent counts.

        Nobody is told anything until ``resume``: a site may have done more than is known.
        """
        self._coordinator = coordinator
        self._recovering = True
        self._busy_since_s[:] = np.nan
        self.dispatcher.restart(coordinator)
        self.reduction.void_unfinished()
        return self._reopen_lost()

    def resume(self) -> list[Action]:
        """After a restart, all sites having reported or being lost: tell everybody anew."""
        self._recovering = False
        rows = self.ledger.rows_of_fate(Fate.IN_WORK, Fate.COMPLETE)
        self._dirty.update(int(row) for row in rows)
        return self.settle()
