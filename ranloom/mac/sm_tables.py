# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The lookup table as the kernels read it, and the demand of a slot."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.kernel import kernel

ROUND_CEIL, ROUND_NEAREST, ROUND_FLOOR = 0, 1, 2


class SmTables(NamedTuple):
    """Monotone envelope of the lookup table in both directions.

    Attributes:
        min_sm: int64[n_mcs, n_prb + 1], fewest SMs that meet the budget; what no reservation
            meets holds ``sm_max`` (the scheduler can do no more).
        max_prb: int64[n_mcs, sm_max + 1], most PRBs that ``sm`` SMs decode within the budget.
        levels: int64[n], reservations of the device, ascending.
        level: int64[sm_max + 1], largest reservation of the device that is not above the index.
        sm_min: smallest reservation.
        sm_max: all SMs of the device.
        rounding: how a PRB-weighted average MCS becomes an index, one of ``ROUND_*``.
    """

    min_sm: NDArray[np.int64]
    max_prb: NDArray[np.int64]
    levels: NDArray[np.int64]
    level: NDArray[np.int64]
    sm_min: int
    sm_max: int
    rounding: int


@kernel
def mcs_index(mcs_average, rounding):
    """Row of the table for a PRB-weighted average MCS."""
    if rounding == ROUND_CEIL:
        return np.int64(math.ceil(mcs_average - 1e-9))
    if rounding == ROUND_NEAREST:
        return np.int64(math.floor(mcs_average + 0.5))
    return np.int64(math.floor(mcs_average + 1e-9))


@kernel
def lut_sm(mcs_average, n_prb, tables):
    """LUT_SM: fewest SMs that decode ``n_prb`` PRBs in time; ``sm_min`` for an empty slot."""
    return tables.min_sm[mcs_index(mcs_average, tables.rounding), n_prb]


@kernel
def lut_prb(mcs_average, sm, tables):
    """LUT_PRB: most PRBs that ``sm`` SMs decode in time, at most the carrier."""
    return tables.max_prb[mcs_index(mcs_average, tables.rounding), sm]
