"""Asynchronous inter-site rerouting: which pending work moves, waits for the next step, or doubles.

One call a control interval (paper, section 6.1 and App. C.3). It predicts when each site will have
finished what it owns, takes pending tasks from sites that would miss the admission deadline or that
run far behind their equivalent-stage executors, and assigns these tasks within each stage at the
smallest total completion time. What fits nowhere before the deadline and is not begun is deferred.
Pure functions over the ledger's records; kernels are compiled and shared with the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.optimize import linear_sum_assignment

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
        late_sites: sites that would miss the deadline with what they own now.
    """

    moves: tuple[Move, ...]
    deferred_rows: tuple[int, ...]
    late_sites: tuple[int, ...]


@dataclass(frozen=True)
class AirInputs:
    """What a control interval looks at. Times relative to now.

    Args:
        pools: sites of each stage, alive ones only, ascending.
        forward_flop: work of a forward task by stage [P].
        backward_flop: work of a backward task by stage [P].
        seconds_per_flop: predicted pace by site [S].
        stuck_s: time that a site's present task has overrun its prediction, by site [S].
        tail_s: from a stage's last task until its micro-batch is complete [P].
        path_s: shortest time of a whole micro-batch that has not begun.
        left_s: time left until the admission deadline; may be infinite or negative.
        steal_s: lag behind the pool's common finish from which work moves; infinite for never.
        hop_s: time to send an input to another site.
        exact_size: largest tasks x slots matrix that is solved exactly.
    """

    pools: tuple[tuple[int, ...], ...]
    forward_flop: np.ndarray
    backward_flop: np.ndarray
    seconds_per_flop: np.ndarray
    stuck_s: np.ndarray
    tail_s: np.ndarray
    path_s: float
    left_s: float
    steal_s: float
    hop_s: float
    exact_size: int


@njit(cache=True)
def open_flop(record: np.ndarray, site: int, forward_flop: float, backward_flop: float) -> float:
    """Work that an open key still costs a site: no forward pass if it has just made it itself."""
    if record["output"][0] == site and site >= 0:
        return backward_flop
    return forward_flop + backward_flop


@njit(cache=True)
def owned_seconds(
    records: np.ndarray,
    fate: np.ndarray,
    forward_flop: np.ndarray,
    backward_flop: np.ndarray,
    seconds_per_flop: np.ndarray,
    stuck_s: np.ndarray,
) -> np.ndarray:
    """Predicted time until each site has finished the open keys that it owns [S]."""
    seconds = np.zeros(len(seconds_per_flop))
    rows, stages = records.shape
    for row in range(rows):
        if fate[row] == 3:
            continue
        for stage in range(stages):
            record = records[row, stage]
            owner = record["owner"]
            if record["committed"] or owner < 0:
                continue
            flop = open_flop(record, owner, forward_flop[stage], backward_flop[stage])
            seconds[owner] += flop * seconds_per_flop[owner]
    for site in range(len(seconds)):
        if seconds[site] > 0.0:
            seconds[site] += stuck_s[site]
    return seconds


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
def runnable_sites(records: np.ndarray, fate: np.ndarray, sites: int) -> np.ndarray:
    """Which sites have something to do right now [S]."""
    busy = np.zeros(sites, dtype=np.bool_)
    for row in range(records.shape[0]):
        if fate[row] == 1 or fate[row] == 2:
            for stage in range(records.shape[1]):
                if is_runnable(records, row, stage):
                    busy[records[row, stage]["owner"]] = True
    return busy


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
    owned_s = owned_seconds(
        ledger.records,
        ledger.fate,
        inputs.forward_flop,
        inputs.backward_flop,
        inputs.seconds_per_flop,
        inputs.stuck_s,
    )
    moves: list[Move] = []
    deferred: set[int] = set()
    late: list[int] = []
    unowned = np.argwhere(
        (ledger.records["owner"] < 0)
        & ~ledger.records["committed"]
        & (ledger.fate != Fate.DEFERRED)[:, None]
    )
    if inputs.path_s > inputs.left_s:
        deferred.update(int(row) for row in ledger.rows_of_fate(Fate.WAITING))
    for stage, pool in enumerate(inputs.pools):
        if not pool:
            continue
        rows = [int(row) for row, at in unowned if at == stage]
        limit_s = inputs.left_s - inputs.tail_s[stage]
        stage_late, picked = _donations(ledger, inputs, stage, owned_s, limit_s)
        late.extend(stage_late)
        rows = sorted(set(rows) | set(picked))
        if rows:
            found = _assign_stage(ledger, inputs, stage, rows, owned_s, limit_s)
            moves.extend(found[0])
            deferred.update(found[1])
    moves = [move for move in moves if move.row not in deferred]
    moves.sort(key=lambda move: (move.row, move.stage))
    return AirPlan(tuple(moves), tuple(sorted(deferred)), tuple(late))


