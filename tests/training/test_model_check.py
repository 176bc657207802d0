"""Every interleaving of small runs is sound, and bugs put into the protocol are found."""

from __future__ import annotations

import pytest

from ranloom.training.model_check.bugs import BUGS
from ranloom.training.model_check.model import Model
from ranloom.training.model_check.scope import Scope
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


FAULTS = ("dies", "crashes", "comes back", "budget", "boundary")


def take(model, state, *parts):
    """The next state by the step whose name has all of these parts."""
    return next(after for name, after in model.next(state) if all(part in name for part in parts))


def test_a_new_writer_is_asked_only_after_its_inventory():
    """Site 2 inherits a checkpoint while it lags by an update, the coordinator having crashed."""
    model = Model(Scope(deaths=1, crashes=1, micro_batches=1, step_micro_batches=1))
    state = model.start()
    while True:
        quiet = {n: s for n, s in model.next(state) if not any(fault in n for fault in FAULTS)}
        lags = [name for name in quiet if name.startswith("site 2 takes Apply")]
        if lags and len(quiet) > 1 and any("WriteCheckpoint" in name for name in quiet):
            break
        state = next(after for name, after in quiet.items() if name not in lags)
    state = take(model, state, "site 0 dies")
    state = take(model, state, "the coordinator crashes")
    state = take(model, state, "coordinator takes SiteLost")
    (told,) = [n for n, _ in model.next(state) if n.startswith("site 2 takes")]
    assert "RequestInventory" in told
    assert "WriteCheckpoint" not in told
    asked = False
    while not model.check(state):
        name, state = next(
            (n, s) for n, s in model.next(state) if not any(fault in n for fault in FAULTS)
        )
        asked |= name.startswith("site 2 takes") and "WriteCheckpoint" in name
    assert asked


@pytest.mark.parametrize("lags", [False, True])
def test_a_site_that_missed_a_commit_gets_the_update_before_it(lags):
    """The coordinator crashes while the last update and the new layout are under way."""
    model = Model(Scope(moves=1, crashes=1, micro_batches=3, step_micro_batches=1))
    state = take(model, model.start(), "boundary")
    told: dict[str, bytes] = {}
    while not told:
        quiet = {n: s for n, s in model.next(state) if not any(fault in n for fault in FAULTS)}
        told = {name: after for name, after in quiet.items() if "WeightsFrom.COPY" in name}
        # Layers arrive before a step ends: the third step can end with the commit.
        state = state if told else quiet[min(quiet, key=lambda name: "TaskCompleted" in name)]
    state = take(model, state if lags else next(iter(told.values())), "crashes")
    while not model.check(state):
        state = next(s for n, s in model.next(state) if not any(fault in n for fault in FAULTS))


def test_a_search_can_be_given_up():
    with pytest.raises(TooManyStatesError):
        search(Scope(), limit=50)
