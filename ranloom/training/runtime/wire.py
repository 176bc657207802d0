"""What travels between processes: a JSON header, then tensors as raw frames. Nothing is pickled.

A packet is a ZeroMQ multipart message. Frame 0 is the header::

    {"version": 1, "sender": "site-2", "session": 1759, "sequence": 17,
     "messages": [["Heartbeat", {...}], ...], "tensors": [["grad/w", "float64", [4, 64]], ...]}

Frames 1.. hold the bytes of the tensors, in the order of the header. Messages are dataclasses,
checked field by field (unknown, missing or mistyped fields are refused). ``session`` grows with
every start of the sender and ``sequence`` with every packet to a receiver, so a frame that was
recorded and sent again is recognised.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from torch import Tensor

WIRE_VERSION = 1
MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 4096
MAX_DIMENSIONS = 8

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_KEYS = {"version", "sender", "session", "sequence", "messages", "tensors"}


class WireError(ValueError):
    """A packet that is not understood; ``reason`` is one word for the counters."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail[:200]}")
        self.reason = reason


@dataclass(frozen=True)
class Packet:
    """A packet as received.

    Args:
        sender: name that the sender gives itself (the transport compares it with its key).
        session: grows with every start of the sender.
        sequence: grows with every packet of the session to this receiver.
        messages: dataclass instances.
        tensors: tensors by name, in memory of their own.
    """

    sender: str
    session: int
    sequence: int
    messages: tuple[Any, ...]
    tensors: dict[str, Tensor]


class Codec:
    """Encoder and decoder for a fixed set of message types.

    Args:
        types: the dataclasses that may travel; their names are their kinds on the wire.
    """

    def __init__(self, types: Iterable[type]) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        for message_type in types:
            _forbid_loose_fields(message_type)
            self._adapters[message_type.__name__] = TypeAdapter(message_type)

    def dump(self, message: Any) -> tuple[str, str]:
        """Kind and JSON of one message.

        Raises:
            KeyError: a message of a type that this codec was not made for.
        """
        kind = type(message).__name__
        return kind, self._adapters[kind].dump_json(message).decode()

    def load(self, kind: str, body: str | bytes) -> Any:
        """The message of this kind that the JSON describes.

        Raises:
            WireError: an unknown kind, or fields that are missing, unknown or of another type.
        """
        adapter = self._adapters.get(kind)
        if adapter is None:
            raise WireError("schema", f"unknown kind {kind!r}")
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise WireError("schema", f"{kind}.{place}: {first['msg']}") from None

    def encode(
        self,
        sender: str,
        session: int,
        sequence: int,
        messages: Sequence[Any],
        tensors: Mapping[str, Tensor] | None = None,
    ) -> list[bytes | memoryview]:
        """Frames of a packet.

        Raises:
            KeyError: a message of a type that this codec was not made for.
        """
        bodies = []
        for message in messages:
            kind, body = self.dump(message)
            bodies.append(f'["{kind}",{body}]')
        frames: list[bytes | memoryview] = [b""]
        described = []
        for name, tensor in (tensors or {}).items():
            plain = tensor.detach().cpu().contiguous()
            described.append([name, _DTYPE_NAMES[plain.dtype], list(plain.shape)])
            frames.append(plain.reshape(-1).view(torch.uint8).numpy().data)
        frames[0] = (
            f'{{"version":{WIRE_VERSION},"sender":{json.dumps(sender)},"session":{session},'
            f'"sequence":{sequence},"messages":[{",".join(bodies)}],'
            f'"tensors":{json.dumps(described)}}}'
        ).encode()
        return frames

    def decode(self, frames: Sequence[bytes | memoryview]) -> Packet:
        """The packet that the frames hold.

        Raises:
            WireError: anything but a whole, well-formed packet of known messages.
        """
        header = _header(frames)
        messages = tuple(self._message(entry) for entry in header["messages"])
        described = header["tensors"]
        if len(described) != len(frames) - 1:
            raise WireError("frames", f"{len(described)} tensors named, {len(frames) - 1} sent")
        tensors = dict(
            _tensor(entry, frame) for entry, frame in zip(described, frames[1:], strict=True)
        )
        if len(tensors) != len(described):
            raise WireError("tensor", "a tensor name occurs twice")
        return Packet(header["sender"], header["session"], header["sequence"], messages, tensors)

    def _message(self, entry: Any) -> Any:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
            raise WireError("schema", "a message is [kind, fields]")
        return self.load(entry[0], to_json(entry[1]))


def _header(frames: Sequence[bytes | memoryview]) -> dict[str, Any]:
    if not frames:
        raise WireError("frames", "no frame")
    raw = bytes(frames[0])
    if len(raw) > MAX_HEADER_BYTES:
        raise WireError("header_size", f"{len(raw)} bytes, allowed: {MAX_HEADER_BYTES}")
    try:
        header = from_json(raw)
    except ValueError as error:
        raise WireError("header", str(error)) from None
    if not isinstance(header, dict):
        raise WireError("header", "no JSON object")
    # The version comes first: fields of another version say nothing about this one.
    if header.get("version") != WIRE_VERSION:
        raise WireError("version", f"{header.get('version')!r}, allowed: {WIRE_VERSION}")
    if header.keys() != _HEADER_KEYS:
        raise WireError("header", f"fields {sorted(header.keys() ^ _HEADER_KEYS)}")
    integers = (header["session"], header["sequence"])
    if not all(type(value) is int and value >= 0 for value in integers):
        raise WireError("header", "session and sequence are whole numbers from 0 on")
    lists = (header["messages"], header["tensors"])
    if not isinstance(header["sender"], str) or not all(isinstance(v, list) for v in lists):
        raise WireError("header", "sender is a string, messages and tensors are lists")
    if len(header["tensors"]) > MAX_TENSORS:
        raise WireError("frames", f"{len(header['tensors'])} tensors, allowed: {MAX_TENSORS}")
    return header


def _tensor(entry: Any, frame: bytes | memoryview) -> tuple[str, Tensor]:
    if not (isinstance(entry, list) and len(entry) == 3):
        raise WireError("tensor", "a tensor is [name, dtype, shape]")
    name, dtype_name, shape = entry
    dtype = _DTYPES.get(dtype_name) if isinstance(dtype_name, str) else None
    if not isinstance(name, str) or dtype is None:
        raise WireError("tensor", f"name {name!r}, dtype {dtype_name!r}")
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or len(shape) > MAX_DIMENSIONS:
        raise WireError("tensor", f"{name}: shape {shape!r}")
    expected = math.prod(shape) * dtype.itemsize
    if expected != len(frame):
        raise WireError("tensor", f"{name}: {len(frame)} bytes for {expected}")
    if expected == 0:
        return name, torch.empty(shape, dtype=dtype)
    return name, torch.frombuffer(bytearray(frame), dtype=dtype).reshape(shape)


def _forbid_loose_fields(message_type: type) -> None:
    """Make pydantic strict for a dataclass and those within it: no extras, coercion or NaN."""
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    message_type.__pydantic_config__ = config  # type: ignore[attr-defined]
    pending = list(get_type_hints(message_type).values())
    while pending:
        hint = pending.pop()
        pending.extend(get_args(hint))
        if isinstance(hint, type) and is_dataclass(hint):
            _forbid_loose_fields(hint)
