# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Reservations that were fixed beforehand: constants, oracles and offline plans.

``const_<n>`` is the sham that every claim must beat. With ``capped`` the scheduler knows the
reservation and grants at most what it decodes in time; without, it grants as it likes and the
GPU is late instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.controllers.decision import PLAN
from ranloom.mac.kernel import kernel
from ranloom.mac.proportional_fair import allocate
from ranloom.mac.sm_tables import lut_prb

_MAX_PASSES = 8


class Planned(NamedTuple):
    """Parameters and state.

    Attributes:
        ul_index: int64[n], UL slot from which each reservation holds, ascending, first 0.
        sm: int64[n].
        reason: int64[n], reason code of each change.
        capped: 1 if grants respect the reservation.
        at: int64[1], entry in force.
        mcs: float64[1], average MCS of the last slot with grants.
    """

    ul_index: NDArray[np.int64]
    sm: NDArray[np.int64]
    reason: NDArray[np.int64]
    capped: int
    at: NDArray[np.int64]
    mcs: NDArray[np.float64]


def planned(
    ul_index: Sequence[int] | NDArray[np.int64],
    sm: Sequence[int] | NDArray[np.int64],
    reason: int = PLAN,
    *,
    capped: bool,
) -> Planned:
    """Follow a plan: ``sm[i]`` from UL slot ``ul_index[i]`` on."""
    return Planned(
        np.asarray(ul_index, np.int64),
        np.asarray(sm, np.int64),
        np.full(len(sm), reason, np.int64),
        int(capped),
        np.zeros(1, np.int64),
        np.zeros(1),
    )


@kernel
def decide_planned(controller, ul_index, request, rules, tables, grants, decision):
    """Allocate under the reservation that the plan holds for this slot."""
    at = controller.at[0]
    while at + 1 < controller.ul_index.shape[0] and controller.ul_index[at + 1] <= ul_index:
        at += 1
    controller.at[0] = at
    sm = controller.sm[at]
    answer = decision[0]
    answer.sm = sm
    answer.reason = controller.reason[at]
    answer.lut_mcs = controller.mcs[0]
    out = grants.head[0]
    if controller.capped == 0:
        allocate(request, rules.n_prb, rules, grants)
        answer.passes = 1
    else:
        cap = lut_prb(controller.mcs[0], sm, tables)
        passes = 0
        while passes < _MAX_PASSES:
            allocate(request, cap, rules, grants)
            passes += 1
            if out.n_prb <= request.head[0].retx_prb:
                break
            allowed = lut_prb(out.mcs_prb / out.n_prb, sm, tables)
            # narrow a cap that this mix of MCS exceeds; widen it once for who went unserved
            if out.n_prb <= allowed and (passes > 1 or out.held_back == 0 or allowed <= cap):
                break
            cap = allowed
        answer.passes = passes
        if out.n_prb > 0:
            controller.mcs[0] = out.mcs_prb / out.n_prb
    answer.lut_prb = out.n_prb
