"""A small run as a transition system: channels, processes, and what may happen next.

Time stands still, so leases and deadlines never run out by themselves; what a clock would bring
about (a death is noticed, work moves away from a slow site) is an event that may come at any
moment. Control channels keep their order and carry packets: all that one step caused for one
receiver. Messages between two sites keep their order, too. Whatever is under way may arrive before
or after anything else. The coordinator takes a packet, syncs its log and sends in one step: a crash
between those is the same as a crash before the packet arrived, since what the crash cuts off is
lost in both cases.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ranloom.training.coordinator import Coordinator
from ranloom.training.layout import NO_SITE, Layout
from ranloom.training.messages import (
    BudgetReport,
    CoordinatorRestarted,
    Event,
    Fence,
    LayoutRequested,
    SiteJoined,
    SiteLost,
    Tick,
    Welcome,
)
from ranloom.training.model_check.parts import (
    Cores,
    ModelViolationError,
    Names,
    Sites,
    SiteStep,
    Steps,
    check_learned,
    freeze,
    one_cost_a_layer,
    thaw,
)
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.tokens import Token

SITES = 3
LAYERS = 3
_LAYOUT = Layout(0, (0, 1, LAYERS), ((0, 1), (2, NO_SITE)))
_MOVED = (0, 2, LAYERS)
_FOREVER_S = 1e9


@dataclass(frozen=True)
class Scope:
    """What may happen in a run.

    Args:
        micro_batches: samples, one in a micro-batch.
        step_micro_batches: micro-batches of a step.
        deaths: sites that may die.
        returns: dead sites that may come back.
        moves: times that a boundary may move.
        crashes: crashes of the coordinator.
        cuts: times that a site's budget may change, so that work moves: the last change is a cut to
            an eighth, the one before it a rise to eight times, and so on.
        tied: whether first and last stage share a weight.
        instant_tasks: whether tasks and the exchange of their inputs take no time, so that only
            the coordinator's messages, sums, totals and copies interleave.
        unsynced: whether a crash may forget the last event although it was acted upon.
    """

    micro_batches: int = 2
    step_micro_batches: int = 2
    deaths: int = 0
    returns: int = 0
    moves: int = 0
    crashes: int = 0
    cuts: int = 0
    tied: bool = False
    instant_tasks: bool = True
    unsynced: bool = False


class Left(NamedTuple):
    """What may still happen."""

    deaths: int
    returns: int
    moves: int
    crashes: int
    cuts: int


State = bytes
"""A state of the whole run, packed: what ``_Draft`` unpacks."""

_DEAD = -1
_INPUTS = frozenset({"requested", "received", "missing"})
_SUMS = frozenset({"child_sum", "tied_sum", "total"})
_PACK = struct.Struct(f"{4 + 4 * SITES + SITES * SITES}i")


class _Draft:
    """A state that is being changed; numbers name values, queues and processes."""

    __slots__ = (
        "actions",
        "before",
        "checkpoints",
        "core",
        "down",
        "left",
        "nonces",
        "peers",
        "reports",
        "sites",
        "up",
    )

    def __init__(self, state: State) -> None:
        numbers = _PACK.unpack(state)
        self.core, self.before, self.checkpoints, self.left = numbers[:4]
        self.sites = list(numbers[4 : 4 + SITES])
        self.nonces = list(numbers[4 + SITES : 4 + 2 * SITES])
        self.up = list(numbers[4 + 2 * SITES : 4 + 3 * SITES])
        self.down = list(numbers[4 + 3 * SITES : 4 + 4 * SITES])
        self.peers = list(numbers[4 + 4 * SITES :])
        self.reports: dict[int, list[Event]] = {}
        self.actions: dict[int, list[Any]] = {}

    def pack(self) -> State:
        """The state, once all that was caused has been sent."""
        numbers = (self.core, self.before, self.checkpoints, self.left)
        return _PACK.pack(*numbers, *self.sites, *self.nonces, *self.up, *self.down, *self.peers)


class Model:
    """The transition system.

    Args:
        scope: what may happen.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        costs = one_cost_a_layer(LAYERS)
        self.cores = Cores(Coordinator(_settings(scope), _LAYOUT, costs))
        self.sites = Sites(costs)
        self._queues = Names()
        self._stores = Names()
        self._left = Names()
        self._empty = self._queues.of(())

    def start(self) -> State:
        """All sites have joined; the first step is on its way to them."""
        scope = self.scope
        left = Left(scope.deaths, scope.returns, scope.moves, scope.crashes, scope.cuts)
        numbers = (self.cores.first, self.cores.first, self._stores.of(()), self._left.of(left))
        new = [self.sites.new(site) for site in range(SITES)]
        queues = [self._empty] * (2 * SITES + SITES * SITES)
        draft = _Draft(_PACK.pack(*numbers, *new, *([1] * SITES), *queues))
        for site in range(SITES):
            self._handle(draft, _joined(site, 1))
        state = self._done(draft)
        for site in range(SITES):
            draft = _Draft(state)
            packet = self._queues.value(draft.down[site])[0]
            draft.down[site] = self._queues.of((packet[1:],) if packet[1:] else ())
            self._act(draft, site, packet[0])
            state = self._done(draft)
        return state

    # --- what may happen -------------------------------------------------------------------------

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        """(name, next state) of everything that may happen; nothing once the run is finished.

        Raises:
            ModelViolationError: a step that must not be.
        """
        now = _Draft(state)
        if self.cores.facts(now.core).finished:
            return
        moves = list(self._progress(state, now))
        yield from moves
        if not moves:
            yield from self._tick(state)
        yield from self._misfortune(state, now)

    def _progress(self, state: State, now: _Draft) -> Iterator[tuple[str, State]]:
        for site in range(SITES):
            if now.up[site] != self._empty:
                yield self._coordinator_takes(state, site)
            if now.sites[site] == _DEAD:
                continue
            if now.down[site] != self._empty:
                yield self._site_takes(state, site)
            if self.sites.facts(now.sites[site]).busy:
                draft = _Draft(state)
                self._after(draft, site, self.sites.work(draft.sites[site]))
                yield f"site {site} ends its task", self._done(draft)
            for slot in range(site, SITES * SITES, SITES):
                if now.peers[slot] != self._empty and self._can_take(now, site, slot):
                    yield self._site_takes_from_peer(state, site, slot)

    def _coordinator_takes(self, state: State, site: int) -> tuple[str, State]:
        draft = _Draft(state)
        packet, *rest = self._queues.value(draft.up[site])
        draft.up[site] = self._queues.of(tuple(rest))
        for event in packet:
            self._handle(draft, event)
        return f"coordinator takes {_shown(packet)} of site {site}", self._done(draft)

    def _site_takes(self, state: State, site: int) -> tuple[str, State]:
        draft = _Draft(state)
        packet, *rest = self._queues.value(draft.down[site])
        draft.down[site] = self._queues.of(tuple(rest))
        for action in packet:
            self._act(draft, site, action)
        return f"site {site} takes {_shown(packet)}", self._done(draft)

    def _can_take(self, now: _Draft, site: int, slot: int) -> bool:
        """Sums for a layout that the site has not installed yet are sent again until it has."""
        call, arguments = self._queues.value(now.peers[slot])[0]
        if call not in _SUMS:
            return True
        facts = self.sites.facts(now.sites[site])
        return facts.copying or _layout_of(arguments) <= facts.layout_epoch

    def _site_takes_from_peer(self, state: State, site: int, slot: int) -> tuple[str, State]:
        draft = _Draft(state)
        (call, arguments), *rest = self._queues.value(draft.peers[slot])
        draft.peers[slot] = self._queues.of(tuple(rest))
        facts = self.sites.facts(draft.sites[site])
        outdated = call in _SUMS and _layout_of(arguments) < facts.layout_epoch
        if not outdated:
            self._after(draft, site, self.sites.call(draft.sites[site], call, arguments))
        return f"site {site} takes {call}{_shown(arguments)} of {slot // SITES}", self._done(draft)

    def _tick(self, state: State) -> Iterator[tuple[str, State]]:
        """Nothing is under way: the next control interval has to bring the run forward."""
        draft = _Draft(state)
        self._handle(draft, Tick())
        draft.before = _Draft(state).before
        after = self._done(draft)
        if after == state:
            raise ModelViolationError("nothing can happen any more, and the run is not finished")
        yield "tick", after

    def _misfortune(self, state: State, now: _Draft) -> Iterator[tuple[str, State]]:
        left: Left = self._left.value(now.left)
        for site in range(SITES):
            alive = now.sites[site] != _DEAD
            if left.deaths and alive:
                yield f"site {site} dies", self._die(state, site)
            if left.returns and not alive:
                draft = self._spend(state, "returns")
                self._boot(draft, site)
                yield f"site {site} comes back", self._done(draft)
            if left.cuts and alive:
                yield f"the budget of site {site} changes", self._cut(state, site)
        if left.crashes:
            yield "the coordinator crashes", self._crash(state, now.core)
            if self.scope.unsynced:
                yield "the coordinator forgets its last packet", self._crash(state, now.before)
        if left.moves and self.cores.facts(now.core).training:
            draft = self._spend(state, "moves")
            self._handle(draft, LayoutRequested(_MOVED))
            yield "a boundary is to move", self._done(draft)

    # --- steps -----------------------------------------------------------------------------------

    def _spend(self, state: State, what: str) -> _Draft:
        draft = _Draft(state)
        left: Left = self._left.value(draft.left)
        draft.left = self._left.of(left._replace(**{what: getattr(left, what) - 1}))
        return draft

    def _done(self, draft: _Draft) -> State:
        """Send what the step caused, a packet for each receiver."""
        for site, events in draft.reports.items():
            self._send(draft.up, site, tuple(events))
        for site, actions in draft.actions.items():
            self._send(draft.down, site, tuple(actions))
        draft.reports.clear()
        draft.actions.clear()
        return draft.pack()

    def _send(self, queues: list[int], slot: int, packet: Any) -> None:
        queues[slot] = self._queues.of((*self._queues.value(queues[slot]), packet))

    def _handle(self, draft: _Draft, event: Event) -> None:
        core, actions = self.cores.handle(draft.core, event)
        draft.before = draft.core if self.scope.unsynced else 0
        draft.core = core
        for action in actions:
            site: int = action.site
            if draft.sites[site] != _DEAD:
                draft.actions.setdefault(site, []).append(action)

    def _act(self, draft: _Draft, site: int, action: Any) -> None:
        facts = self.sites.facts(draft.sites[site])
        if isinstance(action, Fence):
            if action.incarnation == facts.incarnation:
                self._boot(draft, site)
            return
        if isinstance(action, Welcome):
            if facts.incarnation or action.nonce != draft.nonces[site]:
                return
        elif action.incarnation != facts.incarnation:
            return
        checkpoints = self._stores.value(draft.checkpoints)
        self._after(draft, site, self.sites.act(draft.sites[site], action, checkpoints))

    def _after(self, draft: _Draft, site: int, step: SiteStep) -> None:
        """A site's step, and what that sets off at once."""
        draft.sites[site] = step.site
        if step.stored:
            draft.checkpoints = self._stores.of(self._with_stored(draft.checkpoints, step))
        if step.reports:
            draft.reports.setdefault(site, []).extend(step.reports)
        for to, call, arguments in step.sent:
            if draft.sites[to] == _DEAD:
                continue
            if self.scope.instant_tasks and call in _INPUTS:
                self._after(draft, to, self.sites.call(draft.sites[to], call, arguments))
            else:
                self._send(draft.peers, site * SITES + to, (call, arguments))
        if self.scope.instant_tasks and self.sites.facts(draft.sites[site]).busy:
            self._after(draft, site, self.sites.work(draft.sites[site]))

    def _with_stored(self, checkpoints: int, step: SiteStep) -> tuple[Any, ...]:
        """Checkpoints by version, each with the weights of all layers written so far."""
        stores = {version: thaw(weights) for version, weights in self._stores.value(checkpoints)}
        for version, weights in step.stored:
            stores[version] = stores.get(version, {}) | thaw(weights)
        return tuple(sorted((version, freeze(weights)) for version, weights in stores.items()))

    def _boot(self, draft: _Draft, site: int) -> None:
        """A new process at a site, with nothing; what was under way to the old one is gone."""
        self._clear(draft, site)
        draft.sites[site] = self.sites.new(site)
        draft.nonces[site] += 1
        draft.reports.setdefault(site, []).append(_joined(site, draft.nonces[site]))

    def _clear(self, draft: _Draft, site: int) -> None:
        draft.down[site] = self._empty
        for slot in range(site, SITES * SITES, SITES):
            draft.peers[slot] = self._empty

    def _die(self, state: State, site: int) -> State:
        """What the process said is still under way; after it comes the news of its death."""
        draft = self._spend(state, "deaths")
        incarnation = self.sites.facts(draft.sites[site]).incarnation
        self._clear(draft, site)
        draft.sites[site] = _DEAD
        self._send(draft.up, site, (SiteLost(site, incarnation),))
        return self._done(draft)

    def _cut(self, state: State, site: int) -> State:
        """The site reports another budget, and a control interval begins."""
        draft = self._spend(state, "cuts")
        left: Left = self._left.value(draft.left)
        incarnation = self.sites.facts(draft.sites[site]).incarnation
        self._handle(draft, BudgetReport(site, incarnation, (0.125, 8.0)[left.cuts % 2]))
        self._handle(draft, Tick())
        return self._done(draft)

    def _crash(self, state: State, core: int) -> State:
        """The core comes back from its log; all that was under way on control channels is gone."""
        draft = self._spend(state, "crashes")
        facts = self.cores.facts(core)
        draft.core = core
        draft.up = [self._empty] * SITES
        draft.down = [self._empty] * SITES
        self._handle(draft, CoordinatorRestarted(facts.coordinator + 1))
        for site in range(SITES):
            if draft.sites[site] == _DEAD:
                # Its lease will run out.
                draft.reports[site] = [SiteLost(site, facts.alive[site])]
            elif not self.sites.facts(draft.sites[site]).incarnation:
                # It asks again and again.
                draft.reports[site] = [_joined(site, draft.nonces[site])]
        return self._done(draft)

    # --- invariants ------------------------------------------------------------------------------

    def check(self, state: State) -> bool:
        """What has to hold in every state; whether the run is finished.

        Raises:
            ModelViolationError: copies of one model version learned different things, or the run
                is finished and something was lost, or learned twice.
        """
        now = _Draft(state)
        facts = self.cores.facts(now.core)
        copies: dict[int, Steps] = {}
        for site, number in enumerate(now.sites):
            if number == _DEAD:
                continue
            copy = self.sites.facts(number)
            if copy.learned is None or facts.alive[site] != copy.incarnation:
                continue
            if copies.setdefault(copy.model_version, copy.learned) != copy.learned:
                raise ModelViolationError(
                    f"copies of version {copy.model_version} learned different things: "
                    f"{copies[copy.model_version]} and {copy.learned}"
                )
        if facts.finished:
            self._check_end(now.checkpoints, facts.checkpoint)
        return facts.finished

    def _check_end(self, checkpoints: int, version: int) -> None:
        stores = {at: thaw(weights) for at, weights in self._stores.value(checkpoints)}
        weights = stores.get(version, {})
        if set(weights) != set(range(LAYERS)):
            raise ModelViolationError(f"the last checkpoint holds layers {sorted(weights)} only")
        learned = check_learned("last checkpoint", weights) or ()
        numbers = sorted(number for _, step in learned for number in step)
        if numbers != list(range(self.scope.micro_batches)):
            raise ModelViolationError(f"finished, having learned {learned}")


