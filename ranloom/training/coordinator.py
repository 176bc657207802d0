"""The coordinator core: events in, actions out, time as an argument.

Who belongs to the run is decided here; what happens within a step by ``StepCycle``, between steps
by ``RunCycle``, to the layout by ``LayoutKeeper``. Protocol: ``docs/training-protocol.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ranloom.errors import InputError
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.layout_change import ChangePhase
from ranloom.training.layout_keeper import LayoutKeeper
from ranloom.training.membership import Members
from ranloom.training.messages import (
    Action,
    Applied,
    BudgetReport,
    CheckpointWritten,
    CoordinatorRestarted,
    CopyDone,
    Event,
    Fence,
    InputMissing,
    Inventory,
    LayoutRequested,
    Note,
    NoteKind,
    PartialRefused,
    Prepared,
    RequestInventory,
    SiteJoined,
    SiteLost,
    StageReduced,
    TaskCompleted,
    Tick,
    TotalHeld,
    WeightsFrom,
    Welcome,
)
from ranloom.training.recovery import take_inventory
from ranloom.training.run_cycle import RunCycle, RunPhase, RunStatistics
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.step_cycle import StepCycle


class Coordinator:
    """Pure state machine over the training of one model on many sites.

    Two coordinators with the same arguments that are given the same events at the same times return
    the same actions: replaying the logged events restores one after a crash.

    Args:
        settings: what it decides by.
        layout: layout to start with, as soon as all its sites have joined.
        costs: costs of the layers, for prediction and rebalancing.

    Raises:
        InputError: a layout for another number of layers, or with a stage that nobody holds.
    """

    def __init__(self, settings: CoordinatorSettings, layout: Layout, costs: LayerCosts) -> None:
        self.members = Members(settings.lease_s, settings.error_weight, settings.margin_errors)
        self.keeper = LayoutKeeper(settings, layout, costs, self.members)
        self.run = RunCycle(settings, self.keeper, self.members)
        self._now_s = 0.0
        self._recovering = False
        self._awaiting: set[int] = set()
        self._handlers: dict[type, Callable[[Any], list[Action]]] = {
            SiteJoined: self._on_joined,
            SiteLost: self._on_lost,
            BudgetReport: self._on_budget,
            TaskCompleted: self._on_task,
            InputMissing: self._on_missing,
            StageReduced: self._on_reduced,
            PartialRefused: self._on_refused,
            TotalHeld: self._on_held,
            Applied: self._on_applied,
            CheckpointWritten: self._on_checkpoint,
            Prepared: self._on_prepared,
            CopyDone: self._on_copied,
            CoordinatorRestarted: self._on_restarted,
            Inventory: self._on_inventory,
            LayoutRequested: self._on_layout_requested,
            Tick: self._on_tick,
        }

    @property
    def finished(self) -> bool:
        """Whether all work is applied and the final weights are stored."""
        return self.run.phase == RunPhase.FINISHED

    @property
    def layout(self) -> Layout:
        """Layout in force."""
        return self.keeper.layout

    @property
    def cycle(self) -> StepCycle | None:
        """The step under way, if there is one."""
        return self.run.cycle

    @property
    def statistics(self) -> RunStatistics:
        """Counters over the closed steps of the run."""
        return self.run.statistics

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take one event and return what has to be done, in this order.

        Args:
            event: what happened.
            now_s: time of the driver's clock, never falling.

        Raises:
            InputError: a site number out of range, or a restart that does not raise the
                incarnation.
        """
        self._now_s = now_s
        if not isinstance(event, SiteJoined | CoordinatorRestarted | LayoutRequested | Tick):
            if not self.members.knows(event.site, event.incarnation):
                return self._refuse_dead(event)
            self.members.renew(event.site, now_s)
            if event.site in self._awaiting and not isinstance(event, Inventory | SiteLost):
                return []
        return self._handlers[type(event)](event)

    def _refuse_dead(self, event: Any) -> list[Action]:
        if isinstance(event, SiteLost):
            return []
        self.statistics.rejected["dead_incarnation"] += 1
        note = Note(NoteKind.REJECTED, site=event.site, reason="dead_incarnation")
        return [Fence(event.site, event.incarnation), note]

    # --- sites -----------------------------------------------------------------------------------

    def _on_joined(self, event: SiteJoined) -> list[Action]:
        actions: list[Action] = []
        if self.members.is_alive(event.site):
            actions.extend(self._lose(event.site, "rejoined"))
        incarnation = self.members.join(
            event.site, event.memory_bytes, event.usable_tflops, self._now_s
        )
        actions.append(Welcome(event.site, incarnation, event.nonce))
        actions.append(Note(NoteKind.SITE_JOINED, site=event.site, value=float(incarnation)))
        if self.run.phase == RunPhase.GATHERING:
            if all(self.members.is_alive(site) for site in self.layout.sites()):
                actions.extend(self.run.begin(self._now_s))
        elif self.run.phase == RunPhase.STALLED:
            actions.extend(self._roll_back())
        return actions

    def _on_lost(self, event: SiteLost) -> list[Action]:
        return self._lose(event.site, "disconnected")

    def _lose(self, site: int, reason: str) -> list[Action]:
        """A site is gone: reopen what it held; roll back if it was the last holder of a stage."""
        fence = Fence(site, int(self.members.incarnation[site]))
        self.members.lose(site)
        self.statistics.sites_lost += 1
        self._awaiting.discard(site)
        self.run.last_apply.pop(site, None)
        actions: list[Action] = [fence, Note(NoteKind.SITE_LOST, site=site, reason=reason)]
        if self.run.phase in (RunPhase.GATHERING, RunPhase.STALLED, RunPhase.FINISHED):
            return actions
        actions.extend(self.keeper.lose_site(site))
        if self.layout.vacant_stages():
            return actions + self._roll_back()
        run = self.run
        requests = run.checkpoints.lose_site(site, run.model_version, self.keeper.pools)
        if not self._recovering:
            # Else the new writer may not have the version yet; all are asked once it is known.
            actions.extend(requests)
        if run.cycle is not None:
            if self.keeper.change is None:
                run.cycle.reduction.drop_shadows()
            actions.extend(run.cycle.lose_site(site))
        return actions + self._go_on()

    def _go_on(self) -> list[Action]:
        if self._recovering:
            return self._resume_if_all_reported()
        return self.run.advance(self._now_s)

    def _roll_back(self) -> list[Action]:
        self._awaiting.clear()
        self._recovering = False
        return [*self.run.roll_back(), *self.run.reopen(self._now_s)]

    def _on_budget(self, event: BudgetReport) -> list[Action]:
        self.members.report_budget(event.site, event.usable_tflops)
        return []

    def _on_tick(self, _: Tick) -> list[Action]:
        actions: list[Action] = []
        for site in self.members.expired(self._now_s):
            if self.members.is_alive(site):
                actions.extend(self._lose(site, "lease"))
        cycle = self.run.cycle
        if cycle is not None and self.run.phase == RunPhase.TRAINING:
            actions.extend(cycle.control(self.keeper.timing(), self._now_s))
            actions.extend(cycle.expire(self._now_s))
            actions.extend(self.run.advance(self._now_s))
        return actions

    # --- work ------------------------------------------------------------------------------------

    def _on_task(self, event: TaskCompleted) -> list[Action]:
        cycle = self.run.cycle
        if cycle is None:
            return []
        if event.key.step == cycle.ledger.step and 0 <= event.key.stage < cycle.ledger.stages:
            flop = (cycle.plan.forward_flop, cycle.plan.backward_flop)[event.direction]
            self.members.observe(event.site, float(flop[event.key.stage]), event.seconds)
        return cycle.task_completed(event, self._now_s) + self._go_on()

    def _on_missing(self, event: InputMissing) -> list[Action]:
        if self.run.cycle is None:
            return []
        return self.run.cycle.input_missing(event) + self._go_on()

    def _on_reduced(self, event: StageReduced) -> list[Action]:
        reason = self.run.cycle.stage_reduced(event) if self.run.cycle else "stale_step"
        if reason == "manifest":
            return self._distrust(event.site)
        return self._judged(reason, event)

    def _on_held(self, event: TotalHeld) -> list[Action]:
        reason = self.run.cycle.total_held(event) if self.run.cycle else "stale_step"
        return self._judged(reason, event)

    def _judged(self, reason: str, event: StageReduced | TotalHeld) -> list[Action]:
        if reason:
            where = (event.step, event.site, event.stage)
            return [Note(NoteKind.REJECTED, *where, reason=reason)]
        return self._go_on()

    def _on_refused(self, event: PartialRefused) -> list[Action]:
        cycle = self.run.cycle
        if cycle is None or event.step != cycle.ledger.step:
            return []
        if not cycle.reduction.is_current(event.stage, event.token):
            return []
        return self._distrust(event.site)

    def _distrust(self, site: int) -> list[Action]:
        """The books of a site contradict the ledger: fence it, and do its work again."""
        self.statistics.rejected["manifest"] += 1
        note = Note(NoteKind.REJECTED, site=site, reason="manifest")
        return [note, *self._lose(site, "manifest")]

    def _on_applied(self, _: Applied) -> list[Action]:
        return []

    def _on_checkpoint(self, event: CheckpointWritten) -> list[Action]:
        run = self.run
        if not run.checkpoints.written(event):
            return []
        run.queue.checkpointed(run.checkpoints.version)
        actions: list[Action] = [Note(NoteKind.CHECKPOINT, value=float(event.model_version))]
        if run.phase == RunPhase.CLOSING:
            run.phase = RunPhase.FINISHED
            actions.append(Note(NoteKind.FINISHED, value=float(run.applied_steps)))
        return actions

    # --- layout ----------------------------------------------------------------------------------

    def _on_layout_requested(self, event: LayoutRequested) -> list[Action]:
        if self.keeper.request(event.boundaries, self._now_s):
            return []
        return [Note(NoteKind.LAYOUT_ABORT, reason="request_refused")]

    def _on_prepared(self, event: Prepared) -> list[Action]:
        change = self.keeper.change
        if change is not None and not change.on_prepared(event):
            return self.keeper.abort("refused")
        return []

    def _on_copied(self, event: CopyDone) -> list[Action]:
        change = self.keeper.change
        if change is not None and change.phase == ChangePhase.COPY:
            change.on_copied(event)
        return []

    # --- restart ---------------------------------------------------------------------------------

    def _on_restarted(self, event: CoordinatorRestarted) -> list[Action]:
        run = self.run
        if event.incarnation <= run.coordinator:
            raise InputError(
                "CoordinatorRestarted.incarnation",
                event.incarnation,
                f"allowed: above {run.coordinator}",
            )
        run.coordinator = event.incarnation
        self.statistics.recoveries += 1
        self.members.extend_leases(self._now_s)
        actions = self.keeper.abort("coordinator_restarted")
        if run.cycle is not None:
            actions.extend(run.cycle.restart(event.incarnation))
        if run.phase not in (RunPhase.TRAINING, RunPhase.RECOVERING, RunPhase.CLOSING):
            return actions
        if run.phase == RunPhase.TRAINING:
            run.phase = RunPhase.RECOVERING
        self._recovering = True
        self._awaiting = set(self.members.living())
        for site in sorted(self._awaiting):
            actions.append(RequestInventory(site, int(self.members.incarnation[site])))
        return actions + self._resume_if_all_reported()

    def _on_inventory(self, event: Inventory) -> list[Action]:
        if event.site not in self._awaiting:
            return []
        self._awaiting.discard(event.site)
        run, place = self.run, self.layout.place_of(event.site)
        actions: list[Action] = []
        if place is not None:
            missed = self._missed(event, place[1])
            if missed is None:
                return self._lose(event.site, "stale_inventory")
            actions.extend(missed)
        if run.cycle is not None:
            found = take_inventory(run.cycle, event, self._now_s)
            if found is None:
                return actions + self._distrust(event.site)
            actions.extend(found)
        return actions + self._resume_if_all_reported()

    def _missed(self, event: Inventory, stage: int) -> list[Action] | None:
        """What a site was not told before the crash; None if that cannot be made good."""
        version, found = self.run.model_version, event.model_version
        applies = self.run.last_apply.get(event.site, [])
        is_one_behind = bool(applies) and applies[0].token.model_version == found
        if event.layout_epoch == self.layout.epoch:
            if found == version:
                return []
            return [a for a in applies if a.stage == stage] if is_one_behind else None
        install = self.keeper.last_install.get(event.site)
        if install is None or install.model_version != version:
            return None
        if install.weights_from is not WeightsFrom.COPY:
            return [install]
        if found not in (-1, version) and not is_one_behind:
            return None
        # The last update belongs to the commit: of what it held as of what it copied.
        return [*applies, install]

    def _resume_if_all_reported(self) -> list[Action]:
        """Once every site has reported or is lost: renew all grants and go on."""
        run = self.run
        if self._awaiting or not self._recovering:
            return []
        self._recovering = False
        actions: list[Action] = [Note(NoteKind.RECOVERED, value=float(run.coordinator))]
        actions.extend(run.checkpoints.repeat())
        if run.phase == RunPhase.RECOVERING:
            run.phase = RunPhase.TRAINING
            if run.cycle is not None:
                actions.extend(run.cycle.resume())
            actions.extend(run.advance(self._now_s))
        return actions
