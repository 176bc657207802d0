"""Rerouting: assignment against brute force, and what one control interval decides."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ranloom.training.air import AirInputs, assign_min_cost, plan_interval, plan_speculation
from ranloom.training.air_kernels import assign_earliest
from ranloom.training.ledger import Fate, StepLedger


def brute_force(flop, base_s, pace, limit_s):
    """Smallest (late tasks, sum of finish times) over all assignments and orders."""
    tasks, sites = flop.shape
    best = (np.inf, np.inf)
    for choice in product(range(sites), repeat=tasks):
        finish = []
        for site in range(sites):
            mine = sorted(flop[t, site] for t in range(tasks) if choice[t] == site)
            total = base_s[site]
            for work in mine:
                total += work * pace[site]
                finish.append(total)
        late = sum(end > limit_s for end in finish)
        best = min(best, (late, sum(finish)))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_exact_assignment_of_equal_tasks_is_optimal(seed):
    rng = np.random.default_rng(seed)
    tasks, sites = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    flop = np.ones((tasks, sites))
    base = rng.uniform(0.0, 3.0, sites)
    pace = rng.uniform(0.2, 2.0, sites)
    limit = float(rng.uniform(1.0, 6.0))
    zero = np.zeros((tasks, sites))
    choice, finish = assign_min_cost(flop, base, pace, zero, limit, exact_size=10**6)
    late, total = brute_force(flop, base, pace, limit)
    assert int((finish > limit).sum()) == late
    assert finish.sum() == pytest.approx(total)
    greedy_choice, greedy = assign_earliest(flop, base, pace, zero)
    assert greedy.sum() == pytest.approx(total), "equal tasks: earliest finish is optimal too"
    assert sorted(np.bincount(choice, minlength=sites)) == sorted(
        np.bincount(greedy_choice, minlength=sites)
    )


def test_greedy_takes_over_above_the_exact_size():
    flop = np.array([[1.0, 1.0], [4.0, 4.0]])
    arguments = (flop, np.zeros(2), np.ones(2), np.zeros((2, 2)), np.inf)
    exact = assign_min_cost(*arguments, exact_size=8)
    greedy = assign_min_cost(*arguments, exact_size=7)
    assert exact[1].sum() == greedy[1].sum() == pytest.approx(5.0)


def step(micro_batches: int = 8, stages: int = 2, replicas: int = 2) -> StepLedger:
    """Even rows belong to replica 0 (sites 0, 1, ...), odd ones to replica 1."""
    ledger = StepLedger(0, 0, 0, stages, range(micro_batches))
    for row in range(micro_batches):
        ledger.replica[row] = row % replicas
        ledger.records["owner"][row] = (row % replicas) * stages + np.arange(stages)
    return ledger


def inputs(pace, left_s=np.inf, steal_s=np.inf, busy_since_s=None, path_s=0.0) -> AirInputs:
    """Two stages held by sites 0 and 2, 1 and 3; now is second 100."""
    pace = np.asarray(pace, dtype=float)
    busy = np.full(4, np.nan) if busy_since_s is None else np.asarray(busy_since_s, dtype=float)
    return AirInputs(
        stage_of=np.array([0, 1, 0, 1], dtype=np.int32),
        forward_flop=np.array([1.0, 0.0]),
        backward_flop=np.array([2.0, 3.0]),
        seconds_per_flop=pace,
        busy_since_s=busy,
        tail_s=np.array([0.0, 2.0]),
        path_s=path_s,
        now_s=100.0,
        left_s=left_s,
        steal_s=steal_s,
        hop_s=0.0,
        exact_size=10**5,
    )


def test_owned_seconds_counts_what_is_left():
    ledger = step()
    now = inputs([1.0, 1.0, 2.0, 1.0])
    assert plan_interval(ledger, now).owned_s == pytest.approx([12, 12, 24, 12])
    ledger.records[0, 0]["output"][0] = 0  # forward done by its owner: only backward is left
    ledger.records[2, 0]["committed"] = True
    ledger.decide(4, Fate.DEFERRED)
    assert plan_interval(ledger, now).owned_s == pytest.approx([5, 9, 24, 12])


def test_a_balanced_step_within_its_deadline_is_left_alone():
    plan = plan_interval(step(), inputs([1.0, 1.0, 1.0, 1.0], left_s=14.5, steal_s=1.0))
    assert (plan.moves, plan.deferred_rows, plan.late_sites) == ((), (), ())


def test_work_of_a_slow_site_moves_within_its_stage():
    plan = plan_interval(step(), inputs([1.0, 1.0, 3.0, 1.0], steal_s=1.0))
    assert plan.moves
    assert all((m.stage, m.source, m.target) == (0, 2, 0) for m in plan.moves)
    # 8 tasks of 3 s and 9 s: the best split is 6 and 2, both sites done after 18 s
    assert len(plan.moves) == 2


def test_what_fits_nowhere_before_the_deadline_waits():
    plan = plan_interval(step(), inputs([1.0, 1.0, 1.0, 1.0], left_s=9.0))
    assert set(plan.late_sites) == {0, 1, 2, 3}
    # 7 s are left for stage 1 (its gradient still travels 2 s): two tasks of 3 s a site
    assert plan.deferred_rows == (4, 5, 6, 7)
    assert not plan.moves


def test_nothing_begins_that_cannot_pass_all_stages_in_time():
    plan = plan_interval(step(), inputs([0.1] * 4, left_s=5.0, path_s=6.0))
    assert plan.deferred_rows == tuple(range(8))


def test_begun_work_is_not_deferred_but_moved():
    ledger = step()
    for row in range(8):
        ledger.decide(row, Fate.IN_WORK)
    plan = plan_interval(ledger, inputs([1.0, 1.0, 9.0, 1.0], left_s=20.0))
    assert plan.deferred_rows == ()
    assert {move.target for move in plan.moves} == {0}


def test_the_task_at_hand_stays():
    ledger = step(micro_batches=2)
    for row in range(2):
        ledger.decide(row, Fate.IN_WORK)
    plan = plan_interval(ledger, inputs([1.0, 1.0, 50.0, 1.0], left_s=20.0))
    assert [(m.row, m.stage) for m in plan.moves] == []


def test_an_orphan_gets_an_owner_even_without_rerouting():
    ledger = step()
    ledger.records["owner"][5, 1] = -1
    plan = plan_interval(ledger, inputs([1.0, 1.0, 1.0, 1.0]))
    assert [(m.row, m.stage, m.source) for m in plan.moves] == [(5, 1, -1)]
    assert plan.moves[0].target in (1, 3)


def test_the_last_micro_batch_of_a_stuck_site_runs_twice():
    ledger = step(micro_batches=2)
    for row in range(2):
        ledger.decide(row, Fate.IN_WORK)
        for stage in range(2):
            owner = int(ledger.records[row, stage]["owner"])
            ledger.grant(row, stage, owner, 1, 10 * row + stage)
    calm = inputs([1.0] * 4, steal_s=2.0)
    assert plan_speculation(ledger, calm, plan_interval(ledger, calm).owned_s) == ()
    # site 2 has been at a task of at most 3 s for 12 s, the others have just begun
    stuck = inputs([1.0] * 4, steal_s=2.0, busy_since_s=[99.0, 99.0, 88.0, 99.0])
    owned_s = plan_interval(ledger, stuck).owned_s
    assert owned_s == pytest.approx([3.0, 3.0, 12.0, 3.0])
    found = plan_speculation(ledger, stuck, owned_s)
    assert [(m.row, m.stage, m.source, m.target) for m in found] == [(1, 0, 2, 0)]
    ledger.grant_backup(1, 0, 0, 1, 99)
    assert plan_speculation(ledger, stuck, owned_s) == ()
