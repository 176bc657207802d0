"""Endpoints on loopback: who gets in, what is refused, and that nobody waits for a silent peer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch
import zmq

from ranloom.errors import InputError
from ranloom.training.runtime.transport import Endpoint, Identity, KeyPair, LinkLimits, keyring
from ranloom.training.runtime.wire import Codec

BIND = "tcp://127.0.0.1:*"


@dataclass(frozen=True, slots=True)
class Ping:
    number: int


CODEC = Codec([Ping])


@pytest.fixture
def open_endpoint():
    opened: list[Endpoint] = []

    def make(name, pairs, admitted, limits=None):
        keys = pairs[name] if pairs is not None else None
        endpoint = Endpoint(Identity(name, keys, admitted), CODEC, BIND, limits)
        opened.append(endpoint)
        return endpoint

    yield make
    for endpoint in opened:
        endpoint.close()


def receive(endpoint: Endpoint, count: int, patience_s: float = 5.0):
    packets = []
    deadline = time.monotonic() + patience_s
    while len(packets) < count and time.monotonic() < deadline:
        packets += endpoint.poll(0.05)
    return packets


def nothing_arrives(endpoint: Endpoint, counter: str):
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        assert endpoint.poll(0.05) == []
        if endpoint.rejected[counter]:
            return
    pytest.fail(f"nothing was rejected as {counter}: {endpoint.rejected}")


@pytest.mark.parametrize("secure", [True, False])
def test_both_directions_carry_messages_and_tensors(open_endpoint, secure):
    pairs, admitted = keyring(["a", "b"]) if secure else (None, {})
    a, b = (open_endpoint(name, pairs, admitted) for name in "ab")
    a.connect("b", b.address)
    b.connect("a", a.address)
    tensor = torch.randn(64, 64, dtype=torch.float64)
    assert a.send("b", [Ping(1), Ping(2)], {"x": tensor})
    # Each inbox answers handshakes while it polls.
    (packet,) = receive(b, 1)
    assert packet.sender == "a"
    assert packet.messages == (Ping(1), Ping(2))
    assert torch.equal(packet.tensors["x"], tensor)
    assert b.send("a", [Ping(3)])
    assert receive(a, 1)[0].messages == (Ping(3),)


def test_a_stranger_is_not_admitted(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    a = open_endpoint("a", pairs, admitted)
    stranger_pairs = {"b": KeyPair.generate()}
    stranger = open_endpoint("b", stranger_pairs, admitted)
    stranger.connect("a", a.address)
    stranger.send("a", [Ping(1)])
    nothing_arrives(a, "key")


def test_a_client_without_curve_is_not_admitted(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    a = open_endpoint("a", pairs, admitted)
    plain = open_endpoint("b", None, {})
    plain.connect("a", a.address)
    plain.send("a", [Ping(1)])
    assert receive(a, 1, patience_s=0.7) == []


def test_a_server_with_another_key_gets_nothing(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    false_b = open_endpoint("b", {"b": KeyPair.generate()}, admitted)
    a = open_endpoint("a", pairs, admitted)
    a.connect("b", false_b.address)
    a.send("b", [Ping(1)])
    assert receive(false_b, 1, patience_s=0.7) == []


def test_a_peer_cannot_speak_for_another(open_endpoint):
    pairs, admitted = keyring(["a", "b", "c"])
    a = open_endpoint("a", pairs, admitted)
    # Has the key of b, says it is c.
    liar = open_endpoint("c", {"c": pairs["b"]}, admitted)
    liar.connect("a", a.address)
    liar.send("a", [Ping(1)])
    nothing_arrives(a, "sender")


def raw_dealer(context: zmq.Context, endpoint: Endpoint, own: KeyPair, server: KeyPair):
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.curve_publickey, socket.curve_secretkey = own.public.encode(), own.secret.encode()
    socket.curve_serverkey = server.public.encode()
    socket.connect(endpoint.address)
    return socket


def test_recorded_frames_are_refused_when_sent_again(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    a = open_endpoint("a", pairs, admitted)
    frames = CODEC.encode("b", 5, 1, [Ping(1)])
    older = CODEC.encode("b", 4, 9, [Ping(1)])
    with zmq.Context() as context:
        socket = raw_dealer(context, a, pairs["b"], pairs["a"])
        socket.send_multipart(frames)
        assert len(receive(a, 1)) == 1
        socket.send_multipart(frames)
        nothing_arrives(a, "replayed")
        socket.send_multipart(older)
        socket.send_multipart(CODEC.encode("b", 5, 2, [Ping(2)]))
        assert receive(a, 1)[0].messages == (Ping(2),)
        assert a.rejected["replayed"] == 2
        socket.close()


def test_garbage_of_an_admitted_peer_is_counted_and_survived(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    a = open_endpoint("a", pairs, admitted)
    with zmq.Context() as context:
        socket = raw_dealer(context, a, pairs["b"], pairs["a"])
        socket.send_multipart([b"\x80\x04\x95garbage", b"more"])
        socket.send_multipart(CODEC.encode("b", 5, 1, [Ping(1)]))
        assert receive(a, 1)[0].messages == (Ping(1),)
        assert a.rejected["header"] == 1
        socket.close()


def test_an_oversized_frame_is_not_taken_in(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    a = open_endpoint("a", pairs, admitted, LinkLimits(max_frame_bytes=100_000))
    b = open_endpoint("b", pairs, admitted)
    b.connect("a", a.address)
    b.send("a", [Ping(1)], {"x": torch.zeros(100_000, dtype=torch.float64)})
    assert receive(a, 1, patience_s=0.7) == []
    b.send("a", [Ping(2)])
    assert [p.messages for p in receive(a, 1)] == [(Ping(2),)]


def test_a_silent_peer_delays_nobody(open_endpoint):
    pairs, admitted = keyring(["a", "b", "silent"])
    limits = LinkLimits(queued_packets=4)
    a, b = open_endpoint("a", pairs, admitted, limits), open_endpoint("b", pairs, admitted)
    a.connect("b", b.address)
    a.connect("silent", "tcp://127.0.0.1:1")
    taken = [a.send("silent", [Ping(n)]) for n in range(20)]
    assert taken == [True] * 4 + [False] * 16
    assert a.undelivered["silent"] == 16
    assert a.send("b", [Ping(1)])
    assert receive(b, 1)[0].messages == (Ping(1),)


def test_an_unknown_peer_and_a_bad_address(open_endpoint):
    pairs, admitted = keyring(["a", "b"])
    a = open_endpoint("a", pairs, admitted)
    assert not a.send("b", [Ping(1)])
    with pytest.raises(InputError, match="allowed"):
        a.connect("b", "tcp:/nowhere")
    with pytest.raises(InputError, match="address"):
        Endpoint(Identity("x", None, {}), CODEC, a.address)
    with pytest.raises(InputError, match=r"keys\.b"):
        Identity("a", None, {"b": "short"})
