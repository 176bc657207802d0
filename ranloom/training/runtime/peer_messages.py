"""What sites tell each other, and what the driver of the coordinator tells them beside actions.

Tensors travel in the same packet as the message that describes them (``wire.py``). The messages
between coordinator core and sites are those of ``ranloom.training.messages``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from ranloom.training.messages import Action, Event, Note, Part, Tick
from ranloom.training.runtime.wire import Codec
from ranloom.training.tokens import Direction, TaskKey, Token

COORDINATOR = "coordinator"


def site_name(site: int) -> str:
    """Name of a site on the wire."""
    return f"site-{site}"


# --- between site and driver ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Travels with ``SiteJoined``: where the site listens and what it is about to train.

    Args:
        site: number of the site.
        address: of its inbox.
        setup: what has to be the same everywhere, as JSON: model, optimizer, text, seed.
    """

    site: int
    address: str
    setup: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The site does not fit this run; it has to end."""

    why: str


@dataclass(frozen=True, slots=True)
class Channel:
    """First message of every control packet.

    Args:
        session: start of the coordinator process, rising with every restart.
        incarnation: of the site.
        number: 1, 2, 3, ... in each direction; a gap means that a packet was lost.
    """

    session: int
    incarnation: int
    number: int


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a site listens."""

    site: int
    address: str


@dataclass(frozen=True, slots=True)
class Directory:
    """Addresses of all sites that have joined."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over: write the final weights and end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The site has written its final weights and ends."""

    site: int


# --- between sites -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask a producer for an output.

    Args:
        key: task that makes the output, in the producer's stage.
        direction: ``FORWARD`` for its activation, ``BACKWARD`` for the gradient of its input.
        model_version: version of the weights that it has to be made with.
        layout_epoch: layout that it has to be made under.
    """

    key: TaskKey
    direction: Direction
    model_version: int
    layout_epoch: int


@dataclass(frozen=True, slots=True)
class Supply:
    """The output asked for, in tensor ``value``."""

    key: TaskKey
    direction: Direction
    model_version: int
    layout_epoch: int


@dataclass(frozen=True, slots=True)
class Missing:
    """The producer neither has the output nor is going to make it."""

    key: TaskKey
    direction: Direction
    model_version: int
    layout_epoch: int


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A sum on its way up the tree (Eq. 3), one tensor a parameter, with all manifests in it."""

    step: int
    stage: int
    token: Token
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class TiedSum:
    """The tied weight's sum over one end of the model, sent to the root of the other end."""

    step: int
    stage: int
    token: Token


@dataclass(frozen=True, slots=True)
class Total:
    """A stage's total, or the layers of it that the receiver needs, one tensor a parameter.

    Args:
        step: step of the sum.
        stage: stage of the sum.
        token: of the reduction.
        digest: over all entries of ``entries``.
        entries: (parameter, digest of its bytes) for every parameter of the stage.
    """

    step: int
    stage: int
    token: Token
    digest: str
    entries: tuple[tuple[str, str], ...]


class Pushed(StrEnum):
    """What an ``Ack`` confirms."""

    PARTIAL = "partial"
    TIED = "tied"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Ack:
    """A pushed sum has arrived; it need not be sent again."""

    pushed: Pushed
    step: int
    stage: int
    token: Token


@dataclass(frozen=True, slots=True)
class FetchLayers:
    """Ask for the next tensors of a snapshot.

    Args:
        layout_epoch: of the layout in preparation.
        model_version: of the snapshot.
        first_layer: first layer wanted.
        end_layer: one past the last.
        start: tensors already received, in the order of their names.
    """

    layout_epoch: int
    model_version: int
    first_layer: int
    end_layer: int
    start: int


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Some tensors of a snapshot, in the order of their names.

    Args:
        layout_epoch: of the layout in preparation.
        model_version: of the snapshot.
        first_layer: as asked.
        end_layer: as asked.
        start: position of the first tensor.
        count: tensors of the whole range.
        digests: of each tensor's bytes.
    """

    layout_epoch: int
    model_version: int
    first_layer: int
    end_layer: int
    start: int
    count: int
    digests: tuple[str, ...]


PeerMessage = (
    Fetch | Supply | Missing | PartialSum | TiedSum | Total | Ack | FetchLayers | LayerTensors
)

_LOCAL = (Note, Tick)
CODEC = Codec(
    kind
    for kind in (
        *get_args(Event),
        *get_args(Action),
        *get_args(PeerMessage),
        *(Hello, Refused, Channel, Directory, Stop, Stopped),
    )
    if kind not in _LOCAL
)
"""All messages that travel. ``Note`` and ``Tick`` stay with the coordinator."""

LOG_CODEC = Codec(get_args(Event))
"""What the coordinator's durable log holds."""
