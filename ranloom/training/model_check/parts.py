"""The parts of the model as values: coordinator core and sites, each step of theirs computed once.

A global state is a tuple of small numbers, each naming a part (a core, a site, the content of a
channel). A part's answer to a message depends on that part alone, so it is computed by the real
code once and remembered; the search then mostly looks up.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ranloom.training.coordinator import Coordinator
from ranloom.training.costs import LayerCosts
from ranloom.training.ledger import Fate
from ranloom.training.messages import (
    AbortLayout,
    Action,
    Copy,
    Event,
    Install,
    Merge,
    Note,
    Welcome,
)
from ranloom.training.model_check.fingerprint import fingerprint
from ranloom.training.run_cycle import RunPhase
from ranloom.training.simulator.site import Load, SimulatedSite, Weights, history
from ranloom.training.tokens import Direction

Steps = tuple[tuple[int, tuple[int, ...]], ...]
"""What was learned: (step, micro-batches) of every applied total, in order."""


class ModelViolationError(AssertionError):
    """A state or a step that the protocol must not have."""


class Names:
    """Small numbers for values, the same number for equal values."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._value: list[Any] = []

    def of(self, value: Hashable) -> int:
        """Number of a value."""
        found = self._number.get(value)
        if found is None:
            found = self._number[value] = len(self._value)
            self._value.append(value)
        return found

    def value(self, number: int) -> Any:
        """Value of a number."""
        return self._value[number]

    def __len__(self) -> int:
        return len(self._value)


@dataclass(frozen=True)
class CoreFacts:
    """What the invariants need to know of a core."""

    finished: bool
    training: bool
    drawn: int
    checkpoint: int
    coordinator: int
    alive: tuple[int, ...]


class Cores:
    """All states of the coordinator core that occurred.

    Args:
        first: the core at the start.
    """

    def __init__(self, first: Coordinator) -> None:
        self._names = Names()
        self._pickled: dict[int, bytes] = {}
        self._facts: dict[int, CoreFacts] = {}
        self._answers: dict[tuple[int, Event], tuple[int, tuple[Action, ...]]] = {}
        self.first = self._keep(first)

    def __len__(self) -> int:
        return len(self._names)

    def facts(self, number: int) -> CoreFacts:
        """What the invariants need to know of it."""
        return self._facts[number]

    def handle(self, number: int, event: Event) -> tuple[int, tuple[Action, ...]]:
        """Core after an event, and what it wants done."""
        known = self._answers.get((number, event))
        if known is None:
            core: Coordinator = pickle.loads(self._pickled[number])  # noqa: S301 - made here
            actions = core.handle(event, 0.0)
            _check_merges(core, actions)
            wanted = tuple(action for action in actions if not isinstance(action, Note))
            known = self._answers[number, event] = (self._keep(core), wanted)
        return known

    def _keep(self, core: Coordinator) -> int:
        number = self._names.of(fingerprint(core))
        if number not in self._pickled:
            self._pickled[number] = pickle.dumps(core)
            alive = core.members.living()
            self._facts[number] = CoreFacts(
                core.finished,
                core.run.phase is RunPhase.TRAINING,
                core.run.queue.drawn,
                core.run.checkpoints.version,
                core.run.coordinator,
                tuple(
                    int(core.members.incarnation[site]) if site in alive else 0
                    for site in range(len(core.members.alive))
                ),
            )
        return number


def _check_merges(core: Coordinator, actions: list[Action]) -> None:
    """A gradient is merged only when all stages of its micro-batch are committed."""
    cycle = core.cycle
    for action in actions:
        if isinstance(action, Merge) and cycle and cycle.ledger.step == action.key.step:
            row = cycle.ledger.rows[action.key.micro_batch]
            if cycle.ledger.fate[row] != Fate.COMPLETE:
                raise ModelViolationError(f"{action.key} is merged before it is complete")


@dataclass(frozen=True)
class SiteStep:
    """What a site did: its next state, reports, messages (to, call, arguments), checkpoints."""

    site: int
    reports: tuple[Event, ...]
    sent: tuple[tuple[int, str, tuple[Any, ...]], ...]
    stored: tuple[tuple[int, Hashable], ...]


@dataclass(frozen=True)
class SiteFacts:
    """What the invariants need to know of a site."""

    incarnation: int
    model_version: int
    layout_epoch: int
    copying: bool
    busy: bool
    learned: Steps | None


