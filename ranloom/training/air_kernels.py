"""Compiled kernels of rerouting, over the ledger's records; shared with the compiled simulator.

Values of ``Fate`` stand as numbers here: 0 waiting, 1 in work, 2 complete, 3 deferred.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LATE, GIVES, ORPHANS = 1, 2, 4
"""Flags of ``survey``: a site misses the deadline; it should give work up; a stage has orphans."""


@njit(cache=True)
def open_flop(record: np.ndarray, site: int, forward_flop: float, backward_flop: float) -> float:
    """Work that an open key still costs a site: no forward pass if it has just made it itself."""
    if record["output"][0] == site and site >= 0:
        return backward_flop
    return forward_flop + backward_flop


@njit(cache=True)
def survey(
    records: np.ndarray,
    fate: np.ndarray,
    stage_of: np.ndarray,
    forward_flop: np.ndarray,
    backward_flop: np.ndarray,
    pace: np.ndarray,
    tail_s: np.ndarray,
    busy_since_s: np.ndarray,
    now_s: float,
    left_s: float,
    steal_s: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One look at a step: what each site still has to do, and where that is too much.

    A site whose present task overruns its prediction counts as busy for that much longer.

    Args:
        records: keys of the step [M, P].
        fate: state of its micro-batches [M].
        stage_of: stage that each site holds, -1 for none [S].
        forward_flop: work of a forward task by stage [P].
        backward_flop: work of a backward task by stage [P].
        pace: predicted seconds per operation by site, infinite for dead ones [S].
        tail_s: from a stage's last task until its micro-batch is complete [P].
        busy_since_s: since when a site has had something to do without a completion [S]; NaN if
            it has nothing. Updated in place.
        now_s: present time.
        left_s: time left until the admission deadline.
        steal_s: lag behind the common finish of a pool from which work should move.

    Returns:
        Seconds until each site has finished what it owns [S], common finish of each stage's pool
        [P], flags of sites [S], flags of stages [P].
    """
    rows, stages = records.shape
    sites = len(pace)
    owned_s = np.zeros(sites)
    busy = np.zeros(sites, dtype=np.bool_)
    site_flags = np.zeros(sites, dtype=np.int8)
    stage_flags = np.zeros(stages, dtype=np.int8)
    for row in range(rows):
        if fate[row] == 3:
            continue
        for stage in range(stages):
            record = records[row, stage]
            owner = record["owner"]
            if record["committed"]:
                continue
            if owner < 0:
                stage_flags[stage] = ORPHANS
                continue
            flop = open_flop(record, owner, forward_flop[stage], backward_flop[stage])
            owned_s[owner] += flop * pace[owner]
            if not busy[owner] and fate[row] != 0:
                busy[owner] = is_runnable(records, row, stage)
    longest = 0.0
    for stage in range(stages):
        longest = max(longest, forward_flop[stage] + backward_flop[stage])
    rate = np.zeros(stages)
    level_s = np.zeros(stages)
    for site in range(sites):
        if not busy[site]:
            busy_since_s[site] = np.nan
        elif np.isnan(busy_since_s[site]):
            busy_since_s[site] = now_s
        stage = stage_of[site]
        if stage < 0 or not np.isfinite(pace[site]):
            continue
        if busy[site]:
            overrun_s = now_s - busy_since_s[site] - longest * pace[site]
            owned_s[site] += max(overrun_s, 0.0)
        rate[stage] += 1.0 / pace[site]
        level_s[stage] += owned_s[site] / pace[site]
    for stage in range(stages):
        if rate[stage] > 0.0:
            level_s[stage] /= rate[stage]
    for site in range(sites):
        stage = stage_of[site]
        if stage < 0 or not np.isfinite(pace[site]):
            continue
        if owned_s[site] > left_s - tail_s[stage]:
            site_flags[site] = LATE | GIVES
        elif owned_s[site] > level_s[stage] + steal_s:
            site_flags[site] = GIVES
        if site_flags[site] != 0:
            stage_flags[stage] |= GIVES
    return owned_s, level_s, site_flags, stage_flags


@njit(cache=True)
def pending_class(records: np.ndarray, row: int, stage: int, waiting: bool) -> int:
    """How freely an open key can move: 0 not begun ... 3 runnable now, 4 has no owner."""
    record = records[row, stage]
    if record["owner"] < 0:
        return 4
    if waiting:
        return 0
    last = stage == records.shape[1] - 1
    has_input = stage == 0 or records[row, stage - 1]["output"][0] >= 0
    if record["output"][0] < 0 and not last:
        return 2 if has_input else 1
    if last:
        return 3 if has_input else 1
    return 3 if records[row, stage + 1]["output"][1] >= 0 else 2


