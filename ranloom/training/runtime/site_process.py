"""The process of a site: sockets, clock and pace around the state machine of ``site.py``."""

from __future__ import annotations

import importlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from ranloom.errors import InputError
from ranloom.training.checkpoint import Checkpoint, save_checkpoint
from ranloom.training.messages import (
    Action,
    Applied,
    BudgetReport,
    Fence,
    SiteJoined,
    TaskCompleted,
    Welcome,
)
from ranloom.training.runtime.journal import Journal
from ranloom.training.runtime.pacing import Budget, PacedTask
from ranloom.training.runtime.peer_messages import (
    CODEC,
    COORDINATOR,
    Channel,
    Directory,
    Hello,
    Refused,
    Stop,
    Stopped,
    site_name,
)
from ranloom.training.runtime.setup import TrainingSetup
from ranloom.training.runtime.site import ProtocolError, Running, Site, SiteSettings
from ranloom.training.runtime.spare_feed import LOOK_S, FollowedBudget, SpareFeed
from ranloom.training.runtime.transport import Endpoint, Identity, LinkLimits
from ranloom.training.runtime.wire import Packet
from ranloom.training.tokens import Direction

_ACTIONS = get_args(Action)
_CAN_WAIT = frozenset((TaskCompleted, Applied))
"""Reports that cause nothing as long as the site has work."""
_IDLE_POLL_S = 0.05


@dataclass(frozen=True)
class SiteConfig:
    """All that a site process is told.

    Args:
        site: its number.
        identity: its name, keys and the keys that it admits.
        bind: address to listen at.
        coordinator: address of the coordinator.
        setup: what is trained.
        settings: how the site works.
        limits: of its sockets.
        budget: its spare compute, given or followed from the channel of its cell.
        forward_flop: work of a forward pass of one micro-batch by decoder layer [L].
        backward_flop: of a backward pass with kept activations [L].
        memory_bytes: memory for training state.
        heartbeat_s: longest silence towards the coordinator.
        report_s: completions wait so long for each other while the site is busy.
        folder: where its journal and final weights go.
        device: torch device.
        give_up_s: the process ends by itself after this time, whatever happens.
    """

    site: int
    identity: Identity
    bind: str
    coordinator: str
    setup: TrainingSetup
    settings: SiteSettings
    limits: LinkLimits
    budget: Budget | SpareFeed
    forward_flop: tuple[float, ...]
    backward_flop: tuple[float, ...]
    memory_bytes: int
    heartbeat_s: float
    report_s: float
    folder: Path
    device: str
    give_up_s: float


class RefusedError(RuntimeError):
    """The coordinator does not want this site."""


@dataclass
class _Execution:
    """A computed task that is still in the time which it takes."""

    running: Running
    pace: PacedTask


