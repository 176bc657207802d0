"""A site's budget from the spare-budget channel of its cell (WEAVER section 6.2).

The channel says how many SMs the RAN leaves in each slot. Tasks are paced by what it says now; the
coordinator, which is far slower than a slot, hears the mean of a window. A publisher that dies
leaves a site without a budget once the lease of its last message has run out, and the coordinator
is told so at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ranloom.errors import InputError
from ranloom.spare.capacity import CapacityWindow
from ranloom.spare.channel import SCHEMA_VERSION, BudgetView, slot_at
from ranloom.spare.channel_zmq import ZmqSubscriber

LOOK_S = 0.005  # between two looks at the channel while a task is in execution
_REPORTS_A_WINDOW = 2


@dataclass(frozen=True)
class SpareFeed:
    """Where a site hears of its spare SMs, and what one of them is worth.

    Args:
        address: of the publisher, on this host.
        sm_count: SMs of the device; messages with more are refused.
        tflops_per_sm: usable compute of one SM in 1e12 floating-point operations a second.
        slot_us: slot duration of the cell.
        lease_s: how long a message is trusted.
        window_s: over which the capacity reports average.
    """

    address: str
    sm_count: int
    tflops_per_sm: float
    slot_us: float
    lease_s: float
    window_s: float

    def __post_init__(self) -> None:
        for name in ("sm_count", "tflops_per_sm", "slot_us", "lease_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"feed.{name}", getattr(self, name), "allowed: above 0")
        if not self.window_s * 1e6 >= _REPORTS_A_WINDOW * self.slot_us:
            least_s = _REPORTS_A_WINDOW * self.slot_us / 1e6
            raise InputError("feed.window_s", self.window_s, f"allowed: {least_s:g} or more")


class FollowedBudget:
    """The budget of a site that follows its channel.

    Args:
        feed: what to follow.
        clock: monotonic clock of the host, s.

    Attributes:
        usable_tflops: as of the last look.
        smoothed_tflops: mean of the window, as last reported; 0 without a living publisher.

    Raises:
        InputError: an address that is not of this host.
    """

    def __init__(self, feed: SpareFeed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self._view = BudgetView(feed.lease_s, feed.sm_count)
        self._subscriber = ZmqSubscriber(self._view, feed.address, clock=clock)
        self._window: CapacityWindow | None = None
        self._window_slots = round(feed.window_s * 1e6 / feed.slot_us)
        self._reports_at_slot = 0
        self._heard = False
        self.usable_tflops = 0.0
        self.smoothed_tflops = 0.0

    def look(self) -> None:
        """Take in what the channel says now.

        Raises:
            InputError: the first message is none that this site can follow, for instance of a
                device with more SMs.
        """
        self._subscriber.poll(0.0)
        now_s = self._clock()
        self._heard |= self._view.alive(now_s)
        if self._view.refused and not self._heard:
            # Later on a strange message is only counted: the lease deals with it.
            reason = next(iter(self._view.refused))
            most = f"version {SCHEMA_VERSION}, at most {self._feed.sm_count} SMs"
            raise InputError(f"budget channel {self._feed.address}", reason, f"allowed: {most}")
        slot = slot_at(now_s, self._feed.slot_us)
        sm = self._view.budget(slot, now_s)
        self.usable_tflops = sm * self._feed.tflops_per_sm
        if not self._view.alive(now_s):
            # Silence says nothing about the RAN: the window starts anew with the next message.
            self._window = None
            self.smoothed_tflops = 0.0
            return
        if self._window is None:
            self._window = CapacityWindow(self._feed.address, self._window_slots)
            self._reports_at_slot = slot + 1
        self._window.add(slot, sm)
        if slot >= self._reports_at_slot:
            self.smoothed_tflops = self._window.report(slot).mean_sm * self._feed.tflops_per_sm
            self._reports_at_slot = slot + self._window_slots // _REPORTS_A_WINDOW

    def close(self) -> None:
        """Close the subscription."""
        self._subscriber.close()
