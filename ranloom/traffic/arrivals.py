"""Uplink packet arrivals of the UEs of one cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from ranloom.errors import InputError

MAX_PACKET_BYTES = 1500  # Ethernet MTU; larger records of a capture hold several packets


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Packets that reach the uplink buffers of a cell, in order of time.

    Args:
        time_us: [n] int64, arrival since the start, sorted, ``0 <= time_us < duration_us``.
        ue: [n] int16, UE index ``0 .. n_ue - 1``.
        size_bytes: [n] int32, payload of each packet, at least 1.
        n_ue: number of UEs; a UE without packets is allowed here (readers of traces refuse it).
        duration_us: length of the observation.

    Raises:
        InputError: an array breaks one of these rules; ``where`` names the array and the row.
    """

    time_us: NDArray[np.int64]
    ue: NDArray[np.int16]
    size_bytes: NDArray[np.int32]
    n_ue: int
    duration_us: int

    def __post_init__(self) -> None:
        for name, kind in (("time_us", np.int64), ("ue", np.int16), ("size_bytes", np.int32)):
            column = np.ascontiguousarray(getattr(self, name))
            if column.size and not np.issubdtype(column.dtype, np.integer):
                raise InputError(f"arrivals.{name}", column.dtype.name, "needed: integers")
            cast = column.astype(kind)
            _refuse_first(name, column, cast != column, f"numbers that fit {kind.__name__}")
            cast.flags.writeable = False
            object.__setattr__(self, name, cast)
        if not self.time_us.shape == self.ue.shape == self.size_bytes.shape or self.ue.ndim != 1:
            shapes = (self.time_us.shape, self.ue.shape, self.size_bytes.shape)
            raise InputError("arrivals", shapes, "needed: three arrays of one length")
        if not 1 <= self.n_ue <= np.iinfo(np.int16).max:
            raise InputError("arrivals.n_ue", self.n_ue, "needed: 1 to 32767")
        if self.duration_us < 1:
            raise InputError("arrivals.duration_us", self.duration_us, "needed: at least 1")
        backwards = np.diff(self.time_us, prepend=self.time_us[:1]) < 0
        _refuse_first("time_us", self.time_us, backwards, "times in ascending order")
        outside = (self.time_us < 0) | (self.time_us >= self.duration_us)
        _refuse_first("time_us", self.time_us, outside, f"0 to {self.duration_us - 1}")
        unknown = (self.ue < 0) | (self.ue >= self.n_ue)
        _refuse_first("ue", self.ue, unknown, f"0 to {self.n_ue - 1}")
        _refuse_first("size_bytes", self.size_bytes, self.size_bytes < 1, "at least 1 byte")

    @property
    def total_bytes(self) -> int:
        """Sum of all packets."""
        return int(self.size_bytes.sum(dtype=np.int64))

    @property
    def bytes_per_ue(self) -> NDArray[np.int64]:
        """[n_ue] bytes of each UE."""
        return np.bincount(self.ue, weights=self.size_bytes, minlength=self.n_ue).astype(np.int64)

    @property
    def offered_mbps(self) -> float:
        """Mean offered rate of the cell over the whole duration, in Mbit/s."""
        return 8.0 * self.total_bytes / self.duration_us

    def loop_to(self, duration_us: int) -> Arrivals:
        """Cut or repeat the observation, start to end without a pause, to a new length."""
        if duration_us < 1:
            raise InputError("duration_us", duration_us, "needed: at least 1")
        turns = -(-duration_us // self.duration_us)
        start_us = np.repeat(np.arange(turns, dtype=np.int64) * self.duration_us, self.time_us.size)
        time_us = np.tile(self.time_us, turns) + start_us
        keep = time_us < duration_us
        return Arrivals(
            time_us[keep],
            np.tile(self.ue, turns)[keep],
            np.tile(self.size_bytes, turns)[keep],
            self.n_ue,
            duration_us,
        )

    def rotate(self, offset_us: int) -> Arrivals:
        """Start the observation ``offset_us`` later and append what was skipped (cyclic shift)."""
        time_us = (self.time_us - offset_us) % self.duration_us
        order = np.argsort(time_us, kind="stable")
        return Arrivals(
            time_us[order], self.ue[order], self.size_bytes[order], self.n_ue, self.duration_us
        )

    def scale(self, load_factor: float) -> Arrivals:
        """Multiply the offered bytes of every UE, leaving the instants of arrival alone.

        A packet is replicated ``floor(load_factor)`` times at its own instant, and packets picked
        by error diffusion get one more copy, so that the bytes of a UE follow ``load_factor``
        times the original at every instant within one packet. Below 1 this thins the packets.
        Packet sizes, burst times and idle gaps stay those of the source; burst volumes scale.

        Raises:
            InputError: ``load_factor`` is not a positive finite number.
        """
        if not (np.isfinite(load_factor) and load_factor > 0):
            raise InputError("load_factor", load_factor, "needed: a positive number")
        if load_factor == 1.0:
            return self
        copies = _copies(self.ue, self.size_bytes, self.n_ue, float(load_factor))
        return Arrivals(
            np.repeat(self.time_us, copies),
            np.repeat(self.ue, copies),
            np.repeat(self.size_bytes, copies),
            self.n_ue,
            self.duration_us,
        )

    def split_records(self, max_bytes: int = MAX_PACKET_BYTES) -> tuple[Arrivals, int]:
        """Split packets above ``max_bytes`` into full packets and a remainder, at one instant.

        Captures taken above segmentation offload hold records of up to 64 kB that no air
        interface ever carries.

        Returns:
            The arrivals and how many records were split.
        """
        if max_bytes < 1:
            raise InputError("max_bytes", max_bytes, "needed: at least 1")
        pieces = -(-self.size_bytes // max_bytes)
        size_bytes = np.full(int(pieces.sum()), max_bytes, np.int32)
        last = np.cumsum(pieces) - 1
        size_bytes[last] = self.size_bytes - (pieces - 1) * max_bytes
        split = Arrivals(
            np.repeat(self.time_us, pieces),
            np.repeat(self.ue, pieces),
            size_bytes,
            self.n_ue,
            self.duration_us,
        )
        return split, int(np.count_nonzero(pieces > 1))


def from_unsorted(
    time_us: ArrayLike, ue: ArrayLike, size_bytes: ArrayLike, n_ue: int, duration_us: int
) -> Arrivals:
    """Arrivals from packets in any order; packets of one instant keep the order given."""
    time = np.asarray(time_us, np.int64)
    order = np.argsort(time, kind="stable")
    return Arrivals(
        time[order],
        np.asarray(ue, np.int16)[order],
        np.asarray(size_bytes, np.int32)[order],
        n_ue,
        duration_us,
    )


def merge(parts: Sequence[Arrivals]) -> Arrivals:
    """Superimpose several flows of the same UEs.

    Raises:
        InputError: no parts, or parts that differ in UEs or duration.
    """
    if not parts or len({(p.n_ue, p.duration_us) for p in parts}) != 1:
        found = [(p.n_ue, p.duration_us) for p in parts]
        raise InputError("parts", found, "needed: one or more flows of equal n_ue and duration_us")
    return from_unsorted(
        np.concatenate([p.time_us for p in parts]),
        np.concatenate([p.ue for p in parts]),
        np.concatenate([p.size_bytes for p in parts]),
        parts[0].n_ue,
        parts[0].duration_us,
    )


def stack(parts: Sequence[Arrivals]) -> Arrivals:
    """Put the UEs of several observations of one duration side by side in one cell.

    Raises:
        InputError: no parts, or parts that differ in duration.
    """
    if not parts or len({p.duration_us for p in parts}) != 1:
        found = [p.duration_us for p in parts]
        raise InputError("parts", found, "needed: one or more observations of equal duration_us")
    first_ue = np.cumsum([0] + [p.n_ue for p in parts])
    return from_unsorted(
        np.concatenate([p.time_us for p in parts]),
        np.concatenate([p.ue + first for p, first in zip(parts, first_ue, strict=False)]),
        np.concatenate([p.size_bytes for p in parts]),
        int(first_ue[-1]),
        parts[0].duration_us,
    )


def concatenate(parts: Sequence[Arrivals]) -> Arrivals:
    """Play several observations of the same UEs one after the other.

    Raises:
        InputError: no parts, or parts that differ in UEs.
    """
    if not parts or len({p.n_ue for p in parts}) != 1:
        raise InputError(
            "parts", [p.n_ue for p in parts], "needed: one or more parts of equal n_ue"
        )
    start_us = np.cumsum([0] + [p.duration_us for p in parts])
    return Arrivals(
        np.concatenate([p.time_us + start for p, start in zip(parts, start_us, strict=False)]),
        np.concatenate([p.ue for p in parts]),
        np.concatenate([p.size_bytes for p in parts]),
        parts[0].n_ue,
        int(start_us[-1]),
    )


def _refuse_first(name: str, column: NDArray, bad: NDArray[np.bool_], allowed: str) -> None:
    rows = np.flatnonzero(bad)
    if rows.size:
        row = int(rows[0])
        raise InputError(f"arrivals.{name}[{row}]", column[row].item(), f"needed: {allowed}")


@njit(cache=True)
def _copies(ue, size_bytes, n_ue, load_factor):  # type: ignore[no-untyped-def]
    """Copies of each packet: floor(load_factor), plus one where the UE's byte debt asks for it."""
    whole = int(np.floor(load_factor))
    fraction = load_factor - whole
    debt_bytes = np.zeros(n_ue)
    copies = np.empty(size_bytes.size, np.int64)
    for i in range(size_bytes.size):
        u = ue[i]
        debt_bytes[u] += fraction * size_bytes[i]
        extra = 1 if 2.0 * debt_bytes[u] >= size_bytes[i] else 0
        debt_bytes[u] -= extra * size_bytes[i]
        copies[i] = whole + extra
    return copies
