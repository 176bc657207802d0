"""Sockets of one process: an inbox that anybody in the run may write to, an outbox a peer.

ZeroMQ keeps connections, frames and reconnects. Each endpoint binds one ROUTER (the inbox, only
read) and connects one DEALER a peer (only written), so a peer that has stopped fills its own queue
and nobody else's: a send never blocks, what does not fit is counted and given up, and the
protocol asks again. CURVE authenticates and encrypts; the inbox admits only the public keys of
the run and compares a packet's sender with the key of its connection. Plain sockets are for
links that the caller declares trusted.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from torch import Tensor
from zmq.utils import z85

from ranloom.errors import InputError
from ranloom.training.runtime.wire import Codec, Packet, WireError

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # where libzmq asks (ZeroMQ RFC 27)
_HEARTBEAT_MS = 2000
_PEER_SILENT_MS = 4000


@dataclass(frozen=True)
class LinkLimits:
    """Bounds of the queues and frames of an endpoint.

    Args:
        max_frame_bytes: largest frame taken in; a connection that sends a larger one is cut.
        queued_packets: packets that wait for one peer before sends to it are given up.
        packets_a_poll: packets taken in before the caller gets to act on them.
    """

    max_frame_bytes: int = 1 << 28
    queued_packets: int = 256
    packets_a_poll: int = 256


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in Z85; the secret half does not show in logs."""

    public: str
    secret: str = field(repr=False)

    @staticmethod
    def generate() -> KeyPair:
        """A new random pair."""
        public, secret = zmq.curve_keypair()
        return KeyPair(public.decode(), secret.decode())


@dataclass(frozen=True)
class Identity:
    """Who an endpoint is and whom it lets in.

    Args:
        name: own name.
        keys: own key pair; None declares every link of this endpoint trusted and leaves it plain.
        admitted: public key of each process of the run by name.
    """

    name: str
    keys: KeyPair | None
    admitted: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, key in self.admitted.items():
            if len(key) != 40:
                raise InputError(f"keys.{name}", key, "allowed: a public key of 40 characters")


