"""One site by hand: what it does with messages that cross."""

from __future__ import annotations

import pytest

from ranloom.training.messages import (
    FROM_DATA,
    Assign,
    Install,
    Merge,
    TaskCompleted,
    WeightsFrom,
)
from ranloom.training.runtime.chaos import SMALL_SETUP
from ranloom.training.runtime.journal import Journal
from ranloom.training.runtime.peer_messages import Fetch, Missing
from ranloom.training.runtime.site import Site, SiteSettings
from ranloom.training.tokens import Direction, TaskKey, Token

KEY = TaskKey(0, 0, 0)


@pytest.fixture
def site(tmp_path):
    """The only stage of a model, and what it sent and reported."""
    sent, reported = [], []
    settings = SiteSettings(retry_s=1.0, grace_s=0.5, checkpoints=tmp_path, unmerged_limit=4)
    made = Site(
        0,
        1,
        SMALL_SETUP.workload("cpu"),
        settings,
        lambda to, message, _: sent.append((to, message)),
        reported.append,
        Journal(None),
    )
    made.on_action(Install(0, 1, 0, 0, 0, 4, 0, WeightsFrom.SEED, -1), 0.0)
    return made, sent, reported


def assign(attempt, keep):
    token = Token(1, 0, 0, attempt, attempt)
    return Assign(0, 1, KEY, token, False, True, keep, FROM_DATA, FROM_DATA)


def work(site):
    done = 0
    while (running := site.next_task()) is not None:
        site.compute(running)
        site.complete(running, 0.1)
        done += 1
    return done


def test_a_late_assign_does_not_reopen_what_a_merge_has_freed(site):
    site, sent, reported = site
    site.on_action(assign(0, keep=True), 0.0)
    assert work(site) == 1
    again = assign(1, keep=False)
    site.on_action(again, 0.0)
    assert work(site) == 1
    site.on_action(Merge(0, 1, KEY, assign(0, True).token), 0.0)
    # The coordinator sent this before it knew that the second attempt was done.
    site.on_action(again, 0.0)
    assert work(site) == 0
    assert [event for event in reported if isinstance(event, TaskCompleted)][2:] == []
    # Whoever misses the output is told so; with an open task it would wait for ever.
    site.on_peer(3, Fetch(KEY, Direction.BACKWARD, 0, 0), {}, 1.0)
    site.settle(2.0)
    assert sent == [(3, Missing(KEY, Direction.BACKWARD, 0, 0))]
