"""The offline yardstick against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.model import CellModel
from ranloom.mac.offline import Plan, Problem, cheapest, fewest_transitions, front, problem_of
from ranloom.mac.simulate import simulate
from ranloom.traffic.channel import constant
from tests.mac.conftest import S, bursts

LEVELS = np.array([8, 16, 24])
CAPACITY = np.array([20, 39, 42])


def random_problem(seed: int, n: int = 7) -> Problem:
    rng = np.random.default_rng(seed)
    carrier = rng.integers(30, 43, n)
    arrived = np.minimum(rng.integers(0, 45, n) * (rng.random(n) < 0.6), carrier)
    return Problem(arrived, carrier, LEVELS, CAPACITY, int(rng.integers(0, 4)))


def late_by(problem: Problem, reserved: np.ndarray) -> int:
    """Most slots that any unit waits, by moving units one by one; -1: some never leave."""
    waiting: list[int] = []
    worst = 0
    for j, sm in enumerate(reserved):
        waiting += [j] * int(problem.arrived[j])
        room = min(CAPACITY[np.searchsorted(LEVELS, sm)], problem.carrier[j])
        for since in waiting[:room]:
            worst = max(worst, j - since)
        waiting = waiting[room:]
        if waiting:  # the oldest one leaves in the next slot at best
            worst = max(worst, j + 1 - waiting[0])
    return worst


def every_reservation(problem: Problem) -> Iterator[tuple[int, int]]:
    """(sum of SMs, transitions) of each reservation that keeps the delay."""
    for reserved in itertools.product(LEVELS, repeat=len(problem.arrived)):
        if late_by(problem, np.array(reserved)) <= problem.delay_slots:
            yield int(np.sum(reserved)), int(np.count_nonzero(np.diff(reserved)))


def dense(plan: Plan, n: int) -> np.ndarray:
    return np.repeat(plan.sm, np.diff(plan.ul_index, append=n))


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_cheaper(seed: int) -> None:
    problem = random_problem(seed)
    known = list(every_reservation(problem))
    for price in (0.5, 5.0, 11.0, 30.0, 1000.0):
        plan = cheapest(problem, price)
        best = min(sm + price * changes for sm, changes in known)
        assert plan.sm_slots + price * plan.transitions == pytest.approx(best)
        assert plan.cost_lower == pytest.approx(best)
        reserved = dense(plan, len(problem.arrived))
        assert reserved.sum() == plan.sm_slots
        assert np.count_nonzero(np.diff(reserved)) == plan.transitions
        assert late_by(problem, reserved) <= problem.delay_slots


@pytest.mark.parametrize("seed", range(8))
def test_bounds_on_transitions_hold(seed: int) -> None:
    problem = random_problem(100 + seed)
    known = list(every_reservation(problem))
    for mean_sm in (min(sm for sm, _ in known) / 7, 14.0, 20.0):
        within = [changes for sm, changes in known if sm <= mean_sm * 7 + 1e-9]
        if not within:
            with pytest.raises(InputError, match="mean_sm"):
                fewest_transitions(problem, mean_sm)
            continue
        found = fewest_transitions(problem, mean_sm + 1e-9)
        assert found.transitions_lower <= min(within) <= found.plan.transitions
        assert found.plan.sm_slots <= mean_sm * 7 + 1e-6


def test_thinned_labels_bound_from_both_sides() -> None:
    rng = np.random.default_rng(3)
    n = 400
    arrived = np.minimum(rng.integers(0, 60, n) * (rng.random(n) < 0.45), 42)
    problem = Problem(arrived, np.full(n, 42), LEVELS, CAPACITY, 12)
    for price in (4.0, 40.0):
        exact = cheapest(problem, price, 4096)
        assert exact.cost_lower == exact.sm_slots + price * exact.transitions
        rough = cheapest(problem, price, 3)
        cost = rough.sm_slots + price * rough.transitions
        assert rough.cost_lower <= exact.cost_lower <= cost
        assert rough.cost_lower < cost
        assert late_by(problem, dense(rough, n)) <= 12


def test_the_front_falls(model: CellModel) -> None:
    arrivals = bursts(3, 5 * S, seed=6, bytes_each=60_000, every_us=150_000)
    channel = constant([26.0, 24.0, 20.0], 5 * S)
    run = simulate(model, arrivals, channel, ControllerSpec("noctrl"), 1, trace=(0, 2000))
    plans = front(problem_of(run, model, 10.0), (1.0, 10.0, 100.0, 1000.0))
    assert (np.diff([p.transitions for p in plans]) <= 0).all()
    assert (np.diff([p.sm_slots for p in plans]) >= 0).all()
    # without delay, the uncontrolled reservation itself is one of the solutions
    at_once = cheapest(problem_of(run, model, 0.0), 10.0)
    assert at_once.cost_lower <= run.mean_sm * run.ul_slots + 10.0 * run.changes.transitions
    later = cheapest(problem_of(run, model, 20.0), 10.0)
    assert later.cost_lower < at_once.cost_lower


def test_a_run_without_its_trace_is_refused(model: CellModel) -> None:
    arrivals = bursts(1, S, seed=6, bytes_each=60_000, every_us=150_000)
    run = simulate(model, arrivals, constant([26.0], S), ControllerSpec("noctrl"), 1)
    with pytest.raises(InputError, match="traced from start to end"):
        problem_of(run, model, 10.0)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"levels": np.array([8, 8, 24])}, "levels"),
        ({"capacity": np.array([1, 2])}, "capacity"),
        ({"carrier": np.array([1])}, "carrier"),
        ({"delay_slots": -1}, "delay_slots"),
    ],
)
def test_bad_problems(change: dict[str, object], where: str) -> None:
    good = {
        "arrived": np.array([1, 2]), "carrier": np.array([42, 42]), "levels": LEVELS,
        "capacity": CAPACITY, "delay_slots": 2,
    }  # fmt: skip
    with pytest.raises(InputError, match=where):
        Problem(**(good | change))


def test_a_delay_that_cannot_be_kept() -> None:
    problem = Problem(np.array([90, 0]), np.array([42, 42]), LEVELS, CAPACITY, 0)
    with pytest.raises(InputError, match="no reservation keeps"):
        cheapest(problem, 1.0)
