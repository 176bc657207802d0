"""Putting a new layout in force beside training: PREPARE, COPY, COMMIT (App. C.1, C.4).

Snapshots are taken at a step boundary; the totals of the steps that pass while layers travel are
applied to the copies as well, so that the copies catch up and COMMIT needs no transfer. A commit
happens between two steps: the old layout's work is then quiescent, and the new layout epoch rejects
whatever may still come of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ranloom.training.layout import Layout
from ranloom.training.membership import Members
from ranloom.training.messages import (
    AbortLayout,
    Action,
    Copy,
    CopyDone,
    Offer,
    Prepare,
    Prepared,
    Recipient,
)


class ChangePhase(StrEnum):
    """Phase of a change of layout."""

    PREPARE = "prepare"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class LayerTransfer:
    """Layers that a site needs and does not hold.

    Args:
        target: receiver.
        source: holder of the stage that the layers belong to now.
        stage: that stage.
        first_layer: first layer.
        end_layer: one past the last.
    """

    target: int
    source: int
    stage: int
    first_layer: int
    end_layer: int


def transfers(old: Layout, new: Layout) -> tuple[LayerTransfer, ...]:
    """What has to be copied from the old layout's holders to the new ones', by target and layer.

    A layer comes from the target's own replica if that holds it, else from the first that does.
    """
    found: list[LayerTransfer] = []
    for replica, stage, site in new.holders():
        place = old.place_of(site)
        has = set(old.layers(place[1])) if place else set()
        for old_stage in range(old.stages):
            wanted = sorted((set(new.layers(stage)) & set(old.layers(old_stage))) - has)
            if wanted:
                pool = old.pool(old_stage)
                own = old.lanes[replica][old_stage] if replica < old.replicas else -1
                source = own if own in pool else pool[replica % len(pool)]
                found.append(LayerTransfer(site, source, old_stage, wanted[0], wanted[-1] + 1))
    return tuple(sorted(found, key=lambda t: (t.target, t.first_layer)))


class LayoutChange:
    """One change of layout on its way.

    Args:
        old: layout in force.
        new: layout to commit; its epoch is the next one.
        members: for incarnations.
        started_s: time of its start.
    """

    def __init__(self, old: Layout, new: Layout, members: Members, started_s: float) -> None:
        self.old = old
        self.new = new
        self.phase = ChangePhase.PREPARE
        self.announced = False
        self.started_s = started_s
        self.copying_since_s = started_s
        self.transfers = transfers(old, new)
        self._members = members
        self._receivers = {transfer.target for transfer in self.transfers}
        self._prepared: set[int] = set()
        self._copied: set[int] = set()
        self._vouched: frozenset[int] = frozenset()

    def involves(self, site: int) -> bool:
        """Whether the change depends on a site."""
        return site in self.new.sites() or any(t.source == site for t in self.transfers)

    def prepare(self) -> list[Action]:
        """First phase: the receivers make room."""
        self.announced = True
        actions: list[Action] = []
        for site in sorted(self._receivers):
            place = self.new.place_of(site)
            layers = self.new.layers(place[1]) if place else range(0)
            actions.append(
                Prepare(site, self._incarnation(site), self.new.epoch, layers.start, layers.stop)
            )
        return actions

    def on_prepared(self, event: Prepared) -> bool:
        """A receiver answered; False if it refuses, which ends the change."""
        if event.layout_epoch == self.new.epoch and event.site in self._receivers:
            if not event.accepted:
                return False
            self._prepared.add(event.site)
        return True

    @property
    def ready_to_copy(self) -> bool:
        """Whether all receivers have room and copying has not begun."""
        return self.phase == ChangePhase.PREPARE and self._prepared >= self._receivers

    def copy(self, model_version: int, now_s: float) -> list[Action]:
        """Second phase, at a step boundary: snapshots of this version start to travel."""
        self.phase = ChangePhase.COPY
        self.copying_since_s = now_s
        actions: list[Action] = []
        offered = sorted({(t.source, t.first_layer, t.end_layer) for t in self.transfers})
        for source, first, end in offered:
            inc = self._incarnation(source)
            actions.append(Offer(source, inc, self.new.epoch, first, end, model_version))
        for t in self.transfers:
            inc = self._incarnation(t.target)
            what = (t.source, t.stage, t.first_layer, t.end_layer, model_version)
            actions.append(Copy(t.target, inc, self.new.epoch, *what))
        return actions

    def on_copied(self, event: CopyDone) -> None:
        """A receiver has all its layers and follows the totals."""
        if event.layout_epoch == self.new.epoch and event.site in self._receivers:
            self._copied.add(event.site)

    def shadows(self) -> tuple[tuple[int, Recipient, bool], ...]:
        """(stage, recipient, must acknowledge) for the reduction of the step under way.

        A receiver has to acknowledge totals once its layers are there; only a step that all
        of them acknowledged may be followed by the commit.
        """
        if self.phase != ChangePhase.COPY:
            return ()
        return tuple(
            (t.stage, Recipient(t.target, t.first_layer, t.end_layer), t.target in self._vouched)
            for t in self.transfers
        )

    def seal(self) -> None:
        """A step is about to be reduced: fix who has to acknowledge its totals."""
        self._vouched = frozenset(self._copied)

    @property
    def ready_to_commit(self) -> bool:
        """Whether every receiver holds its layers and the totals of the step just reduced."""
        if not self._receivers:
            return self.phase == ChangePhase.COPY or self.ready_to_copy
        return self.phase == ChangePhase.COPY and self._vouched >= self._receivers

    def receivers_of(self, stage: int) -> tuple[int, ...]:
        """Sites that copy layers of a stage now and follow its totals, ascending."""
        if self.phase != ChangePhase.COPY:
            return ()
        return tuple(sorted({t.target for t in self.transfers if t.stage == stage}))

    def abort(self) -> list[Action]:
        """The change is off."""
        concerned = sorted(self._receivers | {t.source for t in self.transfers})
        return [
            AbortLayout(site, self._incarnation(site), self.new.epoch)
            for site in concerned
            if self._members.is_alive(site)
        ]

    def _incarnation(self, site: int) -> int:
        return int(self._members.incarnation[site])
