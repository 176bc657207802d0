"""Measured decode latencies: the table that profiling writes and importing makes.

A profile file is CSV: comment lines ``# key: value`` that say how it was taken, then one row per
MCS, PRB and SM count. The rows need not cover a grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ranloom.commented_csv import read_commented_csv
from ranloom.errors import InputError

COLUMNS = ("mcs", "prb", "sm", "p50_us", "p99_us", "trials")
# no decode of a transport block on any device is known to take less
_SHORTEST_US = 5.0


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measured latencies, one row per MCS, PRB and SM count, each at most once.

    Attributes:
        mcs: int64[n].
        prb: int64[n].
        sm: int64[n].
        p50_us: float64[n], median.
        p99_us: float64[n], 99th percentile.
        trials: int64[n], decodes behind the row.
        provenance: ``measured`` or ``imported``.
        how: what is known of the measurement (device, clock, date ...).
    """

    mcs: NDArray[np.int64]
    prb: NDArray[np.int64]
    sm: NDArray[np.int64]
    p50_us: NDArray[np.float64]
    p99_us: NDArray[np.float64]
    trials: NDArray[np.int64]
    provenance: str
    how: Mapping[str, str] = field(default_factory=dict)

    @property
    def p99_over_p50(self) -> float:
        """Median ratio of the 99th percentile to the median."""
        return float(np.median(self.p99_us / self.p50_us))

    @property
    def tail_sigma(self) -> float:
        """Standard deviation of the logarithm of a decode, lognormal with that ratio."""
        return math.log(self.p99_over_p50) / float(ndtri(0.99))

    def __len__(self) -> int:
        return len(self.mcs)


def write_measurements(path: Path, measurements: Measurements) -> None:
    """Write a profile file."""
    lines = [f"# {key}: {value}" for key, value in measurements.how.items()]
    lines += [f"# provenance: {measurements.provenance}", ",".join(COLUMNS)]
    columns = (getattr(measurements, name) for name in COLUMNS)
    for mcs, prb, sm, p50, p99, trials in zip(*columns, strict=True):
        lines.append(f"{mcs},{prb},{sm},{p50:.3f},{p99:.3f},{trials}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_measurements(path: Path) -> Measurements:
    """Read a profile file; column ``trials`` may be missing, further columns are ignored.

    Raises:
        InputError: a column or number is missing or unusable; a cell comes twice with different
            latencies; the latencies are not in microseconds; there is no row.
    """
    table = read_commented_csv(path, "a latency profile")
    names = table.columns
    for name in ("p50_us", "p99_us"):
        other = [n for n in names if n.startswith(name[:3]) and n != name]
        if name not in names and other:
            raise InputError(f"{path}: column", other[0], f"needed: {name}, in microseconds")
    missing = [n for n in COLUMNS[:-1] if n not in names]
    if missing:
        raise InputError(str(path), missing, f"needed columns: {', '.join(COLUMNS[:-1])}")
    cells: dict[tuple[int, int, int], tuple[float, float, int]] = {}
    for number, row in enumerate(table.rows, start=1):
        where = f"{path} (data row {number})"
        try:
            key = int(row["mcs"]), int(row["prb"]), int(row["sm"])
            p50, p99 = float(row["p50_us"]), float(row["p99_us"])
            trials = int(row["trials"]) if row.get("trials") else 1
        except (TypeError, ValueError):
            raise InputError(where, list(row.values()), "allowed: numbers") from None
        if key[0] < 0 or key[1] < 1 or key[2] < 1:
            raise InputError(where, key, "allowed: mcs from 0, prb and sm from 1")
        if not 0.0 < p50 <= p99 < math.inf:
            raise InputError(where, (p50, p99), "allowed: 0 < p50_us <= p99_us")
        if trials < 1:
            raise InputError(f"{where}: trials", trials, "allowed: at least 1")
        if cells.setdefault(key, (p50, p99, trials)) != (p50, p99, trials):
            raise InputError(f"{where}: mcs, prb, sm", key, "allowed: each cell once, or alike")
    if not cells:
        raise InputError(str(path), "no data row", "needed: at least one latency")
    longest = max(p99 for _, p99, _ in cells.values())
    if longest < _SHORTEST_US:
        raise InputError(
            f"{path}: p99_us", longest, "allowed: microseconds; these look like milliseconds"
        )
    own = table.how.pop("provenance", "") == "measured"
    return from_cells(cells, "measured" if own else "imported", table.how)


def from_cells(
    cells: Mapping[tuple[int, int, int], tuple[float, float, int]],
    provenance: str,
    how: Mapping[str, str],
) -> Measurements:
    """Measurements from ``(mcs, prb, sm) -> (p50_us, p99_us, trials)``, ordered by the key."""
    keys = sorted(cells)
    index = np.array(keys, dtype=np.int64).reshape(-1, 3)
    values = [cells[key] for key in keys]
    return Measurements(
        mcs=index[:, 0],
        prb=index[:, 1],
        sm=index[:, 2],
        p50_us=np.array([v[0] for v in values], dtype=np.float64),
        p99_us=np.array([v[1] for v in values], dtype=np.float64),
        trials=np.array([v[2] for v in values], dtype=np.int64),
        provenance=provenance,
        how=dict(how),
    )
