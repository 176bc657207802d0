"""The process of the coordinator: sockets, clock and durable log around the pure core.

One turn of the loop takes in what has arrived, hands it to the core event by event, syncs the log
once, and only then sends what the core decided. Killed at any point and started again on the
same log, it goes on under a new incarnation.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ranloom.errors import InputError
from ranloom.training.coordinator import Coordinator
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.messages import (
    Assign,
    BudgetReport,
    CoordinatorRestarted,
    Event,
    Fence,
    Merge,
    Note,
    NoteKind,
    Release,
    SiteJoined,
    SiteLost,
    TaskCompleted,
    Tick,
    Welcome,
)
from ranloom.training.runtime.event_log import EventLog
from ranloom.training.runtime.notes import NoteFile, Watch
from ranloom.training.runtime.peer_messages import (
    CODEC,
    LOG_CODEC,
    Channel,
    Directory,
    Hello,
    Peer,
    Refused,
    Stop,
    Stopped,
    site_name,
)
from ranloom.training.runtime.setup import TrainingSetup, difference
from ranloom.training.runtime.transport import Endpoint, Identity, LinkLimits
from ranloom.training.runtime.wire import Packet
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.step_plan import StepPhase
from ranloom.training.tokens import Direction

_SITE_EVENTS = frozenset(kind for kind in get_args(Event) if "site" in get_type_hints(kind))
_REST_SHARE = 0.25
_LONGEST_UNSYNCED_S = 10.0
_STOP_REPEAT_S = 0.2
_CAN_WAIT = frozenset((Merge, Release))
"""Actions that nobody waits for: they free memory of the site."""


@dataclass(frozen=True)
class CoordinatorConfig:
    """All that the coordinator process is told.

    Args:
        identity: its name, keys and the keys that it admits.
        bind: address to listen at; a restart takes the one of its first start.
        sites: number of sites that may join, 0 to ``sites`` - 1.
        setup: what is trained.
        settings: of the core.
        layout: to start with.
        costs: of the layers.
        limits: of its sockets.
        folder: where the log, the notes and the address file go.
        heartbeat_s: longest silence towards a site.
        gather_s: least time between two turns; events that come meanwhile share a sync of the log.
        stop_patience_s: time given to the sites to write their final weights.
        give_up_s: the process ends by itself after this time, whatever happens.
        log_replica: second file for the log, on storage that outlives this host; None for none.
    """

    identity: Identity
    bind: str
    sites: int
    setup: TrainingSetup
    settings: CoordinatorSettings
    layout: Layout
    costs: LayerCosts
    limits: LinkLimits
    folder: Path
    heartbeat_s: float
    gather_s: float
    stop_patience_s: float
    give_up_s: float
    log_replica: Path | None = None

    def __post_init__(self) -> None:
        tied, needed = self.settings.tied_embeddings, self.setup.model.tied
        if tied != needed:
            raise InputError("settings.tied_embeddings", tied, f"allowed: {needed} (the model)")


@dataclass
class _Line:
    """The control channel of one incarnation of a site."""

    incarnation: int
    nonce: int = -1
    sent: int = 0
    received: int = 0
    sent_at_s: float = 0.0


class CoordinatorProcess:
    """Event loop of the coordinator.

    Args:
        config: all that it is told.
        watch: called with the fields of every note.
    """

    def __init__(self, config: CoordinatorConfig, watch: Watch | None = None) -> None:
        self._config = config
        self._log = EventLog(config.folder / "coordinator.sqlite", LOG_CODEC, config.log_replica)
        bind = self._log.fact("address") or config.bind
        self._endpoint = Endpoint(config.identity, CODEC, bind, config.limits)
        self._facts = config.setup.facts(config.setup.corpus())
        _warm_up(config)
        self._core = new_core(config)
        self._notes = NoteFile(config.folder / "notes.jsonl", watch)
        self._session = time.time_ns()
        self._started_s = time.monotonic()
        self._clock_offset_s = 0.0
        self._sites = {site_name(site): site for site in range(config.sites)}
        self._lines: dict[int, _Line] = {}
        self._addresses: dict[int, str] = {}
        self._outgoing: dict[int, list[Any]] = defaultdict(list)
        self._fences: list[Fence] = []
        self._tick_at_s = 0.0
        self._synced_at_s = 0.0
        self._ignored: Counter[str] = Counter()
        self._recover()
        if self._log.fact("address") is None:
            self._log.set_fact("address", self._endpoint.address)
        address_file = config.folder / "coordinator.address"
        address_file.with_suffix(".partial").write_text(self._endpoint.address)
        address_file.with_suffix(".partial").rename(address_file)

    def run(self) -> None:
        """Coordinate until the run is finished and the sites have stopped.

        Raises:
            TimeoutError: ``give_up_s`` is over.
            LogWriteError: the log cannot be written any more.
        """
        try:
            while not self._core.finished:
                if time.monotonic() - self._started_s > self._config.give_up_s:
                    raise TimeoutError("coordinator: no end in sight, given up")
                self.turn()
            self._log.sync()
            self._stop_sites()
        finally:
            self.close()

    def close(self) -> None:
        """Close sockets and files."""
        self._notes.close()
        self._log.close()
        self._endpoint.close()

    @property
    def finished(self) -> bool:
        """Whether all work is applied and the final weights are stored."""
        return self._core.finished

    @property
    def rejected(self) -> Counter[str]:
        """What was not looked into, by reason: packets, then control messages."""
        return self._endpoint.rejected + self._ignored

    # --- one turn of the loop ---

    def turn(self) -> None:
        """Take in what has arrived, decide, make it durable, send."""
        packets = self._gather()
        # A tick may end leases: what has arrived while this process was busy counts first.
        is_tick = self._now_s() >= self._tick_at_s
        for packet in packets:
            self._take(packet)
        if is_tick:
            # The next interval counts from now: intervals missed are not made up for.
            self._tick_at_s = self._now_s() + self._config.settings.control_interval_s
            self._handle(Tick())
        now_s = self._now_s()
        due = [site for site, line in self._lines.items() if self._is_due(site, line, now_s)]
        is_said = bool(self._fences) or any(self._outgoing[site] for site in due)
        if is_said or now_s - self._synced_at_s > _LONGEST_UNSYNCED_S:
            # Events that cause nothing can wait: lost in a crash, they were never heard of.
            self._log.sync()
            self._synced_at_s = now_s
        self._send(due)
        self._notes.flush()

    def _gather(self) -> list[Packet]:
        """What has arrived, that of a while together: it shares a sync and the answers."""
        until_tick_s = max(0.0, self._tick_at_s - self._now_s())
        rest_s = self._rest_s()
        # One turn for both where the tick is not much later.
        time.sleep(rest_s if rest_s < until_tick_s / 2.0 else until_tick_s)
        return self._endpoint.poll(self._tick_at_s - self._now_s())

    def _rest_s(self) -> float:
        """Time for which nobody will miss an answer.

        While a step computes, its tasks are assigned: what happens next (admission, rerouting, the
        seal) is due in about the time that the work under way takes.
        """
        cycle, least_s = self._core.cycle, self._config.gather_s
        if cycle is None or cycle.phase is not StepPhase.OPEN:
            return least_s
        ledger = cycle.ledger
        in_work = (ledger.undecided - ledger.waiting) / len(ledger.micro_batches)
        rest_s = cycle.plan.predicted_s * in_work * _REST_SHARE
        return max(least_s, min(rest_s, 10.0 * least_s) if ledger.waiting else rest_s)

    def _is_due(self, site: int, line: _Line, now_s: float) -> bool:
        """Whether a site waits for something, or has heard nothing for too long."""
        messages = self._outgoing[site]
        if now_s - line.sent_at_s >= self._config.heartbeat_s:
            return True
        # Unmerged gradients count against the window at the site.
        many = len(messages) > self._config.settings.window // 2
        return many or any(type(message) not in _CAN_WAIT for message in messages)

    def _now_s(self) -> float:
        return time.monotonic() + self._clock_offset_s

    def _handle(self, event: Any) -> None:
        now_s = self._now_s()
        self._log.append(now_s, event)
        for action in self._core.handle(event, now_s):
            self._dispatch(action, now_s)

    def _dispatch(self, action: Any, now_s: float) -> None:
        if isinstance(action, Note):
            self._notes.add(action, now_s)
            if action.kind is NoteKind.SITE_LOST:
                self._lines.pop(action.site, None)
        elif isinstance(action, Fence):
            self._fences.append(action)
        else:
            line = self._lines.get(action.site)
            if line is None or line.incarnation != action.incarnation:
                line = self._lines[action.site] = _Line(action.incarnation)
                self._outgoing[action.site].clear()
                if isinstance(action, Welcome):
                    line.nonce = action.nonce
                    self._announce()
            self._outgoing[action.site].append(action)

    def _announce(self) -> None:
        """Tell every site where the others are."""
        peers = tuple(Peer(site, address) for site, address in sorted(self._addresses.items()))
        for site in self._lines:
            self._outgoing[site].append(Directory(peers))

    def _send(self, due: Iterable[int]) -> None:
        """Hand over the fences, and one packet to each site that is due."""
        for fence in self._fences:
            self._endpoint.send(site_name(fence.site), [fence])
        self._fences.clear()
        for site in due:
            line, messages = self._lines[site], self._outgoing[site]
            line.sent += 1
            line.sent_at_s = self._now_s()
            channel = Channel(self._session, line.incarnation, line.sent)
            self._endpoint.send(site_name(site), [channel, *messages])
            messages.clear()

    # --- what arrives ---

    def _take(self, packet: Packet) -> None:
        site = self._sites.get(packet.sender)
        if site is None:
            self._ignored["unknown sender"] += 1
            return
        first = packet.messages[0] if packet.messages else None
        if isinstance(first, Hello):
            self._admit(site, first, packet.messages[1:])
        elif isinstance(first, Channel) and self._in_order(site, first):
            for message in packet.messages[1:]:
                if type(message) in _SITE_EVENTS and message.site == site:
                    self._handle(message)
                else:
                    self._ignored["foreign event"] += 1

    def _admit(self, site: int, hello: Hello, events: tuple[Any, ...]) -> None:
        """A process wants to be a site of this run."""
        if hello.site != site:
            self._ignored["foreign hello"] += 1
            return
        if not self._reach(site, hello.address):
            return
        unlike = difference(self._facts, hello.setup)
        if unlike:
            self._endpoint.send(site_name(site), [Refused(unlike)])
            return
        if self._addresses.get(site) != hello.address:
            self._addresses[site] = hello.address
            self._log.set_site(site, hello.address)
        line = self._lines.get(site)
        for event in events:
            # A repeated question is answered by the Welcome that is under way.
            known = line is not None and isinstance(event, SiteJoined) and event.nonce == line.nonce
            if isinstance(event, SiteJoined) and event.site == site and not known:
                self._handle(event)

    def _reach(self, site: int, address: str) -> bool:
        """Open the way to a site; False if the address that it gives is none."""
        try:
            self._endpoint.connect(site_name(site), address)
        except InputError:
            self._ignored["bad address"] += 1
            return False
        return True

    def _in_order(self, site: int, channel: Channel) -> bool:
        """Whether a packet is the next one of a living channel; else it is not looked into."""
        line = self._lines.get(site)
        if line is None or line.incarnation != channel.incarnation:
            self._fences.append(Fence(site, channel.incarnation))
            return False
        if channel.session != self._session:
            self._ignored["older session"] += 1
            return False
        if channel.number <= line.received:
            self._ignored["repeated number"] += 1
            return False
        if channel.number > line.received + 1:
            self._lose(site, line)
            return False
        line.received = channel.number
        return True

    def _lose(self, site: int, line: _Line) -> None:
        """Something of what the site said is lost: the incarnation cannot go on."""
        del self._lines[site]
        self._outgoing[site].clear()
        self._handle(SiteLost(site, line.incarnation))
        self._fences.append(Fence(site, line.incarnation))

    # --- begin and end ---

    def _recover(self) -> None:
        """Fold the events of the log into the core; actions of a former life are thrown away."""
        restarts, last_s = 0, None
        for last_s, event in self._log.events():
            self._core.handle(event, last_s)
            restarts += isinstance(event, CoordinatorRestarted)
        if last_s is None:
            return
        self._clock_offset_s = last_s - time.monotonic()
        self._addresses = self._log.sites()
        for site, address in self._addresses.items():
            self._endpoint.connect(site_name(site), address)
        # The first incarnation is 1; each restart so far took the next one.
        self._handle(CoordinatorRestarted(restarts + 2))
        self._announce()

    def _stop_sites(self) -> None:
        """Have the final weights written; repeated, because the sites may still be busy."""
        # After a restart with nothing left to do nobody is known to live.
        waiting = set(self._lines or self._addresses)
        deadline_s = time.monotonic() + self._config.stop_patience_s
        while waiting and time.monotonic() < deadline_s:
            self._send(self._lines)
            for site in waiting:
                self._endpoint.send(site_name(site), [Stop()])
            for packet in self._endpoint.poll(_STOP_REPEAT_S):
                for message in packet.messages:
                    if isinstance(message, Stopped):
                        waiting.discard(message.site)
                    elif self._is_latecomer(packet.sender, message):
                        waiting.add(message.site)

    def _is_latecomer(self, sender: str, message: Any) -> bool:
        """Whether a site that has started as the run came to its end can be told to stop."""
        is_own = isinstance(message, Hello) and sender == site_name(message.site)
        return is_own and self._reach(message.site, message.address)


def run_coordinator(config: CoordinatorConfig, watch: Watch | None = None) -> None:
    """Coordinate a run to its end in this process; ``watch`` takes the fields of every note."""
    CoordinatorProcess(config, watch).run()


def new_core(config: CoordinatorConfig) -> Coordinator:
    """The core in its initial state."""
    return Coordinator(config.settings, config.layout, config.costs)


def _warm_up(config: CoordinatorConfig) -> None:
    """Have compiled kernels loaded before time counts: part of a step that nobody hears of."""
    core = new_core(config)
    sites = config.layout.sites()
    done: list[TaskCompleted] = []
    for site in sites:
        for action in core.handle(SiteJoined(site, 0, 1 << 40, 1.0), 0.0):
            if isinstance(action, Assign):
                what = (action.key, Direction.BACKWARD, action.token, 1.0)
                done.append(TaskCompleted(action.site, 1, *what))
    for site in sites:
        core.handle(BudgetReport(site, 1, 1e-6 if site == sites[0] else 1.0), 0.0)
    core.handle(Tick(), 0.0)
    for event in done[: len(done) // 2]:
        core.handle(event, 1.0)
    core.handle(Tick(), 1.0)
    core.handle(SiteLost(sites[0], 1), 1.0)
    core.handle(Tick(), 1.0)


def logged_events(config: CoordinatorConfig) -> Iterator[tuple[float, Event]]:
    """(time, event) of everything in the log of a run."""
    log = EventLog(config.folder / "coordinator.sqlite", LOG_CODEC)
    try:
        yield from log.events()
    finally:
        log.close()


def replay(
    config: CoordinatorConfig, events: Iterable[tuple[float, Event]] | None = None
) -> Iterator[tuple[float, Note]]:
    """Every note of a run, (time, note), from its events alone; read from its log if not given."""
    core = new_core(config)
    for now_s, event in logged_events(config) if events is None else events:
        for action in core.handle(event, now_s):
            if isinstance(action, Note):
                yield now_s, action
