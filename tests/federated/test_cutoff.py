import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.federated.cutoff import CutOff


def rule(policy, **changes):
    values = {"min_s": 0.0, "max_s": 100.0, "quorum": 0.6, "mad_factor": 3.0} | changes
    return CutOff(policy=policy, **values)


def test_fixed_waits_for_its_time_unless_all_are_there():
    assert rule("fixed").due_s([5.0, 7.0], 3) == 100.0
    assert rule("fixed").due_s([5.0, 7.0, 30.0], 3) == 30.0
    assert rule("fixed", max_s=math.inf).due_s([5.0], 2) == math.inf


def test_quorum_is_the_arrival_that_completes_it():
    assert rule("quorum").due_s([5.0, 7.0], 5) == 100.0
    assert rule("quorum").due_s([5.0, 7.0, 9.0], 5) == 9.0
    assert rule("quorum", min_s=20.0).due_s([5.0, 7.0, 9.0], 5) == 20.0


def test_mad_by_hand():
    # of nine expected, five are there: median 14, deviations 4 3 2 1 0 -> fifth smallest 4
    assert rule("mad").due_s([10.0, 11.0, 12.0, 13.0], 9) == 100.0
    assert rule("mad").due_s([10.0, 11.0, 12.0, 13.0, 14.0], 9) == 14.0 + 3 * 4.0
    # a sixth at 15 makes the fifth smallest of 0 1 1 2 3 4 equal 3
    assert rule("mad").due_s([10.0, 11.0, 12.0, 13.0, 14.0, 15.0], 9) == 14.0 + 3 * 3.0


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20), st.integers(0, 20))
def test_mad_never_moves_later_as_updates_come_in(times, missing):
    times = sorted(times)
    expected = len(times) + missing
    due = math.inf
    for known in range(len(times)):
        if times[known] > due:
            break
        later = rule("mad", max_s=1e9).due_s(times[: known + 1], expected)
        assert later <= due + 1e-9
        due = later


def test_nobody_expected_waits_for_the_latest_time():
    for policy in ("fixed", "quorum", "mad"):
        assert rule(policy).due_s([], 0) == 100.0


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "median"},
        {"min_s": -1.0},
        {"min_s": 101.0},
        {"quorum": 0.0},
        {"quorum": 1.1},
        {"mad_factor": -1.0},
        {"mad_factor": math.nan},
    ],
)
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(InputError, match="cut_off"):
        rule(**({"policy": "fixed"} | changes))
