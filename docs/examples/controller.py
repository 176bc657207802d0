# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""``hold``: reserve what the slot needs, give SMs back only after a time without need of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.controllers.decision import DEMAND, HOLD
from ranloom.mac.controllers.noctrl import SLOT_TOTAL, slot_demand
from ranloom.mac.kernel import kernel
from ranloom.mac.proportional_fair import allocate


class Hold(NamedTuple):
    """Parameters and state.

    Attributes:
        ul_slots: UL slots for which a reservation is kept without need.
        memory: int64[2], reservation, and UL slots since it was needed.
    """

    ul_slots: int
    memory: NDArray[np.int64]


def hold(ul_slots: int, sm_min: int) -> Hold:
    """Start at the smallest reservation."""
    return Hold(ul_slots, np.array([sm_min, 0], np.int64))


@kernel
def decide_hold(controller, request, rules, tables, grants, decision):
    """Decide a UL slot: fill ``grants``, then ``decision[0]``."""
    allocate(request, rules.n_prb, rules, grants)  # no cap: the scheduler as it is
    out, answer, memory = grants.head[0], decision[0], controller.memory
    needed = slot_demand(SLOT_TOTAL, request, grants, tables)
    memory[1] = 0 if needed >= memory[0] else memory[1] + 1
    answer.reason = HOLD
    if needed > memory[0] or memory[1] >= controller.ul_slots:
        memory[0], memory[1] = needed, 0
        answer.reason = DEMAND
    answer.sm = memory[0]
    answer.passes = 1
    answer.lut_mcs = out.mcs_prb / max(out.n_prb, 1)
    answer.lut_prb = out.n_prb
