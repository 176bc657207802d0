"""The budget channel at work: a trace played in real time, and a subscriber that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.spare.budget import Reservation, from_changes
from ranloom.spare.capacity import CapacityReport, CapacityWindow
from ranloom.spare.channel import slot_at
from ranloom.spare.channel_zmq import ZmqPublisher, ZmqSubscriber


def read_reservations(
    path: Path, scenario: str, controller: str, cell: int, slot_us: float, card: Card
) -> Reservation:
    """One trace of ``reservations.parquet``; it ends one second after its last change.

    Raises:
        InputError: the file cannot be read, lacks a column, or has no such trace.
    """
    try:
        columns: dict[str, Any] = {
            name: pq.read_table(path, columns=[name]).column(0).to_numpy(zero_copy_only=False)
            for name in ("scenario", "controller", "cell", "slot", "sm")
        }
    except (OSError, ValueError, IndexError) as error:
        first = str(error).splitlines()[0]
        raise InputError(str(path), first, "needed: reservations of generate_traces") from None
    mine = (columns["scenario"] == scenario) & (columns["controller"] == controller)
    mine &= columns["cell"] == cell
    where = f"{scenario}, {controller}, cell {cell}"
    if not mine.any():
        known = sorted(set(columns["scenario"]))
        raise InputError(str(path), where, f"scenarios: {', '.join(known)}")
    slot = np.asarray(columns["slot"][mine])
    n_slots = int(slot.max()) + round(1e6 / slot_us)
    return from_changes(
        slot, columns["sm"][mine], n_slots, slot_us, sm_max=card.sm_count, where=f"{path}: {where}"
    )


def play(
    trace: Reservation,
    publisher: ZmqPublisher,
    *,
    lead_slots: int,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Publish a trace in real time.

    Args:
        trace: what the controller reserved.
        publisher: where to.
        lead_slots: slots between announcing a change and its effect (38.214 K2).
        clock: monotonic clock of the host, s.
        sleep: waits, s.
    """
    first = slot_at(clock(), trace.slot_us) + lead_slots
    changes = zip((first + trace.start_slot).tolist(), trace.sm.tolist(), strict=True)
    following = next(changes, None)
    while (now := slot_at(clock(), trace.slot_us)) < first + trace.n_slots:
        while following is not None and following[0] - lead_slots <= now:
            publisher.reserve(*following, now)
            following = next(changes, None)
        publisher.tick()
        sleep(trace.slot_us / 1e6)


def watch(
    subscriber: ZmqSubscriber,
    window: CapacityWindow,
    *,
    slot_us: float,
    report_slots: int,
    slots: int,
    clock: Callable[[], float],
) -> Iterator[tuple[int, int] | CapacityReport]:
    """Follow a budget: (slot, SMs) at each change, and a report at the end of each interval.

    Args:
        subscriber: where from.
        window: of the reports.
        slot_us: slot duration.
        report_slots: slots between two reports.
        slots: when to stop.
        clock: monotonic clock of the host, s.
    """
    begin = slot_at(clock(), slot_us)
    last, next_report = -1, begin + report_slots
    while (slot := slot_at(clock(), slot_us)) < begin + slots:
        subscriber.poll(slot_us / 1e6)
        slot = slot_at(clock(), slot_us)
        sm = subscriber.budget(slot)
        if sm != last:
            window.add(slot, sm)
            last = sm
            yield slot, sm
        if slot >= next_report:
            yield window.report(slot)
            next_report += report_slots
