"""The commit ledger: fences, the open -> committed transition, reopening."""

from __future__ import annotations

import pytest

from ranloom.training.ledger import Fate, StepLedger, Verdict
from ranloom.training.tokens import TaskKey, Token

COORDINATOR = 3


@pytest.fixture
def ledger() -> StepLedger:
    return StepLedger(step=5, model_version=9, layout_epoch=2, stages=2, micro_batches=[40, 41, 44])


def grant(ledger: StepLedger, row: int = 0, stage: int = 0, site: int = 7, attempt: int = 1):
    return ledger.grant(row, stage, site, COORDINATOR, attempt)


def test_first_valid_result_commits_and_the_second_is_a_duplicate(ledger):
    token = grant(ledger)
    key = TaskKey(5, 40, 0)
    assert ledger.commit(key, token, 7, 1, COORDINATOR) == Verdict.ACCEPTED
    assert ledger.holder(0, 0) == (7, 1, token)
    assert ledger.commit(key, token, 7, 1, COORDINATOR) == Verdict.DUPLICATE


def test_of_two_speculative_attempts_only_the_first_counts(ledger):
    owner = grant(ledger, site=7, attempt=1)
    backup = ledger.grant_backup(0, 0, 8, COORDINATOR, 2)
    assert owner.task_epoch == backup.task_epoch
    key = TaskKey(5, 40, 0)
    assert ledger.commit(key, backup, 8, 1, COORDINATOR) == Verdict.ACCEPTED
    assert ledger.commit(key, owner, 7, 1, COORDINATOR) == Verdict.DUPLICATE
    assert ledger.holder(0, 0)[0] == 8


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"coordinator": 2}, Verdict.STALE_COORDINATOR),
        ({"layout_epoch": 1}, Verdict.STALE_LAYOUT),
        ({"model_version": 8}, Verdict.STALE_VERSION),
        ({"task_epoch": 1}, Verdict.STALE_EPOCH),
        ({"attempt": 99}, Verdict.UNAUTHORISED),
    ],
)
def test_every_part_of_a_token_is_a_fence(ledger, change, verdict):
    token = grant(ledger)
    fields = {name: getattr(token, name) for name in Token.__slots__}
    forged = Token(**{**fields, **change})
    assert ledger.commit(TaskKey(5, 40, 0), forged, 7, 1, COORDINATOR) == verdict
    assert ledger.holder(0, 0) is None


def test_other_sites_steps_and_micro_batches_are_refused(ledger):
    token = grant(ledger)
    assert ledger.judge(TaskKey(5, 40, 0), token, 8, COORDINATOR) == Verdict.UNAUTHORISED
    assert ledger.judge(TaskKey(4, 40, 0), token, 7, COORDINATOR) == Verdict.STALE_STEP
    assert ledger.judge(TaskKey(5, 42, 0), token, 7, COORDINATOR) == Verdict.STALE_STEP
    assert ledger.judge(TaskKey(5, 40, 5), token, 7, COORDINATOR) == Verdict.UNAUTHORISED
    assert ledger.judge(TaskKey(5, 40, 1), token, 7, COORDINATOR) == Verdict.UNAUTHORISED


def test_revoking_ends_the_epoch_for_owner_and_backup(ledger):
    owner = grant(ledger)
    backup = ledger.grant_backup(0, 0, 8, COORDINATOR, 2)
    ledger.revoke(0, 0)
    for site, token in ((7, owner), (8, backup)):
        assert ledger.judge(TaskKey(5, 40, 0), token, site, COORDINATOR) == Verdict.STALE_EPOCH
    again = grant(ledger, site=7, attempt=3)
    assert again.task_epoch == owner.task_epoch + 1
    assert ledger.judge(TaskKey(5, 40, 0), owner, 7, COORDINATOR) == Verdict.STALE_EPOCH


def test_a_reopened_key_refuses_what_was_committed_before(ledger):
    token = grant(ledger)
    key = TaskKey(5, 40, 0)
    ledger.commit(key, token, 7, 1, COORDINATOR)
    ledger.reopen(0, 0)
    assert ledger.holder(0, 0) is None
    assert ledger.commit(key, token, 7, 1, COORDINATOR) == Verdict.STALE_EPOCH
    fresh = grant(ledger, site=8, attempt=2)
    assert ledger.commit(key, fresh, 8, 1, COORDINATOR) == Verdict.ACCEPTED


def test_a_key_is_not_granted_twice_in_one_epoch(ledger):
    grant(ledger)
    with pytest.raises(ValueError, match="already granted"):
        grant(ledger, site=8, attempt=2)


def test_a_deferred_micro_batch_takes_nothing_any_more(ledger):
    token = grant(ledger)
    ledger.decide(0, Fate.DEFERRED)
    assert ledger.judge(TaskKey(5, 40, 0), token, 7, COORDINATOR) == Verdict.STALE_EPOCH
    with pytest.raises(ValueError, match="already"):
        ledger.decide(0, Fate.COMPLETE)


def test_manifest_names_complete_micro_batches_of_the_living_incarnation_only(ledger):
    for row, number in enumerate((40, 41)):
        for stage, site in ((0, 7), (1, 9)):
            token = grant(ledger, row, stage, site, attempt=10 * row + stage)
            ledger.commit(TaskKey(5, number, stage), token, site, 1, COORDINATOR)
    ledger.decide(0, Fate.IN_WORK)
    ledger.decide(0, Fate.COMPLETE)
    assert ledger.all_committed(1)
    assert ledger.sealed_set() == (40,)
    assert ledger.part_of(7, 1, 0) == (40,)
    assert ledger.part_of(7, 2, 0) == ()
    assert ledger.part_of(7, 1, 1) == ()
    assert (ledger.undecided, ledger.waiting) == (2, 2)
