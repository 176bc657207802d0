"""Commit ledger of one training step: who may work on what, and whose result counts.

The unit of fate is the micro-batch. A key (micro-batch, stage) is open until the first valid
result commits it to a site (App. C.2, C.4: an atomic open -> committed transition); a micro-batch
is complete when all its stages are committed, and nothing of it may be merged before. If the
holder of a committed gradient dies before the stage is reduced, the key reopens under a higher task
epoch. The records are one structured array, so that the compiled simulator applies the very same
transitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import numpy as np
from numba import njit

from ranloom.training.tokens import TaskKey, Token

NOBODY = -1

KEY_RECORD = np.dtype(
    [
        ("committed", np.bool_),
        ("epoch", np.int32),
        ("owner", np.int32),  # site of the authorised attempt, or planned site without attempt
        ("attempt", np.int64),
        ("backup", np.int32),  # site of the speculative attempt
        ("backup_attempt", np.int64),
        ("holder", np.int32),  # site that holds the committed gradient
        ("holder_incarnation", np.int32),
        ("holder_coordinator", np.int32),
        ("holder_epoch", np.int32),
        ("holder_attempt", np.int64),
        ("output", np.int32, (2,)),  # site that retains the output, by direction
    ]
)
"""One key: micro-batch x stage. ``NOBODY`` stands for no site and for no attempt."""


class Fate(IntEnum):
    """State of a micro-batch in its step."""

    WAITING = 0
    IN_WORK = 1
    COMPLETE = 2
    DEFERRED = 3


_WAITING, _COMPLETE, _DEFERRED = int(Fate.WAITING), int(Fate.COMPLETE), int(Fate.DEFERRED)


class Verdict(IntEnum):
    """Judgement of a result; everything but ``ACCEPTED`` is a reason of rejection."""

    ACCEPTED = 0
    STALE_COORDINATOR = 1
    STALE_LAYOUT = 2
    STALE_VERSION = 3
    STALE_STEP = 4
    STALE_EPOCH = 5
    UNAUTHORISED = 6
    DUPLICATE = 7


@njit(cache=True)
def judge_attempt(record: np.ndarray, site: int, epoch: int, attempt: int) -> int:
    """Whether an attempt is one that the record authorises; a ``Verdict``."""
    if epoch != record["epoch"]:
        return 5
    if attempt >= 0 and (
        (record["owner"] == site and record["attempt"] == attempt)
        or (record["backup"] == site and record["backup_attempt"] == attempt)
    ):
        return 0
    return 6


@njit(cache=True)
def commit_attempt(
    record: np.ndarray, site: int, incarnation: int, coordinator: int, epoch: int, attempt: int
) -> int:
    """The open -> committed transition (Eq. 8): first valid result wins; a ``Verdict``."""
    verdict = judge_attempt(record, site, epoch, attempt)
    if verdict != 0:
        return int(verdict)
    if record["committed"]:
        return 7
    record["committed"] = True
    record["holder"] = site
    record["holder_incarnation"] = incarnation
    record["holder_coordinator"] = coordinator
    record["holder_epoch"] = epoch
    record["holder_attempt"] = attempt
    return 0


@njit(cache=True)
def revoke_attempts(record: np.ndarray) -> None:
    """End the task epoch: no attempt of it can commit any more."""
    record["epoch"] += 1
    record["owner"] = -1
    record["attempt"] = -1
    record["backup"] = -1
    record["backup_attempt"] = -1


@njit(cache=True)
def reopen_key(record: np.ndarray) -> None:
    """The holder is dead: committed -> open under a higher task epoch."""
    revoke_attempts(record)
    record["committed"] = False
    record["holder"] = -1
    record["holder_incarnation"] = -1
    record["holder_attempt"] = -1


@njit(cache=True)
def forget_site(records: np.ndarray, site: int) -> np.ndarray:
    """Take a dead site out of all attempts and retained outputs; the rows that it concerned [M].

    Commits are left alone: whether they reopen depends on how far the reduction is.
    """
    rows, stages = records.shape
    touched = np.zeros(rows, dtype=np.bool_)
    for row in range(rows):
        for stage in range(stages):
            record = records[row, stage]
            if record["owner"] == site:
                if record["attempt"] >= 0 and not record["committed"]:
                    revoke_attempts(record)
                else:
                    record["owner"] = -1
                    record["attempt"] = -1
                touched[row] = True
            elif record["backup"] == site:
                record["backup"] = -1
                record["backup_attempt"] = -1
                touched[row] = True
            for direction in range(2):
                if record["output"][direction] == site:
                    record["output"][direction] = -1
                    touched[row] = True
    return touched


class StepLedger:
    """Ledger of one step.

    Args:
        step: number of the step.
        model_version: version of the weights that every attempt has to use.
        layout_epoch: layout in force; it does not change within a step.
        stages: pipeline stages P.
        micro_batches: numbers in the global queue, ascending [M].
    """

    def __init__(
        self,
        step: int,
        model_version: int,
        layout_epoch: int,
        stages: int,
        micro_batches: Sequence[int],
    ) -> None:
        self.step = step
        self.model_version = model_version
        self.layout_epoch = layout_epoch
        self.stages = stages
        self.micro_batches = tuple(micro_batches)
        self.rows = {number: row for row, number in enumerate(self.micro_batches)}
        rows = len(self.micro_batches)
        self.records = np.zeros((rows, stages), dtype=KEY_RECORD)
        for name in ("owner", "backup", "holder", "attempt", "backup_attempt", "holder_attempt"):
            self.records[name] = NOBODY
        self.records["output"] = NOBODY
        self.fate = np.full(rows, Fate.WAITING, dtype=np.int8)
        self.replica = np.zeros(rows, dtype=np.int32)
        self._undecided = rows
        self._waiting = rows

    @property
    def undecided(self) -> int:
        """Micro-batches that are neither complete nor deferred."""
        return self._undecided

    @property
    def waiting(self) -> int:
        """Micro-batches that are not in work yet."""
        return self._waiting

    def decide(self, row: int, fate: Fate) -> None:
        """A micro-batch goes from one state to a later one.

        Raises:
            ValueError: complete and deferred are final.
        """
        before = self.fate[row]
        if before >= _COMPLETE:
            raise ValueError(
                f"micro-batch {self.micro_batches[row]} is {Fate(before).name} already"
            )
        self._waiting -= before == _WAITING
        self._undecided -= fate >= _COMPLETE
        self.fate[row] = fate

    def key(self, row: int, stage: int) -> TaskKey:
        """Key of a record."""
        return TaskKey(self.step, self.micro_batches[row], stage)

    def grant(self, row: int, stage: int, site: int, coordinator: int, attempt: int) -> Token:
        """Authorise the attempt of an owner. An earlier one must have been revoked.

        Raises:
            ValueError: another attempt of this task epoch is authorised already.
        """
        record = self.records[row, stage]
        if record["attempt"] != NOBODY:
            raise ValueError(f"{self.key(row, stage)} is already granted to {record['owner']}")
        record["owner"] = site
        record["attempt"] = attempt
        return self._token(coordinator, int(record["epoch"]), attempt)

    def grant_backup(
        self, row: int, stage: int, site: int, coordinator: int, attempt: int
    ) -> Token:
        """Authorise a speculative attempt beside the owner's, in the same task epoch."""
        record = self.records[row, stage]
        if record["backup_attempt"] != NOBODY:
            raise ValueError(f"{self.key(row, stage)} already has a backup attempt")
        record["backup"] = site
        record["backup_attempt"] = attempt
        return self._token(coordinator, int(record["epoch"]), attempt)

    def attempts(self, row: int, stage: int, coordinator: int) -> Iterator[tuple[int, Token]]:
        """(site, token) of the authorised attempts, the owner's first."""
        record = self.records[row, stage]
        epoch = int(record["epoch"])
        if record["attempt"] != NOBODY:
            yield int(record["owner"]), self._token(coordinator, epoch, int(record["attempt"]))
        if record["backup_attempt"] != NOBODY:
            token = self._token(coordinator, epoch, int(record["backup_attempt"]))
            yield int(record["backup"]), token

    def holder(self, row: int, stage: int) -> tuple[int, int, Token] | None:
        """(site, incarnation, token) of the committed gradient, None while the key is open."""
        record = self.records[row, stage]
        if not record["committed"]:
            return None
        token = self._token(
            int(record["holder_coordinator"]),
            int(record["holder_epoch"]),
            int(record["holder_attempt"]),
        )
        return int(record["holder"]), int(record["holder_incarnation"]), token

    def judge(self, key: TaskKey, token: Token, site: int, coordinator: int) -> Verdict:
        """Whether a result comes from an authorised attempt under the present fences."""
        if token.coordinator != coordinator:
            return Verdict.STALE_COORDINATOR
        if token.layout_epoch != self.layout_epoch:
            return Verdict.STALE_LAYOUT
        if token.model_version != self.model_version:
            return Verdict.STALE_VERSION
        if key.step != self.step or key.micro_batch not in self.rows:
            return Verdict.STALE_STEP
        if not 0 <= key.stage < self.stages:
            return Verdict.UNAUTHORISED
        row = self.rows[key.micro_batch]
        if self.fate[row] == _DEFERRED:
            return Verdict.STALE_EPOCH
        record = self.records[row, key.stage]
        return Verdict(judge_attempt(record, site, token.task_epoch, token.attempt))

    def commit(
        self, key: TaskKey, token: Token, site: int, incarnation: int, coordinator: int
    ) -> Verdict:
        """Judge a backward result and commit its key to the site if it is the first valid one."""
        verdict = self.judge(key, token, site, coordinator)
        if verdict:
            return verdict
        return self.commit_judged(key, token, site, incarnation, coordinator)

    def commit_judged(
        self, key: TaskKey, token: Token, site: int, incarnation: int, coordinator: int
    ) -> Verdict:
        """Commit a result that ``judge`` has just accepted, if it is the first one."""
        record = self.records[self.rows[key.micro_batch], key.stage]
        epoch, attempt = token.task_epoch, token.attempt
        return Verdict(commit_attempt(record, site, incarnation, coordinator, epoch, attempt))

    def revoke(self, row: int, stage: int) -> None:
        """End the task epoch of a key."""
        revoke_attempts(self.records[row, stage])

    def reopen(self, row: int, stage: int) -> None:
        """Open a committed key again, its holder being lost."""
        reopen_key(self.records[row, stage])

    def all_committed(self, row: int) -> bool:
        """Whether every stage of a micro-batch is committed."""
        return bool(self.records["committed"][row].all())

    def rows_of_fate(self, *fates: Fate) -> np.ndarray:
        """Rows of micro-batches in one of these states, ascending."""
        mask = self.fate == fates[0]
        for fate in fates[1:]:
            mask |= self.fate == fate
        return np.flatnonzero(mask)

    def sealed_set(self) -> tuple[int, ...]:
        """Numbers of the complete micro-batches: the set S_t of the step."""
        return tuple(self.micro_batches[row] for row in self.rows_of_fate(Fate.COMPLETE))

    def part_of(self, site: int, incarnation: int, stage: int) -> tuple[int, ...]:
        """Complete micro-batches whose gradient of this stage the site holds, ascending."""
        column = self.records[:, stage]
        mine = (
            column["committed"]
            & (column["holder"] == site)
            & (column["holder_incarnation"] == incarnation)
            & (self.fate == Fate.COMPLETE)
        )
        return tuple(self.micro_batches[row] for row in np.flatnonzero(mine))

    def _token(self, coordinator: int, epoch: int, attempt: int) -> Token:
        return Token(coordinator, self.layout_epoch, self.model_version, epoch, attempt)
