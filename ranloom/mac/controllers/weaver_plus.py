# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""``weaver_plus``: change the reservation only when a delay or a compute account forces it.

Algorithm 1 ramps up on a byte threshold and sizes the reservation to drain in one slot; it holds
for a fixed patience. Short hard bursts then cost a ramp up and two steps down each, as many as
the uncontrolled scheduler makes. Here the two promises of the controller are accounts instead,
kept against a *shadow*: the uncontrolled scheduler, run along in units of PRBs, which serves the
same reported arrivals with the whole carrier.

* **Delay.** At reservation s with a budget of ``c(s)`` PRBs the last byte now waiting leaves after
  ``A / c(s)`` UL slots, in the shadow after ``S / n`` (A and S: backlogs of cell and shadow, n: the
  carrier). The reservation is raised, to the lowest one that will do, only when the present
  one would keep a byte longer than a target and also longer than the shadow by an allowance. The
  target is a floor or, if higher, a percentile of the shadow's own delays: a byte may take as long
  as the slowest bytes take anyway without moving that percentile.
* **Compute.** The shadow's demand is what the uncontrolled scheduler would have reserved. Each
  slot adds ``(1 + sm_allowance) x demand - reservation`` to a credit. A reservation that is
  higher than needed is held as long as smoothing has paid for it, and falls to the lowest one
  that suffices when the credit is used up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.mac.controllers.decision import CREDIT, DEADLINE, HOLD, RETRANSMISSION
from ranloom.mac.kernel import kernel
from ranloom.mac.proportional_fair import allocate
from ranloom.mac.sm_tables import lut_prb, lut_sm

_MAX_PASSES = 4


BINS_PER_OCTAVE = 8
N_BINS = 16 * BINS_PER_OCTAVE  # delays of the shadow from 1 to 2**16 UL slots


