# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""``weaver``: the compute-aware UL scheduler (paper, Algorithm 1 and Table 9).

One call per UL slot wraps the proportional-fair allocation: (a) a PRB budget from the lookup
table, (a') the allocation under it, (b) adjustment of the reservation from backlog and history,
(c) a check of the allocation against the adjusted reservation, with a bounded number of passes.
The function has no clock and no state but :class:`Weaver`: a live scheduler calls it exactly as
the simulated cell does. Line numbers in comments are those of Algorithm 1.

Where the algorithm is silent or contradicts itself, the choice is a parameter; the value that
reads it literally is named in :class:`WeaverParams`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.mac.controllers.decision import (
    FAST_EXIT,
    HOLD,
    RAMP_DOWN,
    RAMP_UP,
    RETRANSMISSION,
    SAFEGUARD,
)
from ranloom.mac.kernel import kernel
from ranloom.mac.proportional_fair import allocate, fewest_rb
from ranloom.mac.sm_tables import lut_prb, lut_sm, mcs_index

PATIENCE_UNITS = ("slots", "ul_slots")
PATIENCE_COUNTS = ("literal", "per_slot")
BACKLOGS = ("total", "residual")
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class WeaverParams:
    """Parameters of Algorithm 1; the defaults are Table 9 where it gives a value.

    Args:
        step_sm: SM increment and decrement (STEP).
        backlog_threshold_bytes: per-UE backlog that allows a ramp-up (BACKLOG_THR); the text
            calls 64 KB half a full-bandwidth block, which fits 64 kbit (8192 bytes) better.
        patience: ramp-down patience (DECR_THR), in ``patience_unit``.
        patience_unit: ``slots`` (30 slots are 15 ms at 30 kHz, of which 6 are uplink) or
            ``ul_slots`` (the counter counts runs of the algorithm: the literal reading).
        patience_count: ``literal`` counts line 30 once per pass, ``per_slot`` once per slot.
        prb_tolerance: slack of step (c) (PRB_TOL).
        max_iterations: passes per slot (MAX_ITER).
        high_tier_cap_sm: HIGH_TIER_CAP of lines 18 to 20, for which no value is published.
        succeed_when_served: line 41 also succeeds when no backlog is left; ``False`` is the
            literal reading, which then loops to the bound in every lightly loaded slot.
        never_lower_on_ramp_up: line 15 takes the maximum with the target; ``False`` is literal
            and can lower the reservation while a UE's backlog is above the threshold.
        sum_backlog: backlog of lines 9, 14, 19 and 36: ``total`` before this slot's grants, or
            ``residual`` after them.
        delay_threshold_ms: instead of bytes, a ramp-up is allowed once the current budget would
            need longer than this to drain a UE; 0 keeps the byte threshold. One value a UE, or
            one for all (delay budgets by 5QI, 23.501 table 5.7.4-1).

    Raises:
        InputError: a value is out of range.
    """

    step_sm: int = 8
    backlog_threshold_bytes: int = 65536
    patience: int = 30
    patience_unit: str = "slots"
    patience_count: str = "per_slot"
    prb_tolerance: int = 10
    max_iterations: int = 5
    high_tier_cap_sm: int = 24
    succeed_when_served: bool = True
    never_lower_on_ramp_up: bool = True
    sum_backlog: str = "total"
    delay_threshold_ms: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("step_sm", 1, 1024),
            ("backlog_threshold_bytes", 0, UNLIMITED_BYTES),
            ("patience", 1, 1_000_000),
            ("prb_tolerance", 0, 275),
            ("max_iterations", 1, 100),
            ("high_tier_cap_sm", 1, 1024),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"weaver.{name}", getattr(self, name), f"allowed: {low} to {high}")
        for name, choices in (
            ("patience_unit", PATIENCE_UNITS),
            ("patience_count", PATIENCE_COUNTS),
            ("sum_backlog", BACKLOGS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(f"weaver.{name}", getattr(self, name), f"allowed: {choices}")
        if not self.delay_threshold_ms or any(not 0 <= d < 1e6 for d in self.delay_threshold_ms):
            raise InputError("weaver.delay_threshold_ms", self.delay_threshold_ms, "allowed: >= 0")


class Weaver(NamedTuple):
    """Parameters for the kernel, and the state that is carried from slot to slot.

    Attributes:
        step_sm, patience_ul_slots, per_slot, prb_tolerance, max_iterations, high_tier_cap_sm,
            succeed_when_served, never_lower, residual: from :class:`WeaverParams`.
        threshold_bytes: int64[n_ue].
        delay_threshold_ul_slots: float64[n_ue], 0 where bytes decide.
        memory: int64[3]: reservation of the slot before (``sm_prev``), ``slots_since_under``,
            ``slots_since_update``.
        mcs_prev: float64[1], average MCS of the last slot with grants.
    """

    step_sm: int
    patience_ul_slots: int
    per_slot: int
    prb_tolerance: int
    max_iterations: int
    high_tier_cap_sm: int
    succeed_when_served: int
    never_lower: int
    residual: int
    threshold_bytes: NDArray[np.int64]
    delay_threshold_ul_slots: NDArray[np.float64]
    memory: NDArray[np.int64]
    mcs_prev: NDArray[np.float64]


def weaver(
    params: WeaverParams,
    n_ue: int,
    *,
    ul_slots_per_s: float,
    ul_share: float,
    sm_min: int,
    initial_mcs: float,
) -> Weaver:
    """Algorithm 1, ready for its first slot.

    Args:
        params: parameters.
        n_ue: number of UEs.
        ul_slots_per_s: uplink slots per second, for delays in milliseconds.
        ul_share: share of uplink slots in the TDD pattern, for a patience in slots.
        sm_min: reservation before the first slot.
        initial_mcs: average MCS assumed before the first grant.
    """
    patience = params.patience
    if params.patience_unit == "slots":
        patience = max(1, round(params.patience * ul_share))
    delays = np.asarray(params.delay_threshold_ms, np.float64)
    if len(delays) not in (1, n_ue):
        raise InputError("weaver.delay_threshold_ms", len(delays), f"allowed: 1 or {n_ue} values")
    return Weaver(
        params.step_sm,
        patience,
        int(params.patience_count == "per_slot"),
        params.prb_tolerance,
        params.max_iterations,
        params.high_tier_cap_sm,
        int(params.succeed_when_served),
        int(params.never_lower_on_ramp_up),
        int(params.sum_backlog == "residual"),
        np.full(n_ue, params.backlog_threshold_bytes, np.int64),
        np.broadcast_to(delays * 1e-3 * ul_slots_per_s, n_ue).copy(),
        np.array([sm_min, 0, 0], np.int64),
        np.array([float(initial_mcs)]),
    )


@kernel
def _wants_ramp_up(controller, request, grants, cap_prb, rules, tbs_bytes):
    """Line 13: a UE above its threshold, and a used-up PRB budget or a residual above it too."""
    exhausted = cap_prb - grants.head[0].n_prb < rules.min_rb
    for i in range(request.head[0].n_signalling, request.head[0].n_candidates):
        u = request.ue[i]
        threshold = controller.threshold_bytes[u]
        if controller.delay_threshold_ul_slots[u] > 0.0:
            threshold = np.int64(
                controller.delay_threshold_ul_slots[u] * tbs_bytes[request.mcs[i], cap_prb]
            )
        backlog = request.backlog_bytes[i]
        if backlog > threshold:
            residual = backlog - tbs_bytes[request.mcs[i], grants.rb[i]]
            if exhausted or residual > threshold:
                return True
    return False


@kernel
def _lower(sm, controller, tables):
    """One step down, on a level that the device can reserve."""
    return tables.level[max(sm - controller.step_sm, tables.sm_min)]


@kernel
def _residual_bytes(request, grants, tbs_bytes):
    """Backlog that the grants of this slot leave."""
    total = 0
    for i in range(request.head[0].n_signalling, request.head[0].n_candidates):
        total += max(0, request.backlog_bytes[i] - tbs_bytes[request.mcs[i], grants.rb[i]])
    return total


@kernel
def _prb_for(backlog_bytes, mcs_average, rules, tables, tbs_bytes):
    """est_prbs_from_backlog: PRBs that carry a backlog in one slot, at most the carrier."""
    if backlog_bytes <= 0:
        return 0
    mcs = mcs_index(mcs_average, tables.rounding)
    return fewest_rb(backlog_bytes, mcs, rules.min_rb, rules.n_prb, tbs_bytes)


@kernel
def decide_weaver(controller, request, rules, tables, tbs_bytes, grants, decision):
    """One slot of Algorithm 1.

    Args:
        controller: :class:`Weaver`; its state is updated.
        request: candidates of the slot, with the retransmissions placed before. These stand
            outside the PRB cap and keep the target at least at what they need alone, else a large
            block would starve after a ramp-down.
        rules: constants of the allocation.
        tables: lookup table.
        tbs_bytes: int64[n_mcs, n_prb + 1].
        grants: written: the grants to emit.
        decision: written: the reservation and why.
    """
    sm_prev = controller.memory[0]
    under = controller.memory[1]
    since_update = controller.memory[2]
    target = sm_prev
    mcs_estimate = controller.mcs_prev[0]
    high_demand_seen = False
    reason = HOLD
    lut_mcs = mcs_estimate
    lut_prbs = 0
    counted = False
    retx_sm = request.head[0].retx_sm
    if retx_sm > target:
        target = retx_sm
        reason = RETRANSMISSION
        lut_prbs = request.head[0].retx_prb
    out = grants.head[0]
    passes = 0
    while True:
        passes += 1
        # (a) and (a'), lines 5 to 10
        cap = lut_prb(mcs_estimate, target, tables)
        allocate(request, cap, rules, grants)
        n_prb = out.n_prb
        mcs_current = out.mcs_prb / n_prb if n_prb > 0 else 0.0
        backlog = request.head[0].backlog_bytes
        if controller.residual == 1:
            backlog = _residual_bytes(request, grants, tbs_bytes)

        # (b) ramp-up, lines 12 to 16
        if request.head[0].max_backlog_bytes > 0 and _wants_ramp_up(
            controller, request, grants, cap, rules, tbs_bytes
        ):
            estimate = max(
                n_prb + rules.min_rb, _prb_for(backlog, mcs_estimate, rules, tables, tbs_bytes)
            )
            estimate = min(estimate, rules.n_prb)
            wanted = max(lut_sm(mcs_estimate, estimate, tables), retx_sm)
            if controller.never_lower == 1:
                wanted = max(wanted, target)
            if wanted != target:
                target = wanted
                reason = RAMP_UP
                lut_mcs = mcs_estimate
                lut_prbs = estimate
            high_demand_seen = True
        # fast exit, lines 17 to 23
        if not high_demand_seen and n_prb == 0 and target > controller.high_tier_cap_sm:
            estimate = _prb_for(backlog, mcs_estimate, rules, tables, tbs_bytes)
            exit_sm = lut_sm(mcs_estimate, estimate, tables)
            if exit_sm <= controller.high_tier_cap_sm:
                target = max(_lower(target, controller, tables), exit_sm)
                reason = FAST_EXIT
                lut_mcs = mcs_estimate
                lut_prbs = estimate
        # hold or ramp-down, lines 24 to 38
        if target != sm_prev:
            under = 0
            since_update = 0
        elif controller.per_slot == 0 or not counted:
            counted = True
            since_update += 1
            lower = _lower(sm_prev, controller, tables)
            if sm_prev > tables.sm_min and lut_prb(mcs_current, lower, tables) >= n_prb:
                under += 1
            else:
                under = 0
        if under >= controller.patience_ul_slots:
            estimate = _prb_for(backlog, mcs_estimate, rules, tables, tbs_bytes)
            desired = max(lut_sm(mcs_estimate, estimate, tables), tables.sm_min)
            target = max(_lower(sm_prev, controller, tables), desired, retx_sm)
            under = 0
            if target != sm_prev:
                reason = RAMP_DOWN if target < sm_prev else RAMP_UP
                lut_mcs = mcs_estimate
                lut_prbs = estimate
        # (c), lines 39 to 49
        allowed = lut_prb(mcs_current, target, tables)
        if n_prb <= allowed and (
            allowed - n_prb <= controller.prb_tolerance
            or (controller.succeed_when_served == 1 and out.held_back == 0)
        ):
            break
        if passes >= controller.max_iterations:
            if n_prb > allowed:
                target = max(lut_sm(mcs_current, n_prb, tables), retx_sm)
                reason = SAFEGUARD
                lut_mcs = mcs_current
                lut_prbs = n_prb
            break
        mcs_estimate = mcs_current

    # lines 50 to 54
    controller.memory[0] = target
    controller.memory[1] = under
    controller.memory[2] = since_update
    if mcs_current > 0.0:
        controller.mcs_prev[0] = mcs_current
    answer = decision[0]
    answer.sm = target
    answer.reason = reason
    answer.passes = passes
    answer.lut_mcs = lut_mcs
    answer.lut_prb = lut_prbs
