"""Packets: what goes in comes out, and anything else is refused with its reason."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from ranloom.training.runtime.wire import Codec, WireError


@dataclass(frozen=True, slots=True)
class Inner:
    number: int


@dataclass(frozen=True, slots=True)
class Note:
    inner: Inner
    many: tuple[int, ...]
    rate: float
    text: str | None = None


CODEC = Codec([Note])
NOTE = Note(Inner(3), (1, 2), 0.5, "é\n")


def header_and_rest(tensors=None):
    frames = CODEC.encode("a", 7, 1, [NOTE], tensors)
    return json.loads(bytes(frames[0])), frames[1:]


def with_header(**changes):
    header, rest = header_and_rest({"x": torch.ones(2, 3)})
    return [json.dumps(header | changes).encode(), *rest]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (5,)])
def test_round_trip_is_exact(dtype, shape):
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) / 3
    tensor = tensor.to(dtype)
    frames = CODEC.encode("site-1", 7, 9, [NOTE, NOTE], {"x": tensor, "y": tensor.t()})
    packet = CODEC.decode([bytes(frame) for frame in frames])
    assert (packet.sender, packet.session, packet.sequence) == ("site-1", 7, 9)
    assert packet.messages == (NOTE, NOTE)
    assert packet.tensors["x"].dtype == dtype
    assert torch.equal(packet.tensors["x"], tensor)
    assert torch.equal(packet.tensors["y"], tensor.t())


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        ([b""], "header"),
        ([b"\x80\x04garbage"], "header"),
        ([b"[" * 100_000], "header"),
        ([b"[1]"], "header"),
        ([b" " * (5 << 20)], "header_size"),
        (with_header(version=2), "version"),
        (with_header(version=2, extra=1), "version"),
        (with_header(extra=1), "header"),
        (with_header(sequence=-1), "header"),
        (with_header(sequence=True), "header"),
        (with_header(sender=3), "header"),
        (with_header(messages={}), "header"),
        (with_header(messages=[["Pickle", {}]]), "schema"),
        (with_header(messages=[["Note"]]), "schema"),
        (with_header(messages=[["Note", {"inner": {"number": 1}}]]), "schema"),
        (with_header(tensors=[]), "frames"),
        (with_header(tensors=[["x", "float32", [2, 4]]]), "tensor"),
        (with_header(tensors=[["x", "float64", [2, 3]]]), "tensor"),
        (with_header(tensors=[["x", "object", [2, 3]]]), "tensor"),
        (with_header(tensors=[["x", "float32", [-2, -3]]]), "tensor"),
        (with_header(tensors=[["x", "float32", [2, 3] + [1] * 9]]), "tensor"),
        (with_header(tensors=[["x", "float32", [2.0, 3]]]), "tensor"),
        (with_header(tensors=[["x"]]), "tensor"),
    ],
)
def test_malformed_packets_are_refused_with_a_reason(frames, reason):
    with pytest.raises(WireError) as caught:
        CODEC.decode(frames)
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"inner": {"number": 1.5}},
        {"inner": {"number": "1"}},
        {"inner": {"number": 1, "more": 2}},
        {"many": [1, None]},
        {"rate": float("nan")},
        {"unknown": 1},
    ],
)
def test_fields_are_checked_strictly(change):
    header, _ = header_and_rest()
    header["messages"][0][1] |= change
    with pytest.raises(WireError) as caught:
        CODEC.decode([json.dumps(header).encode()])
    assert caught.value.reason == "schema"


def test_a_tensor_name_occurs_once():
    header, rest = header_and_rest({"x": torch.ones(2)})
    header["tensors"] *= 2
    with pytest.raises(WireError, match="twice"):
        CODEC.decode([json.dumps(header).encode(), *rest, *rest])


def test_only_known_types_are_sent():
    with pytest.raises(KeyError):
        CODEC.encode("a", 1, 1, [Inner(1)])
