"""The spare-budget channel between the processes of one host, over ZeroMQ.

The publisher binds an XPUB socket: it never waits for a subscriber, and it sees subscriptions, so
that a late joiner gets the current value at once. A subscriber's socket keeps only the newest
message (conflation), so one that is slow reads the present, not a queue of the past; what it
skipped shows as a gap in the sequence. Links are plain, so addresses are those of one host.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import zmq

from ranloom.errors import InputError
from ranloom.spare.channel import MAX_MESSAGE_BYTES, BudgetMessage, BudgetPublisher, BudgetView

_QUEUED_MESSAGES = 64  # to one subscriber that does not read; later ones to it are dropped
_LOCAL = ("tcp://127.0.0.1:", "ipc://", "inproc://")


def _check_local(address: str) -> None:
    if not address.startswith(_LOCAL):
        raise InputError("budget channel: address", address, f"allowed: {', '.join(_LOCAL)}...")


class ZmqPublisher:
    """Publishes the budget of a controller.

    The controller's own loop calls :meth:`tick`. No thread does it on its behalf, since that
    would keep a lease alive after the controller has died.

    Args:
        publisher: what was published.
        address: ``tcp://127.0.0.1:port`` (``*`` takes a free port), ``ipc://`` or ``inproc://``.
        repeat_s: longest silence; a fraction of the subscribers' lease.
        context: shared for ``inproc://``, else one of its own.
        clock: monotonic clock of the host, s.

    Raises:
        InputError: an address that is not local or cannot be bound.
    """

    def __init__(
        self,
        publisher: BudgetPublisher,
        address: str,
        repeat_s: float,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_local(address)
        self._clock = clock
        self._publisher = publisher
        self._repeat_s = repeat_s
        self._sent_s: float | None = None
        self._context = context or zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._close = weakref.finalize(self, _close, self._socket, self._context, context is None)
        self._socket.linger = 0
        self._socket.sndhwm = _QUEUED_MESSAGES
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # also a second subscriber is a subscription
        self._socket.maxmsgsize = MAX_MESSAGE_BYTES
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise InputError(
                "budget channel: address", address, f"allowed: an address to bind ({error})"
            ) from None

    @property
    def address(self) -> str:
        """Address at which subscribers connect."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def reserve(self, slot: int, reserved_sm: int, now_slot: int) -> None:
        """Publish a reservation if it changes the budget; errors as in ``BudgetPublisher``."""
        self._send(self._publisher.reserve(slot, reserved_sm, now_slot, self._clock()))

    def tick(self) -> None:
        """Serve late joiners, and repeat the value after a silence."""
        joined = False
        with suppress(zmq.Again):
            while True:
                joined |= self._socket.recv(zmq.NOBLOCK)[:1] == b"\x01"
        now_s = self._clock()
        if joined or self._sent_s is None or now_s - self._sent_s >= self._repeat_s:
            self._send(self._publisher.repeat(now_s))

    def _send(self, message: BudgetMessage | None) -> None:
        if message is not None:
            self._socket.send(message.encode(), zmq.NOBLOCK)
            self._sent_s = message.sent_s

    def close(self) -> None:
        """Close at once; nothing lingers."""
        self._close()


class ZmqSubscriber:
    """Feeds a view from a publisher; it may start before it or outlive it.

    Args:
        view: what is fed.
        address: where the publisher is.
        context: shared for ``inproc://``, else one of its own.
        clock: monotonic clock of the host, s.

    Raises:
        InputError: an address that is not local.
    """

    def __init__(
        self,
        view: BudgetView,
        address: str,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_local(address)
        self._clock = clock
        self.view = view
        self._context = context or zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._close = weakref.finalize(self, _close, self._socket, self._context, context is None)
        self._socket.linger = 0
        self._socket.conflate = True
        self._socket.maxmsgsize = MAX_MESSAGE_BYTES  # a longer one cuts the connection
        self._socket.connect(address)
        self._socket.subscribe(b"")

    def poll(self, timeout_s: float) -> bool:
        """Take in the newest message; waits at most ``timeout_s`` for one. Whether it was news."""
        self._socket.rcvtimeo = round(timeout_s * 1e3)
        try:
            raw = self._socket.recv()
        except zmq.Again:
            return False
        return self.view.receive_bytes(raw, self._clock())

    def budget(self, slot: int) -> int:
        """Spare SMs in a slot, now."""
        return self.view.budget(slot, self._clock())

    def close(self) -> None:
        """Close at once."""
        self._close()


def _close(socket: zmq.Socket[bytes], context: zmq.Context[zmq.Socket[bytes]], owned: bool) -> None:
    socket.close(0)
    if owned:
        context.term()