@njit(cache=True)
def is_runnable(records: np.ndarray, row: int, stage: int) -> bool:
    """Whether the inputs of an open key's next task exist, so that its owner may be at it."""
    record = records[row, stage]
    if record["committed"] or record["owner"] < 0:
        return False
    last = stage == records.shape[1] - 1
    if last or record["output"][0] < 0:
        return bool(stage == 0 or records[row, stage - 1]["output"][0] >= 0)
    return bool(records[row, stage + 1]["output"][1] >= 0)


@njit(cache=True)
def pick_pending(
    records: np.ndarray,
    fate: np.ndarray,
    stage: int,
    site: int,
    owned_s: float,
    level_s: float,
    forward_flop: float,
    backward_flop: float,
    pace: float,
) -> np.ndarray:
    """Rows that a site should give up: least begun and last first, until it is down to the level.

    The one task that it is probably working on (the lowest runnable one) stays.
    """
    rows = records.shape[0]
    kind = np.full(rows, -1, dtype=np.int8)
    running = -1
    for row in range(rows):
        record = records[row, stage]
        if fate[row] == 3 or record["committed"] or record["owner"] != site:
            continue
        kind[row] = pending_class(records, row, stage, fate[row] == 0)
        better = running < 0 or (kind[row] == 3 and kind[running] != 3)
        if fate[row] != 0 and better and is_runnable(records, row, stage):
            running = row
    if running >= 0:
        kind[running] = -1
    picked = np.zeros(rows, dtype=np.int64)
    count = 0
    left_s = owned_s
    for wanted in range(4):
        for row in range(rows - 1, -1, -1):
            if left_s <= level_s:
                return picked[:count]
            if kind[row] == wanted:
                flop = open_flop(records[row, stage], site, forward_flop, backward_flop)
                left_s -= flop * pace
                picked[count] = row
                count += 1
    return picked[:count]


@njit(cache=True)
def assign_earliest(
    flop: np.ndarray, base_s: np.ndarray, pace: np.ndarray, extra_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Greedy: each task in turn to the site that would finish it first.

    Args:
        flop: work of each task at each site [N, K].
        base_s: time until each site is free [K].
        pace: seconds per operation of each site [K].
        extra_s: transfer time of each task to each site [N, K].

    Returns:
        Chosen site of each task [N] and its finish time [N].
    """
    tasks, sites = flop.shape
    free_s = base_s.copy()
    choice = np.zeros(tasks, dtype=np.int64)
    finish_s = np.zeros(tasks)
    for task in range(tasks):
        best = -1
        best_s = np.inf
        for site in range(sites):
            end_s = max(free_s[site], extra_s[task, site]) + flop[task, site] * pace[site]
            if end_s < best_s:
                best, best_s = site, end_s
        if best < 0:
            best, best_s = 0, 1e12
        choice[task] = best
        finish_s[task] = best_s
        free_s[best] = best_s
    return choice, finish_s


@njit(cache=True)
def find_backups(
    records: np.ndarray,
    fate: np.ndarray,
    stage_of: np.ndarray,
    forward_flop: np.ndarray,
    backward_flop: np.ndarray,
    pace: np.ndarray,
    owned_s: np.ndarray,
    hop_s: float,
    lag_s: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Keys whose owner is probably at them and late, and who would be clearly earlier.

    Args:
        records: keys of the step [M, P].
        fate: state of its micro-batches [M].
        stage_of: stage that each site holds, -1 for none [S].
        forward_flop: work of a forward task by stage [P].
        backward_flop: work of a backward task by stage [P].
        pace: predicted seconds per operation by site [S].
        owned_s: seconds until each site has finished what it owns [S]; grows by what is found.
        hop_s: time to send an input to another site.
        lag_s: how much earlier a second executor has to be.

    Returns:
        (row, stage, owner, second executor) [K, 4] and its predicted finish [K].
    """
    rows, stages = records.shape
    found = np.zeros((rows * stages, 4), dtype=np.int64)
    finish_s = np.zeros(rows * stages)
    count = 0
    for row in range(rows):
        if fate[row] != 1 and fate[row] != 2:
            continue
        for stage in range(stages):
            record = records[row, stage]
            owner = record["owner"]
            if record["attempt"] < 0 or record["backup_attempt"] >= 0:
                continue
            if not is_runnable(records, row, stage) or owned_s[owner] <= lag_s:
                continue
            work = forward_flop[stage] + backward_flop[stage]
            best = -1
            best_s = owned_s[owner] - lag_s
            for site in range(len(pace)):
                if stage_of[site] == stage and site != owner:
                    end_s = max(owned_s[site], hop_s) + work * pace[site]
                    if end_s < best_s:
                        best, best_s = site, end_s
            if best >= 0:
                owned_s[best] = best_s
                found[count, 0] = row
                found[count, 1] = stage
                found[count, 2] = owner
                found[count, 3] = best
                finish_s[count] = best_s
                count += 1
    return found[:count], finish_s[:count]
