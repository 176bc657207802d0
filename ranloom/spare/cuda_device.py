"""A GPU as the executor sees it: pre-created partitions, streams, events, and the copy gate.

Tiles run as PyTorch products on the stream of the budget in force, or in a persistent kernel
(``persistent_kernel``). Written against small protocols, which PyTorch's events and streams meet,
so that all of it runs with fakes. **Not yet run on a GPU.**
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ranloom.errors import InputError
from ranloom.spare.tiled_product import TiledProduct

SPIN_US = 200.0  # below that a sleep of the host would come back too late


class Event(Protocol):
    """A mark in a stream, ``torch.cuda.Event`` for one."""

    def query(self) -> bool:
        """Whether the device has passed it."""


class Lane(Protocol):
    """Where tiles run on one partition."""

    @property
    def in_order(self) -> bool:
        """Whether tiles launched later begin after those launched before are done."""

    def start(self, after: list[Event]) -> None:
        """Make ready; tiles launched from here on begin after these events."""

    def launch(self, product: TiledProduct, tiles: int) -> Event:
        """Queue the next tiles of a product; the event marks their end."""

    def stop(self) -> None:
        """Nothing is launched here any more; what was launched runs to its end."""


class CopyGate:
    """Copy-complete events of the RAN's data path, by slot (App. E).

    Training starts in a slot with a decode only once the decoder's input is on the device, so that
    it never competes with that copy. The events may come from another process
    (``torch.cuda.Event.from_ipc_handle``).
    """

    def __init__(self) -> None:
        self._slot = -1
        self._event: Event | None = None

    def signal(self, slot: int, event: Event) -> None:
        """The copy of a slot has been queued, and this event marks its end.

        Raises:
            InputError: a slot before the last one.
        """
        if slot < self._slot:
            raise InputError("copy gate: slot", slot, f"allowed: from slot {self._slot} on")
        self._slot, self._event = slot, event

    def resident(self, slot: int) -> bool:
        """Whether the data of this slot are on the device."""
        return self._slot >= slot and self._event is not None and self._event.query()


class StreamLane:
    """Tiles as PyTorch products on one stream.

    Args:
        stream: of the partition's green context (``torch.cuda.Stream``).
        use: makes a stream current (``torch.cuda.stream``).
        new_event: makes an event (``torch.cuda.Event``).
    """

    in_order = True

    def __init__(
        self,
        stream: Any,
        use: Callable[[Any], AbstractContextManager[Any]],
        new_event: Callable[[], Any],
    ) -> None:
        self._stream, self._use, self._new_event = stream, use, new_event

    def start(self, after: list[Event]) -> None:
        """Let the stream wait, not the host."""
        for event in after:
            self._stream.wait_event(event)

    def launch(self, product: TiledProduct, tiles: int) -> Event:
        """Queue the products on the stream."""
        with self._use(self._stream):
            product.compute(tiles)
            event = self._new_event()
            event.record(self._stream)
        marked: Event = event
        return marked

    def stop(self) -> None:
        """A stream without work holds no SM."""


class CudaDevice:
    """Partitions of one GPU.

    Args:
        lanes: where tiles run, by SM budget.
        gate: the RAN's copies.
        clock_us: clock of the host.
        sleep_s: gives the host's core away.
    """

    def __init__(
        self,
        lanes: Mapping[int, Lane],
        gate: CopyGate,
        clock_us: Callable[[], float] = lambda: time.perf_counter_ns() / 1e3,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lanes, self._gate = lanes, gate
        self._clock_us, self._sleep_s = clock_us, sleep_s
        self._bound: Lane | None = None
        self._pending: list[Event] = []
        self.in_order = all(lane.in_order for lane in lanes.values())

    def now_us(self) -> float:
        """Clock of the host."""
        return self._clock_us()

    def wait_until(self, at_us: float) -> None:
        """Sleep while that is exact enough, then spin."""
        while (left_us := at_us - self._clock_us()) > 0.0:
            if left_us > 2.0 * SPIN_US:
                self._sleep_s((left_us - SPIN_US) / 1e6)

    def bind(self, sm: int) -> None:
        """Hand over to the lane of another partition, in order.

        Raises:
            InputError: no partition was made for this budget.
        """
        if sm not in self._lanes:
            known = ", ".join(str(level) for level in self._lanes)
            raise InputError("partitions: SM budget", sm, f"allowed: {known}")
        if self._bound is not None:
            self._bound.stop()
        self._bound = self._lanes[sm]
        self._bound.start(self._running())

    def launch(self, product: TiledProduct, tiles: int, predicted_us: float) -> None:  # noqa: ARG002
        """Queue tiles on the bound lane.

        Raises:
            InputError: no partition is bound.
        """
        if self._bound is None:
            raise InputError("partitions", "none bound", "needed: bind before launch")
        self._pending.append(self._bound.launch(product, tiles))

    def idle(self) -> bool:
        """Whether every event has passed."""
        return not self._running()

    def wait_idle(self, until_us: float) -> bool:
        """Poll the events; a blocking wait would return late."""
        while not self.idle():
            if self._clock_us() >= until_us:
                return False
        return True

    def ran_data_resident(self, slot: int) -> bool:
        """Ask the gate."""
        return self._gate.resident(slot)

    def close(self) -> None:
        """Stop the bound lane."""
        if self._bound is not None:
            self._bound.stop()
            self._bound = None

    def _running(self) -> list[Event]:
        self._pending = [event for event in self._pending if not event.query()]
        return self._pending
