"""Load of each cell by hour of the day: profiles by land use, and the CSV that carries them.

The production trace behind Fig. 3 of WEAVER is not public. The default profiles are therefore an
assumption with three properties that its section 3.2 states: nights (02:00 to 06:00) are quiet,
the suburban sites carry more than the urban ones, and the sites peak at different hours.

``python -m ranloom.traffic.diurnal > data/traffic/diurnal.csv`` writes the default file.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic.csv_table import read_columns, refuse_rows

HOURS = 24
MAX_LOAD = 10.0  # guards against percent written for fractions


@dataclass(frozen=True)
class LandUse:
    """Daily rhythm of one kind of area.

    Args:
        name: what the area is used for.
        peaks: (hour, weight, width in hours) of each bump.
        night: floor of the profile as a share of its maximum.
    """

    name: str
    peaks: tuple[tuple[float, float, float], ...]
    night: float


RESIDENTIAL = LandUse("residential", ((21.0, 1.0, 2.5), (8.0, 0.35, 1.5)), 0.06)
OFFICE = LandUse("office", ((11.0, 1.0, 2.0), (15.5, 0.9, 2.0)), 0.03)
TRANSPORT = LandUse("transport", ((8.0, 1.0, 1.2), (18.0, 0.9, 1.5)), 0.04)
ENTERTAINMENT = LandUse("entertainment", ((22.5, 1.0, 2.0), (13.0, 0.4, 1.5)), 0.10)
SCHOOL = LandUse("school", ((10.0, 0.8, 1.5), (13.5, 1.0, 1.5)), 0.02)
COMPREHENSIVE = LandUse("comprehensive", ((17.0, 1.0, 2.5), (11.5, 0.5, 2.0)), 0.07)

# Zone I (urban, sites 1-3 of Fig. 3) is lightly, Zone II (suburban, sites 4-6) heavily loaded. The
# second value is the load of the cell's busiest hour, 1.0 being the busiest cell of the day.
DEFAULT_CELLS: tuple[tuple[LandUse, float], ...] = (
    (OFFICE, 0.35),
    (TRANSPORT, 0.25),
    (ENTERTAINMENT, 0.40),
    (SCHOOL, 0.70),
    (COMPREHENSIVE, 0.85),
    (RESIDENTIAL, 1.00),
)


def profile(land_use: LandUse) -> NDArray[np.float64]:
    """[24] relative load of each hour, its maximum 1.

    ``night + (1 - night) * g(h) / max g`` with
    ``g(h) = sum_i w_i exp((cos(2 pi (h - h_i) / 24) - 1) / s_i^2)``, ``s_i = 2 pi width_i / 24``:
    bumps that wrap around midnight, Gaussian with standard deviation ``width_i`` near their peak.
    """
    hour = np.arange(HOURS)
    bumps = np.zeros(HOURS)
    for peak, weight, width in land_use.peaks:
        s = 2.0 * np.pi * width / HOURS
        bumps += weight * np.exp((np.cos(2.0 * np.pi * (hour - peak) / HOURS) - 1.0) / s**2)
    return np.asarray(land_use.night + (1.0 - land_use.night) * bumps / bumps.max())


def default_loads() -> NDArray[np.float64]:
    """[cell, 24] loads of the default six cells, rounded as in the file."""
    rows = [np.round(busiest * profile(use), 4) for use, busiest in DEFAULT_CELLS]
    return np.array(rows)


def to_csv(loads: NDArray[np.float64]) -> str:
    """The ``hour,cell,load`` file of [cell, 24] loads."""
    lines = ["hour,cell,load"]
    for hour in range(HOURS):
        lines += [f"{hour},{cell},{loads[cell, hour]:.4f}" for cell in range(loads.shape[0])]
    return "\n".join(lines) + "\n"


def read_loads(path: Path) -> NDArray[np.float64]:
    """Loads by cell and hour from a CSV ``hour,cell,load``.

    A load of 1.0 is the busy-hour offered rate, a parameter of the scenario.

    Returns:
        [cell, 24] loads.

    Raises:
        InputError: unreadable file (see ``read_columns``), an hour outside 0..23, a load outside
            0..10, an hour given twice for a cell or not at all, cells not numbered from 0.
    """
    columns = read_columns(path, {"hour": int, "cell": int, "load": float})
    hour, cell, load = columns["hour"], columns["cell"], columns["load"]
    refuse_rows(path, "hour", hour, (hour < 0) | (hour >= HOURS), "0 to 23")
    refuse_rows(path, "load", load, (load < 0) | (load > MAX_LOAD), f"0 to {MAX_LOAD:g}")
    n_cells = np.unique(cell).size
    outside = (cell < 0) | (cell >= n_cells)
    refuse_rows(path, "cell", cell, outside, "cells numbered 0, 1, 2, ... without a gap")
    key = cell * HOURS + hour
    first = np.zeros(key.size, bool)
    first[np.unique(key, return_index=True)[1]] = True
    refuse_rows(path, "hour", hour, ~first, "every hour once for a cell")
    if key.size != n_cells * HOURS:
        absent = np.setdiff1d(np.arange(n_cells * HOURS), key)[0]
        where = f"{path}: cell {absent // HOURS}"
        raise InputError(where, f"no hour {absent % HOURS}", "needed: 24 hours for every cell")
    loads = np.empty((n_cells, HOURS))
    loads[cell, hour] = load
    return loads


if __name__ == "__main__":
    sys.stdout.write(to_csv(default_loads()))
