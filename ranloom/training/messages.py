"""Everything that goes into the coordinator (events) and comes out of it (actions).

The core is a pure state machine: ``Coordinator.handle(event, now_s) -> list[Action]``. The live
runtime and the simulator translate these messages to their own transport and clock and add no
decision. How they are used, and what each side keeps, is told in ``docs/training-protocol.md``.

Every event of a site carries the incarnation that the coordinator gave it; every action carries
the incarnation that it is meant for, so that a restarted site ignores what its predecessor was
told. Micro-batches are named by their number in the global queue of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ranloom.training.tokens import Direction, TaskKey, Token

FROM_DATA = -1
"""Source of an input that the site makes itself: token ids, or the loss on the last stage."""

NOT_YET = -2
"""Source of an input that nobody is going to make yet; a later ``Assign`` names the site."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Manifest of one site's partial sum, from the site's own books.

    Args:
        site: holder of the partial sum.
        incarnation: its incarnation.
        micro_batches: numbers of the merged micro-batches, ascending.
    """

    site: int
    incarnation: int
    micro_batches: tuple[int, ...]


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SiteJoined:
    """A site process came up, or came back with nothing. Answered by ``Welcome``.

    Args:
        site: number of the site.
        nonce: drawn by the process; repeated in ``Welcome`` so that it knows which one is its own.
        memory_bytes: memory for training state.
        usable_tflops: spare compute now, in 1e12 floating-point operations a second.
    """

    site: int
    nonce: int
    memory_bytes: int
    usable_tflops: float


@dataclass(frozen=True, slots=True)
class SiteLost:
    """The transport knows that a site is gone. A silent site is found by its lease instead."""

    site: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """Smoothed spare budget of a site; also its heartbeat."""

    site: int
    incarnation: int
    usable_tflops: float


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """A stage task is done.

    After a forward task the site retains the output for the next stage. After a backward task it
    holds the parameter gradient unmerged (if it was told to keep it) and retains the gradient of
    its input for the stage before.

    Args:
        site: who did it.
        incarnation: its incarnation.
        key: micro-batch, stage and step.
        direction: forward or backward. The last stage only has a backward task, which includes
            its forward pass and the loss.
        token: of the ``Assign`` that was in force when it finished.
        seconds: time that the task occupied the site.
        loss: summed loss of the samples, on the last stage; else 0.
    """

    site: int
    incarnation: int
    key: TaskKey
    direction: Direction
    token: Token
    seconds: float
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class InputMissing:
    """A producer answered that it does not have (or no longer has) an input of a task.

    A site also reports so, with itself as source, when it gives up the activations that it kept
    for a backward task, or is given one that relies on activations it does not have.

    Args:
        site: the consumer.
        incarnation: its incarnation.
        key: task that waits for the input.
        token: its token.
        direction: which output of the neighbour is missing: ``FORWARD`` for the activation of
            the stage before, ``BACKWARD`` for the gradient of the stage after.
        source: the producer that was asked.
    """

    site: int
    incarnation: int
    key: TaskKey
    token: Token
    direction: Direction
    source: int


@dataclass(frozen=True, slots=True)
class StageReduced:
    """The root of a stage's reduction tree has the total and has kept it.

    Args:
        site: the root.
        incarnation: its incarnation.
        step: step of the sum.
        stage: stage of the sum.
        token: of the ``Reduce``.
        parts: manifest of every partial sum in it, as each site wrote it.
        squared_norm: of the summed gradient; a tied weight counts on the first stage only.
        digest: of the total's bytes.
    """

    site: int
    incarnation: int
    step: int
    stage: int
    token: Token
    parts: tuple[Part, ...]
    squared_norm: float
    digest: str


@dataclass(frozen=True, slots=True)
class PartialRefused:
    """A site has other micro-batches in its partial sum than ``Reduce`` names. Nothing was sent."""

    site: int
    incarnation: int
    step: int
    stage: int
    token: Token
    part: Part


@dataclass(frozen=True, slots=True)
class TotalHeld:
    """A recipient has the total of a stage, checked against its digest, and keeps it."""

    site: int
    incarnation: int
    step: int
    stage: int
    token: Token
    digest: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A site has updated its weights and now holds this model version."""

    site: int
    incarnation: int
    model_version: int


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A site has stored weights and optimizer state of its stage durably, outside itself."""

    site: int
    incarnation: int
    stage: int
    model_version: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A site has made room for its layers of the next layout (or cannot)."""

    site: int
    incarnation: int
    layout_epoch: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class CopyDone:
    """A site holds all layers of the next layout, checksums verified, at this model version."""

    site: int
    incarnation: int
    layout_epoch: int
    model_version: int


