"""Uplink rates of cells from a recorded trace instead of the simulated cells.

A CSV file with one row a second: ``second`` and one or more columns that end in ``_mbps``, each
the rate of one UE. The driving traces of 5Gophers (``seq_num``, ``<operator>_throughput_mbps``)
are read as they are; they were measured downwards, so the share that an upload gets is a parameter.
``python -m ranloom.federated.rate_trace data/mobility/rates.csv`` writes the generated trace.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.federated.radio import CellRates

_SECONDS = ("second", "seq_num")
_SUFFIX = "_mbps"
_MOST_SECONDS = 86_400


def read_rates(path: Path) -> NDArray[np.float64]:
    """Read a trace.

    Returns:
        Rates in Mbit/s, shape (series, seconds). A second that is left out keeps the last rate.

    Raises:
        InputError: the file is missing, lacks a column, has seconds that are no ascending whole
            numbers within a day, a rate that is no number from 0, or a series without any rate.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            rows = list(reader)
    except UnicodeDecodeError:
        raise InputError(str(path), "not UTF-8", "allowed: a CSV file") from None
    except OSError as error:
        raise InputError(str(path), error.strerror, "allowed: a CSV file") from None
    clock = next((name for name in _SECONDS if name in columns), None)
    series = [name for name in columns if name.endswith(_SUFFIX)]
    if clock is None or not series:
        allowed = f"allowed: columns second and *{_SUFFIX}"
        raise InputError(f"{path}: row 1", columns, allowed)
    if not rows:
        raise InputError(str(path), "0 rows", "allowed: 1 or more")
    seconds: list[int] = []
    for number, row in enumerate(rows, start=2):
        text = row[clock]
        if text is None or not text.isdecimal() or (seconds and int(text) <= seconds[-1]):
            allowed = "allowed: whole seconds, ascending"
            raise InputError(f"{path}: row {number}: {clock}", text, allowed)
        seconds.append(int(text))
    length = seconds[-1] - seconds[0] + 1
    if length > _MOST_SECONDS:
        raise InputError(f"{path}: {clock}", length, f"allowed: up to {_MOST_SECONDS} s")
    held = np.searchsorted(seconds, np.arange(seconds[0], seconds[-1] + 1), side="right") - 1
    rates = np.empty((len(series), length))
    for index, name in enumerate(series):
        values = [_rate(row[name], f"{path}: row {n}: {name}") for n, row in enumerate(rows, 2)]
        if not any(values):
            raise InputError(f"{path}: {name}", 0.0, "allowed: some rate above 0")
        rates[index] = np.array(values)[held]
    return rates


def _rate(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise InputError(where, text, "allowed: a rate from 0 in Mbit/s")
    return value


def traced_rates(
    mbps: NDArray[np.float64], share: float, gnbs: int, seed: Sequence[int]
) -> CellRates:
    """The trace in every cell, from a second drawn for each on; UEs take its series in turn.

    Args:
        mbps: shape (series, seconds).
        share: of the recorded rate that an upload gets.
        gnbs: number of gNBs.
        seed: entropy of the drawing.
    """
    rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
    return CellRates(
        mbps=np.repeat(share * mbps[None], gnbs, axis=0),
        series_count=np.full(gnbs, len(mbps), dtype=np.int64),
        phase_s=rng.integers(0, mbps.shape[1], gnbs),
    )


def generate_rates(
    seconds: int, series: int, median_mbps: float, sigma: float, seed: Sequence[int]
) -> NDArray[np.float64]:
    """Rates whose log is a first-order autoregressive process with a memory of ten seconds."""
    rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
    keep = math.exp(-0.1)
    level = rng.standard_normal(series)
    rates = np.empty((series, seconds))
    for second in range(seconds):
        rates[:, second] = median_mbps * np.exp(sigma * level)
        level = keep * level + math.sqrt(1.0 - keep**2) * rng.standard_normal(series)
    return np.round(rates, 3)


def write_rates(path: Path, rates: NDArray[np.float64]) -> None:
    """Write a file that :func:`read_rates` reads."""
    lines = [",".join(["second", *(f"ue{k}{_SUFFIX}" for k in range(len(rates)))])]
    lines += [",".join([str(s), *(f"{r:.3f}" for r in row)]) for s, row in enumerate(rates.T)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


#: Spread like that of the 5Gophers driving traces.
RATES = {"seconds": 300, "series": 3, "median_mbps": 100.0, "sigma": 0.8, "seed": (20260928, 61)}


if __name__ == "__main__":
    write_rates(Path(sys.argv[1]), generate_rates(**RATES))  # type: ignore[arg-type]