class Sites:
    """All states of site processes that occurred.

    Args:
        costs: of the layers, for the time that a task takes.
    """

    def __init__(self, costs: LayerCosts) -> None:
        self._costs = costs
        self._names = Names()
        self._pickled: dict[int, bytes] = {}
        self._facts: dict[int, SiteFacts] = {}
        self._steps: dict[tuple[Any, ...], SiteStep] = {}
        self._surroundings = _Surroundings()

    def __len__(self) -> int:
        return len(self._names)

    def new(self, site: int) -> int:
        """A process that has just started."""
        return self._keep(_Site(site, self._surroundings, 1 << 30, False))

    def facts(self, number: int) -> SiteFacts:
        """What the invariants need to know of it."""
        return self._facts[number]

    def act(self, number: int, action: Any, checkpoints: tuple[tuple[int, Any], ...]) -> SiteStep:
        """An action of the coordinator arrives."""
        return self._step(("act", number, action, checkpoints))

    def call(self, number: int, call: str, arguments: tuple[Any, ...]) -> SiteStep:
        """A message of another site arrives."""
        return self._step(("call", number, call, arguments))

    def work(self, number: int) -> SiteStep:
        """The task in execution ends."""
        return self._step(("work", number))

    def _step(self, what: tuple[Any, ...]) -> SiteStep:
        known = self._steps.get(what)
        if known is None:
            known = self._steps[what] = self._take(what)
        return known

    def _take(self, what: tuple[Any, ...]) -> SiteStep:
        around = self._surroundings
        around.clear()
        site = self._load(what[1])
        if what[0] == "act":
            around.checkpoints = {version: thaw(weights) for version, weights in what[3]}
            if isinstance(what[2], Welcome):
                site.incarnation = what[2].incarnation
            else:
                site.act(what[2])
        elif what[0] == "call":
            getattr(site, what[2])(*(thaw(argument) for argument in what[3]))
        else:
            site.task_done(site.run_number, self._seconds(site))
        return SiteStep(
            self._keep(site), tuple(around.reports), tuple(around.sent), tuple(around.stored)
        )

    def _seconds(self, site: SimulatedSite) -> float:
        """Exactly what the coordinator expects, so that it learns nothing from it."""
        forward = self._costs.forward_flop[site.layers.start : site.layers.stop].sum()
        if site.running is not None and site.running[1] is Direction.FORWARD:
            return float(forward / 1e12)
        backward = self._costs.backward_flop[site.layers.start : site.layers.stop].sum()
        is_last = site.layers.stop == self._costs.layers
        return float((backward + (forward if is_last else 0.0)) / 1e12)

    def _keep(self, site: _Site) -> int:
        number = self._names.of(fingerprint(site))
        if number not in self._pickled:
            buffer = io.BytesIO()
            _Pickler(buffer).dump(site)
            self._pickled[number] = buffer.getvalue()
            self._facts[number] = SiteFacts(
                site.incarnation,
                site.model_version,
                site.layout_epoch,
                site.copying,
                site.running is not None,
                _learned(site),
            )
        return number

    def _load(self, number: int) -> _Site:
        unpickler = _Unpickler(io.BytesIO(self._pickled[number]))
        unpickler.surroundings = self._surroundings
        site: _Site = unpickler.load()
        return site


class _Site(SimulatedSite):
    """A site that tells whether layers are on their way to it."""

    copying = False

    def act(self, action: Action) -> None:
        if isinstance(action, Copy):
            self.copying = True
        elif isinstance(action, Install | AbortLayout):
            self.copying = False
        super().act(action)


def _learned(site: SimulatedSite) -> Steps | None:
    """What the layers of a site have learned, each micro-batch at most once."""
    return check_learned(f"site {site.site}", site.weights)


def check_learned(where: str, weights: Weights) -> Steps | None:
    """What all of these layers have learned, None without layers.

    Raises:
        ModelViolationError: layers that learned different things, or one thing twice.
    """
    found = {tuple(history(learned)) for learned in weights.values()}
    if not found:
        return None
    if len(found) > 1:
        raise ModelViolationError(f"{where}: layers learned different things: {sorted(found)}")
    steps: Steps = found.pop()
    numbers = [number for _, step in steps for number in step]
    if len(numbers) != len(set(numbers)):
        raise ModelViolationError(f"{where}: a micro-batch was learned twice: {steps}")
    return steps


class _Surroundings:
    """The world as a site sees it; writes down what the site does to it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.reports: list[Event] = []
        self.sent: list[tuple[int, str, tuple[Any, ...]]] = []
        self.stored: list[tuple[int, Hashable]] = []
        self.checkpoints: dict[int, Weights] = {}

    def now_s(self) -> float:
        return 0.0

    def report(self, _: SimulatedSite, event: Event) -> None:
        self.reports.append(event)

    def run(self, site: SimulatedSite, stage: int, remake: bool, direction: Direction) -> None:
        pass

    def ask(self, _: SimulatedSite, peer: int, call: str, *arguments: Any) -> None:
        self.sent.append((peer, call, tuple(freeze(argument) for argument in arguments)))

    def ship(self, site: SimulatedSite, peer: int, _: Load, call: str, *args: Any) -> None:
        self.ask(site, peer, call, *args)

    def store(self, version: int, weights: Weights) -> None:
        self.stored.append((version, freeze(weights)))

    def load(self, version: int, layers: range) -> Weights:
        stored = self.checkpoints[version]
        return {layer: stored[layer] for layer in layers}


@dataclass(frozen=True)
class _FrozenDict:
    entries: tuple[tuple[Any, Any], ...]


def freeze(value: Any) -> Any:
    """A hashable form of lists and dicts."""
    if isinstance(value, dict):
        return _FrozenDict(tuple(sorted((key, freeze(part)) for key, part in value.items())))
    if isinstance(value, list):
        return tuple(value)
    return value


def thaw(value: Any) -> Any:
    """Dicts again; tuples stay what they are."""
    if isinstance(value, _FrozenDict):
        return {key: thaw(part) for key, part in value.entries}
    return value


class _Pickler(pickle.Pickler):
    """Leaves the surroundings out."""

    def persistent_id(self, value: Any) -> str | None:
        return "surroundings" if isinstance(value, _Surroundings) else None


class _Unpickler(pickle.Unpickler):
    """Puts the surroundings in."""

    surroundings: _Surroundings

    def persistent_load(self, _: Any) -> _Surroundings:
        return self.surroundings


def one_cost_a_layer(layers: int) -> LayerCosts:
    """A unit of work a layer: times are whole numbers, so that sums are exact."""
    one = np.ones(layers)
    return LayerCosts(one * 1e12, one * 2e12, one, one, one, 1.0, 1.0)