@dataclass(frozen=True, slots=True)
class CoordinatorRestarted:
    """First event after the durable log has been replayed.

    Args:
        incarnation: of the new coordinator, higher than any before.
    """

    incarnation: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a surviving site holds; its answer to ``RequestInventory``.

    Args:
        site: number of the site.
        incarnation: its incarnation, unchanged by the coordinator's restart.
        layout_epoch: layout that it works under.
        model_version: of its weights, -1 while it holds none.
        held: unmerged gradients, with the token of the attempt that made each.
        merged: micro-batches in its partial sum of the current step, ascending.
        step: the step of that partial sum, -1 if there is none.
        outputs: retained outputs, by key and direction.
        totals: (step, stage, token) of the totals that it keeps.
    """

    site: int
    incarnation: int
    layout_epoch: int
    model_version: int
    held: tuple[tuple[TaskKey, Token], ...]
    merged: tuple[int, ...]
    step: int
    outputs: tuple[tuple[TaskKey, Direction], ...]
    totals: tuple[tuple[int, int, Token], ...]


@dataclass(frozen=True, slots=True)
class LayoutRequested:
    """Somebody outside the core wants other boundaries, as soon as they can be prepared.

    Args:
        boundaries: decoder layers at which stages begin and end; as many stages as now.
    """

    boundaries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Start of an AIR control interval."""


Event = (
    SiteJoined
    | SiteLost
    | BudgetReport
    | TaskCompleted
    | InputMissing
    | StageReduced
    | PartialRefused
    | TotalHeld
    | Applied
    | CheckpointWritten
    | Prepared
    | CopyDone
    | CoordinatorRestarted
    | Inventory
    | LayoutRequested
    | Tick
)


# --- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The site is known under this incarnation. It holds nothing until ``Install``."""

    site: int
    incarnation: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Fence:
    """This incarnation is dead: drop all training state and join anew."""

    site: int
    incarnation: int


class WeightsFrom(StrEnum):
    """Where an installed stage takes its weights from."""

    SEED = "seed"
    CHECKPOINT = "checkpoint"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Install:
    """Hold these layers from now on. Drops every task, output, gradient and sum of before.

    Args:
        site: whom.
        incarnation: its incarnation.
        layout_epoch: of the layout in force.
        stage: stage that it holds now.
        first_layer: first decoder layer.
        end_layer: one past the last.
        model_version: version that the weights get.
        weights_from: the seed, a checkpoint, or the layers copied before (those that it already
            held stay).
        checkpoint_version: model version under which the checkpoint was written, else -1.
    """

    site: int
    incarnation: int
    layout_epoch: int
    stage: int
    first_layer: int
    end_layer: int
    model_version: int
    weights_from: WeightsFrom
    checkpoint_version: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Authority to execute a stage task. A later one for the same key replaces it.

    A site that already has the task queued or running goes on with it under the new token and
    sources. Inputs are fetched from their producers; a producer that has not made one yet answers
    when it has.

    Args:
        site: executor.
        incarnation: its incarnation.
        key: micro-batch, stage, step.
        token: fence to return with every result.
        forward: whether the forward task has to run and its output be retained.
        backward: whether the backward task has to run. It recomputes the forward pass if the site
            kept no activations.
        keep_gradient: whether the parameter gradient is wanted. False when only a lost output has
            to be made again.
        activation_from: site that has or will have the output of the stage before,
            ``FROM_DATA`` on the first stage, or ``NOT_YET``.
        gradient_from: the same for the input gradient of the stage after; ``FROM_DATA`` on the
            last stage. ``NOT_YET`` also where no backward task is wanted.
    """

    site: int
    incarnation: int
    key: TaskKey
    token: Token
    forward: bool
    backward: bool
    keep_gradient: bool
    activation_from: int
    gradient_from: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the attempt: unqueue it, or drop the gradient that it made. Outputs stay retained."""

    site: int
    incarnation: int
    key: TaskKey
    token: Token


@dataclass(frozen=True, slots=True)
class Merge:
    """Add the gradient that this attempt made to the partial sum of the step, and note it there.

    Sent once all stages of the micro-batch are committed, never before. Whatever else the site
    retains of the micro-batch may be freed.
    """

    site: int
    incarnation: int
    key: TaskKey
    token: Token


