"""A site on virtual time: keeps its own books and does what ``docs/training-protocol.md`` says.

Tensors are symbols: a gradient is the number of its micro-batch, a sum the list of numbers that
went into it, a weight the list of sums applied to its layer. So every run shows exactly what was
learned where, whatever faults it went through.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ranloom.training.messages import (
    FROM_DATA,
    NOT_YET,
    AbortLayout,
    Action,
    Applied,
    Apply,
    Assign,
    CheckpointWritten,
    Copy,
    CopyDone,
    Discard,
    DropStep,
    Event,
    InputMissing,
    Install,
    Inventory,
    Merge,
    Offer,
    Part,
    PartialRefused,
    Prepare,
    Prepared,
    Reduce,
    Release,
    RequestInventory,
    StageReduced,
    TaskCompleted,
    TotalHeld,
    WeightsFrom,
)
from ranloom.training.tokens import Direction, TaskKey, Token


@dataclass(frozen=True, slots=True)
class Learned:
    """What a layer has learned: one applied total after another.

    Args:
        before: what it had learned until then, None at the initial weights.
        step: step of the last total.
        micro_batches: numbers that went into it, ascending, each as often as it was added.
    """

    before: Learned | None
    step: int
    micro_batches: tuple[int, ...]


def history(learned: Learned | None) -> list[tuple[int, tuple[int, ...]]]:
    """(step, micro-batches) of every applied total, in order."""
    found = []
    while learned is not None:
        found.append((learned.step, learned.micro_batches))
        learned = learned.before
    return found[::-1]


Weights = dict[int, Learned | None]
"""By layer."""


_DIRECTIONS = (Direction.FORWARD, Direction.BACKWARD)

Fence = tuple[int, int]
"""(model version, layout epoch) under which a tensor was made."""


class ProtocolViolationError(AssertionError):
    """A site was made to do something that would have spoiled the training."""


class World(Protocol):
    """What a site can do to the world around it."""

    def now_s(self) -> float:
        """Virtual time."""

    def report(self, site: SimulatedSite, event: Event) -> None:
        """Send an event to the coordinator."""

    def run(self, site: SimulatedSite, stage: int, remake: bool, direction: Direction) -> None:
        """Occupy the site with a task; ``task_done`` follows."""

    def ask(self, site: SimulatedSite, peer: int, call: str, *arguments: Any) -> None:
        """Call a method of another site by a small message; lost if that site is dead."""

    def ship(self, site: SimulatedSite, peer: int, load: Load, call: str, *args: Any) -> None:
        """The same with tensors attached."""

    def store(self, version: int, weights: Weights) -> None:
        """Write a stage's checkpoint."""

    def load(self, version: int, layers: range) -> Weights:
        """Read layers from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Load:
    """Tensors on the way.

    Args:
        kind: ``boundary``, ``gradient``, ``weights`` or ``tied``.
        layers: layers whose gradients or weights travel.
        streams_since_s: when their first part could leave, if they stream through this site.
    """

    kind: str
    layers: range = range(0)
    streams_since_s: float | None = None


@dataclass(slots=True)
class _Task:
    assign: Assign
    forward: bool
    backward: bool


@dataclass(slots=True)
class _Reduction:
    action: Reduce
    since_s: float
    sent: bool = False


@dataclass(slots=True)
class _Copies:
    epoch: int
    expected: list[Copy] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    waiting: list[Apply] = field(default_factory=list)


class SimulatedSite:
    """One process of a site, from its start to its death.

    Args:
        site: number of the site.
        world: what surrounds it.
        unmerged_limit: with so many unmerged gradients it begins a backward task only for a
            micro-batch below all of theirs.
        forward_first: forward before backward tasks, as a pipeline with flush does.
    """

    def __init__(self, site: int, world: World, unmerged_limit: int, forward_first: bool) -> None:
        self._unmerged_limit = unmerged_limit
        self._rank = 1 if forward_first else -1
        self.site = site
        self.incarnation = 0
        self.stage = -1
        self.layers = range(0)
        self.layout_epoch = -1
        self.model_version = -1
        self.weights: Weights = {}
        self._world = world
        self._tasks: dict[TaskKey, _Task] = {}
        self._kept: set[TaskKey] = set()
        self._inputs: set[tuple[TaskKey, Direction]] = set()
        self._asked: dict[tuple[TaskKey, Direction], int] = {}
        self._outputs: set[tuple[TaskKey, Direction]] = set()
        self._parked: dict[tuple[TaskKey, Direction], list[tuple[int, int, Fence]]] = {}
        self._ready: list[tuple[int, TaskKey]] = []
        self._running: tuple[TaskKey, Direction] | None = None
        self._run = 0
        self._held: dict[TaskKey, Token] = {}
        self._done: dict[TaskKey, Token] = {}
        self._sums: dict[int, list[int]] = {}
        self._books: dict[int, set[int]] = {}
        self._reductions: dict[tuple[int, int], _Reduction] = {}
        self._early: dict[tuple[int, int, Token], dict[int, tuple[list[int], list[Part]]]] = {}
        self._tied: dict[tuple[int, int, Token], list[int]] = {}
        self._totals: dict[tuple[int, int], tuple[Token, tuple[int, ...]]] = {}
        self._offers: dict[int, list[tuple[Offer, Weights]]] = {}
        self._copies: _Copies | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Install: self._on_install,
            Assign: self._on_assign,
            Discard: self._on_discard,
            Merge: self._on_merge,
            Release: self._on_release,
            Reduce: self._on_reduce,
            Apply: self._on_apply,
            DropStep: self._on_drop,
            AbortLayout: self._on_abort,
            Prepare: self._on_prepare,
            Offer: self._on_offer,
            Copy: self._on_copy,
            RequestInventory: self._on_request_inventory,
        }

    def act(self, action: Action) -> None:
        """Do what the coordinator says."""
        handler = self._handlers.get(type(action))
        if handler is not None:
            handler(action)
        else:
            self._on_checkpoint(action)
        self._start_next()

    # --- work ------------------------------------------------------------------------------------

    def _on_install(self, action: Install) -> None:
        if action.weights_from == WeightsFrom.COPY:
            copied = self._copies.weights if self._copies is not None else {}
            weights = {**self.weights, **copied}
        elif action.weights_from == WeightsFrom.SEED:
            weights = dict.fromkeys(range(action.first_layer, action.end_layer), None)
        else:
            layers = range(action.first_layer, action.end_layer)
            weights = self._world.load(action.checkpoint_version, layers)
        self.layers = range(action.first_layer, action.end_layer)
        missing = [layer for layer in self.layers if layer not in weights]
        if action.weights_from == WeightsFrom.COPY:
            missing += self._at_other_versions(action.model_version)
        if missing:
            raise ProtocolViolationError(
                f"site {self.site} installs layers {missing} without their last weights"
            )
        self.weights = {layer: weights[layer] for layer in self.layers}
        self.stage = action.stage
        self.layout_epoch = action.layout_epoch
        self.model_version = action.model_version
        self._forget_all()

    def _at_other_versions(self, version: int) -> list[int]:
        """Layers to be installed that an update has not reached."""
        at = dict.fromkeys(self.weights, self.model_version)
        at.update(self._copies.versions if self._copies is not None else {})
        return [layer for layer in self.layers if at.get(layer, version) != version]

    def _forget_all(self) -> None:
        self._tasks.clear()
        self._ready.clear()
        self._kept.clear()
        self._inputs.clear()
        self._asked.clear()
        self._outputs.clear()
        self._parked = {
            slot: [ask for ask in asks if ask[2] >= self._fence]
            for slot, asks in self._parked.items()
        }
        self._held.clear()
        self._done.clear()
        self._forget_sums()
        self._offers.clear()
        self._copies = None
        self._stop()

    def _forget_sums(self) -> None:
        """But for what sites that knew the layout earlier have sent under it already."""
        for books in (self._sums, self._books, self._reductions):
            books.clear()
        for sums in (self._early, self._tied):
            for slot in [slot for slot in sums if slot[2].layout_epoch < self.layout_epoch]:
                del sums[slot]
        self._totals = {
            place: (token, content)
            for place, (token, content) in self._totals.items()
            if token.layout_epoch >= self.layout_epoch
        }

    def _stop(self) -> None:
        self._running = None
        self._run += 1

    def _on_assign(self, action: Assign) -> None:
        key, token = action.key, action.token
        backward = action.backward and self._done.get(key) != token
        self._tasks[key] = _Task(action, action.forward, backward)
        if backward and action.keep_gradient and key in self._held:
            self._finish(key, Direction.BACKWARD, 0.0)
        if action.forward and (key, Direction.FORWARD) in self._outputs:
            self._finish(key, Direction.FORWARD, 0.0)
        self._fetch(self._tasks[key])
        self._offer(key)
        if self._lacks_activation(key):
            self._report_lost_activation(key)

    def _lacks_activation(self, key: TaskKey) -> bool:
        """Whether a backward task relies on activations that are not kept here (any more)."""
        task = self._tasks[key]
        return (
            task.backward
            and not task.forward
            and task.assign.activation_from == NOT_YET
            and key not in self._kept
            and (key, Direction.FORWARD) not in self._inputs
        )

    def _report_lost_activation(self, key: TaskKey) -> None:
        token = self._tasks[key].assign.token
        what = (key, token, Direction.FORWARD, self.site)
        self._world.report(self, InputMissing(self.site, self.incarnation, *what))

    def _fetch(self, task: _Task) -> None:
        """Ask for the inputs that are not there, at the producers named now."""
        key, token = task.assign.key, task.assign.token
        wanted = []
        if task.forward or (task.backward and key not in self._kept):
            wanted.append((Direction.FORWARD, task.assign.activation_from))
        if task.backward:
            wanted.append((Direction.BACKWARD, task.assign.gradient_from))
        for direction, source in wanted:
            slot = (key, direction)
            if source in (FROM_DATA, NOT_YET) or slot in self._inputs:
                continue
            if self._asked.get(slot) != source:
                self._asked[slot] = source
                fence = (token.model_version, token.layout_epoch)
                self._world.ask(self, source, "requested", self.site, key, direction, fence)

    @property
    def _fence(self) -> Fence:
        return (self.model_version, self.layout_epoch)

    def requested(self, peer: int, key: TaskKey, direction: Direction, fence: Fence) -> None:
        """A consumer asks for an input of its task: what the neighbouring stage made."""
        shift = -1 if direction == Direction.FORWARD else 1
        made = TaskKey(key.step, key.micro_batch, key.stage + shift)
        slot = (made, direction)
        task = self._tasks.get(made)
        pending = task is not None and (task.forward, task.backward)[direction]
        if fence == self._fence and slot in self._outputs:
            self._world.ship(self, peer, Load("boundary"), "received", key, direction, fence)
        elif fence > self._fence or (fence == self._fence and pending):
            self._parked.setdefault(slot, []).append((peer, key.stage, fence))
        elif fence == self._fence:
            self._world.ask(self, peer, "missing", self.site, key, direction)

    def received(self, key: TaskKey, direction: Direction, fence: Fence) -> None:
        """An input has arrived."""
        if fence == self._fence and key in self._tasks:
            self._inputs.add((key, direction))
            self._offer(key)
            self._start_next()

    def missing(self, peer: int, key: TaskKey, direction: Direction) -> None:
        """A producer does not have an input."""
        task = self._tasks.get(key)
        if task is None or self._asked.get((key, direction)) != peer:
            return
        del self._asked[key, direction]
        token = task.assign.token
        event = InputMissing(self.site, self.incarnation, key, token, direction, peer)
        self._world.report(self, event)

    def _offer(self, key: TaskKey) -> None:
        """Queue the tasks of a key that can run now."""
        task = self._tasks[key]
        for direction in _DIRECTIONS:
            if self._is_ready(key, task, direction):
                heapq.heappush(self._ready, (self._rank * direction, key))

    def _offer_all(self) -> None:
        self._ready.clear()
        for key in self._tasks:
            self._offer(key)

    def _start_next(self) -> None:
        """Begin the next task: backward before forward, then the lowest step and micro-batch."""
        while self._running is None and self._ready:
            rank, key = heapq.heappop(self._ready)
            direction = _DIRECTIONS[abs(rank)]
            task = self._tasks.get(key)
            if task is not None and self._is_ready(key, task, direction):
                self._running = (key, direction)
                self._run += 1
                remake = direction == Direction.BACKWARD and key not in self._kept
                self._world.run(self, key.stage, remake, direction)

    def _is_ready(self, key: TaskKey, task: _Task, direction: Direction) -> bool:
        assign = task.assign
        token = assign.token
        if token.model_version != self.model_version or token.layout_epoch != self.layout_epoch:
            return False
        has_activation = (
            assign.activation_from == FROM_DATA or (key, Direction.FORWARD) in self._inputs
        )
        if direction == Direction.FORWARD:
            return task.forward and has_activation
        kept = key in self._kept
        if not task.backward or (task.forward and not kept):
            return False
        if (
            len(self._held) >= self._unmerged_limit
            and assign.keep_gradient
            and min(self._held) < key
        ):
            return False
        if assign.gradient_from != FROM_DATA and (key, Direction.BACKWARD) not in self._inputs:
            return False
        return kept or has_activation

    @property
    def running(self) -> tuple[TaskKey, Direction] | None:
        """The task that occupies the site."""
        return self._running

    @property
    def run_number(self) -> int:
        """Number of the present occupation; an older one was stopped."""
        return self._run

    def task_done(self, run: int, seconds: float) -> None:
        """The occupation with this number has ended."""
        if run != self._run or self._running is None:
            return
        key, direction = self._running
        self._stop()
        task = self._tasks.get(key)
        if task is not None:
            self._finish(key, direction, seconds)
        self._start_next()

    def _finish(self, key: TaskKey, direction: Direction, seconds: float) -> None:
        task = self._tasks[key]
        assign = task.assign
        if direction == Direction.FORWARD:
            task.forward = False
            self._kept.add(key)
            self._offer(key)
        else:
            task.backward = False
            self._done[key] = assign.token
            self._kept.discard(key)
            if assign.keep_gradient:
                self._held[key] = assign.token
        if seconds > 0.0:
            self._outputs.add((key, direction))
        place = (self.site, self.incarnation)
        event = TaskCompleted(*place, key, direction, assign.token, seconds)
        self._world.report(self, event)
        for peer, stage, fence in self._parked.pop((key, direction), []):
            wanted = TaskKey(key.step, key.micro_batch, stage)
            self._world.ship(self, peer, Load("boundary"), "received", wanted, direction, fence)

    def _on_discard(self, action: Discard) -> None:
        task = self._tasks.get(action.key)
        if task is not None and task.assign.token == action.token:
            del self._tasks[action.key]
            self._kept.discard(action.key)
            for direction in _DIRECTIONS:
                self._asked.pop((action.key, direction), None)
            if self._running is not None and self._running[0] == action.key:
                self._stop()
        if self._held.get(action.key) == action.token:
            self._drop_held(action.key)

    def _drop_held(self, key: TaskKey) -> None:
        """One unmerged gradient less: what was held back may be ready now."""
        was_full = len(self._held) >= self._unmerged_limit
        del self._held[key]
        if was_full:
            self._offer_all()

    def _on_merge(self, action: Merge) -> None:
        key = action.key
        books = self._books.setdefault(key.step, set())
        if key.micro_batch in books:
            return
        if self._held.get(key) != action.token:
            raise ProtocolViolationError(
                f"site {self.site} has no gradient {key} under {action.token}"
            )
        self._drop_held(key)
        books.add(key.micro_batch)
        self._sums.setdefault(key.step, []).append(key.micro_batch)
        self._free(key.step, (key.micro_batch,))

    def _on_release(self, action: Release) -> None:
        self._free(action.step, action.micro_batches)

    def _free(self, step: int, micro_batches: tuple[int, ...]) -> None:
        """Drop whatever is retained of micro-batches, except gradients and sums."""
        gone = [TaskKey(step, number, self.stage) for number in micro_batches]
        for key in gone:
            self._tasks.pop(key, None)
            self._kept.discard(key)
            for direction in _DIRECTIONS:
                slot = (key, direction)
                self._inputs.discard(slot)
                self._asked.pop(slot, None)
                self._outputs.discard(slot)
                self._parked.pop(slot, None)
        if self._running is not None and self._running[0] in gone:
            self._stop()

    def _mentioned(self) -> set[TaskKey]:
        slots = {key for key, _ in (*self._inputs, *self._outputs, *self._asked, *self._parked)}
        return slots | set(self._tasks) | self._kept

    def evict(self) -> None:
        """Memory went to the radio side: activations and retained outputs are gone."""
        for key in sorted(self._kept):
            self._report_lost_activation(key)
        self._kept.clear()
        self._outputs.clear()
        self._inputs.clear()
        self._asked.clear()
        for task in self._tasks.values():
            self._fetch(task)
        self._offer_all()

    # --- sums ------------------------------------------------------------------------------------

    def _on_reduce(self, action: Reduce) -> None:
        self._totals.pop((action.step, action.stage), None)
        own = tuple(sorted(self._books.get(action.step, ())))
        if own != action.part.micro_batches:
            part = Part(self.site, self.incarnation, own)
            place = (self.site, self.incarnation, action.step, action.stage)
            self._world.report(self, PartialRefused(*place, action.token, part))
            return
        self._reductions[action.step, action.stage] = _Reduction(action, self._world.now_s())
        self._sum_up(action.step, action.stage)

    def child_sum(
        self, child: int, step: int, stage: int, token: Token, content: list[int], parts: list[Part]
    ) -> None:
        """A child in the reduction tree sends its sum."""
        self._early.setdefault((step, stage, token), {})[child] = (content, parts)
        self._sum_up(step, stage)

    def tied_sum(self, step: int, stage: int, token: Token, content: list[int]) -> None:
        """The other root of a tied weight sends its sum."""
        self._tied[step, stage, token] = content
        self._sum_up(step, stage)

    def _sum_up(self, step: int, stage: int) -> None:
        state = self._reductions.get((step, stage))
        if state is None:
            return
        action = state.action
        arrived = self._early.get((step, stage, action.token), {})
        content = list(self._sums.get(step, []))
        parts = [Part(self.site, self.incarnation, tuple(sorted(self._books.get(step, ()))))]
        if parts[0] != action.part:
            return
        for expected in action.children:
            found = arrived.get(expected[0].site)
            if found is None or tuple(found[1]) != expected:
                return
            content.extend(found[0])
            parts.extend(found[1])
        load = Load("gradient", self.layers, state.since_s)
        if action.parent >= 0:
            if not state.sent:
                state.sent = True
                what = (self.site, step, stage, action.token, content, parts)
                self._world.ship(self, action.parent, load, "child_sum", *what)
            return
        if action.tied_root >= 0:
            if not state.sent:
                state.sent = True
                other = (step, action.tied_stage, action.token, content)
                self._world.ship(self, action.tied_root, Load("tied"), "tied_sum", *other)
            received = self._tied.get((step, stage, action.token))
            if received is None:
                return
            if sorted(received) != sorted(content):
                raise ProtocolViolationError(f"tied sums of step {step} differ")
        self._keep_root_total(action, content, parts, state.since_s)

    def _keep_root_total(
        self, action: Reduce, content: list[int], parts: list[Part], since_s: float
    ) -> None:
        slot = (action.step, action.stage)
        if slot in self._totals and self._totals[slot][0] == action.token:
            return
        self._totals[slot] = (action.token, tuple(content))
        digest = _digest(content)
        place = (self.site, self.incarnation, *slot, action.token)
        self._world.report(self, StageReduced(*place, tuple(parts), 1.0, digest))
        for recipient in action.recipients:
            layers = range(recipient.first_layer, recipient.end_layer)
            whole = recipient.first_layer < 0
            load = Load("gradient", self.layers if whole else layers, since_s)
            what = (*slot, action.token, tuple(content))
            self._world.ship(self, recipient.site, load, "total", *what)

    def total(self, step: int, stage: int, token: Token, content: tuple[int, ...]) -> None:
        """The root sends the total."""
        known = self._totals.get((step, stage))
        if known is not None and known[0] > token:
            return
        self._totals[step, stage] = (token, content)
        place = (self.site, self.incarnation, step, stage, token)
        self._world.report(self, TotalHeld(*place, _digest(content)))
        self._catch_up()

    def _on_apply(self, action: Apply) -> None:
        if action.stage == self.stage and action.token.layout_epoch == self.layout_epoch:
            if action.token.model_version == self.model_version:
                self._update(action)
        elif self._copies is not None:
            self._copies.waiting.append(action)
            self._catch_up()

    def _update(self, action: Apply) -> None:
        token, content = self._totals.get((action.step, action.stage), (None, ()))
        if token != action.token:
            raise ProtocolViolationError(f"site {self.site} lacks the total of step {action.step}")
        if len(content) == 0 or action.samples % len(content):
            raise ProtocolViolationError(
                f"{action.samples} samples from {len(content)} micro-batches"
            )
        numbers = tuple(sorted(content))
        for layer in self.layers:
            self.weights[layer] = Learned(self.weights[layer], action.step, numbers)
        self.model_version = action.model_version
        self._forget_step(action.step)
        self._offer_all()
        event = Applied(self.site, self.incarnation, action.model_version)
        self._world.report(self, event)

    def _forget_step(self, step: int) -> None:
        """Drop everything of a step and of those before, except totals a copy still needs."""
        late = {key for key in self._mentioned() if key.step <= step}
        self._free_keys(late)
        for ended in (self._held, self._done):
            for key in [key for key in ended if key.step <= step]:
                del ended[key]
        for books in (self._sums, self._books):
            for old in [old for old in books if old <= step]:
                del books[old]
        for slot in [slot for slot in self._reductions if slot[0] <= step]:
            del self._reductions[slot]
        for sums in (self._early, self._tied):
            for late_sum in [slot for slot in sums if slot[0] <= step]:
                del sums[late_sum]
        for slot in [slot for slot in self._totals if slot[0] <= step]:
            if self._copies is None or slot[1] == self.stage:
                del self._totals[slot]

    def _free_keys(self, keys: set[TaskKey]) -> None:
        for step in {key.step for key in keys}:
            self._free(step, tuple({key.micro_batch for key in keys if key.step == step}))

    def _on_drop(self, action: DropStep) -> None:
        self._forget_step(action.step)
        self._offer_all()

    def _on_checkpoint(self, action: Any) -> None:
        if self.stage != action.stage or self.model_version != action.model_version:
            raise ProtocolViolationError(
                f"site {self.site} cannot store version {action.model_version}"
            )
        self._world.store(action.model_version, dict(self.weights))
        place = (self.site, self.incarnation)
        event = CheckpointWritten(*place, action.stage, action.model_version)
        self._world.report(self, event)

    # --- layout ----------------------------------------------------------------------------------

    def _on_prepare(self, action: Prepare) -> None:
        self._copies = _Copies(action.layout_epoch)
        event = Prepared(self.site, self.incarnation, action.layout_epoch, True)
        self._world.report(self, event)

    def _on_offer(self, action: Offer) -> None:
        if action.model_version != self.model_version:
            raise ProtocolViolationError(
                f"snapshot of {action.model_version}, not {self.model_version}"
            )
        layers = range(action.first_layer, action.end_layer)
        kept = {layer: self.weights[layer] for layer in layers}
        self._offers.setdefault(action.layout_epoch, []).append((action, kept))

    def _on_copy(self, action: Copy) -> None:
        if self._copies is None or self._copies.epoch != action.layout_epoch:
            return
        self._copies.expected.append(action)
        self._world.ask(self, action.source, "copy_wanted", self.site, action)

    def copy_wanted(self, peer: int, copy: Copy) -> None:
        """A receiver asks for a snapshot."""
        for offer, weights in self._offers.get(copy.layout_epoch, []):
            same = (offer.first_layer, offer.end_layer) == (copy.first_layer, copy.end_layer)
            if same and offer.model_version == copy.model_version:
                load = Load("weights", range(copy.first_layer, copy.end_layer))
                self._world.ship(self, peer, load, "copied", copy, weights)

    def copied(self, copy: Copy, weights: Weights) -> None:
        """A snapshot has arrived."""
        copies = self._copies
        if copies is None or copies.epoch != copy.layout_epoch:
            return
        copies.weights.update(weights)
        copies.versions.update(dict.fromkeys(weights, copy.model_version))
        self._catch_up()

    def _catch_up(self) -> None:
        """Apply the totals that came while layers travelled, in order."""
        copies = self._copies
        if copies is None:
            return
        wanted = {layer for c in copies.expected for layer in range(c.first_layer, c.end_layer)}
        if not wanted or set(copies.weights) != wanted:
            return
        waiting = sorted(copies.waiting, key=lambda apply: apply.step)
        copies.waiting = []
        for index, apply in enumerate(waiting):
            found = self._totals.get((apply.step, apply.stage))
            if found is None or found[0] != apply.token:
                copies.waiting = waiting[index:]
                return
            self._apply_to_copies(copies, apply, found[1])
        version = min(copies.versions.values())
        event = CopyDone(self.site, self.incarnation, copies.epoch, version)
        self._world.report(self, event)

    def _apply_to_copies(self, copies: _Copies, apply: Apply, content: tuple[int, ...]) -> None:
        for copy in copies.expected:
            for layer in range(copy.first_layer, copy.end_layer):
                if copy.stage == apply.stage and copies.versions[layer] < apply.model_version:
                    before = copies.weights[layer]
                    copies.weights[layer] = Learned(before, apply.step, tuple(sorted(content)))
                    copies.versions[layer] = apply.model_version

    def _on_abort(self, action: AbortLayout) -> None:
        self._offers.pop(action.layout_epoch, None)
        if self._copies is not None and self._copies.epoch == action.layout_epoch:
            self._copies = None

    # --- restart ---------------------------------------------------------------------------------

    def _on_request_inventory(self, _: RequestInventory) -> None:
        step = max(self._books, default=-1)
        event = Inventory(
            self.site,
            self.incarnation,
            self.layout_epoch,
            self.model_version,
            tuple(sorted(self._held.items())),
            tuple(sorted(self._books.get(step, ()))),
            step,
            tuple(sorted(self._outputs)),
            tuple(sorted((step, stage, t[0]) for (step, stage), t in self._totals.items())),
        )
        self._world.report(self, event)


def _digest(content: list[int] | tuple[int, ...]) -> str:
    return ",".join(map(str, content))
