"""A user's own traces: packets as ``time_s,ue,bytes``, channel as ``time_s,ue,sinr_db``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic.arrivals import MAX_PACKET_BYTES, Arrivals
from ranloom.traffic.channel import SinrTrace, replay
from ranloom.traffic.csv_table import read_columns, refuse_rows

MAX_UES = 1_000
GRID_US = (1_000, 250_000)  # finest and coarsest grid of a channel file
MAX_RECORD_BYTES = 65_535  # an IP packet cannot be longer


def read_arrivals(path: Path) -> tuple[Arrivals, int]:
    """Packets of a CSV ``time_s,ue,bytes``, in order of time; its duration ends with the last one.

    Records above 1,500 bytes are split.

    Returns:
        The arrivals and how many records were split.

    Raises:
        InputError: unreadable file (see ``read_columns``), times that are negative or run
            backwards, a size outside 1..65535, UEs not numbered from 0, a UE without packets.
    """
    columns = read_columns(path, {"time_s": float, "ue": int, "bytes": int})
    time_us = _ascending_us(path, columns["time_s"])
    ue, size = columns["ue"], columns["bytes"]
    refuse_rows(path, "bytes", size, (size < 1) | (size > MAX_RECORD_BYTES), "1 to 65535")
    n_ue = _count_ues(path, ue)
    arrivals = Arrivals(
        time_us, ue.astype(np.int16), size.astype(np.int32), n_ue, int(time_us[-1]) + 1
    )
    return arrivals.split_records(MAX_PACKET_BYTES)


def read_sinr(path: Path, n_ue: int, duration_us: int) -> SinrTrace:
    """Channel of a CSV ``time_s,ue,sinr_db``; a UE's samples hold and are looped to the window.

    The grid of the result is the shortest time between two samples of a UE, within 1 to 250 ms.

    Args:
        path: the file, in order of time (samples of different UEs may share an instant).
        n_ue: UEs of the traffic that it belongs to.
        duration_us: window.

    Raises:
        InputError: unreadable file (NaN is one), times that are negative or run backwards, a UE
            without samples or beyond those of the traffic, two samples of a UE at one instant.
    """
    columns = read_columns(path, {"time_s": float, "ue": int, "sinr_db": float})
    time_us = _ascending_us(path, columns["time_s"])
    ue = columns["ue"]
    found = _count_ues(path, ue)
    if found != n_ue:
        raise InputError(str(path), f"{found} UEs", f"needed: the {n_ue} UEs of the traffic")
    order = np.lexsort((time_us, ue))
    same_ue = np.diff(ue[order]) == 0
    step_us = np.diff(time_us[order])
    twice = np.zeros(ue.size, bool)
    twice[order[1:]] = same_ue & (step_us == 0)
    refuse_rows(path, "time_s", columns["time_s"], twice, "one sample of a UE at an instant")
    period_us = int(np.clip(step_us[same_ue].min(initial=GRID_US[1]), *GRID_US))
    rows = [np.flatnonzero(ue == u) for u in range(n_ue)]
    times, values = [time_us[r] for r in rows], [columns["sinr_db"][r] for r in rows]
    return replay(times, values, duration_us, period_us)


def _ascending_us(path: Path, time_s: NDArray[np.float64]) -> NDArray[np.int64]:
    refuse_rows(path, "time_s", time_s, (time_s < 0) | (time_s > 1e9), "0 to 1e9 s")
    backwards = np.diff(time_s, prepend=time_s[:1]) < 0
    refuse_rows(path, "time_s", time_s, backwards, "times in ascending order")
    return np.asarray(np.rint(time_s * 1e6).astype(np.int64))


def _count_ues(path: Path, ue: NDArray[np.int64]) -> int:
    refuse_rows(path, "ue", ue, (ue < 0) | (ue >= MAX_UES), f"0 to {MAX_UES - 1}")
    n_ue = int(ue.max()) + 1
    packets = np.bincount(ue, minlength=n_ue)
    if np.any(packets == 0):
        empty = int(np.argmin(packets))
        raise InputError(
            f"{path}: ue {empty}", "no rows", f"needed: rows for every UE from 0 to {n_ue - 1}"
        )
    return n_ue
