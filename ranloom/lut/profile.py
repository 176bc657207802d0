"""What a profile is: decode latencies by MCS, PRB and SM count, and the fewest SMs within a budget.

Every row carries its provenance. :mod:`ranloom.lut.backends` makes profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranloom.gpu.card import Card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.importers import ImportOptions
from ranloom.lut.table import PROVENANCES, Cells, Lut
from ranloom.nr.segmentation import work_table
from ranloom.nr.tbs import Allocation


@dataclass(frozen=True, eq=False)
class ProfileRequest:
    """What to profile.

    Args:
        allocation: shape of the PUSCH allocation.
        max_prb: widest allocation.
        card: the device.
        budget_us: latency budget.
        percentile: 99 or 50, which latency must meet the budget.
        model: latency model, for the ``model`` backend and wherever a profile has gaps.
        published_path: the published figures, for the ``published`` backend.
        source_path: profile or log, for the ``import`` backend.
        source_options: what that log does not say.
        fit_source: whether the ``import`` backend fits that model to its source first.
    """

    allocation: Allocation
    max_prb: int
    card: Card
    budget_us: float
    percentile: int
    model: LatencyModel
    published_path: Path
    source_path: Path
    source_options: ImportOptions
    fit_source: bool = False

    @cached_property
    def work(self) -> NDArray[np.int32]:
        """Code blocks x lifting size, int32[n_mcs, max_prb + 1]."""
        return work_table(self.max_prb, **self.allocation.keywords)

    @property
    def n_mcs(self) -> int:
        """Number of MCS indices."""
        return int(self.work.shape[0])


@dataclass(frozen=True, eq=False)
class Latencies:
    """Decode latencies, one row a (MCS, PRB, SM count).

    Attributes:
        mcs: int16[n].
        prb: int16[n].
        sm: int16[n].
        p50_us: float64[n].
        p99_us: float64[n].
        provenance: int8[n], index into ``PROVENANCES``.
    """

    mcs: NDArray[np.int16]
    prb: NDArray[np.int16]
    sm: NDArray[np.int16]
    p50_us: NDArray[np.float64]
    p99_us: NDArray[np.float64]
    provenance: NDArray[np.int8]

    def to_columns(self) -> dict[str, Any]:
        """Columns of ``latency.parquet``."""
        return {
            "mcs": self.mcs,
            "prb": self.prb,
            "sm": self.sm,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "provenance": [PROVENANCES[p] for p in self.provenance],
        }


@dataclass(frozen=True, eq=False)
class Profile:
    """Result of a backend.

    Args:
        latencies: every latency known.
        cells: fewest SMs by (MCS, PRB).
        model: latency model of the device: the given one, or fitted to the latencies.
        tail_sigma: standard deviation of the logarithm of single decodes, if it was fitted, too.
        how: what is known of how it was taken.
        skipped: lines of a log that were not used: one text a kind, with the first of each.
    """

    latencies: Latencies
    cells: Cells
    model: LatencyModel
    tail_sigma: float | None = None
    how: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    def lut(self, request: ProfileRequest) -> Lut:
        """Lookup table of this profile."""
        return Lut.from_cells(self.cells, request.n_mcs, request.max_prb, request.card.sm_count)
