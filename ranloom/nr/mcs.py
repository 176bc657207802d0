"""Modulation and coding scheme tables (3GPP TS 38.214 tables 5.1.3.1-1, -2, -3).

PUSCH without transform precoding uses the same three tables (clause 6.1.4.1). Code rates are
kept as integers in units of 1/2048, so that transport block sizes follow without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError

# (modulation order, target code rate x 1024) by MCS index
_TABLES: dict[int, tuple[tuple[int, float], ...]] = {
    1: (
        *((2, r) for r in (120, 157, 193, 251, 308, 379, 449, 526, 602, 679)),
        *((4, r) for r in (340, 378, 434, 490, 553, 616, 658)),
        *((6, r) for r in (438, 466, 517, 567, 616, 666, 719, 772, 822, 873, 910, 948)),
    ),
    2: (
        *((2, r) for r in (120, 193, 308, 449, 602)),
        *((4, r) for r in (378, 434, 490, 553, 616, 658)),
        *((6, r) for r in (466, 517, 567, 616, 666, 719, 772, 822, 873)),
        *((8, r) for r in (682.5, 711, 754, 797, 841, 885, 916.5, 948)),
    ),
    3: (
        *((2, r) for r in (30, 40, 50, 64, 78, 99, 120, 157, 193, 251, 308, 379, 449, 526, 602)),
        *((4, r) for r in (340, 378, 434, 490, 553, 616)),
        *((6, r) for r in (438, 466, 517, 567, 616, 666, 719, 772)),
    ),
}


@dataclass(frozen=True, eq=False)
class McsTable:
    """One MCS table as arrays over the MCS index.

    Attributes:
        index: 1, 2 or 3.
        modulation_order: int64[n_mcs], bits per symbol (2, 4, 6, 8).
        code_rate_x2048: int64[n_mcs], target code rate in units of 1/2048.
        code_rate: float64[n_mcs], target code rate.
        spectral_efficiency: float64[n_mcs], information bits per resource element and layer.
    """

    index: int
    modulation_order: NDArray[np.int64]
    code_rate_x2048: NDArray[np.int64]
    code_rate: NDArray[np.float64]
    spectral_efficiency: NDArray[np.float64]

    @property
    def n_mcs(self) -> int:
        """Number of MCS indices with a code rate (reserved ones left out)."""
        return len(self.modulation_order)


@cache
def mcs_table(index: int = 1) -> McsTable:
    """MCS table ``index`` (1: 64QAM, 2: 256QAM, 3: low spectral efficiency).

    Raises:
        InputError: there is no such table.
    """
    if index not in _TABLES:
        raise InputError("mcs_table", index, "allowed: 1 (64QAM), 2 (256QAM), 3 (64QAM, low SE)")
    rows = _TABLES[index]
    order = np.array([q for q, _ in rows], dtype=np.int64)
    rate_x2048 = np.array([round(2 * r) for _, r in rows], dtype=np.int64)
    rate = rate_x2048 / 2048.0
    arrays = (order, rate_x2048, rate, order * rate)
    for array in arrays:
        array.setflags(write=False)
    return McsTable(index, *arrays)
