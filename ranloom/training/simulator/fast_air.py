"""Rerouting on the fast path: what the coordinator sees of a step.

The decisions are those of ``air.plan_interval`` on a ledger that holds what has been reported.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ranloom.training.simulator.fast_state import COMPLETE, WAITING, Step


@njit(cache=True)
def reported(step: Step, records: np.ndarray, now_s: float) -> None:
    """Bring the ledger's records [M, P] to what the coordinator knows at a time.

    Args:
        step: what happens.
        records: what is known; changed.
        now_s: present time.
    """
    rows, stages = step.keys.shape
    for row in range(rows):
        complete = step.rows[row].fate == COMPLETE
        admitted = step.rows[row].fate != WAITING
        for stage in range(stages):
            record = records[row, stage]
            record["owner"] = step.keys[row, stage].owner
            record["attempt"] = 0 if admitted else -1
            if step.rows[row].tracked:
                known = step.known[row, stage]
                record["committed"] = known.committed > 0
                record["output"][0] = known.output[0]
                record["output"][1] = known.output[1]
                continue
            for direction in range(2):
                done = _seen_s(step, row, stage, direction) <= now_s
                made = step.made_at[direction, row, stage]
                record["output"][direction] = made if done and not complete else -1
                if direction == 1:
                    record["committed"] = done


@njit(cache=True)
def _seen_s(step: Step, row: int, stage: int, direction: int) -> float:
    """When the coordinator knows of a task, infinite if it is not done."""
    maker = step.made_at[direction, row, stage]
    return (
        float(step.done_s[direction, row, stage] + step.sites[maker].hub_s)
        if maker >= 0
        else np.inf
    )
