"""Bugs that can be put into the protocol one at a time, to see that the search finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ranloom.training.dispatch import Dispatcher
from ranloom.training.layout_change import LayoutChange
from ranloom.training.ledger import Fate, StepLedger
from ranloom.training.messages import Action, Part
from ranloom.training.model_check.model import Scope
from ranloom.training.reduction import Reduction
from ranloom.training.run_cycle import RunCycle
from ranloom.training.step_cycle import StepCycle


@dataclass(frozen=True)
class SeededBug:
    """A bug and a run in which it shows.

    Args:
        tells: what is wrong.
        scope: the smallest run that shows it.
        changes: (owner, attribute, replacement) that put it in.
    """

    tells: str
    scope: Scope
    changes: tuple[tuple[Any, str, Any], ...] = ()

    @contextmanager
    def present(self) -> Iterator[None]:
        """The code has the bug within this context."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in self.changes]
        try:
            for owner, name, replacement in self.changes:
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


def _roll_back_to_a_used_version(self: RunCycle) -> list[Action]:
    self._last_version -= 1
    return _roll_back(self)


def _merge_at_once(self: StepCycle, row: int, stage: int, now_s: float) -> list[Action]:
    actions = _committed(self, row, stage, now_s)
    complete = self.ledger.fate[row] == Fate.COMPLETE
    return actions if complete else [*actions, self.merge(row, stage)]


def _parts_without_count(self: Reduction, stage: int) -> tuple[Any, ...] | None:
    parts = []
    for site in self._pools[stage]:
        incarnation = int(self._members.incarnation[site])
        numbers = self._ledger.part_of(site, incarnation, stage)
        if numbers:
            parts.append(Part(site, incarnation, numbers))
    return tuple(parts) or None


def _revoke_nothing(self: StepLedger, row: int, stage: int) -> None:
    record = self.records[row, stage]
    record["owner"] = record["attempt"] = record["backup"] = record["backup_attempt"] = -1


def _same_attempt(self: Dispatcher, row: int, stage: int) -> None:
    number = self.next_attempt
    _ensure_grant(self, row, stage)
    self.next_attempt = number


def _keep_commits(_: StepCycle) -> list[Action]:
    return []


def _no_shadows(_: LayoutChange) -> tuple[Any, ...]:
    return ()


_committed: Callable[..., list[Action]] = StepCycle.committed
_roll_back: Callable[[RunCycle], list[Action]] = RunCycle.roll_back
_ensure_grant: Callable[..., None] = Dispatcher._ensure_grant

_ONE_DEATH = Scope(deaths=1)
_ONE_MOVE = Scope(moves=1, micro_batches=3, step_micro_batches=1)

BUGS: Mapping[str, SeededBug] = {
    "no_epoch_bump": SeededBug(
        "weights that come back from a checkpoint get a version that was used before",
        Scope(deaths=1, step_micro_batches=1),
        ((RunCycle, "roll_back", _roll_back_to_a_used_version),),
    ),
    "merge_before_complete": SeededBug(
        "a gradient is merged as soon as its key is committed",
        Scope(),
        ((StepCycle, "committed", _merge_at_once),),
    ),
    "reduce_without_manifest": SeededBug(
        "a reduction starts although keys of the sealed set are open",
        _ONE_DEATH,
        ((Reduction, "_live_parts", _parts_without_count),),
    ),
    "token_reused": SeededBug(
        "a new attempt gets the token of the one that was revoked",
        Scope(cuts=3, instant_tasks=False, micro_batches=1, step_micro_batches=1),
        (
            (StepLedger, "revoke", _revoke_nothing),
            (Dispatcher, "_ensure_grant", _same_attempt),
        ),
    ),
    "no_sync_before_send": SeededBug(
        "the coordinator sends what its log does not hold yet",
        Scope(crashes=1, unsynced=True),
    ),
    "death_ignored": SeededBug(
        "keys that a dead site held stay committed",
        _ONE_DEATH,
        ((StepCycle, "_reopen_lost", _keep_commits),),
    ),
    "copies_miss_totals": SeededBug(
        "totals of the steps that pass do not reach layers on their way",
        _ONE_MOVE,
        ((LayoutChange, "shadows", _no_shadows),),
    ),
}
"""By name; the first five are those that the protocol's description warns of."""
