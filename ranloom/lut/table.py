"""The lookup table of WEAVER: fewest SMs that decode a slot of (MCS, PRB) within the budget.

Two tables are kept. The **raw** one holds what was profiled, point by point; it need not be
monotone. The **envelope** is what controllers query: it grows with PRB and with MCS, and between
profiled points it takes the ceiling in both dimensions (WEAVER appendix B.1), so a query never
promises less than any profiled point that it dominates, nor than the next one above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError

# In arrays: larger than any SM count, so that `min_sm <= sm` is false. In files: null.
INFEASIBLE = np.iinfo(np.int16).max
# In raw arrays: nothing was profiled here.
UNPROFILED = 0

# How a cell came about. `ceiling`: not profiled, taken from the next profiled point above.
PROVENANCES = ("published", "model", "measured", "imported", "ceiling")


@dataclass(frozen=True, eq=False)
class Cells:
    """Profiled points of a table; any set of distinct (MCS, PRB) pairs.

    Attributes:
        mcs: int64[n].
        prb: int64[n], at least 1.
        min_sm: int64[n], fewest SMs within the budget, or ``INFEASIBLE``.
        provenance: int8[n], index into ``PROVENANCES``; ``ceiling`` for a value that bounds the
            table without having been profiled.
    """

    mcs: NDArray[np.int64]
    prb: NDArray[np.int64]
    min_sm: NDArray[np.int64]
    provenance: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Lut:
    """Lookup table over MCS and PRB.

    Attributes:
        min_sm_raw: int16[n_mcs, max_prb + 1], profiled values; ``UNPROFILED`` elsewhere.
        min_sm: int16[n_mcs, max_prb + 1], monotone envelope; ``INFEASIBLE`` where no SM count
            is known to meet the budget; column 0 (nothing to decode) is 0.
        max_prb: int16[n_mcs, sm_count + 1], most PRBs by number of SMs, capped at the carrier.
        provenance: int8[n_mcs, max_prb + 1], index into ``PROVENANCES``.
    """

    min_sm_raw: NDArray[np.int16]
    min_sm: NDArray[np.int16]
    max_prb: NDArray[np.int16]
    provenance: NDArray[np.int8]

    @property
    def n_mcs(self) -> int:
        """Number of MCS indices."""
        return int(self.min_sm.shape[0])

    @property
    def carrier_prb(self) -> int:
        """Widest allocation."""
        return int(self.min_sm.shape[1]) - 1

    @property
    def sm_count(self) -> int:
        """SMs of the device."""
        return int(self.max_prb.shape[1]) - 1

    def lut_sm(self, mcs: int, prb: int) -> int | None:
        """LUT_SM: fewest SMs for an allocation; None where none meets the budget.

        Raises:
            InputError: outside the table.
        """
        self._check("mcs", mcs, self.n_mcs - 1)
        self._check("prb", prb, self.carrier_prb)
        sm = int(self.min_sm[mcs, prb])
        return None if sm == INFEASIBLE else sm

    def lut_prb(self, mcs: int, sm: int) -> int:
        """LUT_PRB: most PRBs that ``sm`` SMs decode within the budget, at most the carrier.

        Raises:
            InputError: outside the table.
        """
        self._check("mcs", mcs, self.n_mcs - 1)
        self._check("sm", sm, self.sm_count)
        return int(self.max_prb[mcs, sm])

    @staticmethod
    def _check(where: str, value: int, highest: int) -> None:
        if not 0 <= value <= highest:
            raise InputError(where, value, f"allowed: 0 to {highest}")

    @classmethod
    def from_cells(cls, cells: Cells, n_mcs: int, carrier_prb: int, sm_count: int) -> Lut:
        """Table from profiled points; see the module for what holds between them.

        Points beyond the carrier still bound what lies below them.

        Args:
            cells: profiled points.
            n_mcs: number of MCS indices.
            carrier_prb: PRBs of the carrier.
            sm_count: SMs of the device.

        Raises:
            InputError: no point, a point outside, or two points of one (MCS, PRB).
        """
        if not len(cells.mcs):
            raise InputError("profile", 0, "needed: at least one profiled (MCS, PRB) point")
        width = max(carrier_prb, int(cells.prb.max())) + 1
        bad = (cells.mcs < 0) | (cells.mcs >= n_mcs) | (cells.prb < 1)
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(
                "profile (mcs, prb)",
                (int(cells.mcs[at]), int(cells.prb[at])),
                f"allowed: MCS 0 to {n_mcs - 1}, at least 1 PRB",
            )
        times = np.zeros((n_mcs, width), dtype=np.int64)
        np.add.at(times, (cells.mcs, cells.prb), 1)
        if (times > 1).any():
            twice = np.argwhere(times > 1)[0]
            raise InputError(
                "profile (mcs, prb)", (int(twice[0]), int(twice[1])), "allowed: each point once"
            )
        raw = np.full((n_mcs, width), UNPROFILED, dtype=np.int16)
        raw[cells.mcs, cells.prb] = cells.min_sm
        provenance = np.full((n_mcs, width), PROVENANCES.index("ceiling"), dtype=np.int8)
        provenance[cells.mcs, cells.prb] = cells.provenance
        envelope = _envelope(raw)
        raw[provenance == PROVENANCES.index("ceiling")] = UNPROFILED
        keep = slice(0, carrier_prb + 1)
        return cls(
            min_sm_raw=raw[:, keep].copy(),
            min_sm=envelope[:, keep].copy(),
            max_prb=_max_prb(envelope[:, keep], sm_count),
            provenance=provenance[:, keep].copy(),
        )

    def to_columns(self) -> dict[str, Any]:
        """Columns of ``lut.parquet``, one row per MCS and PRB (from 1); lists with None for null.

        ``min_sm_raw`` is null where nothing was profiled (provenance ``ceiling``) and where the
        profiled point is infeasible; ``min_sm`` is null where the envelope is infeasible.
        """
        mcs, prb = np.meshgrid(
            np.arange(self.n_mcs), np.arange(1, self.carrier_prb + 1), indexing="ij"
        )
        raw, envelope = self.min_sm_raw[:, 1:].ravel(), self.min_sm[:, 1:].ravel()
        null_raw = (raw == UNPROFILED) | (raw == INFEASIBLE)
        return {
            "mcs": mcs.ravel().astype(np.int16),
            "prb": prb.ravel().astype(np.int16),
            "min_sm_raw": [None if n else int(v) for v, n in zip(raw, null_raw, strict=True)],
            "min_sm": [None if v == INFEASIBLE else int(v) for v in envelope],
            "provenance": [PROVENANCES[p] for p in self.provenance[:, 1:].ravel()],
        }

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, Any], sm_count: int, carrier_prb: int | None = None
    ) -> Lut:
        """Table from the columns of ``lut.parquet``.

        Args:
            columns: as of :meth:`to_columns`; nulls may come as None or NaN.
            sm_count: SMs of the device.
            carrier_prb: PRBs of the carrier; None for all that the table holds.

        Raises:
            InputError: the table is no complete grid, not monotone, or narrower than the carrier.
        """
        mcs = np.asarray(columns["mcs"], dtype=np.int64)
        prb = np.asarray(columns["prb"], dtype=np.int64)
        n_mcs, widest = int(mcs.max(initial=-1)) + 1, int(prb.max(initial=0))
        if carrier_prb is None:
            carrier_prb = widest
        if not 1 <= carrier_prb <= widest:
            raise InputError("n_prb", carrier_prb, f"allowed: 1 to {widest} (PRBs of the table)")
        if len(mcs) != n_mcs * widest or len(np.unique(mcs * (widest + 1) + prb)) != len(mcs):
            raise InputError(
                "lut table", len(mcs), f"needed: every MCS with PRB 1 to {widest}, each once"
            )
        names = np.asarray(columns["provenance"], dtype=object)
        unknown = sorted({str(n) for n in names} - set(PROVENANCES))
        if unknown:
            raise InputError("lut table: provenance", unknown, f"allowed: {', '.join(PROVENANCES)}")
        codes = np.array([PROVENANCES.index(str(n)) for n in names], dtype=np.int8)
        raw_values = _filled(columns["min_sm_raw"], INFEASIBLE)
        raw_values[codes == PROVENANCES.index("ceiling")] = UNPROFILED
        shape = (n_mcs, widest + 1)
        raw, envelope = np.zeros(shape, np.int16), np.zeros(shape, np.int16)
        provenance = np.full(shape, PROVENANCES.index("ceiling"), dtype=np.int8)
        raw[mcs, prb], provenance[mcs, prb] = raw_values, codes
        envelope[mcs, prb] = _filled(columns["min_sm"], INFEASIBLE)
        if (np.diff(envelope, axis=0) < 0).any() or (np.diff(envelope, axis=1) < 0).any():
            raise InputError("lut table: min_sm", "falls", "allowed: grows with MCS and PRB")
        keep = slice(0, carrier_prb + 1)
        return cls(
            min_sm_raw=raw[:, keep].copy(),
            min_sm=envelope[:, keep].copy(),
            max_prb=_max_prb(envelope[:, keep], sm_count),
            provenance=provenance[:, keep].copy(),
        )


def _filled(values: Any, fill: int) -> NDArray[np.int64]:
    numbers = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    return np.where(np.isnan(numbers), fill, numbers).astype(np.int64)


def _envelope(raw: NDArray[np.int16]) -> NDArray[np.int16]:
    """Monotone envelope of the profiled points, with the ceiling between them.

    At a profiled point: the largest value of all points that it dominates. Elsewhere: the
    smallest such value of all points above it in both dimensions, ``INFEASIBLE`` if there is none.
    """
    dominated = np.maximum.accumulate(np.maximum.accumulate(raw, axis=0), axis=1)
    at_points = np.where(raw == UNPROFILED, INFEASIBLE, dominated)
    flipped = np.minimum.accumulate(np.minimum.accumulate(at_points[::-1, ::-1], axis=0), axis=1)
    envelope = flipped[::-1, ::-1].astype(np.int16)
    envelope[:, 0] = 0
    return envelope


def _max_prb(envelope: NDArray[np.int16], sm_count: int) -> NDArray[np.int16]:
    counts = np.arange(sm_count + 1)
    return np.stack(
        [np.searchsorted(row, counts, side="right") - 1 for row in envelope]
    ).astype(np.int16)  # fmt: skip
