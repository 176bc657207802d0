"""One site as a state machine: actions and peers' messages in, reports and messages out.

It keeps the books that ``docs/training-protocol.md`` asks of a site and computes on real tensors,
but knows no socket, clock or process: time is an argument, two callables take what has to be sent.
A site object lives for one incarnation; a new incarnation is a new object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ranloom.training.checkpoint import Checkpoint, load_stages, save_checkpoint, stage_path
from ranloom.training.messages import (
    FROM_DATA,
    NOT_YET,
    AbortLayout,
    Applied,
    Apply,
    Assign,
    CheckpointWritten,
    Copy,
    Discard,
    DropStep,
    InputMissing,
    Install,
    Inventory,
    Merge,
    Offer,
    Prepare,
    Prepared,
    Reduce,
    Release,
    RequestInventory,
    TaskCompleted,
    TotalHeld,
    WeightsFrom,
    WriteCheckpoint,
)
from ranloom.training.runtime.exchange import Answer, Exchange, Send
from ranloom.training.runtime.journal import Journal
from ranloom.training.runtime.peer_messages import (
    Ack,
    Fetch,
    FetchLayers,
    LayerTensors,
    Missing,
    PartialSum,
    Pushed,
    Supply,
    TiedSum,
    Total,
)
from ranloom.training.runtime.relocation import Relocation
from ranloom.training.runtime.stage_worker import (
    BackwardResult,
    Gradients,
    StageWorker,
    TrainedLayers,
    Workload,
)
from ranloom.training.runtime.sums import StageSums, reduction_name
from ranloom.training.tokens import Direction, TaskKey, Token


class ProtocolError(RuntimeError):
    """The coordinator and this site disagree about what the site holds: it has to join anew."""


@dataclass(frozen=True)
class SiteSettings:
    """How a site works.

    Args:
        retry_s: time after which an unanswered message to another site is repeated.
        grace_s: time for which a question about unknown work is parked.
        checkpoints: folder of the checkpoints, shared by all sites.
        unmerged_limit: with so many unmerged gradients a site begins a backward task only for a
            micro-batch below all of theirs.
    """

    retry_s: float
    grace_s: float
    checkpoints: Path
    unmerged_limit: int


@dataclass
class StageTask:
    """A stage task that the site has authority to execute."""

    assign: Assign
    forward_open: bool
    backward_open: bool

    @property
    def key(self) -> TaskKey:
        """Its key."""
        return self.assign.key


@dataclass
class Running:
    """A task in execution, with its result once it is computed."""

    task: StageTask
    direction: Direction
    output: Tensor | None = None
    backward: BackwardResult | None = None


@dataclass
class _Held:
    """An unmerged gradient, the attempt that made it and the samples it was computed from."""

    token: Token
    gradients: Gradients
    samples: tuple[int, ...]
    loss: float


@dataclass
class _Books:
    """What a site keeps for the stage that it holds; gone with the next ``Install``."""

    stage: int
    layout_epoch: int
    layers: TrainedLayers
    worker: StageWorker
    sums: StageSums
    tasks: dict[TaskKey, StageTask] = field(default_factory=dict)
    held: dict[TaskKey, _Held] = field(default_factory=dict)
    done: dict[TaskKey, Token] = field(default_factory=dict)


class Site:
    """A site in one incarnation.

    Args:
        site: its number.
        incarnation: given by ``Welcome``.
        workload: what is trained.
        settings: how it works.
        send: hands a message with tensors to another site.
        report: hands an event to the coordinator.
        journal: the site's own record.
    """

    def __init__(
        self,
        site: int,
        incarnation: int,
        workload: Workload,
        settings: SiteSettings,
        send: Send,
        report: Callable[[Any], None],
        journal: Journal,
    ) -> None:
        self.site = site
        self.incarnation = incarnation
        self._workload = workload
        self._settings = settings
        self._send = send
        self._report = report
        self._journal = journal
        self._books: _Books | None = None
        self._exchange = Exchange(send, settings.retry_s, settings.grace_s)
        self._relocation = self._new_relocation()
        self._actions: deque[Any] = deque()
        self._running: Running | None = None

    # --- facts for the driver ---

    @property
    def layers(self) -> TrainedLayers | None:
        """The layers that the site holds."""
        return self._books.layers if self._books is not None else None

    @property
    def stage(self) -> int:
        """The stage that the site holds, -1 for none."""
        return self._books.stage if self._books is not None else -1

    @property
    def holds_work(self) -> bool:
        """Whether the site holds gradients that no other site has."""
        books = self._books
        return books is not None and bool(books.held or books.sums.partial)

    # --- from the coordinator ---

    def on_action(self, action: Any, now_s: float) -> None:
        """Take one action; actions for another incarnation are ignored.

        Raises:
            ProtocolError: what the action presumes is not so.
        """
        if action.incarnation != self.incarnation:
            return
        self._actions.append(action)
        self._work_off(now_s)

    def _work_off(self, now_s: float) -> None:
        while self._actions and not self._must_wait(self._actions[0]):
            self._act(self._actions.popleft(), now_s)

    def _must_wait(self, action: Any) -> bool:
        """An ``Install`` of copied layers waits for the last totals that they still lack."""
        return (
            isinstance(action, Install)
            and action.weights_from is WeightsFrom.COPY
            and not self._relocation.caught_up(action.layout_epoch, action.model_version)
        )

    def _act(self, action: Any, now_s: float) -> None:
        match action:
            case Install():
                self._install(action)
            case Prepare():
                self._report(Prepared(self.site, self.incarnation, action.layout_epoch, True))
            case Copy():
                self._relocation.copy(action, now_s)
            case AbortLayout():
                self._relocation.abort(action.layout_epoch)
            case RequestInventory():
                self._report(self._inventory())
            case Apply() if not self._is_own(action):
                self._relocation.update(action)
            case _ if self._books is None:
                raise ProtocolError(f"{type(action).__name__} for a site that holds no stage")
            case _:
                self._act_on_books(action, self._books, now_s)

    def _is_own(self, apply: Apply) -> bool:
        """Whether an update is for the stage held, not for layers on their way in."""
        return self._books is not None and self._books.stage == apply.stage

    def _act_on_books(self, action: Any, books: _Books, now_s: float) -> None:
        match action:
            case Assign():
                self._assign(action, books, now_s)
            case Discard():
                self._discard(action, books)
            case Merge():
                self._merge(action, books)
            case Release():
                for number in action.micro_batches:
                    self._free(TaskKey(action.step, number, books.stage), books)
            case Reduce():
                books.sums.start(action, now_s)
            case Apply():
                self._apply(action, books)
            case DropStep():
                self._end_step(action.step, books)
            case WriteCheckpoint():
                self._write_checkpoint(action, books)
            case Offer():
                if books.layers.version != action.model_version:
                    raise ProtocolError(f"{action} at version {books.layers.version}")
                self._relocation.offer(action, books.layers)
            case _:
                raise ProtocolError(f"unknown action {type(action).__name__}")

    def _install(self, install: Install) -> None:
        version = install.model_version
        layers = TrainedLayers(self._workload, install.first_layer, install.end_layer, version)
        if install.weights_from is WeightsFrom.CHECKPOINT:
            stored = load_stages(
                self._settings.checkpoints, self._workload.model, install.checkpoint_version
            )
            layers.load(stored.weights, stored.optimizer)
        elif install.weights_from is WeightsFrom.COPY:
            self._load_copied(layers, install)
        self._journal.write(
            "installed",
            site=self.site,
            incarnation=self.incarnation,
            stage=install.stage,
            first_layer=install.first_layer,
            end_layer=install.end_layer,
            model_version=version,
            weights_from=install.weights_from.value,
            checkpoint_version=install.checkpoint_version,
        )
        self._exchange.clear()
        self._relocation = self._new_relocation()
        sums = StageSums(
            self.site,
            self.incarnation,
            layers,
            install.stage,
            self._send,
            self._report,
            self._journal,
            self._settings.retry_s,
        )
        self._books = _Books(install.stage, install.layout_epoch, layers, StageWorker(layers), sums)

    def _load_copied(self, layers: TrainedLayers, install: Install) -> None:
        """Put layers together from those held before and those copied, all at one version."""
        parts = self._relocation.copied(install.layout_epoch)
        if self._books is not None:
            parts = [self._books.layers, *parts]
        missing = set(layers.names())
        for part in parts:
            if part.version == install.model_version:
                names = missing & set(part.names())
                weights = {n: t for n, t in part.weights().items() if n in names}
                state = {n: e for n, e in part.optimizer_state().items() if n in names}
                layers.load(weights, state)
                missing -= names
        if missing:
            raise ProtocolError(f"{sorted(missing)[0]} is not here at {install.model_version}")

    def _assign(self, assign: Assign, books: _Books, now_s: float) -> None:
        key = assign.key
        outdated = (
            assign.token.layout_epoch < books.layout_epoch
            or assign.token.model_version < books.layers.version
        )
        if outdated or key.stage != books.stage:
            self._journal.write("outdated_assign", step=key.step, micro_batch=key.micro_batch)
            return
        task = books.tasks.get(key)
        if task is None:
            task = books.tasks[key] = StageTask(assign, False, False)
        task.assign = assign
        task.forward_open = assign.forward
        task.backward_open = assign.backward and books.done.get(key) != assign.token
        held = books.held.get(key)
        if task.backward_open and assign.keep_gradient and held is not None:
            # The same work under a new token: its gradient is the same.
            held.token = assign.token
            self._finish_backward(task, books, 0.0, held.loss)
        if assign.forward and (key, Direction.FORWARD) in self._exchange.outputs:
            task.forward_open = False
            self._completed(task, Direction.FORWARD, 0.0, 0.0)
        self._close_if_done(task, books)
        if key in books.tasks:
            self._fetch(task, books, now_s)

    def _fetch(self, task: StageTask, books: _Books, now_s: float) -> None:
        """Ask for the inputs that a task still needs, at the producers named now."""
        key, assign = task.key, task.assign
        under_way = self._running is not None and self._running.task is task
        keeps = under_way or books.worker.keeps(key.step, key.micro_batch)
        if task.forward_open or (task.backward_open and not keeps):
            if assign.activation_from >= 0:
                self._want(task, key.stage - 1, Direction.FORWARD, assign.activation_from, now_s)
            elif assign.activation_from == NOT_YET and not task.forward_open:
                self._report_lost_activation(task)
        if task.backward_open and assign.gradient_from >= 0:
            self._want(task, key.stage + 1, Direction.BACKWARD, assign.gradient_from, now_s)

    def _report_lost_activation(self, task: StageTask) -> None:
        """A backward task relies on activations that are not kept here (any more)."""
        if (_neighbour(task.key, task.key.stage - 1), Direction.FORWARD) in self._exchange.inputs:
            return
        what = (task.key, task.assign.token, Direction.FORWARD, self.site)
        self._report(InputMissing(self.site, self.incarnation, *what))

    def evict(self, now_s: float) -> None:
        """Memory is wanted elsewhere: give up kept activations, retained outputs and inputs."""
        books = self._books
        if books is None:
            return
        books.worker.evict()
        self._exchange.evict()
        for task in list(books.tasks.values()):
            self._fetch(task, books, now_s)

    def _want(
        self, task: StageTask, stage: int, direction: Direction, source: int, now_s: float
    ) -> None:
        token = task.assign.token
        output = (_neighbour(task.key, stage), direction)
        self._exchange.want(output, source, token.model_version, token.layout_epoch, now_s)

    def _discard(self, discard: Discard, books: _Books) -> None:
        key = discard.key
        held = books.held.get(key)
        if held is not None and held.token == discard.token:
            del books.held[key]
        task = books.tasks.get(key)
        if task is not None and task.assign.token == discard.token:
            self._drop_task(task, books)

    def _drop_task(self, task: StageTask, books: _Books) -> None:
        key = task.key
        del books.tasks[key]
        books.worker.evict([(key.step, key.micro_batch)])
        self._exchange.forget_input((_neighbour(key, key.stage - 1), Direction.FORWARD))
        self._exchange.forget_input((_neighbour(key, key.stage + 1), Direction.BACKWARD))

    def _free(self, key: TaskKey, books: _Books) -> None:
        """A micro-batch is complete: nothing of it is needed but its gradient."""
        if key in books.tasks:
            self._drop_task(books.tasks[key], books)
        books.worker.evict([(key.step, key.micro_batch)])
        self._exchange.release([(key.step, key.micro_batch)])

    def _merge(self, merge: Merge, books: _Books) -> None:
        key = merge.key
        if key.micro_batch in books.sums.manifest(key.step).micro_batches:
            return
        held = books.held.pop(key, None)
        if held is None or held.token != merge.token:
            raise ProtocolError(f"no gradient of {key} under {merge.token}")
        books.sums.merge(key.step, key.micro_batch, held.gradients, held.samples)
        self._free(key, books)

    def _apply(self, apply: Apply, books: _Books) -> None:
        layers = books.layers
        current = (books.layout_epoch, layers.version)
        if current == (apply.token.layout_epoch, apply.token.model_version):
            kept = books.sums.totals.get((apply.step, apply.stage))
            if kept is None or kept.token != apply.token:
                raise ProtocolError(f"no total of step {apply.step} for {apply.token}")
            before = layers.version
            layers.apply(kept.tensors, apply.samples, apply.squared_norm)
            layers.version = apply.model_version
            self._journal.write(
                "applied",
                site=self.site,
                incarnation=self.incarnation,
                step=apply.step,
                stage=apply.stage,
                reduction=reduction_name(apply.step, apply.stage, apply.token),
                digest=kept.digest,
                samples=apply.samples,
                from_version=before,
                model_version=apply.model_version,
                first_layer=layers.first_layer,
                end_layer=layers.end_layer,
            )
            self._end_step(apply.step, books)
        self._report(Applied(self.site, self.incarnation, layers.version))

    def _end_step(self, step: int, books: _Books) -> None:
        books.sums.end_steps(step)
        self._exchange.release_steps(step)
        books.worker.evict()
        for task in [task for key, task in books.tasks.items() if key.step <= step]:
            self._drop_task(task, books)
        for ended in (books.held, books.done):
            for key in [key for key in ended if key.step <= step]:
                del ended[key]

    def _write_checkpoint(self, write: WriteCheckpoint, books: _Books) -> None:
        layers = books.layers
        if (write.stage, write.model_version) != (books.stage, layers.version):
            raise ProtocolError(f"{write} at version {layers.version}")
        place = (layers.first_layer, layers.end_layer)
        save_checkpoint(
            stage_path(self._settings.checkpoints, layers.version, place),
            Checkpoint(
                self._workload.model,
                layers.version,
                place,
                layers.weights(),
                layers.optimizer_state(),
            ),
        )
        self._report(
            CheckpointWritten(self.site, self.incarnation, write.stage, write.model_version)
        )

    def _inventory(self) -> Inventory:
        books = self._books
        if books is None:
            return Inventory(self.site, self.incarnation, -1, -1, (), (), -1, (), ())
        step = max(books.sums.partial, default=-1)
        return Inventory(
            self.site,
            self.incarnation,
            books.layout_epoch,
            books.layers.version,
            tuple(sorted((key, held.token) for key, held in books.held.items())),
            books.sums.manifest(step).micro_batches,
            step,
            tuple(sorted(self._exchange.outputs)),
            tuple(
                (step, stage, kept.token)
                for (step, stage), kept in sorted(books.sums.totals.items())
            ),
        )

    # --- from other sites ---

    def on_peer(self, sender: int, message: Any, tensors: dict[str, Tensor], now_s: float) -> None:
        """Take one message of another site."""
        match message:
            case Fetch():
                self._exchange.on_fetch(sender, message, now_s)
            case Supply():
                if "value" in tensors and self._workload.is_boundary(tensors["value"]):
                    self._exchange.on_supply(message, tensors["value"])
            case Missing():
                if self._exchange.on_missing(sender, message):
                    self._report_missing(message, sender)
            case FetchLayers():
                self._relocation.on_fetch(sender, message)
            case LayerTensors():
                self._relocation.on_layers(sender, message, tensors, now_s)
            case Total() if self._books is None or message.stage != self._books.stage:
                self._take_total_for_copies(sender, message, tensors)
            case PartialSum() | TiedSum() | Total() | Ack() if self._books is not None:
                # One of another layout is meant for what this site held, or is going to hold.
                if message.token.layout_epoch == self._books.layout_epoch:
                    self._on_sum(sender, message, tensors, self._books.sums, now_s)
        self._work_off(now_s)

    def _on_sum(
        self,
        sender: int,
        message: Any,
        tensors: dict[str, Tensor],
        sums: StageSums,
        now_s: float,
    ) -> None:
        match message:
            case PartialSum():
                sums.on_partial(sender, message, tensors, now_s)
            case TiedSum() if "value" in tensors:
                sums.on_tied(sender, message, tensors["value"], now_s)
            case Total():
                sums.on_total(sender, message, tensors, now_s)
            case Ack():
                sums.on_ack(sender, message)

    def _take_total_for_copies(
        self, sender: int, message: Total, tensors: dict[str, Tensor]
    ) -> None:
        if not self._relocation.receiving or not self._relocation.on_total(message, tensors):
            return
        place = (message.step, message.stage, message.token)
        if self._relocation.complete:
            self._report(TotalHeld(self.site, self.incarnation, *place, message.digest))
        self._send(sender, Ack(Pushed.TOTAL, *place), {})

    def _report_missing(self, message: Missing, source: int) -> None:
        if self._books is None:
            return
        towards = 1 if message.direction is Direction.FORWARD else -1
        task = self._books.tasks.get(_neighbour(message.key, message.key.stage + towards))
        if task is not None:
            self._report(
                InputMissing(
                    self.site,
                    self.incarnation,
                    task.key,
                    task.assign.token,
                    message.direction,
                    source,
                )
            )

    def settle(self, now_s: float) -> None:
        """Repeat what was not answered, answer what cannot be answered otherwise."""
        self._exchange.settle(self._answer_to, now_s)
        self._relocation.settle(now_s)
        if self._books is not None:
            self._books.sums.settle(now_s)

    def _answer_to(self, fetch: Fetch) -> Answer:
        books = self._books
        wanted = (fetch.model_version, fetch.layout_epoch)
        if books is None or wanted < (books.layers.version, books.layout_epoch):
            return Answer.NEVER
        if wanted > (books.layers.version, books.layout_epoch):
            return Answer.LATER
        task = books.tasks.get(fetch.key)
        if task is None:
            return Answer.UNKNOWN
        is_open = (task.forward_open, task.backward_open)[fetch.direction]
        return Answer.LATER if is_open else Answer.UNKNOWN

    # --- work ---

    def next_task(self) -> Running | None:
        """The task to execute now: backward before forward, then the lowest (step, micro-batch)."""
        books = self._books
        if books is None:
            return None
        ready = sorted(
            (-direction, task.key.step, task.key.micro_batch)
            for task in books.tasks.values()
            for direction in Direction
            if self._is_ready(task, direction, books)
        )
        if not ready:
            return None
        backward, step, micro_batch = ready[0]
        task = books.tasks[TaskKey(step, micro_batch, books.stage)]
        return Running(task, Direction(-backward))

    def _is_ready(self, task: StageTask, direction: Direction, books: _Books) -> bool:
        token = task.assign.token
        if token.model_version != books.layers.version or token.layout_epoch != books.layout_epoch:
            return False
        key = task.key
        has_activation = (
            task.assign.activation_from == FROM_DATA
            or (_neighbour(key, key.stage - 1), Direction.FORWARD) in self._exchange.inputs
        )
        if direction is Direction.FORWARD:
            return task.forward_open and has_activation
        has_gradient = (
            task.assign.gradient_from == FROM_DATA
            or (_neighbour(key, key.stage + 1), Direction.BACKWARD) in self._exchange.inputs
        )
        return (
            task.backward_open
            and not task.forward_open
            and not self._holds_back(task, books)
            and has_gradient
            and (has_activation or books.worker.keeps(key.step, key.micro_batch))
        )

    def _holds_back(self, task: StageTask, books: _Books) -> bool:
        """Whether another unmerged gradient would be one too many.

        Below *all* of those held there is always room: the lowest unfinished micro-batch is held
        back nowhere, so that something always completes.
        """
        full = len(books.held) >= self._settings.unmerged_limit
        return full and task.assign.keep_gradient and min(books.held) < task.key

    def compute(self, running: Running) -> None:
        """Execute a task; the result shows only with ``complete``."""
        books = self._books
        assert books is not None
        self._running = running
        key = running.task.key
        entering = self._exchange.inputs.get((_neighbour(key, key.stage - 1), Direction.FORWARD))
        if running.direction is Direction.FORWARD:
            running.output = books.worker.forward(key.step, key.micro_batch, entering)
        else:
            output = (_neighbour(key, key.stage + 1), Direction.BACKWARD)
            gradient = self._exchange.inputs.get(output)
            running.backward = books.worker.backward(key.step, key.micro_batch, entering, gradient)

    def complete(self, running: Running, seconds: float) -> None:
        """Report a computed task, unless it was called off meanwhile.

        Args:
            running: the task.
            seconds: time that it occupied the site.
        """
        books, task, key = self._books, running.task, running.task.key
        self._running = None
        if books is None or books.tasks.get(key) is not task:
            return
        self._journal.write(
            "computed",
            site=self.site,
            incarnation=self.incarnation,
            step=key.step,
            stage=key.stage,
            micro_batch=key.micro_batch,
            direction=running.direction.name.lower(),
            seconds=seconds,
        )
        if running.output is not None:
            task.forward_open = False
            self._exchange.retain((key, Direction.FORWARD), running.output)
            self._completed(task, Direction.FORWARD, seconds, 0.0)
        if running.backward is not None:
            result = running.backward
            if result.input_gradient is not None:
                self._exchange.retain((key, Direction.BACKWARD), result.input_gradient)
            if task.assign.keep_gradient:
                samples = self._workload.order.sample_ids(key.micro_batch)
                token = task.assign.token
                books.held[key] = _Held(token, result.gradients, samples, result.loss)
            self._finish_backward(task, books, seconds, result.loss)
        self._close_if_done(task, books)

    def _finish_backward(self, task: StageTask, books: _Books, seconds: float, loss: float) -> None:
        task.backward_open = False
        books.done[task.key] = task.assign.token
        self._completed(task, Direction.BACKWARD, seconds, loss)

    def _completed(
        self, task: StageTask, direction: Direction, seconds: float, loss: float
    ) -> None:
        self._report(
            TaskCompleted(
                self.site,
                self.incarnation,
                task.key,
                direction,
                task.assign.token,
                seconds,
                loss,
            )
        )

    def _close_if_done(self, task: StageTask, books: _Books) -> None:
        if task.forward_open or task.backward_open:
            return
        # Activations stay: the backward task may come with a later Assign.
        del books.tasks[task.key]

    def _new_relocation(self) -> Relocation:
        return Relocation(
            self.site,
            self.incarnation,
            self._workload,
            self._send,
            self._report,
            self._journal,
            self._settings.retry_s,
        )


def _neighbour(key: TaskKey, stage: int) -> TaskKey:
    return TaskKey(key.step, key.micro_batch, stage)
