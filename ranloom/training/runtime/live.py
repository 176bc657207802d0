"""A whole run on this machine: processes, faults, and what came of it, proved afterwards.

``run_live`` starts a coordinator and the sites as processes of their own, lets faults happen where
the plan says, and waits for the end - never longer than the deadline. What it reports does not rest
on the coordinator's word: samples are counted from the sites' journals, and the final weights are
compared with one-process training whose samples follow from the seed.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ranloom.errors import InputError
from ranloom.training.checkpoint import load_checkpoint
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.messages import Event, Note, NoteKind
from ranloom.training.runtime.coordinator_process import (
    CoordinatorConfig,
    logged_events,
    replay,
    run_coordinator,
)
from ranloom.training.runtime.journal import read_journal
from ranloom.training.runtime.pacing import Budget
from ranloom.training.runtime.peer_messages import COORDINATOR, site_name
from ranloom.training.runtime.proof import Proof, prove
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.site import SiteSettings
from ranloom.training.runtime.site_process import SiteConfig, run_site
from ranloom.training.runtime.spare_feed import SpareFeed
from ranloom.training.runtime.supervise import Children, wait_for
from ranloom.training.runtime.transport import Identity, LinkLimits, keyring
from ranloom.training.settings import CoordinatorSettings

_STOP_PATIENCE_S = 5.0
_START_PATIENCE_S = 120.0  # a busy machine imports torch for a minute


@dataclass(frozen=True)
class Fault:
    """Something that happens to a process in mid-run.

    Args:
        victim: ``coordinator`` or ``site-<number>``.
        signal: ``SIGKILL``, or ``SIGSTOP`` (continued by ``SIGCONT`` after ``back_after_s``).
        kind: kind of note that sets it off.
        step: first step in which it may.
        of_victim: whether only notes about the victim itself count.
        count: how many such notes have to come.
        back_after_s: time after which the process comes back; None for never.
    """

    victim: str
    signal: signal.Signals
    kind: NoteKind
    step: int
    of_victim: bool = False
    count: int = 1
    back_after_s: float | None = None


@dataclass(frozen=True)
class LiveConfig:
    """A live run.

    Args:
        setup: what is trained.
        settings: of the coordinator core.
        boundaries: layers at which stages begin and end.
        replicas: replicas D; sites number through the first replica, then the second, and so on.
        budgets: spare compute of each site, or the channel that tells it; more budgets than places
            are sites in reserve.
        folder: new folder for journals, log, checkpoints, final weights and output of processes.
        deadline_s: the run is given up this time after the coordinator has started.
        faults: what happens to processes.
        secure: CURVE on every link; False declares all links (loopback) trusted.
        heartbeat_s: longest silence between coordinator and site; None for a quarter of the lease,
            at most 1 s.
        memory_bytes: memory of each site for training state.
        device: torch device of the sites.
    """

    setup: TrainingSetup
    settings: CoordinatorSettings
    boundaries: tuple[int, ...]
    replicas: int
    budgets: tuple[Budget | SpareFeed, ...]
    folder: Path
    deadline_s: float
    faults: tuple[Fault, ...] = ()
    secure: bool = True
    heartbeat_s: float | None = None
    memory_bytes: int = 1 << 32
    device: str = "cpu"

    def __post_init__(self) -> None:
        places = self.replicas * (len(self.boundaries) - 1)
        if len(self.budgets) < places:
            raise InputError("budgets", len(self.budgets), f"allowed: one a site, {places}")

    @property
    def layout(self) -> Layout:
        """The layout to start with."""
        return regular_layout(self.boundaries, self.replicas)


class LiveRunError(RuntimeError):
    """A live run did not come to its end."""


@dataclass(frozen=True)
class LiveResult:
    """What came of a live run.

    Args:
        proof: weights and samples against independent evidence.
        events: (time, event) of the coordinator's log.
        notes: (time, note) of everything that happened, replayed from it.
        tokens_per_s: tokens merged, from the first step's opening to the end.
        start_s: time from the call to the opening of the first step.
        coordinator_start_s: time until the coordinator process listened, at its first start.
        coordinator_cpu_s: (time of the coordinator's clock, processor time of its process) at the
            end of each step; from zero again where it was killed.
        seconds: time of the whole call.
        resident_bytes: proportional set size of each process in mid-run.
        struck: faults that found their victim alive, by victim and signal.
    """

    proof: Proof
    events: list[tuple[float, Event]]
    notes: list[tuple[float, Note]]
    tokens_per_s: float
    start_s: float
    coordinator_start_s: float
    coordinator_cpu_s: list[tuple[float, float]]
    seconds: float
    resident_bytes: dict[str, int]
    struck: Counter[str]

    @property
    def final_loss(self) -> float:
        """Mean loss of the last step."""
        return self.proof.reference.losses[-1]

    def count(self, kind: NoteKind) -> int:
        """How often something happened."""
        return sum(1 for _, note in self.notes if note.kind is kind)

    def rejected(self) -> dict[str, int]:
        """Rejected results by reason."""
        reasons = Counter(n.reason for _, n in self.notes if n.kind is NoteKind.REJECTED)
        return dict(sorted(reasons.items()))


def run_live(
    config: LiveConfig, watch: Callable[[dict[str, object]], None] | None = None
) -> LiveResult:
    """Train on site processes of this machine and prove the result.

    Args:
        config: the run.
        watch: called with the fields of every note as it happens.

    Raises:
        InputError: a setting or file that cannot be used.
        LiveRunError: the run did not end within its deadline, or a process failed.
    """
    began_s = time.monotonic()
    # Children have a working folder of their own.
    setup = config.setup.with_absolute_source()
    config = replace(config, setup=setup, folder=config.folder.resolve())
    corpus = config.setup.corpus()
    config.folder.mkdir(parents=True)
    run = _Run(config, watch)
    with Children(config.folder) as children:
        run.supervise(children)
    events = list(logged_events(run.coordinator))
    notes = list(replay(run.coordinator, events))
    copies = [load_checkpoint(path) for path in sorted(config.folder.glob("final-site-*"))]
    journals = [
        read_journal(path) for path in sorted(config.folder.glob("site-*-incarnation-*.jsonl"))
    ]
    proof = prove(config.setup, config.settings.micro_batch_limit, copies, journals)
    opened_s = next(s for s, note in notes if note.kind is NoteKind.STEP_OPENED)
    tokens = sum(int(corpus.lengths[s]) * times for s, times in proof.audit.samples.items())
    return LiveResult(
        proof=proof,
        events=events,
        notes=notes,
        tokens_per_s=tokens / (notes[-1][0] - opened_s),
        start_s=run.first_step_s - began_s,
        coordinator_start_s=run.coordinator_start_s,
        coordinator_cpu_s=run.coordinator_cpu_s,
        seconds=time.monotonic() - began_s,
        resident_bytes=run.resident_bytes,
        struck=run.struck,
    )


class _Run:
    """The processes of one run, and the faults that happen to them."""

    def __init__(
        self, config: LiveConfig, watch: Callable[[dict[str, object]], None] | None
    ) -> None:
        self._config = config
        self._watch = watch
        self._heartbeat_s = config.heartbeat_s or min(config.settings.lease_s / 4.0, 1.0)
        self.first_step_s = 0.0
        self.coordinator_start_s = 0.0
        self.coordinator_cpu_s: list[tuple[float, float]] = []
        self.resident_bytes: dict[str, int] = {}
        self.struck: Counter[str] = Counter()
        names = [COORDINATOR, *(site_name(site) for site in range(len(config.budgets)))]
        pairs, admitted = keyring(names) if config.secure else ({}, {})
        identities = {name: Identity(name, pairs.get(name), admitted) for name in names}
        limits = LinkLimits()
        (config.folder / "checkpoints").mkdir()
        self.coordinator = CoordinatorConfig(
            identity=identities[COORDINATOR],
            bind="tcp://127.0.0.1:*",
            sites=len(config.budgets),
            setup=config.setup,
            settings=config.settings,
            layout=config.layout,
            costs=layer_costs(config.setup),
            limits=limits,
            folder=config.folder,
            heartbeat_s=self._heartbeat_s,
            gather_s=config.settings.control_interval_s / 100.0,
            stop_patience_s=_STOP_PATIENCE_S,
            give_up_s=config.deadline_s,
        )
        self._identities = identities
        self._limits = limits
        self._pending = [_PendingFault(fault) for fault in config.faults]
        self._returns: list[tuple[float, Fault]] = []
        self._notes_read = 0

    def supervise(self, children: Children) -> None:
        """Start everything, let faults happen, wait for the end."""
        started_s = time.monotonic()
        self._start(children, COORDINATOR)
        address = self._config.folder / "coordinator.address"
        found = wait_for(
            lambda: address.exists() or not children.alive(COORDINATOR), _START_PATIENCE_S
        )
        if not found or not address.exists():
            raise LiveRunError(f"the coordinator did not start: {children.last_words(COORDINATOR)}")
        now_s = time.monotonic()
        self.coordinator_start_s = now_s - started_s
        deadline_s = now_s + self._config.deadline_s
        for site in range(len(self._config.budgets)):
            self._start(children, site_name(site))
        notes = self._config.folder / "notes.jsonl"
        while self._more_to_do(children):
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise LiveRunError(f"not finished after {self._config.deadline_s} s")
            for fields in self._new_notes(notes):
                self._on_note(fields, children, now_s)
            self._bring_back(children, now_s)
            self._look_after(children)
            time.sleep(0.01)
        if children.exit_code(COORDINATOR) != 0:
            raise LiveRunError(children.last_words(COORDINATOR))
        for _, fault in self._returns:
            if fault.signal is signal.SIGSTOP:
                children.signal(fault.victim, signal.SIGCONT)
        until_s = time.monotonic() + _STOP_PATIENCE_S
        for site in range(len(self._config.budgets)):
            children.wait(site_name(site), max(0.0, until_s - time.monotonic()))

    def _start(self, children: Children, name: str) -> None:
        if name == COORDINATOR:
            children.start(name, run_coordinator, self.coordinator)
        else:
            children.start(name, run_site, self._site_config(name))

    def _site_config(self, name: str) -> SiteConfig:
        config = self._config
        site = int(name.removeprefix("site-"))
        return SiteConfig(
            site=site,
            identity=self._identities[name],
            bind="tcp://127.0.0.1:*",
            coordinator=(config.folder / "coordinator.address").read_text(),
            setup=config.setup,
            settings=SiteSettings(
                retry_s=1.0,
                grace_s=0.5,
                checkpoints=config.folder / "checkpoints",
                unmerged_limit=config.settings.window,
            ),
            limits=self._limits,
            budget=config.budgets[site],
            forward_flop=tuple(self.coordinator.costs.forward_flop.tolist()),
            backward_flop=tuple(self.coordinator.costs.backward_flop.tolist()),
            memory_bytes=config.memory_bytes,
            heartbeat_s=self._heartbeat_s,
            report_s=config.settings.control_interval_s / 4.0,
            folder=config.folder,
            device=config.device,
            give_up_s=config.deadline_s,
        )

    def _new_notes(self, path: Path) -> Iterator[dict[str, object]]:
        """Notes that the coordinator has written since the last look."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._notes_read)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._notes_read += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)

    def _on_note(self, fields: dict[str, object], children: Children, now_s: float) -> None:
        if self._watch is not None:
            self._watch(fields)
        if fields["kind"] == NoteKind.STEP_OPENED.value and not self.first_step_s:
            self.first_step_s = now_s
        if fields["kind"] == NoteKind.STEP_REDUCED.value:
            if not self.resident_bytes:
                self.resident_bytes = children.resident_bytes()
            cpu_s = children.cpu_s(COORDINATOR)
            self.coordinator_cpu_s.append((float(str(fields["now_s"])), cpu_s))
        for pending in self._pending:
            if pending.set_off_by(fields):
                fault = pending.fault
                struck = children.signal(fault.victim, fault.signal)
                self.struck[f"{fault.victim} {fault.signal.name}"] += struck
                if fault.back_after_s is not None:
                    self._returns.append((now_s + fault.back_after_s, fault))

    def _bring_back(self, children: Children, now_s: float) -> None:
        due = [fault for at_s, fault in self._returns if at_s <= now_s]
        self._returns = [entry for entry in self._returns if entry[0] > now_s]
        for fault in due:
            if fault.signal is signal.SIGSTOP:
                children.signal(fault.victim, signal.SIGCONT)
                continue
            if not children.wait(fault.victim, 0.0):
                self._returns.append((now_s, fault))  # it is still dying
            elif fault.victim == COORDINATOR or self._more_to_do(children):
                self._start(children, fault.victim)

    def _more_to_do(self, children: Children) -> bool:
        """Whether the coordinator runs, or is about to come back."""
        back = any(fault.victim == COORDINATOR for _, fault in self._returns)
        return back or children.alive(COORDINATOR)

    def _look_after(self, children: Children) -> None:
        """A process that ended without a fault of the plan ends the run."""
        killed = {p.fault.victim for p in self._pending if p.fault.signal is signal.SIGKILL}
        for site in range(len(self._config.budgets)):
            name = site_name(site)
            code = None if children.alive(name) else children.exit_code(name)
            if code not in (None, 0) and name not in killed:
                raise LiveRunError(children.last_words(name))


class _PendingFault:
    """Counts the notes that a fault waits for; it happens once."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._left = fault.count

    def set_off_by(self, fields: Mapping[str, object]) -> bool:
        fault = self.fault
        step = fields["step"]
        about_victim = site_name(int(str(fields["site"]))) == fault.victim
        if (
            self._left > 0
            and fields["kind"] == fault.kind.value
            and isinstance(step, int)
            and step >= fault.step
            and (about_victim or not fault.of_victim)
        ):
            self._left -= 1
            return self._left == 0
        return False
