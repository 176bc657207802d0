"""The spare-budget channel: ``[time slice, SM count]`` from the controller to training.

The controller publishes on change (WEAVER Fig. 5). Every message carries all slices that still
matter (the one in force and those announced for later slots), so that a lost message costs
nothing once the next one arrives. Subscribers trust a message for a lease that runs from its
sending: without a younger one the budget is zero, never the last value. Both sides read the
monotonic clock of their host, which is one for all its processes. Nothing here has a clock or a
socket; ``channel_zmq`` carries the messages between processes.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ranloom.errors import InputError
from ranloom.gpu.card import Card

SCHEMA_VERSION = 1
MAX_SLICES = 16  # more announced changes than the uplink slots between grant and decode (38.214 K2)
MAX_MESSAGE_BYTES = 1024
MAX_NAME = 64
_KEYS = {"version", "publisher", "session", "sequence", "sent_s", "slices"}
_LARGEST = 2**63 - 1


def slot_at(now_s: float, slot_us: float) -> int:
    """Number of the slot at a time of the host's monotonic clock.

    Publisher and subscribers on one host agree on it without a word.
    """
    return math.floor(now_s * 1e6 / slot_us)


class MessageError(ValueError):
    """A message that is not understood; ``reason`` is one word for the counters."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail[:200]}")
        self.reason = reason


@dataclass(frozen=True)
class BudgetMessage:
    """What a publisher says.

    Args:
        publisher: name of the cell.
        session: grows with every start of the publisher.
        sequence: grows by one with every message of the session.
        sent_s: monotonic clock of the host at sending.
        slices: (first slot, spare SMs from it on), slots ascending; the first one is in force.
    """

    publisher: str
    session: int
    sequence: int
    sent_s: float
    slices: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """JSON, at most ``MAX_MESSAGE_BYTES``."""
        fields = {"version": SCHEMA_VERSION, **vars(self)}
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(raw: bytes) -> BudgetMessage:
        """The message that these bytes hold.

        Raises:
            MessageError: anything but a whole message of this version.
        """
        if len(raw) > MAX_MESSAGE_BYTES:
            raise MessageError("size", f"{len(raw)} bytes, allowed: {MAX_MESSAGE_BYTES}")
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise MessageError("json", str(error)) from None
        if not isinstance(found, dict):
            raise MessageError("json", "no object")
        # The version comes first: fields of another version say nothing about this one.
        if found.get("version") != SCHEMA_VERSION:
            raise MessageError("version", f"{found.get('version')!r}, allowed: {SCHEMA_VERSION}")
        if found.keys() != _KEYS:
            raise MessageError("schema", f"fields {sorted(found.keys() ^ _KEYS)}")
        name, slices = found["publisher"], found["slices"]
        if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME):
            raise MessageError("schema", "publisher is a name")
        if not (_whole(found["session"]) and _whole(found["sequence"])):
            raise MessageError("schema", "session and sequence are whole numbers from 0 on")
        if not (type(found["sent_s"]) in (int, float) and math.isfinite(found["sent_s"])):
            raise MessageError("schema", "sent_s is a number")
        pairs = isinstance(slices, list) and 0 < len(slices) <= MAX_SLICES
        if not (pairs and all(isinstance(p, list) and len(p) == 2 for p in slices)):
            raise MessageError("schema", f"slices are 1 to {MAX_SLICES} pairs")
        if not all(_whole(slot) and _whole(sm) for slot, sm in slices):
            raise MessageError("schema", "slots and SMs are whole numbers from 0 on")
        if any(a[0] >= b[0] for a, b in pairwise(slices)):
            raise MessageError("schema", "slots of the slices must ascend")
        return BudgetMessage(
            name,
            found["session"],
            found["sequence"],
            float(found["sent_s"]),
            tuple((slot, sm) for slot, sm in slices),
        )


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


