"""Asynchronous inter-site rerouting: which pending work moves, waits for the next step, or doubles.

One call a control interval (paper, section 6.1 and App. C.3). It predicts when each site will have
finished what it owns, takes pending tasks from sites that would miss the admission deadline or that
run far behind their equivalent-stage executors, and assigns these tasks within each stage at the
smallest total completion time. What fits nowhere before the deadline and is not begun is deferred.
Pure functions over the ledger's records; the kernels are in ``air_kernels``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ranloom.training.air_kernels import (
    GIVES,
    LATE,
    ORPHANS,
    assign_earliest,
    find_backups,
    pick_pending,
    survey,
)
from ranloom.training.ledger import Fate, StepLedger

_LATE_PENALTY_S = 1e7
_UNREACHABLE_S = 1e12


@dataclass(frozen=True, slots=True)
class Move:
    """A stage task gets another owner.

    Args:
        row: row of the micro-batch in the ledger.
        stage: its stage.
        source: owner so far, -1 if it had none.
        target: new owner.
        finish_s: predicted time until the target has finished it.
    """

    row: int
    stage: int
    source: int
    target: int
    finish_s: float


@dataclass(frozen=True, slots=True)
class AirPlan:
    """What one control interval changes.

    Args:
        moves: new owners, ascending by row and stage.
        deferred_rows: micro-batches that wait for the next step, ascending.
        late_sites: sites that would miss the deadline with what they own now, ascending.
        owned_s: predicted time until each site has finished what it owned before [S].
    """

    moves: tuple[Move, ...]
    deferred_rows: tuple[int, ...]
    late_sites: tuple[int, ...]
    owned_s: np.ndarray


@dataclass(frozen=True, slots=True)
class AirInputs:
    """What a control interval looks at.

    Args:
        stage_of: stage that each living site holds, -1 for none [S].
        forward_flop: work of a forward task by stage [P].
        backward_flop: work of a backward task by stage [P].
        seconds_per_flop: predicted pace by site, infinite for dead ones [S].
        busy_since_s: since when a site has had something to do without a completion [S], NaN for
            idle ones; updated in place.
        tail_s: from a stage's last task until its micro-batch is complete [P].
        path_s: shortest time of a whole micro-batch that has not begun.
        now_s: present time.
        left_s: time left until the admission deadline; may be infinite or negative.
        steal_s: lag behind the pool's common finish from which work moves; infinite for never.
        hop_s: time to send an input to another site.
        exact_size: largest tasks x slots matrix that is solved exactly.
    """

    stage_of: np.ndarray
    forward_flop: np.ndarray
    backward_flop: np.ndarray
    seconds_per_flop: np.ndarray
    busy_since_s: np.ndarray
    tail_s: np.ndarray
    path_s: float
    now_s: float
    left_s: float
    steal_s: float
    hop_s: float
    exact_size: int

    def pool(self, stage: int) -> list[int]:
        """Living sites that hold a stage, ascending."""
        return [int(site) for site in np.flatnonzero(self.stage_of == stage)]


def assign_min_cost(
    flop: np.ndarray,
    base_s: np.ndarray,
    pace: np.ndarray,
    extra_s: np.ndarray,
    limit_s: float,
    exact_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Min-cost assignment of tasks to (site, place in its queue): smallest sum of finish times.

    Exact by the Hungarian method up to ``exact_size`` matrix entries, greedy above. Finishing after
    the limit costs a penalty, so that as many tasks as possible meet it.

    Args:
        flop: work of each task at each site [N, K].
        base_s: time until each site is free [K].
        pace: seconds per operation of each site [K].
        extra_s: transfer time of each task to each site [N, K].
        limit_s: time left for a task to finish.
        exact_size: largest number of matrix entries solved exactly.

    Returns:
        Chosen site of each task [N] and its predicted finish time [N].
    """
    tasks, sites = flop.shape
    if tasks * tasks * sites > exact_size:
        greedy: tuple[np.ndarray, np.ndarray] = assign_earliest(flop, base_s, pace, extra_s)
        return greedy
    place = np.arange(1, tasks + 1)
    run_s = flop * pace
    finish_s = np.maximum(base_s[None, :, None] + run_s[:, :, None] * place, 0.0)
    finish_s = np.maximum(finish_s, extra_s[:, :, None] + run_s[:, :, None])
    finish_s = np.minimum(finish_s, _UNREACHABLE_S)
    cost = np.where(finish_s > limit_s, finish_s + _LATE_PENALTY_S, finish_s)
    task_of, slot_of = linear_sum_assignment(cost.reshape(tasks, sites * tasks))
    choice = np.empty(tasks, dtype=np.int64)
    choice[task_of] = slot_of // tasks
    chosen_s = finish_s.reshape(tasks, sites * tasks)[task_of, slot_of]
    return choice, chosen_s[np.argsort(task_of)]