@njit(cache=True)
def late_keys(
    records: np.ndarray, fate: np.ndarray, owned_s: np.ndarray, lag_s: float
) -> np.ndarray:
    """Open keys, their owner probably at them, that are not doubled yet [K, 2] (row, stage).

    Only those of owners that have more than ``lag_s`` to do.
    """
    rows, stages = records.shape
    found = np.zeros((rows * stages, 2), dtype=np.int64)
    count = 0
    for row in range(rows):
        if fate[row] != 1 and fate[row] != 2:
            continue
        for stage in range(stages):
            record = records[row, stage]
            alone = record["attempt"] >= 0 and record["backup_attempt"] < 0
            if alone and is_runnable(records, row, stage) and owned_s[record["owner"]] > lag_s:
                found[count, 0] = row
                found[count, 1] = stage
                count += 1
    return found[:count]


def plan_speculation(ledger: StepLedger, inputs: AirInputs) -> tuple[Move, ...]:
    """Second executions of the last micro-batches whose owner runs late (Fig. 9).

    Only once nothing waits any more, for tasks that their owner may be working on (others move),
    and only where an equivalent-stage executor would be clearly earlier.
    """
    if ledger.waiting or not np.isfinite(inputs.steal_s):
        return ()
    owned_s = owned_seconds(
        ledger.records,
        ledger.fate,
        inputs.forward_flop,
        inputs.backward_flop,
        inputs.seconds_per_flop,
        inputs.stuck_s,
    )
    found: list[Move] = []
    for row, stage in late_keys(ledger.records, ledger.fate, owned_s, inputs.steal_s).tolist():
        owner = int(ledger.records[row, stage]["owner"])
        others = [site for site in inputs.pools[stage] if site != owner]
        if not others:
            continue
        work = float(inputs.forward_flop[stage] + inputs.backward_flop[stage])
        ends_s = [
            max(owned_s[site], inputs.hop_s) + work * inputs.seconds_per_flop[site]
            for site in others
        ]
        best = int(np.argmin(ends_s))
        if ends_s[best] + inputs.steal_s < owned_s[owner]:
            owned_s[others[best]] = ends_s[best]
            found.append(Move(row, stage, owner, others[best], float(ends_s[best])))
    return tuple(found)


def _donations(
    ledger: StepLedger, inputs: AirInputs, stage: int, owned_s: np.ndarray, limit_s: float
) -> tuple[list[int], list[int]]:
    """Late sites of a stage, and the rows that its sites should give up."""
    pool = inputs.pools[stage]
    pace = inputs.seconds_per_flop
    own = owned_s[list(pool)]
    rate = 1.0 / pace[list(pool)]
    level_s = float((own * rate).sum() / rate.sum())
    late: list[int] = []
    picked: list[int] = []
    for site, seconds in zip(pool, own, strict=True):
        is_late = seconds > limit_s
        if is_late:
            late.append(site)
        if is_late or seconds > level_s + inputs.steal_s:
            rows = pick_pending(
                ledger.records,
                ledger.fate,
                stage,
                site,
                float(seconds),
                min(level_s, max(limit_s, 0.0)),
                float(inputs.forward_flop[stage]),
                float(inputs.backward_flop[stage]),
                float(pace[site]),
            )
            picked.extend(int(row) for row in rows)
    return late, picked


def _assign_stage(
    ledger: StepLedger,
    inputs: AirInputs,
    stage: int,
    rows: list[int],
    owned_s: np.ndarray,
    limit_s: float,
) -> tuple[list[Move], list[int]]:
    """New owners for tasks of one stage, and the rows among them that have to wait."""
    pool = list(inputs.pools[stage])
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