class BudgetPublisher:
    """What a controller has published, and the next message.

    Args:
        name: name of the cell.
        session: grows with every start, for instance the start time in ns.
        card: device; budgets are rounded down to one of its partitions.

    Raises:
        InputError: an empty or too long name.
    """

    def __init__(self, name: str, session: int, card: Card) -> None:
        if not 0 < len(name.encode()) <= MAX_NAME:
            raise InputError("budget publisher: name", name, f"allowed: 1 to {MAX_NAME} bytes")
        self._name, self._session = name, session
        self._card = card
        self._levels = np.concatenate([[0], card.levels])
        self._sequence = 0
        self._slices: deque[tuple[int, int]] = deque()

    def reserve(
        self, slot: int, reserved_sm: int, now_slot: int, now_s: float
    ) -> BudgetMessage | None:
        """Take in a reservation; the message to send, or None if the budget stays as it is.

        Args:
            slot: first slot of the reservation.
            reserved_sm: SMs that the RAN keeps from that slot on.
            now_slot: the current slot; slices that it has left behind are forgotten.
            now_s: monotonic clock.

        Raises:
            InputError: SMs outside the device, a slot that is not after the last one, or too
                many changes announced.
        """
        where = f"budget of {self._name}"
        if not 0 <= reserved_sm <= self._card.sm_count:
            raise InputError(f"{where}: sm", reserved_sm, f"allowed: 0 to {self._card.sm_count}")
        last = self._slices[-1] if self._slices else (-1, -1)
        if slot <= last[0]:
            raise InputError(f"{where}: slot", slot, f"allowed: after slot {last[0]}")
        free = self._card.sm_count - reserved_sm
        sm = int(self._levels[np.searchsorted(self._levels, free, side="right") - 1])
        if sm == last[1]:
            return None
        while len(self._slices) > 1 and self._slices[1][0] <= now_slot:
            self._slices.popleft()
        if len(self._slices) == MAX_SLICES:
            raise InputError(f"{where}: slot", slot, f"allowed: {MAX_SLICES} slices at a time")
        self._slices.append((slot, sm))
        return self.repeat(now_s)

    def repeat(self, now_s: float) -> BudgetMessage | None:
        """The current slices again, as a sign of life or for a late joiner; None before any."""
        if not self._slices:
            return None
        self._sequence += 1
        slices = tuple(self._slices)
        return BudgetMessage(self._name, self._session, self._sequence, now_s, slices)


class BudgetView:
    """What a subscriber may use.

    Args:
        lease_s: how long a message is trusted after it was sent.
        sm_count: SMs of the device; messages with more are refused.

    Attributes:
        missed: messages that never arrived, seen as gaps in the sequence.
        refused: messages not taken, by reason.
    """

    def __init__(self, lease_s: float, sm_count: int) -> None:
        if not lease_s > 0.0:
            raise InputError("budget view: lease_s", lease_s, "allowed: above 0")
        self.missed = 0
        self.refused: Counter[str] = Counter()
        self._lease_s, self._sm_count = lease_s, sm_count
        # Replaced as a whole: readers in other threads see old or new, never a mix.
        self._held: BudgetMessage | None = None

    def receive(self, message: BudgetMessage, now_s: float) -> bool:
        """Take in a message; whether it was news. Late, repeated and impossible ones are counted.

        Args:
            message: decoded message.
            now_s: the subscriber's monotonic clock.
        """
        reason = self._fault(message, now_s)
        if reason is not None:
            self.refused[reason] += 1
            return False
        if self._held is not None and message.session == self._held.session:
            self.missed += message.sequence - self._held.sequence - 1
        self._held = message
        return True

    def _fault(self, message: BudgetMessage, now_s: float) -> str | None:
        last = self._held
        if any(sm > self._sm_count for _, sm in message.slices):
            return "sm"
        if message.sent_s > now_s:
            return "clock"  # it would be trusted for too long
        if last is None:
            return None
        if message.publisher != last.publisher:
            return "publisher"
        if (message.session, message.sequence) <= (last.session, last.sequence):
            return "stale"
        return None

    def receive_bytes(self, raw: bytes, now_s: float) -> bool:
        """The same for a message off the wire; what is no message is counted by its reason."""
        try:
            return self.receive(BudgetMessage.decode(raw), now_s)
        except MessageError as error:
            self.refused[error.reason] += 1
            return False

    def alive(self, now_s: float) -> bool:
        """Whether the last message is younger than the lease."""
        held = self._held
        return held is not None and now_s - held.sent_s < self._lease_s

    def budget(self, slot: int, now_s: float) -> int:
        """Spare SMs in a slot; 0 before the first slice and once the lease has run out."""
        held = self._held
        if held is None or now_s - held.sent_s >= self._lease_s:
            return 0
        return budget_at(held.slices, slot)


def budget_at(slices: Iterable[tuple[int, int]], slot: int) -> int:
    """Spare SMs in a slot by slices in ascending order; 0 before the first."""
    sm = 0
    for first, count in slices:
        if first > slot:
            break
        sm = count
    return sm


class LocalChannel:
    """The channel inside one process; a subscription gets the current value at once."""

    def __init__(self) -> None:
        self._views: list[BudgetView] = []
        self._last: BudgetMessage | None = None

    def subscribe(self, view: BudgetView, now_s: float) -> None:
        """Feed a view from here on."""
        self._views.append(view)
        if self._last is not None:
            view.receive(self._last, now_s)

    def publish(self, message: BudgetMessage | None, now_s: float) -> None:
        """Hand a message to all views; None (there was no change) does nothing."""
        if message is None:
            return
        self._last = message
        for view in self._views:
            view.receive(message, now_s)
