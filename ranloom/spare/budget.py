"""What a reservation trace leaves free: intervals of reserved and spare SMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.gpu.card import Card


@dataclass(frozen=True)
class Reservation:
    """A reservation trace of one cell: constant between changes.

    Args:
        start_slot: int64[n], first slot of each interval, ascending from 0.
        sm: int64[n], reserved SMs in that interval.
        n_slots: length of the trace.
        slot_us: slot duration.
    """

    start_slot: NDArray[np.int64]
    sm: NDArray[np.int64]
    n_slots: int
    slot_us: float

    @property
    def slots(self) -> NDArray[np.int64]:
        """Length of each interval in slots, int64[n]."""
        return np.diff(np.append(self.start_slot, self.n_slots))

    @property
    def transitions(self) -> int:
        """Changes of the reservation."""
        return int(np.count_nonzero(np.diff(self.sm)))

    @property
    def mean_sm(self) -> float:
        """Mean reservation over time."""
        return float(np.average(self.sm, weights=self.slots))


def from_changes(
    slot: NDArray[np.integer],
    sm: NDArray[np.integer],
    n_slots: int,
    slot_us: float,
    *,
    sm_max: int,
    where: str = "reservations",
) -> Reservation:
    """Build a trace from the changes that a controller published.

    Args:
        slot: effective slot of each change.
        sm: SMs reserved from that slot on.
        n_slots: length of the trace in slots.
        slot_us: slot duration.
        sm_max: SMs of the device.
        where: name of the source for messages.

    Raises:
        InputError: slots do not ascend from 0 or leave the trace, or SMs exceed the device.
    """
    slots: NDArray[np.int64] = np.asarray(slot, dtype=np.int64)
    sms: NDArray[np.int64] = np.asarray(sm, dtype=np.int64)
    if slots.size == 0 or slots[0] != 0:
        first = int(slots[0]) if slots.size else "no rows"
        raise InputError(f"{where}: slot", first, "the first change must lie at slot 0")
    back = np.flatnonzero(np.diff(slots) <= 0)
    if back.size:
        row = int(back[0]) + 1
        raise InputError(f"{where}: row {row}: slot", int(slots[row]), "slots must ascend")
    if slots[-1] >= n_slots:
        raise InputError(f"{where}: slot", int(slots[-1]), f"the trace has {n_slots} slots")
    outside = np.flatnonzero((sms < 0) | (sms > sm_max))
    if outside.size:
        row = int(outside[0])
        raise InputError(f"{where}: row {row}: sm", int(sms[row]), f"allowed: 0 to {sm_max} SMs")
    return Reservation(slots, sms, int(n_slots), float(slot_us))


def rescale(reservation: Reservation, sm_max: int, card: Card) -> Reservation:
    """The same share of another device, rounded up to one of its levels (WEAVER 7.1.2).

    Args:
        reservation: trace on a device with ``sm_max`` SMs.
        sm_max: SMs of that device.
        card: the other device.
    """
    wanted = np.ceil(reservation.sm * card.sm_count / sm_max - 1e-9)
    levels = np.concatenate([[0], card.levels])
    sm = levels[np.searchsorted(levels, wanted)]
    return Reservation(reservation.start_slot, sm, reservation.n_slots, reservation.slot_us)


def spare_sm(reservation: Reservation, card: Card) -> NDArray[np.int64]:
    """SMs left to training in each interval, rounded down to a partition of the device.

    Returns:
        int64[n]; 0 where less than the smallest partition is left.
    """
    free = card.sm_count - reservation.sm
    levels = np.concatenate([[0], card.levels])
    return levels[np.searchsorted(levels, free, side="right") - 1]