@dataclass(frozen=True, slots=True)
class Release:
    """Retained outputs and kept activations of these micro-batches may be freed.

    For sites that retain something of a complete micro-batch without holding a gradient of it.
    """

    site: int
    incarnation: int
    step: int
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who gets a total, and which layers of it.

    A holder of the stage gets all, written as layers -1 to -1; a site that copies layers for the
    next layout gets only those.
    """

    site: int
    first_layer: int
    end_layer: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Take part in the reduction of a stage's sum (Eq. 3). Partial sums stay kept until ``Apply``.

    A site adds its children's sums to its own, children in the given order, each accepted only if
    its manifest is the one named here, and sends the sum with all manifests to its parent. The
    root reports ``StageReduced`` and sends the total to the recipients.

    Args:
        site: whom.
        incarnation: its incarnation.
        step: step of the sum.
        stage: stage of the sum.
        token: fence; a later one for the same step and stage replaces the reduction.
        part: manifest that its own partial sum must have.
        children: manifests expected in each child's sum, the child's own first.
        parent: site to send the sum to, -1 at the root.
        recipients: at the root, who gets the total beside itself.
        tied_root: at the roots of the first and last stage of a model with tied embeddings, the
            other root: they exchange the sums of the tied weight and both add that of the first and
            that of the last stage, in this order; else -1. Both have the same token.
        tied_stage: stage of the other root, else -1.
    """

    site: int
    incarnation: int
    step: int
    stage: int
    token: Token
    part: Part
    children: tuple[tuple[Part, ...], ...]
    parent: int
    recipients: tuple[Recipient, ...]
    tied_root: int
    tied_stage: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Update the weights from the kept total; then drop totals, sums and gradients of the step.

    Args:
        site: whom.
        incarnation: its incarnation.
        step: step whose total is applied.
        stage: stage of the total.
        token: of the reduction that made the total.
        samples: accepted samples |S_t| of the step; the mean gradient is total / samples.
        squared_norm: of the summed gradient over all stages, for clipping.
        model_version: version of the weights afterwards.
    """

    site: int
    incarnation: int
    step: int
    stage: int
    token: Token
    samples: int
    squared_norm: float
    model_version: int


@dataclass(frozen=True, slots=True)
class DropStep:
    """The step is skipped: drop its gradients, partial sums and outputs. Weights stay."""

    site: int
    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Store the stage's weights and optimizer state as they are at this version."""

    site: int
    incarnation: int
    stage: int
    model_version: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make room for these layers beside the present ones (MLR, phase 1)."""

    site: int
    incarnation: int
    layout_epoch: int
    first_layer: int
    end_layer: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Keep a snapshot of these layers at this version for others to copy (MLR, phase 2)."""

    site: int
    incarnation: int
    layout_epoch: int
    first_layer: int
    end_layer: int
    model_version: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Fetch layers from a snapshot, then apply later totals to them, until ``Install`` (phase 2).

    The copy goes on beside training: totals of later steps arrive with ``Reduce.recipients`` and
    ``Apply`` and are applied in order once the snapshot is there.

    Args:
        site: the receiver.
        incarnation: its incarnation.
        layout_epoch: of the layout that is being prepared.
        source: site with the snapshot.
        stage: stage of these layers in the layout in force; its totals concern them.
        first_layer: first layer to fetch.
        end_layer: one past the last.
        model_version: of the snapshot.
    """

    site: int
    incarnation: int
    layout_epoch: int
    source: int
    stage: int
    first_layer: int
    end_layer: int
    model_version: int


@dataclass(frozen=True, slots=True)
class AbortLayout:
    """The layout in preparation is off: free snapshots and copies."""

    site: int
    incarnation: int
    layout_epoch: int


@dataclass(frozen=True, slots=True)
class RequestInventory:
    """The coordinator restarted: report what is held."""

    site: int
    incarnation: int


class NoteKind(StrEnum):
    """What a ``Note`` tells."""

    STEP_OPENED = "step_opened"
    STEP_SEALED = "step_sealed"
    STEP_REDUCED = "step_reduced"
    STEP_LOSS = "step_loss"
    STEP_SKIPPED = "step_skipped"
    COMMITTED = "committed"
    REROUTED = "rerouted"
    SPECULATED = "speculated"
    DEFERRED = "deferred"
    REOPENED = "reopened"
    REJECTED = "rejected"
    SITE_JOINED = "site_joined"
    SITE_LOST = "site_lost"
    REBALANCED = "rebalanced"
    LAYOUT_PREPARE = "layout_prepare"
    LAYOUT_COPY = "layout_copy"
    LAYOUT_COMMIT = "layout_commit"
    LAYOUT_ABORT = "layout_abort"
    CHECKPOINT = "checkpoint"
    ROLLED_BACK = "rolled_back"
    STALLED = "stalled"
    RECOVERED = "recovered"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Note:
    """An observation for logs, metrics and figures; nothing has to be done.

    Args:
        kind: what happened.
        step: step concerned, else -1.
        site: site concerned, else -1.
        stage: stage concerned, else -1.
        micro_batch: micro-batch concerned, else -1.
        value: count, seconds or fraction, as the kind says.
        reason: of a rejection, a reroute or an abort.
    """

    kind: NoteKind
    step: int = -1
    site: int = -1
    stage: int = -1
    micro_batch: int = -1
    value: float = 0.0
    reason: str = ""


Action = (
    Welcome
    | Fence
    | Install
    | Assign
    | Discard
    | Merge
    | Release
    | Reduce
    | Apply
    | DropStep
    | WriteCheckpoint
    | Prepare
    | Offer
    | Copy
    | AbortLayout
    | RequestInventory
    | Note
)
