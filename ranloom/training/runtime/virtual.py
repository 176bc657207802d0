"""A whole run in one process on virtual time: real core, real sites, real tensors, random faults.

Sites and coordinator are the very state machines of the live run; sockets and clocks are replaced
by a queue of future events. The network between sites delays, loses and doubles what it carries,
the control channel delays, processes die in the middle of a task and come back with nothing, the
coordinator dies between handling an event and syncing its log, old events turn up again. All of it
derives from a seed, so a schedule that fails can be run again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ranloom.training.checkpoint import Checkpoint
from ranloom.training.coordinator import Coordinator
from ranloom.training.layout import Layout
from ranloom.training.messages import (
    BudgetReport,
    CoordinatorRestarted,
    Fence,
    Note,
    NoteKind,
    SiteJoined,
    Tick,
    Welcome,
)
from ranloom.training.runtime.journal import Journal
from ranloom.training.runtime.peer_messages import CODEC
from ranloom.training.runtime.proof import Proof, prove
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.site import ProtocolError, Running, Site, SiteSettings
from ranloom.training.runtime.stage_worker import Workload
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.tokens import Direction

_HEARTBEAT_S = 0.2
_SYNC_S = 0.02
_FAULT_CHECK_S = 0.25
_LAST_WORDS_S = 2.0


@dataclass(frozen=True)
class FaultRates:
    """How often things go wrong.

    Args:
        loss: share of messages between sites that are lost.
        duplicate: share of messages between sites that arrive twice.
        delay_s: mean delay of a message.
        old_event: share of events that reach the core once more, later.
        death_per_s: rate at which a site process dies.
        last_holder: whether the last holder of a stage may die.
        return_s: mean time after which a dead site comes back.
        crash_per_s: rate at which the coordinator process dies.
        cut_per_s: rate at which a site's budget is cut, to a quarter or less, for a while.
        evict_per_s: rate at which a site gives up activations, outputs and inputs.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.002
    old_event: float = 0.0
    death_per_s: float = 0.0
    last_holder: bool = False
    return_s: float = 2.0
    crash_per_s: float = 0.0
    cut_per_s: float = 0.0
    evict_per_s: float = 0.0


@dataclass(frozen=True)
class VirtualConfig:
    """A run on virtual time.

    Args:
        setup: what is trained.
        settings: of the coordinator core.
        layout: to start with.
        tflops: spare compute of each site.
        folder: for checkpoints.
        rates: how often things go wrong.
        seed: of everything random about this schedule.
        give_up_s: virtual time after which the run counts as hung.
        calm_s: virtual time from which nothing goes wrong any more, so that the run can end.
    """

    setup: TrainingSetup
    settings: CoordinatorSettings
    layout: Layout
    tflops: tuple[float, ...]
    folder: Path
    rates: FaultRates
    seed: int
    give_up_s: float = 600.0
    calm_s: float = 60.0


@dataclass(frozen=True)
class VirtualResult:
    """What came of a run on virtual time.

    Args:
        proof: weights and samples against independent evidence.
        notes: (time, note) of everything that happened.
        happened: faults that took place, by kind.
        seconds: virtual time that the run took.
    """

    proof: Proof
    notes: list[tuple[float, Note]]
    happened: Counter[str]
    seconds: float


class HungError(RuntimeError):
    """The run made no end."""


@dataclass
class _Process:
    """A site process: the incarnation that it lives, and its task in execution."""

    nonce: int
    site: Site | None = None
    running: Running | None = None
    started_s: float = 0.0
    factor: float = 1.0
    reports: list[Any] = field(default_factory=list)