@dataclass(frozen=True)
class WeaverPlusParams:
    """Parameters of ``weaver_plus``.

    Args:
        delay_target_ms: a byte that leaves within this time never causes a ramp-up.
        delay_allowance_ms: how much later than without control any other byte may leave.
        delay_ceiling_ms: highest target (a delay budget; 100 ms is that of 5QI 7, 23.501 table
            5.7.4-1).
        percentile: between these two the target follows this percentile of the shadow's delays
            (by bytes).
        memory_s: time constant of that percentile, in seconds of uplink traffic at full carrier.
        sm_allowance: share by which the mean reservation may exceed the uncontrolled demand.
        credit_limit_sm_s: most credit that is kept, SM x seconds of UL slots.
        down_share: share of the permitted delay that a lower reservation may use up.

    Raises:
        InputError: a value is out of range.
    """

    delay_target_ms: float = 20.0
    delay_allowance_ms: float = 8.0
    delay_ceiling_ms: float = 100.0
    percentile: float = 95.0
    memory_s: float = 60.0
    sm_allowance: float = 0.01
    credit_limit_sm_s: float = 8.0
    down_share: float = 0.5

    def __post_init__(self) -> None:
        for name, low, high in (
            ("delay_target_ms", 0.0, 1e5),
            ("delay_allowance_ms", 0.0, 1e5),
            ("delay_ceiling_ms", self.delay_target_ms, 1e5),
            ("percentile", 1.0, 99.9),
            ("memory_s", 1e-3, 1e6),
            ("sm_allowance", -1.0, 10.0),
            ("credit_limit_sm_s", 0.0, 1e6),
            ("down_share", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) <= high:
                allowed = f"allowed: {low:g} to {high:g}"
                raise InputError(f"weaver_plus.{name}", getattr(self, name), allowed)


class WeaverPlus(NamedTuple):
    """Parameters for the kernel, and the state that is carried from slot to slot.

    Attributes:
        target_ul_slots: floor of the delay target.
        ceiling_ul_slots: highest delay target.
        allowance_ul_slots: delay allowance over the shadow.
        quantile: percentile / 100.
        growth: factor by which the weight of a PRB in the histogram grows per PRB, so that
            older ones fade.
        down_share: share of the permitted delay that a lower reservation may use up.
        demand_factor: 1 + SM allowance.
        credit_limit: SM x UL slots.
        open_bytes: a larger backlog may be of any size: the highest level that a buffer status
            report can tell apart (150 kB in the short format).
        prb_per_byte: float64[n_mcs], PRBs that a byte takes at full carrier.
        sm: int64[1], reservation of the slot before.
        account: float64[4]: backlog that the slot before left (PRB), backlog of the shadow (PRB),
            credit (SM x UL slots), average MCS of the last slot with grants.
        histogram: float64[N_BINS], weight of the bytes by their delay in the shadow.
        cursor: float64[4]: weight below the bin of the percentile, that bin, total weight, weight
            of a PRB now.
    """

    target_ul_slots: float
    ceiling_ul_slots: float
    allowance_ul_slots: float
    quantile: float
    growth: float
    down_share: float
    demand_factor: float
    credit_limit: float
    open_bytes: int
    prb_per_byte: NDArray[np.float64]
    sm: NDArray[np.int64]
    account: NDArray[np.float64]
    histogram: NDArray[np.float64]
    cursor: NDArray[np.float64]


def weaver_plus(
    params: WeaverPlusParams,
    tbs_bytes: NDArray[np.int64],
    *,
    ul_slots_per_s: float,
    open_bytes: int,
    sm_min: int,
    initial_mcs: float,
) -> WeaverPlus:
    """Ready for the first slot.

    Args:
        params: parameters.
        tbs_bytes: int64[n_mcs, n_prb + 1].
        ul_slots_per_s: uplink slots per second.
        open_bytes: highest level that a buffer status report can tell apart.
        sm_min: reservation before the first slot.
        initial_mcs: average MCS assumed before the first grant.
    """
    n_prb = tbs_bytes.shape[1] - 1
    return WeaverPlus(
        target_ul_slots=params.delay_target_ms * 1e-3 * ul_slots_per_s,
        ceiling_ul_slots=params.delay_ceiling_ms * 1e-3 * ul_slots_per_s,
        allowance_ul_slots=params.delay_allowance_ms * 1e-3 * ul_slots_per_s,
        quantile=params.percentile / 100.0,
        growth=1.0 / (params.memory_s * ul_slots_per_s * n_prb),
        down_share=params.down_share,
        demand_factor=1.0 + params.sm_allowance,
        credit_limit=params.credit_limit_sm_s * ul_slots_per_s,
        open_bytes=open_bytes,
        prb_per_byte=n_prb / tbs_bytes[:, n_prb].astype(np.float64),
        sm=np.array([sm_min], np.int64),
        account=np.array([0.0, 0.0, 0.0, float(initial_mcs)]),
        histogram=np.zeros(N_BINS),
        cursor=np.array([0.0, 0.0, 0.0, 1.0]),
    )


@kernel
def _note_delay(delay_ul_slots, arrived_prb, controller):
    """Book arrivals in the shadow's histogram and move the cursor to the percentile."""
    histogram, cursor = controller.histogram, controller.cursor
    octaves = math.log2(max(delay_ul_slots, 1.0))
    bin_of = int(BINS_PER_OCTAVE * min(octaves, N_BINS / BINS_PER_OCTAVE - 1e-9))
    weight = arrived_prb * cursor[3]
    cursor[3] *= 1.0 + arrived_prb * controller.growth
    histogram[bin_of] += weight
    cursor[2] += weight
    at = np.int64(cursor[1])
    below = cursor[0]
    if bin_of < at:
        below += weight
    wanted = controller.quantile * cursor[2]
    while at < N_BINS - 1 and below + histogram[at] < wanted:
        below += histogram[at]
        at += 1
    while at > 0 and below >= wanted:
        at -= 1
        below -= histogram[at]
    cursor[0] = below
    cursor[1] = at
    if cursor[3] > 1e100:  # weights grow for ever: rescale before they overflow
        for i in range(N_BINS):
            histogram[i] /= cursor[3]
        cursor[0] /= cursor[3]
        cursor[2] /= cursor[3]
        cursor[3] = 1.0


@kernel
def _target_ul_slots(controller):
    """Delay that a byte may have without further reason: the lower edge of the percentile's bin."""
    percentile = 2.0 ** (controller.cursor[1] / BINS_PER_OCTAVE)
    return min(max(controller.target_ul_slots, percentile), controller.ceiling_ul_slots)


@kernel
def _drain_ul_slots(sm, mcs_average, backlog_prb, fixed_prb, tables):
    """UL slots until a reservation has drained a backlog."""
    budget = lut_prb(mcs_average, sm, tables) - fixed_prb
    if budget <= 0:
        return 1e18 if backlog_prb > 0.0 else 0.0
    return backlog_prb / budget


@kernel
def _lowest_sm(floor_sm, limit, mcs_average, backlog_prb, fixed_prb, rules, tables):
    """Lowest reservation from ``floor_sm`` on that drains within ``limit`` UL slots."""
    for i in range(tables.levels.shape[0]):
        sm = tables.levels[i]
        if sm >= floor_sm and (
            lut_prb(mcs_average, sm, tables) >= rules.n_prb
            or _drain_ul_slots(sm, mcs_average, backlog_prb, fixed_prb, tables) <= limit
        ):
            return sm
    return tables.sm_max


@kernel
def earn_idle_credit(controller, n_slots, tables):
    """Credit of empty UL slots at the smallest reservation, which the shadow has as well."""
    earned = n_slots * (controller.demand_factor - 1.0) * tables.sm_min
    controller.account[2] = min(controller.account[2] + earned, controller.credit_limit)


@kernel
def decide_weaver_plus(controller, request, rules, tables, tbs_bytes, grants, decision):
    """One slot; arguments as for :func:`~ranloom.mac.controllers.weaver.decide_weaver`."""
    head = request.head[0]
    left_before, shadow, credit, mcs = (
        controller.account[0],
        controller.account[1],
        controller.account[2],
        controller.account[3],
    )
    backlog = 0.0
    mcs_backlog = 0.0
    is_open = False
    for i in range(head.n_signalling, head.n_candidates):
        prb = request.backlog_bytes[i] * controller.prb_per_byte[request.mcs[i]]
        backlog += prb
        mcs_backlog += prb * request.mcs[i]
        is_open = is_open or request.backlog_bytes[i] > controller.open_bytes
    if backlog > 0.0:
        mcs = mcs_backlog / backlog  # what waits now is what the budget has to fit
    fixed = head.retx_prb + head.n_signalling * rules.min_rb

    # the uncontrolled scheduler, one slot
    arrived = max(0.0, backlog - left_before)
    shadow = min(shadow + arrived, backlog)
    if arrived > 0.0:
        _note_delay(shadow / rules.n_prb, arrived, controller)
    shadow_served = min(shadow, max(0.0, rules.n_prb - fixed))
    shadow_prbs = min(rules.n_prb, np.int64(np.ceil(shadow_served)) + fixed)
    demand = lut_sm(mcs, shadow_prbs, tables) if shadow_prbs > 0 else tables.sm_min

    sm_prev = controller.sm[0]
    target = sm_prev
    reason = HOLD
    floor_sm = max(tables.sm_min, head.retx_sm)
    if target < floor_sm:
        target = floor_sm
        reason = RETRANSMISSION
    permitted = max(
        _target_ul_slots(controller), shadow / rules.n_prb + controller.allowance_ul_slots
    )
    if is_open:
        permitted = 0.0  # nobody knows how much waits: as fast as the carrier allows
    needed = _lowest_sm(floor_sm, permitted, mcs, backlog, fixed, rules, tables)
    if needed > target:
        target = needed
        reason = DEADLINE
    elif needed < target and credit <= 0.0:
        permitted *= controller.down_share
        lower = _lowest_sm(floor_sm, permitted, mcs, backlog, fixed, rules, tables)
        if lower < target:
            target = lower
            reason = CREDIT

    out = grants.head[0]
    cap = lut_prb(mcs, target, tables)
    passes = 0
    while True:
        allocate(request, cap, rules, grants)
        passes += 1
        if out.n_prb <= head.retx_prb or passes == _MAX_PASSES:
            break
        allowed = lut_prb(out.mcs_prb / out.n_prb, target, tables)
        if out.n_prb <= allowed and (passes > 1 or out.held_back == 0 or allowed <= cap):
            break
        cap = allowed

    left = 0.0
    for i in range(head.n_signalling, head.n_candidates):
        rest = request.backlog_bytes[i] - tbs_bytes[request.mcs[i], grants.rb[i]]
        if rest > 0:
            left += rest * controller.prb_per_byte[request.mcs[i]]
    controller.account[0] = left
    controller.account[1] = shadow - shadow_served
    controller.account[2] = min(
        credit + controller.demand_factor * demand - target, controller.credit_limit
    )
    controller.account[3] = mcs
    controller.sm[0] = target
    answer = decision[0]
    answer.sm = target
    answer.reason = reason
    answer.passes = passes
    answer.lut_mcs = mcs
    answer.lut_prb = out.n_prb
