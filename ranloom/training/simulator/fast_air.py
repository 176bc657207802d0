"""Rerouting on the fast path: what the coordinator sees of a step.

The decisions are those of ``air.plan_interval`` on a ledger that holds what has been reported.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ranloom.training.simulator.fast_state import Step


@njit(cache=True)
def suspects(
    step: Step, pace: np.ndarray, tail_s: np.ndarray, left_s: float, steal_s: float
) -> bool:
    """Whether ``air_kernels.survey`` could flag a site: a look at sums instead of at every key.

    Args:
        step: open work of the sites.
        pace: predicted seconds per operation by site [S].
        tail_s: from a stage's last task until its micro-batch is complete [P].
        left_s: time left until the admission deadline.
        steal_s: lag behind the common finish of a pool from which work should move.
    """
    stages = len(tail_s)
    rate = np.zeros(stages)
    level_s = np.zeros(stages)
    for site in range(len(pace)):
        stage = step.sites[site].stage
        if stage >= 0:
            rate[stage] += 1.0 / pace[site]
            level_s[stage] += step.sites[site].open_flop
    for site in range(len(pace)):
        stage = step.sites[site].stage
        if stage >= 0:
            owned_s = step.sites[site].open_flop * pace[site]
            if owned_s > left_s - tail_s[stage] or owned_s > level_s[stage] / rate[stage] + steal_s:
                return True
    return False


@njit(cache=True)
def reported(step: Step, records: np.ndarray, busy_since_s: np.ndarray, now_s: float) -> None:
    """Bring the ledger's records [M, P] to what the coordinator knows at a time."""
    rows, stages = step.keys.shape
    for row in range(rows):
        complete = step.rows[row].done_s <= now_s
        for stage in range(stages):
            key = step.keys[row, stage]
            record = records[row, stage]
            record["owner"] = key.owner
            record["attempt"] = 0 if step.rows[row].admitted_s <= now_s else -1
            for direction in range(2):
                maker = key.made_at[direction]
                done = False
                if maker >= 0:
                    seen_s = key.done_s[direction] + step.sites[maker].hub_s
                    if seen_s <= now_s:
                        done = True
                        if not busy_since_s[maker] > seen_s:
                            busy_since_s[maker] = seen_s
                record["output"][direction] = maker if done and not complete else -1
                if direction == 1:
                    record["committed"] = done
