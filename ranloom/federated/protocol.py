"""Messages between UEs, the core and a gNB's aggregator process.

A message is a ZeroMQ multipart message: a JSON header, and for some kinds one frame of raw
bytes. Nothing is pickled. A request carries ``version``, ``request`` (a number that the answer
repeats) and ``kind``; every kind is checked field by field, unknown fields are refused.

UEs may send ``describe``, ``offer``, ``chunk`` (+ frame) and ``withdraw``. The core may send
``attach`` (+ frame: chunks handed over), ``detach``, ``begin_round``, ``next_wave``, ``ship_wave``
(the wave has been taken over) and ``status``. They have a socket each.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ranloom.federated.ledger import Entry, HandOver
from ranloom.federated.update import UpdateHeader

VERSION = 1
MAX_HEADER_BYTES = 1 << 20

_Id = Annotated[str, Field(min_length=1, max_length=128)]
_Whole = Annotated[int, Field(ge=0, lt=2**53)]


class ProtocolError(ValueError):
    """A message that is not understood; the text says why, in one line."""


class Request(BaseModel):
    """What every request has."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    version: Literal[1]
    request: _Whole


class HeaderFields(BaseModel):
    """Fields of an :class:`UpdateHeader`; their values are the aggregator's to judge."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    update_id: _Id
    ue: _Id
    round: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    n_k: Annotated[int, Field(ge=-(2**53), lt=2**53)]
    dtype: Annotated[str, Field(max_length=16)]
    exponent: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    layout_digest: Annotated[str, Field(max_length=64)]
    payload_sha256: Annotated[str, Field(max_length=64)]

    def header(self) -> UpdateHeader:
        """As the aggregator takes it."""
        return UpdateHeader(**self.model_dump())


class Describe(Request):
    """What does this aggregator add up?"""

    kind: Literal["describe"]


class Offer(Request):
    """An update is offered."""

    kind: Literal["offer"]
    header: HeaderFields


class Chunk(Request):
    """A chunk of an offered update; its bytes are the second frame."""

    kind: Literal["chunk"]
    update_id: _Id
    index: _Whole


class Withdraw(Request):
    """An update is given up."""

    kind: Literal["withdraw"]
    update_id: _Id


class EntryFields(BaseModel):
    """A ledger entry of a hand-over; ``chunks`` are (index, bytes in the frame)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    header: HeaderFields
    state: Literal["staged", "counted", "dropped"]
    touched_s: float
    counted_round: Annotated[int, Field(ge=-1, lt=2**31)]
    reason: Annotated[str, Field(max_length=64)]
    chunks: list[tuple[_Whole, _Whole]]


class HandOverFields(BaseModel):
    """What the last gNB knew of a UE."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    ue: _Id
    awaited_round: Annotated[int, Field(ge=-1, lt=2**31)]
    entries: list[EntryFields]


class Attach(Request):
    """A UE is served here from now on."""

    kind: Literal["attach"]
    ue: _Id
    context: HandOverFields | None = None


class Detach(Request):
    """A UE leaves; the answer carries its hand-over context."""

    kind: Literal["detach"]
    ue: _Id
    keep_chunks: bool


class BeginRound(Request):
    """A round begins."""

    kind: Literal["begin_round"]
    round: _Whole
    expected: list[_Id]


class NextWave(Request):
    """The oldest wave that has not been shipped; the answer carries its sums as a frame."""

    kind: Literal["next_wave"]


class ShipWave(Request):
    """A wave has arrived at the core and may be forgotten."""

    kind: Literal["ship_wave"]
    round: _Whole
    index: _Whole


class Status(Request):
    """Round, account, refusals."""

    kind: Literal["status"]


UeRequest = Describe | Offer | Chunk | Withdraw
ControlRequest = Attach | Detach | BeginRound | NextWave | ShipWave | Status
_UE: TypeAdapter[Any] = TypeAdapter(Annotated[UeRequest, Field(discriminator="kind")])
_CONTROL: TypeAdapter[Any] = TypeAdapter(Annotated[ControlRequest, Field(discriminator="kind")])
_WITH_FRAME = (Chunk, Attach)


def parse(frames: list[bytes], *, control: bool) -> tuple[UeRequest | ControlRequest, bytes]:
    """A request and its frame of bytes (empty where there is none).

    Raises:
        ProtocolError: too many frames, no JSON, a wrong version, or fields that do not fit.
    """
    if not 1 <= len(frames) <= 2:
        raise ProtocolError(f"{len(frames)} frames; allowed: a header and at most one more")
    if len(frames[0]) > MAX_HEADER_BYTES:
        raise ProtocolError(f"header of {len(frames[0])} bytes; allowed: {MAX_HEADER_BYTES}")
    try:
        request = (_CONTROL if control else _UE).validate_json(frames[0])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "header"
        raise ProtocolError(f"{at}: {first['msg']}"[:200]) from None
    if len(frames) == 2 and not isinstance(request, _WITH_FRAME):
        raise ProtocolError(f"{request.kind}: a second frame; allowed: none")
    return request, frames[1] if len(frames) == 2 else b""


def request_number(frames: list[bytes]) -> int:
    """Number of a request that could not be parsed, as far as it can be told; else -1."""
    try:
        document = json.loads(frames[0][:MAX_HEADER_BYTES])
    except (ValueError, IndexError, RecursionError):
        return -1
    number = document.get("request") if isinstance(document, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else -1


def encode_message(kind: str, request: int, **fields: Any) -> bytes:
    """Header of a request or answer."""
    document = {"version": VERSION, "request": request, "kind": kind, **fields}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def hand_over_document(context: HandOver) -> tuple[dict[str, Any], bytes]:
    """A hand-over as plain values, and its chunks one after the other."""
    entries, frame = [], []
    for entry in context.entries:
        chunks = sorted(entry.chunks.items())
        entries.append(
            {
                "header": vars(entry.header).copy(),
                "state": entry.state,
                "touched_s": entry.touched_s,
                "counted_round": entry.counted_round,
                "reason": entry.reason,
                "chunks": [(index, len(data)) for index, data in chunks],
            }
        )
        frame += [data for _, data in chunks]
    document = {"ue": context.ue, "awaited_round": context.awaited_round, "entries": entries}
    return document, b"".join(frame)


def hand_over(fields: HandOverFields, frame: bytes) -> HandOver:
    """The hand-over of a document.

    Raises:
        ProtocolError: the frame does not hold the chunks.
    """
    entries, at = [], 0
    for entry in fields.entries:
        chunks = {}
        for index, size in entry.chunks:
            chunks[index] = frame[at : at + size]
            at += size
        entries.append(
            Entry(
                entry.header.header(),
                entry.state,
                entry.touched_s,
                entry.counted_round,
                entry.reason,
                chunks,
            )
        )
    if at != len(frame):
        raise ProtocolError(f"attach: a frame of {len(frame)} bytes; allowed: {at}")
    return HandOver(fields.ue, fields.awaited_round, tuple(entries))
