"""Rerouting on the fast path: what the coordinator sees of a step.

The decisions are those of ``air.plan_interval`` on a ledger that holds what has been reported.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ranloom.training.air_kernels import is_runnable
from ranloom.training.simulator.fast_state import COMPLETE, IN_WORK, WAITING, Step


@njit(cache=True)
def suspects(
    step: Step, margin_errors: float, hop_s: float, now_s: float, left_s: float, steal_s: float
) -> bool:
    """Whether a site could have to give up work: a look at sums instead of at every key.

    Args:
        step: open work of the sites, and what the coordinator knows of them.
        margin_errors: as for ``Members``.
        hop_s: time to hand a tensor to the next stage.
        now_s: present time.
        left_s: time left until the admission deadline.
        steal_s: lag behind the common finish of a pool from which work should move.
    """
    stages = len(step.work)
    sites = len(step.sites)
    longest = np.max(step.work[:, 0] + step.work[:, 1])
    moved = step.counts[0].moved > 0
    pace = np.zeros(sites)
    rate = np.zeros(stages)
    holders = np.zeros(stages)
    level_s = np.zeros(stages)
    for site in range(sites):
        stage = step.sites[site].stage
        if stage >= 0:
            member = step.members[site]
            factor = max(1.0 + member.error + margin_errors * member.spread, 0.05)
            pace[site] = factor / (member.tflops * 1e12)
            rate[stage] += 1.0 / pace[site]
            holders[stage] += 1.0
            level_s[stage] += step.sites[site].open_flop
    tail_s = np.zeros(stages + 1)
    head_s = 0.0
    for stage in range(stages):
        mean = holders[stage] / rate[stage]
        tail_s[stage + 1] = tail_s[stage] + step.work[stage, 1] * mean + hop_s
        if stage < stages - 1:
            head_s += step.work[stage, 0] * mean + hop_s
    rounding = 1.0 + 1e-9  # sums by key and by task differ in their last digits
    begins = moved or np.any(step.rows["fate"] == WAITING)
    if (head_s + tail_s[stages - 1]) * rounding > left_s and begins:
        return True
    for site in range(sites):
        stage = step.sites[site].stage
        # a site that has done everything may be called late, but has nothing to give up; after a
        # move every survey counts, since ``reported`` does not follow all that moves do in between
        has_work = step.sites[site].open_flop > 1e-6 * longest
        if stage >= 0 and (moved or has_work):
            owned_s = step.sites[site].open_flop * pace[site]
            reports = step.members[site].reports
            if has_work and (moved or reports > 0 or step.sites[site].backlog > 0):
                since_s = max(step.members[site].heard_s, step.sites[site].fed_s)
                owned_s += max(now_s - since_s - longest * pace[site], 0.0)
            if (owned_s + tail_s[stage]) * rounding > left_s:
                return True
            if owned_s * rounding > level_s[stage] / rate[stage] + steal_s:
                return True
    return False


@njit(cache=True)
def reported(
    step: Step,
    records: np.ndarray,
    busy_since_s: np.ndarray,
    surveyed_s: float,
    now_s: float,
    tick_s: float,
) -> None:
    """Bring the ledger's records [M, P] to what the coordinator knows at a time.

    Args:
        step: what happens.
        records: what is known; changed.
        busy_since_s: as at the last survey [S]; brought to what a survey in every control interval
            since would have left.
        surveyed_s: time of the last survey in this step.
        now_s: present time.
        tick_s: control interval.
    """
    rows, stages = step.keys.shape
    for row in range(rows):
        complete = step.rows[row].fate == COMPLETE
        admitted = step.rows[row].fate != WAITING
        for stage in range(stages):
            record = records[row, stage]
            record["owner"] = step.keys[row, stage].owner
            record["attempt"] = 0 if admitted else -1
            for direction in range(2):
                done = _seen_s(step, row, stage, direction) <= now_s
                made = step.made_at[direction, row, stage]
                record["output"][direction] = made if done and not complete else -1
                if direction == 1:
                    record["committed"] = done
    runs_s = np.full(len(busy_since_s), np.inf)
    for row in range(rows):
        if step.rows[row].fate == IN_WORK:
            for stage in range(stages):
                if is_runnable(records, row, stage):
                    owner = step.keys[row, stage].owner
                    runs_s[owner] = min(runs_s[owner], _runs_s(step, row, stage, now_s))
    for site in range(len(busy_since_s)):
        heard_s = step.members[site].heard_s
        found_s = _next_tick_s(runs_s[site], now_s, tick_s)
        if heard_s > surveyed_s:
            told_s = _next_tick_s(heard_s, now_s, tick_s)
            busy_since_s[site] = heard_s if found_s <= told_s else found_s
        elif np.isnan(busy_since_s[site]):
            busy_since_s[site] = found_s
        if runs_s[site] == np.inf:
            busy_since_s[site] = np.nan


@njit(cache=True)
def _next_tick_s(after_s: float, now_s: float, tick_s: float) -> float:
    """First control interval after a time; the last one is now."""
    since = np.ceil((now_s - after_s) / tick_s - 1e-9) - 1.0
    return float(now_s - max(since, 0.0) * tick_s)


@njit(cache=True)
def _seen_s(step: Step, row: int, stage: int, direction: int) -> float:
    """When the coordinator knows of a task, infinite if it is not done."""
    maker = step.made_at[direction, row, stage]
    return (
        float(step.done_s[direction, row, stage] + step.sites[maker].hub_s)
        if maker >= 0
        else np.inf
    )


@njit(cache=True)
def _runs_s(step: Step, row: int, stage: int, now_s: float) -> float:
    """Since when the coordinator has known all inputs of a key's next task."""
    last = step.keys.shape[1] - 1
    since_s = step.rows[row].admitted_s
    before = step.moved[row, stage]
    if before.site >= 0:
        since_s = max(since_s, before.gone_s - step.sites[before.site].hub_s)
    if stage < last and step.made_at[0, row, stage] >= 0:
        made_s = _seen_s(step, row, stage, 0)
        if made_s <= now_s:
            return float(max(since_s, made_s, _seen_s(step, row, stage + 1, 1)))
    return float(max(since_s, _seen_s(step, row, stage - 1, 0)) if stage > 0 else since_s)
