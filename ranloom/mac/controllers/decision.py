"""What every controller decides about a UL slot, and why."""

from __future__ import annotations

import numpy as np

# why a reservation changed; the order is part of the compiled code
REASONS = (
    "start",
    "hold",
    "demand",
    "ramp_up",
    "fast_exit",
    "ramp_down",
    "safeguard",
    "retransmission",
    "plan",
    "second_peak",
    "deadline",
    "credit",
)
(
    START,
    HOLD,
    DEMAND,
    RAMP_UP,
    FAST_EXIT,
    RAMP_DOWN,
    SAFEGUARD,
    RETRANSMISSION,
    PLAN,
    SECOND_PEAK,
    DEADLINE,
    CREDIT,
) = range(len(REASONS))

DECISION = np.dtype(
    [
        ("sm", np.int64),  # SMs reserved for the slot
        ("reason", np.int64),  # index into REASONS
        ("passes", np.int64),  # runs of the PRB allocation
        ("lut_mcs", np.float64),  # average MCS of the table query that gave ``sm``
        ("lut_prb", np.int64),  # PRBs of that query
    ]
)
