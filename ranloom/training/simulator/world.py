"""Sites, network and coordinator on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ranloom.training.coordinator import Coordinator
from ranloom.training.costs import LayerCosts, layer_sum
from ranloom.training.layout import Layout
from ranloom.training.messages import (
    Action,
    BudgetReport,
    CoordinatorRestarted,
    Event,
    Fence,
    LayoutRequested,
    Note,
    SiteJoined,
    SiteLost,
    Tick,
    Welcome,
)
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.engine import Engine
from ranloom.training.simulator.network import Network, Plane
from ranloom.training.simulator.site import Load, SimulatedSite, Weights, history
from ranloom.training.tokens import Direction


@dataclass(frozen=True)
class WorldSettings:
    """What surrounds the coordinator.

    Args:
        budget_period_s: how often sites report their spare budget.
        memory_bytes: memory for training state of each site.
        task_overhead_s: time that a task costs beside its work.
        loss_notice_s: delay after which the transport notices a dead site; infinite leaves it to
            the lease.
        sync_s: longest time that events wait for the log to be synced.
        forward_first: sites prefer forward tasks (a pipeline with flush).
        unmerged_limit: unmerged gradients of a site, above which it holds back.
    """

    budget_period_s: float
    memory_bytes: int
    task_overhead_s: float = 0.0
    loss_notice_s: float = 0.05
    sync_s: float = 0.0
    forward_first: bool = False
    unmerged_limit: int = 1 << 30


@dataclass(slots=True)
class Occupation:
    """One task as it was executed.

    Args:
        site: executor.
        stage: its stage.
        direction: forward or backward.
        step: step of the task.
        micro_batch: micro-batch of the task.
        start_s: when it began.
        end_s: when it ended.
    """

    site: int
    stage: int
    direction: Direction
    step: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class Record:
    """What an observer of a run writes down.

    Args:
        messages: (time, event or action) in the order of handling; empty unless wanted.
        notes: (time, note).
        occupations: executed tasks; empty unless wanted.
    """

    messages: list[tuple[float, Event | Action]] = field(default_factory=list)
    notes: list[tuple[float, Note]] = field(default_factory=list)
    occupations: list[Occupation] = field(default_factory=list)


class SimulatedWorld:
    """A run of the coordinator core on virtual time.

    Args:
        settings: of the coordinator.
        world: what surrounds it.
        layout: layout to start with.
        costs: costs of the layers.
        network: links.
        capacity: usable compute of each site.
        record_messages: whether to keep all messages.
        record_tasks: whether to keep all executed tasks.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        world: WorldSettings,
        layout: Layout,
        costs: LayerCosts,
        network: Network,
        capacity: Capacity,
        record_messages: bool = False,
        record_tasks: bool = False,
    ) -> None:
        self.engine = Engine()
        self.record = Record()
        self.coordinator = Coordinator(settings, layout, costs)
        self.sites: dict[int, SimulatedSite] = {}
        self._settings = settings
        self._world = world
        self._layout = layout
        self.costs = costs
        self._network = network
        self._capacity = capacity
        self._record_messages = record_messages
        self._record_tasks = record_tasks
        self._checkpoints: dict[int, Weights] = {}
        self._log: list[tuple[float, Event]] = []
        self._synced = 0
        self._outbox: list[Action] = []
        self._sync_due = False
        self._connection = 1
        self._up = True
        self._nonce = 0
        self._channel_s: dict[tuple[int, bool], float] = {}
        self._frozen: dict[int, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self.delay: Callable[[], float] = lambda: 0.0
        self.repeat: Callable[[Event], float | None] = lambda _: None

    # --- a run -----------------------------------------------------------------------------------

    def start(self) -> None:
        """All sites of the layout come up; ticks and budget reports begin."""
        for site in self._layout.sites():
            self.boot(site)
        self.engine.at(self._settings.control_interval_s, self._tick)
        self.engine.at(self._world.budget_period_s, self._report_budgets)

    def run_until(self, time_s: float) -> None:
        """Let everything happen until a time, or until the run is finished."""
        while not self.coordinator.finished and self.engine.next_time_s() <= time_s:
            self.engine.step()

    def events(self) -> list[tuple[float, Event]]:
        """(time, event) of everything in the coordinator's log."""
        return list(self._log)

    def drain(self) -> None:
        """After the end of a run: let everything arrive that is still on its way."""
        self.recover_all()
        while self.coordinator.finished and self.engine.step():
            pass

    def _tick(self) -> None:
        self._handle(Tick())
        if not self.coordinator.finished:
            self.engine.at(self.engine.now_s + self._settings.control_interval_s, self._tick)

    def _report_budgets(self) -> None:
        for site in list(self.sites.values()):
            if site.incarnation and site.site not in self._frozen:
                tflops = self._capacity.at(site.site, self.engine.now_s)
                self.report(site, BudgetReport(site.site, site.incarnation, tflops))
        if not self.coordinator.finished:
            self.engine.at(self.engine.now_s + self._world.budget_period_s, self._report_budgets)

    # --- faults ----------------------------------------------------------------------------------

    def boot(self, site: int) -> None:
        """Start a new process at a site; an old one is dead from now on."""
        if self.coordinator.finished:
            return
        self._frozen.pop(site, None)
        habits = (self._world.unmerged_limit, self._world.forward_first)
        process = SimulatedSite(site, self, *habits)
        self.sites[site] = process
        self._nonce += 1
        self._join(process, self._nonce)

    def _join(self, process: SimulatedSite, nonce: int) -> None:
        if self.sites.get(process.site) is not process or process.incarnation:
            return
        tflops = self._capacity.at(process.site, self.engine.now_s)
        event = SiteJoined(process.site, nonce, self._world.memory_bytes, tflops)
        self.report(process, event)
        self.engine.at(self.engine.now_s + 1.0, self._join, process, nonce)

    def kill(self, site: int) -> None:
        """A site's process dies at once (a finished run suffers no more faults)."""
        if self.coordinator.finished:
            return
        process = self.sites.pop(site, None)
        if process is not None and process.incarnation:
            notice_s = self.engine.now_s + self._world.loss_notice_s
            lost = SiteLost(site, process.incarnation)
            if self._world.loss_notice_s < float("inf"):
                self.engine.at(notice_s, self._deliver_event, lost, self._connection)

    def freeze(self, site: int) -> None:
        """A site's process stops without dying: it neither acts nor answers."""
        if self.coordinator.finished:
            return
        self._frozen.setdefault(site, [])

    def thaw(self, site: int) -> None:
        """A stopped process goes on with all that reached it meanwhile."""
        for call, arguments in self._frozen.pop(site, []):
            call(*arguments)

    def halt(self, seconds: float) -> None:
        """Everything stops for that long: a system that adapts by stopping."""
        for site in list(self.sites):
            self.freeze(site)
            self.engine.at(self.engine.now_s + seconds, self.thaw, site)

    def request_layout(self, boundaries: tuple[int, ...]) -> None:
        """Ask the coordinator for other boundaries."""
        self._handle(LayoutRequested(boundaries))

    def cut_off(self, site: int, until_s: float) -> None:
        """The control channel of a site carries nothing until then; its peers still reach it."""
        for to_site in (False, True):
            slot = (site, to_site)
            self._channel_s[slot] = max(self._channel_s.get(slot, 0.0), until_s)

    def evict(self, site: int) -> None:
        """The radio side takes the memory of a site's activations and retained outputs."""
        process = self.sites.get(site)
        if process is not None:
            process.evict()

    def recover_all(self) -> None:
        """End of all faults: every site of the first layout and the coordinator are up."""
        if not self._up:
            self.restart_coordinator()
        for site in self._layout.sites():
            if site not in self.sites:
                self.boot(site)
            self.thaw(site)

    def _defer_if_frozen(self, site: int, call: Callable[..., None], *arguments: Any) -> bool:
        waiting = self._frozen.get(site)
        if waiting is None:
            return False
        waiting.append((call, arguments))
        return True

    def crash_coordinator(self) -> None:
        """The coordinator dies: what was not synced is gone, and was not sent."""
        if self.coordinator.finished:
            return
        self._up = False
        del self._log[self._synced :]
        self._outbox.clear()

    def restart_coordinator(self) -> None:
        """A new coordinator replays the log, unless one is up."""
        if self._up:
            return
        self._up = True
        self._connection += 1
        self.coordinator = Coordinator(self._settings, self._layout, self.costs)
        for time_s, event in self._log:
            self.coordinator.handle(event, time_s)
        self._handle(CoordinatorRestarted(self._connection))

    # --- coordinator -----------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if not self._up:
            return
        now_s = self.engine.now_s
        self._log.append((now_s, event))
        actions = self.coordinator.handle(event, now_s)
        if self._record_messages:
            self.record.messages.append((now_s, event))
            self.record.messages.extend((now_s, action) for action in actions)
        self.record.notes.extend((now_s, a) for a in actions if isinstance(a, Note))
        self._outbox.extend(a for a in actions if not isinstance(a, Note))
        if self._world.sync_s <= 0.0:
            self._sync(self._connection)
        elif not self._sync_due:
            self._sync_due = True
            self.engine.at(now_s + self._world.sync_s, self._sync, self._connection)

    def _sync(self, connection: int) -> None:
        self._sync_due = False
        if not self._up or connection != self._connection:
            return
        self._synced = len(self._log)
        for action in self._outbox:
            self._send(action)
        self._outbox.clear()

    def _send(self, action: Any) -> None:
        process = self.sites.get(action.site)
        if process is None:
            return
        time_s = self._channel_time(action.site, to_site=True)
        self.engine.at(time_s, self._deliver_action, process, action, self._connection)

    def _channel_time(self, site: int, to_site: bool) -> float:
        """Arrival of a control message: channels keep their order whatever the delay."""
        delay_s = self._network.coordinator_s(site) + self.delay()
        slot = (site, to_site)
        arrival_s = max(self.engine.now_s + delay_s, self._channel_s.get(slot, 0.0))
        self._channel_s[slot] = arrival_s
        return arrival_s

    def _deliver_action(self, process: SimulatedSite, action: Any, connection: int) -> None:
        if self.sites.get(process.site) is not process or connection != self._connection:
            return
        what = (process, action, connection)
        if self._defer_if_frozen(process.site, self._deliver_action, *what):
            return
        if isinstance(action, Welcome):
            if action.nonce and not process.incarnation:
                process.incarnation = action.incarnation
        elif isinstance(action, Fence):
            if action.incarnation == process.incarnation:
                self.boot(process.site)
        elif action.incarnation == process.incarnation:
            process.act(action)

    def _deliver_event(self, event: Event, connection: int) -> None:
        if connection == self._connection:
            self._handle(event)

    # --- what sites do ---------------------------------------------------------------------------

    def now_s(self) -> float:
        """Virtual time."""
        return self.engine.now_s

    def report(self, site: SimulatedSite, event: Event) -> None:
        """Send an event to the coordinator."""
        time_s = self._channel_time(site.site, to_site=False)
        self.engine.at(time_s, self._deliver_event, event, self._connection)
        again_s = self.repeat(event)
        if again_s is not None:
            self.engine.at(time_s + again_s, self._deliver_event, event, self._connection)

    def run(self, site: SimulatedSite, stage: int, remake: bool, direction: Direction) -> None:
        """Occupy a site with a task."""
        now_s = self.engine.now_s
        flop = self.task_flop(site.layers, remake, direction)
        end_s = self._capacity.finish_s(site.site, now_s + self._world.task_overhead_s, flop)
        self.engine.at(end_s, self._end_task, site, site.run_number, now_s, stage)

    def task_flop(self, layers: range, remake: bool, direction: Direction) -> float:
        """Work of a task over these layers; a backward task may have to remake its forward pass."""
        forward = layer_sum(self.costs.forward_flop, layers)
        backward = layer_sum(self.costs.backward_flop, layers)
        if direction == Direction.FORWARD:
            return forward
        return backward + forward if remake else backward

    def _end_task(self, site: SimulatedSite, run: int, start_s: float, stage: int) -> None:
        if self.sites.get(site.site) is not site or run != site.run_number:
            return
        if self._defer_if_frozen(site.site, self._end_task, site, run, start_s, stage):
            return
        if self._record_tasks and site.running is not None:
            key, direction = site.running
            work = (site.site, stage, direction, key.step, key.micro_batch)
            self.record.occupations.append(Occupation(*work, start_s, self.engine.now_s))
        site.task_done(run, self.engine.now_s - start_s)

    def ask(self, site: SimulatedSite, peer: int, call: str, *arguments: Any) -> None:
        """A small message from site to site."""
        target = self.sites.get(peer)
        if target is not None:
            time_s = self.engine.now_s + self._network.message_s(site.site, peer) + self.delay()
            self.engine.at(time_s, self._call, target, call, arguments)

    def ship(self, site: SimulatedSite, peer: int, load: Load, call: str, *args: Any) -> None:
        """Tensors from site to site."""
        target = self.sites.get(peer)
        if target is None:
            return
        plane = Plane.ACTIVATION if load.kind == "boundary" else Plane.SYNC
        size = self._size(load)
        time_s = self._network.send(
            site.site, peer, size, plane, self.engine.now_s, load.streams_since_s
        )
        self.engine.at(time_s + self.delay(), self._call, target, call, args)

    def _size(self, load: Load) -> float:
        if load.kind == "boundary":
            return self.costs.boundary_bytes
        if load.kind == "tied":
            return self.costs.tied_bytes
        values = self.costs.gradient_bytes if load.kind == "gradient" else self.costs.weight_bytes
        return layer_sum(values, load.layers)

    def _call(self, target: SimulatedSite, call: str, arguments: tuple[Any, ...]) -> None:
        if self.sites.get(target.site) is target and not self._defer_if_frozen(
            target.site, self._call, target, call, arguments
        ):
            getattr(target, call)(*arguments)

    def store(self, version: int, weights: Weights) -> None:
        """Write a stage's checkpoint."""
        self._checkpoints.setdefault(version, {}).update(weights)

    def final_weights(self) -> Weights:
        """Weights of the last complete checkpoint, by layer."""
        return self._checkpoints.get(self.coordinator.run.checkpoints.version, {})

    def load(self, version: int, layers: range) -> Weights:
        """Read layers from a checkpoint."""
        stored = self._checkpoints[version]
        return {layer: stored[layer] for layer in layers}

    def learned(self) -> dict[int, list[list[tuple[int, tuple[int, ...]]]]]:
        """What each layer has learned, at every living holder of the layout in force."""
        layout = self.coordinator.layout
        found: dict[int, list[list[tuple[int, tuple[int, ...]]]]] = {}
        for _, stage, site in layout.holders():
            process = self.sites.get(site)
            if process is not None:
                for layer in layout.layers(stage):
                    if layer in process.weights:
                        found.setdefault(layer, []).append(history(process.weights[layer]))
        return found
