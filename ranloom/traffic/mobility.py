"""Walks and drives through a 5G network: replay of the 5Gophers traces at one row a second.

Source: Narayanan et al., "A First Look at Commercial 5G Performance on Smartphones", WWW 2020;
data set 5Gophers 1.0, CC BY 4.0. The traces are throughput of a full-speed download and, on the
walk, the serving cell and the radio; uploads need a stated ratio to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic.csv_table import read_columns, refuse_rows

WALK_COLUMNS = {
    "seq_num": int,
    "anonymized_mCid": str,
    "radio_type": str,
    "throughput_mbps": float,
}
RADIOS = ("4G", "5G")
MAX_GAP_S = 60  # a longer gap is another trip
CARRIERS = ("Sprint", "TMobile", "Verizon")


@dataclass(frozen=True, eq=False)
class MobilityTrace:
    """One trip, second by second.

    Args:
        downlink_mbps: [n] throughput of a download alone on the air; 0 is an outage.
        cell: [n] serving cell, numbered in the order of first appearance; 0 throughout where
            the trace names none.
        on_5g: [n] whether the radio was 5G.
        filled_s: seconds without a row, which hold the row before.
    """

    downlink_mbps: NDArray[np.float64]
    cell: NDArray[np.int64]
    on_5g: NDArray[np.bool_]
    filled_s: int

    @property
    def duration_s(self) -> int:
        """Length of the trip."""
        return int(self.cell.size)

    @property
    def handovers_s(self) -> NDArray[np.int64]:
        """Seconds that begin in another cell than the one before."""
        return np.asarray(np.flatnonzero(np.diff(self.cell)) + 1)

    @property
    def radio_switches_s(self) -> NDArray[np.int64]:
        """Seconds that begin on the other radio of the same cell."""
        switched = (np.diff(self.on_5g) != 0) & (np.diff(self.cell) == 0)
        return np.asarray(np.flatnonzero(switched) + 1)

    def rates(self, start_s: int, duration_s: int, ratio: float = 1.0) -> NDArray[np.float64]:
        """[duration_s] rates from some second of the trip on, repeated cyclically.

        Args:
            start_s: where in the trip to begin.
            duration_s: how long.
            ratio: of the rate wanted to the download's, such as uplink to downlink.

        Raises:
            InputError: a duration below 1 or a ratio that is not positive.
        """
        if duration_s < 1:
            raise InputError("duration_s", duration_s, "needed: at least 1")
        if not (np.isfinite(ratio) and ratio > 0):
            raise InputError("ratio", ratio, "needed: a positive number")
        return ratio * self.downlink_mbps[(start_s + np.arange(duration_s)) % self.duration_s]


@dataclass(frozen=True, eq=False)
class Moves:
    """Hand-overs of several UEs, in order of time.

    Args:
        time_s: [k] when.
        ue: [k] who.
        site: [k] to which site.
        home: [n_ue] site at time 0.
    """

    time_s: NDArray[np.float64]
    ue: NDArray[np.int64]
    site: NDArray[np.int64]
    home: NDArray[np.int64]


def read_walk(path: Path) -> MobilityTrace:
    """A walk with serving cells (``walking-trace.csv``).

    Raises:
        InputError: unreadable file (see ``read_columns``), seconds that do not ascend, a
            radio other than 4G or 5G, a negative throughput.
    """
    columns = read_columns(path, WALK_COLUMNS)
    radio = columns["radio_type"]
    refuse_rows(path, "radio_type", radio, ~np.isin(radio, RADIOS), " or ".join(RADIOS))
    _, first, ids = np.unique(columns["anonymized_mCid"], return_index=True, return_inverse=True)
    cell = np.argsort(np.argsort(first))[ids]
    return _per_second(path, columns["seq_num"], columns["throughput_mbps"], cell, radio == "5G")


def read_drive(path: Path, carrier: str) -> MobilityTrace:
    """A drive of one carrier (``car-driving-trace-*.csv``); it names neither cell nor radio.

    Raises:
        InputError: unknown carrier, unreadable file (see ``read_columns``), seconds that do not
            ascend, a negative throughput.
    """
    if carrier not in CARRIERS:
        raise InputError("carrier", carrier, "needed: " + " or ".join(CARRIERS))
    name = f"{carrier}_throughput_mbps"
    columns = read_columns(path, {"seq_num": int, name: float})
    rows = columns["seq_num"].size
    everywhere = np.zeros(rows, np.int64), np.ones(rows, bool)
    return _per_second(path, columns["seq_num"], columns[name], *everywhere, name)


def replay_moves(
    trace: MobilityTrace, home: NDArray[np.int64], start_s: NDArray[np.int64], n_sites: int,
    duration_s: int,
) -> Moves:  # fmt: skip
    """Hand-overs of UEs that each repeat the trip from their own second and site.

    The cells of the trip are laid over the sites one after the other: a UE that starts at site h
    in cell a is at site ``(h + c - a) mod n_sites`` while the trip is in cell c. A change of cell
    that ends at the same site is no hand-over.

    Args:
        trace: the trip.
        home: [n_ue] site of each UE at time 0.
        start_s: [n_ue] second of the trip at which each UE starts.
        n_sites: number of sites.
        duration_s: how long.

    Raises:
        InputError: shapes that differ, a home that is no site, a duration below 1.
    """
    if home.shape != start_s.shape or home.ndim != 1:
        raise InputError(
            "home, start_s", (home.shape, start_s.shape), "needed: one value a UE each"
        )
    if n_sites < 1 or np.any((home < 0) | (home >= n_sites)):
        raise InputError("home", home.tolist(), f"needed: sites 0 to {n_sites - 1}")
    if duration_s < 1:
        raise InputError("duration_s", duration_s, "needed: at least 1")
    second = (start_s[:, None] + np.arange(duration_s)) % trace.duration_s
    cell = trace.cell[second]
    site = (home[:, None] + cell - cell[:, :1]) % n_sites
    time, ue = np.nonzero(np.diff(site, axis=1).T)
    return Moves((time + 1).astype(np.float64), ue, site[ue, time + 1], home.copy())


def _per_second(
    path: Path,
    seconds: NDArray[np.int64],
    mbps: NDArray[np.float64],
    cell: NDArray[np.int64],
    on_5g: NDArray[np.bool_],
    rate_column: str = "throughput_mbps",
) -> MobilityTrace:
    step = np.diff(seconds, prepend=seconds[0] - 1)
    apart = (step < 1) | (step > MAX_GAP_S)
    refuse_rows(path, "seq_num", seconds, apart, f"ascending seconds, at most {MAX_GAP_S} apart")
    refuse_rows(path, rate_column, mbps, mbps < 0, "at least 0")
    held = np.repeat(np.arange(seconds.size), np.append(step[1:], 1))
    return MobilityTrace(mbps[held], cell[held], on_5g[held], int(held.size - seconds.size))