def plan_interval(ledger: StepLedger, inputs: AirInputs) -> AirPlan:
    """Decide one control interval.

    Args:
        ledger: records of the open step; not changed.
        inputs: predictions and limits.
    """
    owned_s, level_s, site_flags, stage_flags = survey(
        ledger.records,
        ledger.fate,
        inputs.stage_of,
        inputs.forward_flop,
        inputs.backward_flop,
        inputs.seconds_per_flop,
        inputs.tail_s,
        inputs.busy_since_s,
        inputs.now_s,
        inputs.left_s,
        inputs.steal_s,
    )
    deferred: set[int] = set()
    if inputs.path_s > inputs.left_s and ledger.waiting:
        deferred.update(int(row) for row in ledger.rows_of_fate(Fate.WAITING))
    moves: list[Move] = []
    for stage in np.flatnonzero(stage_flags).tolist():
        pool = inputs.pool(stage)
        if not pool:
            continue
        limit_s = inputs.left_s - float(inputs.tail_s[stage])
        rows = set(_orphans(ledger, stage) if stage_flags[stage] & ORPHANS else ())
        floor_s = min(float(level_s[stage]), max(limit_s, 0.0))
        for site in pool:
            if site_flags[site] & GIVES:
                rows.update(_given_up(ledger, inputs, stage, site, float(owned_s[site]), floor_s))
        if rows:
            found = _assign_stage(ledger, inputs, stage, sorted(rows), owned_s, limit_s)
            moves.extend(found[0])
            deferred.update(found[1])
    moves = [move for move in moves if move.row not in deferred]
    moves.sort(key=lambda move: (move.row, move.stage))
    late = np.flatnonzero(site_flags & LATE).tolist()
    return AirPlan(tuple(moves), tuple(sorted(deferred)), tuple(late), owned_s)


def _orphans(ledger: StepLedger, stage: int) -> list[int]:
    """Rows whose key of this stage has to run and has no owner."""
    column = ledger.records[:, stage]
    orphan = (column["owner"] < 0) & ~column["committed"] & (ledger.fate != Fate.DEFERRED)
    return [int(row) for row in np.flatnonzero(orphan)]


def _given_up(
    ledger: StepLedger,
    inputs: AirInputs,
    stage: int,
    site: int,
    owned_s: float,
    floor_s: float,
) -> list[int]:
    """Rows that a site gives up until it is down to the floor."""
    rows = pick_pending(
        ledger.records,
        ledger.fate,
        stage,
        site,
        owned_s,
        floor_s,
        float(inputs.forward_flop[stage]),
        float(inputs.backward_flop[stage]),
        float(inputs.seconds_per_flop[site]),
    )
    return [int(row) for row in rows]


def plan_speculation(
    ledger: StepLedger, inputs: AirInputs, owned_s: np.ndarray
) -> tuple[Move, ...]:
    """Second executions of the last micro-batches whose owner runs late (Fig. 9).

    Only once nothing waits any more, for tasks that their owner may be working on (others move),
    and only where an equivalent-stage executor would be clearly earlier.

    Args:
        ledger: records of the open step; not changed.
        inputs: predictions and limits.
        owned_s: predicted time until each site has finished what it owns [S].
    """
    if ledger.waiting or not np.isfinite(inputs.steal_s):
        return ()
    found, finish_s = find_backups(
        ledger.records,
        ledger.fate,
        inputs.stage_of,
        inputs.forward_flop,
        inputs.backward_flop,
        inputs.seconds_per_flop,
        owned_s.copy(),
        inputs.hop_s,
        inputs.steal_s,
    )
    return tuple(
        Move(row, stage, owner, target, end_s)
        for (row, stage, owner, target), end_s in zip(
            found.tolist(), finish_s.tolist(), strict=True
        )
    )


def _assign_stage(
    ledger: StepLedger,
    inputs: AirInputs,
    stage: int,
    rows: list[int],
    owned_s: np.ndarray,
    limit_s: float,
) -> tuple[list[Move], list[int]]:
    """New owners for tasks of one stage, and the rows among them that have to wait."""
    pool = inputs.pool(stage)
    column = ledger.records[rows, stage]
    forward = float(inputs.forward_flop[stage])
    backward = float(inputs.backward_flop[stage])
    pace = inputs.seconds_per_flop[pool]
    sites = np.asarray(pool)
    made_here = column["output"][:, 0][:, None] == sites[None, :]
    owned_here = column["owner"][:, None] == sites[None, :]
    flop = np.where(made_here, backward, forward + backward)
    extra_s = np.where(owned_here, 0.0, inputs.hop_s)
    base_s = owned_s[pool] - (np.where(owned_here, flop, 0.0) * pace).sum(axis=0)
    base_s = np.maximum(base_s, 0.0)
    choice, finish_s = assign_min_cost(flop, base_s, pace, extra_s, limit_s, inputs.exact_size)
    moves: list[Move] = []
    waiting: list[int] = []
    for index, row in enumerate(rows):
        source = int(column["owner"][index])
        target = pool[int(choice[index])]
        if finish_s[index] > limit_s and ledger.fate[row] == Fate.WAITING:
            waiting.append(row)
        elif source != target and (source < 0 or finish_s[index] + inputs.hop_s < owned_s[source]):
            moves.append(Move(row, stage, source, target, float(finish_s[index])))
    return moves, waiting