class Endpoint:
    """The sockets of one process.

    Args:
        identity: name, keys and admitted peers.
        codec: message types that may travel.
        bind: address of the inbox, ``tcp://host:port``; port ``*`` takes any free one.
        limits: queue and frame bounds.
    """

    def __init__(
        self, identity: Identity, codec: Codec, bind: str, limits: LinkLimits | None = None
    ) -> None:
        self.identity = identity
        self.rejected: Counter[str] = Counter()
        self.undelivered: Counter[str] = Counter()
        self._codec = codec
        self._limits = limits or LinkLimits()
        # Later starts of the same process get higher sessions, without any stored state.
        self._session = time.time_ns()
        self._sequence: Counter[str] = Counter()
        self._seen: dict[str, tuple[int, int]] = {}
        self._names = {key: name for name, key in identity.admitted.items()}
        self._context = zmq.Context()
        self._context.linger = 0
        # A context that is collected with open sockets would wait for them without end.
        self._close = weakref.finalize(self, self._context.destroy, 0)
        self._outboxes: dict[str, tuple[str, zmq.Socket[bytes]]] = {}
        self._poller = zmq.Poller()
        self._zap: zmq.Socket[bytes] | None = None
        self._inbox = self._socket(zmq.ROUTER)
        if identity.keys is not None:
            self._zap = self._context.socket(zmq.REP)
            self._zap.bind(_ZAP_ENDPOINT)
            self._poller.register(self._zap, zmq.POLLIN)
            self._inbox.curve_server = True
            self._inbox.curve_publickey = identity.keys.public.encode()
            self._inbox.curve_secretkey = identity.keys.secret.encode()
            self._inbox.zap_domain = b"ranloom"
        try:
            self._inbox.bind(bind)
        except zmq.ZMQError as error:
            self.close()
            raise InputError("address", bind, f"allowed: an address to bind ({error})") from None
        self._poller.register(self._inbox, zmq.POLLIN)

    @property
    def address(self) -> str:
        """Address at which the inbox listens."""
        return self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def peers(self) -> tuple[str, ...]:
        """Peers with an outbox."""
        return tuple(self._outboxes)

    def connect(self, peer: str, address: str) -> None:
        """Open the outbox to a peer, or move it when the peer has another address now."""
        if peer in self._outboxes:
            known, outbox = self._outboxes[peer]
            if known == address:
                return
            outbox.close(0)
        outbox = self._socket(zmq.DEALER)
        # The sender asks for both ends: an inbox that hears nothing more cuts the connection too.
        outbox.heartbeat_ivl = _HEARTBEAT_MS
        outbox.heartbeat_timeout = outbox.heartbeat_ttl = _PEER_SILENT_MS
        if self.identity.keys is not None:
            outbox.curve_publickey = self.identity.keys.public.encode()
            outbox.curve_secretkey = self.identity.keys.secret.encode()
            outbox.curve_serverkey = self.identity.admitted[peer].encode()
        try:
            outbox.connect(address)
        except zmq.ZMQError as error:
            outbox.close(0)
            raise InputError(f"address of {peer}", address, f"allowed: {error}") from None
        self._outboxes[peer] = (address, outbox)

    def disconnect(self, peer: str) -> None:
        """Close the outbox to a peer with what waits in it; unknown peers are no fault."""
        known = self._outboxes.pop(peer, None)
        if known is not None:
            known[1].close(0)

    def send(
        self, peer: str, messages: Sequence[Any], tensors: Mapping[str, Tensor] | None = None
    ) -> bool:
        """Hand a packet to the outbox of a peer without waiting.

        Returns:
            Whether the outbox took it. False: no outbox, or the peer does not keep up; the packet
            is gone and counted in ``undelivered``.
        """
        if peer not in self._outboxes:
            self.undelivered[peer] += 1
            return False
        self._sequence[peer] += 1
        frames = self._codec.encode(
            self.identity.name, self._session, self._sequence[peer], messages, tensors
        )
        try:
            self._outboxes[peer][1].send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.undelivered[peer] += 1
            return False
        return True

    def poll(self, timeout_s: float) -> list[Packet]:
        """Packets that have arrived; waits at most ``timeout_s`` for the first one."""
        deadline = time.monotonic() + max(0.0, timeout_s)
        while True:
            wait_ms = math.ceil(max(0.0, deadline - time.monotonic()) * 1e3)
            ready = dict(self._poller.poll(wait_ms))
            if self._zap is not None and self._zap in ready:
                self._answer_zap(self._zap)
            packets = self._take_in() if self._inbox in ready else []
            if packets or time.monotonic() >= deadline:
                return packets

    def close(self) -> None:
        """Close all sockets at once; nothing lingers."""
        self._close()

    def _take_in(self) -> list[Packet]:
        packets = []
        for _ in range(self._limits.packets_a_poll):
            try:
                frames = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            try:
                packets.append(self._checked(frames))
            except WireError as error:
                self.rejected[error.reason] += 1
        return packets

    def _checked(self, frames: Sequence[zmq.Frame]) -> Packet:
        packet = self._codec.decode([frame.buffer for frame in frames[1:]])
        if self.identity.keys is not None:
            owner = self._names.get(str(frames[0].get("User-Id")))
            if owner != packet.sender:
                raise WireError("sender", f"{packet.sender!r} with the key of {owner!r}")
        order = (packet.session, packet.sequence)
        if order <= self._seen.get(packet.sender, (-1, -1)):
            raise WireError("replayed", f"{packet.sender} {order}")
        self._seen[packet.sender] = order
        return packet

    def _answer_zap(self, zap: zmq.Socket[bytes]) -> None:
        """Admit a connection if its public key belongs to the run (ZeroMQ RFC 27)."""
        request = zap.recv_multipart()
        version, request_id, mechanism = request[0], request[1], request[5]
        is_curve = mechanism == b"CURVE" and len(request) == 7
        public = z85.encode(request[6]).decode() if is_curve else ""
        if public in self._names:
            reply = [b"200", b"OK", public.encode(), b""]
        else:
            self.rejected["key"] += 1
            reply = [b"400", b"unknown key", b"", b""]
        zap.send_multipart([version, request_id, *reply])

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.linger = 0
        socket.maxmsgsize = self._limits.max_frame_bytes
        socket.sndhwm = self._limits.queued_packets
        socket.rcvhwm = self._limits.queued_packets
        socket.reconnect_ivl = 50
        socket.reconnect_ivl_max = 1000
        return socket


def keyring(names: Iterable[str]) -> tuple[dict[str, KeyPair], dict[str, str]]:
    """A fresh key pair for each process of a run, and the public keys that all of them admit."""
    pairs = {name: KeyPair.generate() for name in names}
    return pairs, {name: pair.public for name, pair in pairs.items()}
