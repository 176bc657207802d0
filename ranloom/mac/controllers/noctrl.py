# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""``noctrl``: serve the backlog, reserve what the slot needs.

The scheduler is unmodified and its raw demand is the reservation (paper, section 7.1). An empty
slot needs the smallest reservation; the variant ``hold`` keeps the one before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.controllers.decision import DEMAND
from ranloom.mac.kernel import kernel
from ranloom.mac.proportional_fair import allocate
from ranloom.mac.sm_tables import lut_sm

SLOT_TOTAL, PER_BLOCK = 0, 1


class NoCtrl(NamedTuple):
    """Parameters and state.

    Attributes:
        demand: ``SLOT_TOTAL`` is one table query with the slot's PRBs and average MCS,
            ``PER_BLOCK`` the sum of one query per transport block, at most the device.
        hold_empty: 1 keeps the reservation in an empty slot.
        sm: int64[1], reservation of the slot before.
    """

    demand: int
    hold_empty: int
    sm: NDArray[np.int64]


@kernel
def slot_demand(demand, request, grants, tables):
    """SMs that the allocation of a slot needs.

    Args:
        demand: definition, ``SLOT_TOTAL`` or ``PER_BLOCK``.
        request: candidates of the slot.
        grants: their grants.
        tables: lookup table.
    """
    out = grants.head[0]
    if out.n_prb == 0:
        return tables.sm_min
    if demand == SLOT_TOTAL:
        return lut_sm(out.mcs_prb / out.n_prb, out.n_prb, tables)
    total = request.head[0].retx_sm_per_block
    for i in range(request.head[0].n_candidates):
        if grants.rb[i] > 0:
            total += tables.min_sm[request.mcs[i], grants.rb[i]]
    return min(total, tables.sm_max)


@kernel
def decide_noctrl(controller, request, rules, tables, grants, decision):
    """Allocate without a cap and reserve the demand."""
    allocate(request, rules.n_prb, rules, grants)
    out = grants.head[0]
    answer = decision[0]
    answer.reason = DEMAND
    answer.passes = 1
    answer.lut_mcs = out.mcs_prb / max(out.n_prb, 1)
    answer.lut_prb = out.n_prb
    if out.n_prb == 0 and controller.hold_empty == 1:
        answer.sm = controller.sm[0]
    else:
        answer.sm = slot_demand(controller.demand, request, grants, tables)
    controller.sm[0] = answer.sm