class SiteProcess:
    """Event loop of a site.

    Args:
        config: all that it is told.
    """

    def __init__(self, config: SiteConfig) -> None:
        self._config = config
        feed = config.budget if isinstance(config.budget, SpareFeed) else None
        self._followed = FollowedBudget(feed) if feed is not None else None
        self._workload = config.setup.workload(config.device)
        self._facts = config.setup.facts(self._workload.corpus)
        self._endpoint = Endpoint(config.identity, CODEC, config.bind, config.limits)
        self._endpoint.connect(COORDINATOR, config.coordinator)
        self._started_s = time.monotonic()
        self._nonce = 0
        self._site: Site | None = None
        self._journal = Journal(None)
        self._execution: _Execution | None = None
        self._session = 0
        self._received = 0
        self._sent = 0
        self._reports: list[Any] = []
        self._reports_at_s = 0.0
        self._joins_at_s = 0.0
        self._beats_at_s = 0.0
        self._told_tflops = -1.0
        self._step = 0
        self._stopped = False
        self._leave()

    def run(self) -> None:
        """Work until the coordinator says stop.

        Raises:
            RefusedError: the coordinator refused the site.
            TimeoutError: ``give_up_s`` is over.
        """
        try:
            while not self._stopped:
                if time.monotonic() - self._started_s > self._config.give_up_s:
                    raise TimeoutError(f"site {self._config.site}: no end in sight, given up")
                self.turn()
        finally:
            self.close()

    def close(self) -> None:
        """Close sockets and the journal."""
        self._journal.close()
        self._endpoint.close()
        if self._followed is not None:
            self._followed.close()

    @property
    def incarnation(self) -> int:
        """Incarnation given by the coordinator, 0 while the site has not joined."""
        return self._site.incarnation if self._site is not None else 0

    # --- one turn of the loop ---

    def turn(self) -> None:
        """Take in what has arrived, work, send."""
        for packet in self._endpoint.poll(self._patience_s(time.monotonic())):
            self._take(packet)
        if self._followed is not None:
            self._followed.look()
        now_s = time.monotonic()
        try:
            self._work(now_s)
            if self._site is not None:
                self._site.settle(now_s)
        except ProtocolError as error:
            self._rejoin(str(error))
        self._beat(now_s)
        if self._is_time_to_report(now_s):
            self._flush()

    def _is_time_to_report(self, now_s: float) -> bool:
        """Whether somebody may wait for what there is to report, or it has waited long enough.

        A busy site has been told what to do next; the coordinator loses nothing if completions
        come in groups.
        """
        urgent = any(type(report) not in _CAN_WAIT for report in self._reports)
        return self._execution is None or urgent or now_s >= self._reports_at_s

    def _report(self, event: Any) -> None:
        if not self._reports:
            self._reports_at_s = time.monotonic() + self._config.report_s
        self._reports.append(event)

    def _patience_s(self, now_s: float) -> float:
        wake_s = min(self._joins_at_s if self._site is None else self._beats_at_s, now_s + 1.0)
        if self._reports:
            wake_s = min(wake_s, self._reports_at_s)
        if self._execution is not None:
            look_s = _IDLE_POLL_S if self._followed is None else LOOK_S
            return min(
                self._execution.pace.remaining_s(self._tflops(now_s)), wake_s - now_s, look_s
            )
        return min(wake_s - now_s, _IDLE_POLL_S)

    def _work(self, now_s: float) -> None:
        if self._site is None:
            return
        if self._execution is not None:
            self._execution.pace.advance(now_s, self._tflops(now_s))
            if not self._execution.pace.done:
                return
            execution, self._execution = self._execution, None
            self._site.complete(execution.running, now_s - execution.pace.started_s)
        running = self._site.next_task()
        if running is None:
            return
        self._step = running.task.key.step
        self._execution = _Execution(running, PacedTask(self._flop(running.direction), now_s))
        self._site.compute(running)

    def _flop(self, direction: Direction) -> float:
        assert self._site is not None
        assert self._site.layers is not None
        layers = self._site.layers
        held = slice(layers.first_layer, layers.end_layer)
        forward = sum(self._config.forward_flop[held])
        if direction is Direction.FORWARD:
            return forward
        backward = sum(self._config.backward_flop[held])
        return backward + forward if layers.module.is_last else backward

    def _tflops(self, now_s: float) -> float:
        if isinstance(self._config.budget, Budget):
            return self._config.budget.at(now_s - self._started_s, self._step)
        assert self._followed is not None
        return self._followed.usable_tflops

    # --- joining and the control channel ---

    def _leave(self) -> None:
        """Drop everything; join anew at the next beat."""
        self._site = None
        self._execution = None
        self._reports.clear()
        self._nonce = secrets.randbits(48)
        self._joins_at_s = 0.0

    def _rejoin(self, why: str) -> None:
        self._journal.write("left", site=self._config.site, why=why)
        self._leave()

    def _beat(self, now_s: float) -> None:
        followed = self._followed
        tflops = self._tflops(now_s) if followed is None else followed.smoothed_tflops
        site = self._config.site
        if self._site is None:
            if now_s >= self._joins_at_s:
                self._joins_at_s = now_s + self._config.heartbeat_s
                hello = Hello(site, self._endpoint.address, self._facts)
                joined = SiteJoined(site, self._nonce, self._config.memory_bytes, tflops)
                self._endpoint.send(COORDINATOR, [hello, joined])
        elif tflops != self._told_tflops or now_s >= self._beats_at_s:
            self._told_tflops = tflops
            self._report(BudgetReport(site, self._site.incarnation, tflops))

    def _flush(self) -> None:
        if self._reports and self._site is not None:
            self._sent += 1
            channel = Channel(self._session, self._site.incarnation, self._sent)
            self._endpoint.send(COORDINATOR, [channel, *self._reports])
            self._reports.clear()
            # Whatever is sent shows that the site lives.
            self._beats_at_s = time.monotonic() + self._config.heartbeat_s

    def _take(self, packet: Packet) -> None:
        try:
            if packet.sender == COORDINATOR:
                self._take_control(packet.messages)
            elif self._site is not None and packet.sender.startswith("site-"):
                sender = int(packet.sender.removeprefix("site-"))
                for message in packet.messages:
                    self._site.on_peer(sender, message, packet.tensors, time.monotonic())
        except ProtocolError as error:
            self._rejoin(str(error))

    def _take_control(self, messages: Sequence[Any]) -> None:
        first = messages[0] if messages else None
        if isinstance(first, Refused):
            raise RefusedError(first.why)
        if isinstance(first, Stop):
            self._stop()
        elif isinstance(first, Fence):
            if self._site is not None and first.incarnation == self._site.incarnation:
                self._rejoin("fenced")
        elif isinstance(first, Channel) and self._in_order(first, messages):
            for message in messages[1:]:
                self._take_message(message)

    def _in_order(self, channel: Channel, messages: Sequence[Any]) -> bool:
        """Whether a control packet is the next one of this site's channel."""
        if self._site is None:
            welcome = next((m for m in messages if isinstance(m, Welcome)), None)
            if welcome is None or welcome.nonce != self._nonce:
                return False
            self._enter(welcome, channel.session)
        assert self._site is not None
        if channel.incarnation != self._site.incarnation or channel.session < self._session:
            return False
        if channel.session > self._session:
            # A new coordinator process: both directions count from 1, old reports are void.
            self._session, self._received, self._sent = channel.session, 0, 0
            self._endpoint.disconnect(COORDINATOR)
            self._endpoint.connect(COORDINATOR, self._config.coordinator)
            self._reports.clear()
        if channel.number <= self._received:
            return False
        if channel.number > self._received + 1:
            raise ProtocolError(f"control packet {self._received + 1} is lost")
        self._received = channel.number
        return True

    def _enter(self, welcome: Welcome, session: int) -> None:
        """The coordinator took the site in: a new incarnation with empty books."""
        config = self._config
        self._journal.close()
        name = f"site-{config.site}-incarnation-{welcome.incarnation}.jsonl"
        self._journal = Journal(config.folder / name)
        self._site = Site(
            config.site,
            welcome.incarnation,
            self._workload,
            config.settings,
            self._send_peer,
            self._report,
            self._journal,
        )
        self._session, self._received, self._sent = session, 0, 0
        self._beats_at_s = 0.0

    def _take_message(self, message: Any) -> None:
        if isinstance(message, Directory):
            for peer in message.peers:
                if peer.site != self._config.site:
                    self._endpoint.connect(site_name(peer.site), peer.address)
        elif isinstance(message, _ACTIONS) and not isinstance(message, Welcome):
            assert self._site is not None
            self._site.on_action(message, time.monotonic())

    def _send_peer(self, site: int, message: Any, tensors: dict[str, Tensor]) -> None:
        self._endpoint.send(site_name(site), [message], tensors)

    def _stop(self) -> None:
        layers = self._site.layers if self._site is not None else None
        if layers is not None:
            save_checkpoint(
                self._config.folder / f"final-site-{self._config.site}.safetensors",
                Checkpoint(
                    self._workload.model,
                    layers.version,
                    (layers.first_layer, layers.end_layer),
                    layers.weights(),
                    layers.optimizer_state(),
                ),
            )
        self._endpoint.send(COORDINATOR, [Stopped(self._config.site)])
        self._endpoint.poll(_IDLE_POLL_S)  # gives the socket the time to send
        self._stopped = True


def run_site(config: SiteConfig) -> None:
    """Run a site to its end in this process.

    Raises:
        InputError: the coordinator refused the site.
    """
    # The first backward pass would import it, in the middle of a task.
    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    try:
        SiteProcess(config).run()
    except RefusedError as error:
        raise InputError(f"site {config.site}", "refused", str(error)) from None