def _layout_of(arguments: tuple[Any, ...]) -> int:
    return next(a.layout_epoch for a in arguments if isinstance(a, Token))


def _shown(messages: Iterable[Any]) -> str:
    return ", ".join(str(message) for message in messages)


def _joined(site: int, nonce: int) -> SiteJoined:
    return SiteJoined(site, nonce, 1 << 40, 1.0)


def _settings(scope: Scope) -> CoordinatorSettings:
    return CoordinatorSettings(
        micro_batch_samples=1,
        step_micro_batches=scope.step_micro_batches,
        min_step_micro_batches=1,
        max_steps=1 << 30,
        micro_batch_limit=scope.micro_batches,
        window=scope.step_micro_batches,
        hop_s=0.0,
        reduce_fanout=2,
        control_interval_s=_FOREVER_S,
        slack_fraction=0.0,
        steal_gain=0.1,
        exact_assignment=100,
        speculate=False,
        error_weight=0.5,
        margin_errors=0.0,
        debt_gain=0.5,
        max_debt_samples=10.0,
        mlr_threshold=1.0,
        mlr_weight=0.5,
        mlr_patience_steps=1,
        mlr_min_gain=1.0,
        lease_s=_FOREVER_S,
        checkpoint_steps=1,
        tied_embeddings=scope.tied,
        rerouting=True,
        rebalancing=False,
    )