class VirtualRun:
    """Event loop on virtual time.

    Args:
        config: the run.
        workload: built from the setup; passed in so that many schedules can share it.
    """

    def __init__(self, config: VirtualConfig, workload: Workload) -> None:
        self._config = config
        self._workload = workload
        self._random = np.random.default_rng(np.random.SeedSequence([config.seed]))
        self._costs = layer_costs(config.setup)
        self._now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._nonce = 0
        self._journals: list[Journal] = []
        self._processes: dict[int, _Process] = {}
        self._notes: list[tuple[float, Note]] = []
        self.happened: Counter[str] = Counter()
        self._log: list[tuple[float, Any]] = []
        self._unsynced: list[tuple[float, Any]] = []
        self._actions: list[Any] = []
        self._crashes = 0
        self._coordinator_up = True
        self._life = 0
        self._channel_s: dict[tuple[int, str], float] = {}
        self._core = self._new_core()

    def run(self) -> VirtualResult:
        """Run to the end and prove the result.

        Raises:
            HungError: no end within ``give_up_s``.
        """
        for site in range(len(self._config.tflops)):
            self._start_site(site)
        self._every(self._config.settings.control_interval_s, self._tick)
        self._every(_SYNC_S, self._sync)
        self._every(_FAULT_CHECK_S, self._misfortune)
        while not (self._core.finished and not self._unsynced and self._coordinator_up):
            if not self._queue or self._now_s > self._config.give_up_s:
                raise HungError(f"seed {self._config.seed}: at {self._now_s:.1f} s")
            self._now_s, _, act = heapq.heappop(self._queue)
            act()
        journals = [journal.records for journal in self._journals]
        micro_batches = self._config.settings.micro_batch_limit
        proof = prove(self._config.setup, micro_batches, self._copies(), journals)
        return VirtualResult(proof, self._notes, self.happened, self._now_s)

    def _copies(self) -> list[Checkpoint]:
        """Final weights of the sites, once what is still under way has reached them."""
        until_s = self._now_s + _LAST_WORDS_S
        while self._queue and self._now_s < until_s:
            self._now_s, _, act = heapq.heappop(self._queue)
            act()
        return [
            Checkpoint(
                self._config.setup.model,
                layers.version,
                (layers.first_layer, layers.end_layer),
                layers.weights(),
                layers.optimizer_state(),
            )
            for process in self._processes.values()
            if process.site is not None and (layers := process.site.layers) is not None
        ]

    # --- time and chance ---

    def _at(self, delay_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self._now_s + delay_s, self._order, act))

    def _every(self, period_s: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self._at(period_s, again)

        self._at(period_s, again)

    def _delay_s(self) -> float:
        return float(self._random.exponential(self._config.rates.delay_s)) + 1e-5

    def _chance(self, share: float) -> bool:
        return share > 0.0 and float(self._random.random()) < share

    # --- coordinator ---

    def _new_core(self) -> Coordinator:
        return Coordinator(self._config.settings, self._config.layout, self._costs)

    def _tick(self) -> None:
        self._event(Tick())

    def _event(self, event: Any) -> None:
        """Handle an event; what it causes is sent with the next sync."""
        if not self._coordinator_up:
            return
        self._unsynced.append((self._now_s, event))
        self._actions.extend(self._core.handle(event, self._now_s))

    def _sync(self) -> None:
        silent = all(isinstance(action, Note) for action in self._actions)
        if not self._coordinator_up or (silent and not self._core.finished):
            # Events that cause nothing wait for a later sync, as in the live coordinator.
            return
        self._log.extend(self._unsynced)
        self._unsynced.clear()
        actions, self._actions = self._actions, []
        for action in actions:
            if isinstance(action, Note):
                self._notes.append((self._now_s, action))
            else:
                self._send_action(action)

    def _send_action(self, action: Any) -> None:
        life = self._life
        action = _through_the_wire(action)

        def arrive() -> None:
            if life == self._life:
                self._on_action(action)

        self._at(self._in_order(action.site, "down"), arrive)

    def _in_order(self, site: int, way: str) -> float:
        """Delay on a channel that keeps the order."""
        arrival_s = max(self._now_s + self._delay_s(), self._channel_s.get((site, way), 0.0) + 1e-6)
        self._channel_s[site, way] = arrival_s
        return arrival_s - self._now_s

    def _crash(self) -> None:
        """The coordinator dies; what was not synced never happened. It comes back from its log."""
        self.happened["coordinator_crash"] += 1
        self._crashes += 1
        self._life += 1
        self._coordinator_up = False
        self._unsynced.clear()
        self._actions.clear()
        self._at(float(self._random.uniform(0.05, 1.0)), self._recover)

    def _recover(self) -> None:
        core = self._new_core()
        for at_s, event in self._log:
            core.handle(event, at_s)
        self._core = core
        self._coordinator_up = True
        for process in self._processes.values():
            process.reports.clear()
        self._event(CoordinatorRestarted(self._crashes + 1))

    # --- sites ---

    def _start_site(self, number: int) -> None:
        self._nonce += 1
        process = self._processes[number] = _Process(self._nonce)

        def beat() -> None:
            if self._processes.get(number) is process:
                self._beat(number, process)
                self._at(_HEARTBEAT_S, beat)

        beat()

    def _tflops(self, number: int, process: _Process) -> float:
        return self._config.tflops[number] * process.factor

    def _beat(self, number: int, process: _Process) -> None:
        tflops = self._tflops(number, process)
        if process.site is None:
            joined = SiteJoined(number, process.nonce, 1 << 30, tflops)
            self._at(self._delay_s(), lambda: self._join(joined))
            return
        site = process.site
        self._guard(number, lambda: site.settle(self._now_s))
        self._report(number, site.incarnation, BudgetReport(number, site.incarnation, tflops))
        self._work(number, process)

    def _join(self, joined: SiteJoined) -> None:
        """A site asks to join, again and again; only a question that is not answered yet counts."""
        process = self._processes.get(joined.site)
        asked = any(event == joined for _, event in (*self._log[-64:], *self._unsynced))
        waiting = process is not None and process.site is None and process.nonce == joined.nonce
        if waiting and not asked:
            self._event(joined)

    def _on_action(self, action: Any) -> None:
        process = self._processes.get(action.site)
        if process is None:
            return
        if isinstance(action, Welcome):
            if process.site is None and action.nonce == process.nonce:
                self._enter(process, action)
        elif isinstance(action, Fence):
            if process.site is not None and process.site.incarnation == action.incarnation:
                self._leave(action.site, "fenced")
        elif process.site is not None:
            site = process.site
            self._guard(action.site, lambda: site.on_action(action, self._now_s))
            self._work(action.site, process)

    def _enter(self, process: _Process, welcome: Welcome) -> None:
        number, incarnation = welcome.site, welcome.incarnation
        journal = Journal(None)
        self._journals.append(journal)
        process.site = Site(
            number,
            incarnation,
            self._workload,
            SiteSettings(
                retry_s=0.3,
                grace_s=0.2,
                checkpoints=self._config.folder,
                unmerged_limit=self._config.settings.window,
            ),
            lambda to, message, tensors: self._send_peer(number, to, message, tensors),
            lambda event: self._report(number, incarnation, event),
            journal,
        )

    def _leave(self, number: int, why: str) -> None:
        self.happened[why] += 1
        self._start_site(number)

    def _guard(self, number: int, act: Callable[[], None]) -> None:
        try:
            act()
        except ProtocolError:
            self._leave(number, "protocol_error")

    def _report(self, number: int, incarnation: int, event: Any) -> None:
        life, event = self._life, _through_the_wire(event)

        def arrive() -> None:
            if life == self._life:
                self._event(event)
                if self._chance(self._config.rates.old_event):
                    self.happened["old_event"] += 1
                    self._at(float(self._random.uniform(0.01, 3.0)), lambda: self._event(event))

        self._at(self._in_order(number, f"up-{incarnation}"), arrive)

    def _send_peer(self, sender: int, to: int, message: Any, tensors: dict[str, Tensor]) -> None:
        if self._chance(self._config.rates.loss) and self._now_s < self._config.calm_s:
            self.happened["lost_message"] += 1
            return
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        times = 1 + self._chance(self._config.rates.duplicate)
        self.happened["doubled_message"] += times - 1
        sending = self._processes[sender]
        for _ in range(times):
            self._at(self._delay_s(), lambda: self._on_peer(sender, sending, to, message, copies))

    def _on_peer(
        self, sender: int, sending: _Process, to: int, message: Any, tensors: dict[str, Tensor]
    ) -> None:
        process = self._processes.get(to)
        # Packets of an earlier process of the same site come before its successor's, if at all.
        if process is None or process.site is None or self._processes.get(sender) is not sending:
            return
        site = process.site
        self._guard(
            to,
            lambda: site.on_peer(
                sender,
                _through_the_wire(message),
                {name: tensor.clone() for name, tensor in tensors.items()},
                self._now_s,
            ),
        )
        self._work(to, process)

    def _work(self, number: int, process: _Process) -> None:
        """Start the next task of a site that is idle."""
        if self._processes.get(number) is not process or process.running is not None:
            return
        site = process.site
        running = site.next_task() if site is not None else None
        if site is None or running is None:
            return
        site.compute(running)
        process.running, process.started_s = running, self._now_s
        flop = self._flop(site, running.direction)
        noise = float(self._random.uniform(0.8, 1.3))
        seconds = noise * flop / (self._tflops(number, process) * 1e12)

        def done() -> None:
            if self._processes.get(number) is process and process.site is site:
                process.running = None
                site.complete(running, self._now_s - process.started_s)
                self._work(number, process)

        self._at(seconds, done)

    def _flop(self, site: Site, direction: Direction) -> float:
        layers = site.layers
        assert layers is not None
        held = slice(layers.first_layer, layers.end_layer)
        forward = float(self._costs.forward_flop[held].sum())
        if direction is Direction.FORWARD:
            return forward
        backward = float(self._costs.backward_flop[held].sum())
        return backward + forward if layers.module.is_last else backward

    # --- misfortune ---

    def _misfortune(self) -> None:
        rates, config = self._config.rates, self._config
        if self._now_s >= config.calm_s or self._core.finished:
            return
        if self._coordinator_up and self._chance(rates.crash_per_s * _FAULT_CHECK_S):
            self._crash()
        for number, process in list(self._processes.items()):
            if self._chance(rates.cut_per_s * _FAULT_CHECK_S):
                self.happened["budget_cut"] += 1
                process.factor = float(self._random.choice([1.0, 0.5, 0.25, 0.1]))
            site = process.site
            if site is not None and self._chance(rates.evict_per_s * _FAULT_CHECK_S):
                self.happened["eviction"] += 1
                site.evict(self._now_s)
            if self._may_die(number) and self._chance(rates.death_per_s * _FAULT_CHECK_S):
                self._die(number)

    def _may_die(self, number: int) -> bool:
        place = self._core.layout.place_of(number)
        if place is None or self._config.rates.last_holder:
            return True
        others = [site for site in self._core.layout.pool(place[1]) if site != number]
        return any(
            (process := self._processes.get(site)) is not None
            and process.site is not None
            and process.site.stage == place[1]
            for site in others
        )

    def _die(self, number: int) -> None:
        process = self._processes.pop(number)
        holds = process.site is not None and process.site.holds_work
        self.happened["death_with_work" if holds else "death"] += 1
        back_s = float(self._random.exponential(self._config.rates.return_s))
        self._at(back_s, lambda: self._start_site(number))


def _through_the_wire(message: Any) -> Any:
    """What the receiver decodes of a message."""
    return CODEC.load(*CODEC.dump(message))


def count_notes(result: VirtualResult) -> Counter[str]:
    """Notes of a run by kind."""
    return Counter(note.kind.value for _, note in result.notes)


__all__ = [
    "FaultRates",
    "HungError",
    "NoteKind",
    "VirtualConfig",
    "VirtualResult",
    "VirtualRun",
    "count_notes",
]
