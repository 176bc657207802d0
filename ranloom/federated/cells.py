"""Left-over uplink rates of the gNBs' cells from the table of the RAN simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.federated.radio import CellRates

_COLUMNS = ("scenario", "cell", "ue", "second", "capacity_mbps")


def cell_rates(
    columns: Mapping[str, NDArray],
    *,
    scenario: str,
    hours: int,
    hour: int,
    hour_spread: int,
    gnbs: int,
    seed: Sequence[int],
    where: str,
) -> CellRates:
    """Rates of ``gnbs`` cells.

    The first gNBs are the scenario's own cells in the chosen hour. Each further one is a cell
    drawn from the table, in an hour at most ``hour_spread`` away. Every gNB starts its (cyclic)
    series at a drawn second. Traced UEs that have no rate left in the whole sample are left out.

    Args:
        columns: ``scenario``, ``cell``, ``ue``, ``second``, ``capacity_mbps``.
        scenario: rows to use.
        hours: how many hours the scenario's seconds sample, equally long each.
        hour: 0 to hours - 1.
        hour_spread: for the further gNBs; hours wrap around.
        gnbs: number of gNBs.
        seed: entropy of the drawing.
        where: file name for error messages.

    Raises:
        InputError: a column or the scenario is missing, seconds that do not divide into the
            hours, or a cell without any rate left.
    """
    for name in _COLUMNS:
        if name not in columns:
            raise InputError(where, f"no column {name}", f"allowed: columns {', '.join(_COLUMNS)}")
    rows = columns["scenario"] == scenario
    if not rows.any():
        known = ", ".join(sorted(set(columns["scenario"])))
        raise InputError(f"{where}: scenario", scenario, f"allowed: {known}")
    cell, ue, second = (np.asarray(columns[k])[rows].astype(np.int64) for k in _COLUMNS[1:4])
    rate = np.asarray(columns["capacity_mbps"])[rows].astype(np.float64)
    seconds = int(second.max()) + 1
    if seconds % hours:
        raise InputError(f"{where}: second", seconds, f"allowed: a multiple of {hours} hours")
    if not 0 <= hour < hours:
        raise InputError("hour", hour, f"allowed: 0 to {hours - 1}")
    per_hour = seconds // hours
    grids = {}
    for number in np.unique(cell):
        of_cell = cell == number
        grid = np.zeros((int(ue[of_cell].max()) + 1, seconds))
        grid[ue[of_cell], second[of_cell]] = rate[of_cell]
        grids[int(number)] = grid

    rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
    cells = sorted(grids)
    chosen = [(c, hour) for c in cells][:gnbs]
    while len(chosen) < gnbs:
        drawn = cells[int(rng.integers(len(cells)))]
        shift = int(rng.integers(-hour_spread, hour_spread + 1))
        chosen.append((drawn, (hour + shift) % hours))
    series = []
    for number, at in chosen:
        sample = grids[number][:, at * per_hour : (at + 1) * per_hour]
        sample = sample[sample.any(axis=1)]
        if not len(sample):
            raise InputError(
                f"{where}: cell {number}, hour {at}", 0.0, "allowed: an hour with some rate left"
            )
        series.append(sample)
    mbps = np.zeros((gnbs, max(map(len, series)), per_hour))
    for gnb, sample in enumerate(series):
        mbps[gnb, : len(sample)] = sample
    return CellRates(
        mbps=mbps,
        series_count=np.array([len(s) for s in series], dtype=np.int64),
        phase_s=rng.integers(0, per_hour, gnbs),
    )
