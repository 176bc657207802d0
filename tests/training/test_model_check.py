"""Every interleaving of small runs is sound, and bugs put into the protocol are found."""

from __future__ import annotations

import pytest

from ranloom.training.model_check.bugs import BUGS
from ranloom.training.model_check.model import Scope
from ranloom.training.model_check.search import TooManyStatesError, search


@pytest.mark.parametrize(
    ("scope", "states"),
    [
        (Scope(), 277),
        (Scope(tied=True), 281),
        (Scope(moves=1), 554),
        (Scope(moves=1, step_micro_batches=1), 819),
        (Scope(deaths=1, step_micro_batches=1, micro_batches=1), None),
        (Scope(crashes=1, step_micro_batches=1, micro_batches=1), None),
        (Scope(cuts=1, step_micro_batches=1, micro_batches=1, instant_tasks=False), None),
    ],
)
def test_every_interleaving_is_sound(scope, states):
    found = search(scope)
    assert found.violation == ""
    assert found.ends > 0
    # The number changes with the protocol; a smaller model than meant would show here.
    assert states is None or found.states == states


def test_at_least_five_kinds_of_bugs_are_known():
    assert len(BUGS) >= 5


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_found(name):
    bug = BUGS[name]
    with bug.present():
        found = search(bug.scope, limit=50_000, depth_first=True)
    assert found.violation, bug.tells
    assert found.path


def test_the_way_to_a_violation_is_told():
    bug = BUGS["merge_before_complete"]
    with bug.present():
        found = search(bug.scope)
    assert "merged before it is complete" in found.violation
    assert [step.split(" ")[0] for step in found.path] == ["site"] * len(found.path)


def test_a_search_can_be_given_up():
    with pytest.raises(TooManyStatesError):
        search(Scope(), limit=50)
