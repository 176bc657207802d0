"""Turns the state of the ledger into ``Assign`` and ``Discard``: who runs what, fed from where.

Works by comparison: for each micro-batch it derives which tasks have to run and where their inputs
come from, compares that with what the executors were told, and sends the difference. Normal
flow, rerouting, lost sites, lost outputs and a restarted coordinator are all the same case to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranloom.training.ledger import NOBODY, Fate, StepLedger
from ranloom.training.membership import Members
from ranloom.training.messages import FROM_DATA, NOT_YET, Action, Assign, Discard
from ranloom.training.tokens import Direction, TaskKey, Token


@dataclass(slots=True)
class _Told:
    """What an executor was told about a key and has not reported yet."""

    token: Token
    forward: bool
    backward: bool
    keep_gradient: bool
    activation_from: int
    gradient_from: int


class Dispatcher:
    """Keeps the executors of one step informed.

    Args:
        ledger: of the step; grants are written to it.
        members: for incarnations.
        pools: sites of each stage, changed by the coordinator when a site is lost.
        coordinator: incarnation of the coordinator.
        next_attempt: number of the next attempt.
    """

    def __init__(
        self,
        ledger: StepLedger,
        members: Members,
        pools: list[tuple[int, ...]],
        coordinator: int,
        next_attempt: int,
    ) -> None:
        self._ledger = ledger
        self._members = members
        self._pools = pools
        self._coordinator = coordinator
        self._told: dict[tuple[int, int, int], _Told] = {}
        self.next_attempt = next_attempt

    def restart(self, coordinator: int) -> None:
        """The coordinator has a new incarnation: all it told before is void."""
        self._coordinator = coordinator
        self._told.clear()

    def forget_site(self, site: int) -> None:
        """A site is dead: nothing that it was told counts."""
        self._told = {key: told for key, told in self._told.items() if key[2] != site}

    def remakes_output(self, row: int, stage: int, site: int) -> bool:
        """Whether the site was asked for an output only, its gradient not being wanted."""
        told = self._told.get((row, stage, site))
        return told is not None and not told.keep_gradient

    def reported(self, row: int, stage: int, site: int, direction: Direction) -> None:
        """A task that the site was told to run is done."""
        told = self._told.get((row, stage, site))
        if told is None:
            return
        if direction == Direction.FORWARD:
            told.forward = False
        else:
            told.backward = False

    def lost_output(self, row: int, stage: int, site: int, direction: Direction) -> list[Action]:
        """A site turned out not to have an output any more.

        The attempt that made it ends, unless it is about to make it anew: a site does nothing twice
        under one token, and a late second report must not pass for the output made anew.
        """
        record = self._ledger.records[row, stage]
        if record["output"][direction] != site:
            return []
        record["output"][direction] = NOBODY
        made_it = site in (record["owner"], record["backup"])
        if not made_it or self.is_expected(row, stage, site, direction):
            return []
        if record["committed"]:  # its gradient is kept: nothing to throw away
            self._ledger.revoke(row, stage)
            return []
        return self.reassign(row, stage, int(record["owner"]))

    def is_expected(self, row: int, stage: int, site: int, direction: Direction) -> bool:
        """Whether a site was told to run a task and has not reported it."""
        told = self._told.get((row, stage, site))
        if told is None:
            return False
        return told.forward if direction == Direction.FORWARD else told.backward

    def retract(self, row: int, stage: int, site: int) -> None:
        """A site does not know of its task: the next ``reconcile`` tells it again."""
        self._told.pop((row, stage, site), None)

    def reassign(self, row: int, stage: int, target: int) -> list[Action]:
        """Give an open key to another owner, ending the attempts made so far."""
        actions = self.withdraw(row, stage)
        self._ledger.records[row, stage]["owner"] = target
        return actions

    def grant_backup(self, row: int, stage: int, site: int) -> None:
        """Authorise a speculative second attempt at an open key."""
        self._ledger.grant_backup(row, stage, site, self._coordinator, self.next_attempt)
        self.next_attempt += 1

    def withdraw(self, row: int, stage: int, keep_site: int = NOBODY) -> list[Action]:
        """End all attempts at a key, except that of a site whose result has just been accepted."""
        key = self._ledger.key(row, stage)
        actions: list[Action] = []
        for site, token in self._ledger.attempts(row, stage, self._coordinator):
            told = self._told.get((row, stage, site))
            if site != keep_site and told is not None:
                actions.append(self._discard(site, key, told.token if told else token))
                del self._told[row, stage, site]
        if keep_site == NOBODY:
            self._ledger.revoke(row, stage)
        return actions

    def drop_held(self, row: int, stage: int) -> list[Action]:
        """Have a committed gradient thrown away that will not be merged."""
        held = self._ledger.holder(row, stage)
        if held is None or not self._members.knows(held[0], held[1]):
            return []
        return [Discard(held[0], held[1], self._ledger.key(row, stage), held[2])]

    def _discard(self, site: int, key: TaskKey, token: Token) -> Discard:
        return Discard(site, int(self._members.incarnation[site]), key, token)

    def needs(self, row: int) -> tuple[list[bool], list[bool]]:
        """Which forward and backward tasks of a micro-batch have to run [P], [P].

        A backward task runs for an open key, or to make a lost gradient for the stage before. A
        forward task runs if the next stage still needs an input that no living site retains.
        """
        records = self._ledger.records[row]
        stages = self._ledger.stages
        backward = [False] * stages
        forward = [False] * stages
        for stage in range(stages):
            lost = stage > 0 and backward[stage - 1] and records[stage]["output"][1] < 0
            backward[stage] = bool(not records[stage]["committed"] or lost)
        for stage in range(stages - 2, -1, -1):
            after = records[stage + 1]
            kept = not after["committed"] and 0 <= after["owner"] == after["output"][0]
            wanted = forward[stage + 1] or (backward[stage + 1] and not kept)
            forward[stage] = bool(wanted and records[stage]["output"][0] < 0)
        return forward, backward

    def reconcile(self, row: int) -> list[Action]:
        """Tell the executors of a micro-batch whatever they do not know yet."""
        if self._ledger.fate[row] in (Fate.WAITING, Fate.DEFERRED):
            return []
        forward, backward = self.needs(row)
        for stage in range(self._ledger.stages):
            if forward[stage] or backward[stage]:
                self._ensure_grant(row, stage)
        actions: list[Action] = []
        for stage in range(self._ledger.stages):
            if forward[stage] or backward[stage]:
                sources = self._sources(row, stage, forward, backward)
                for site, token in self._ledger.attempts(row, stage, self._coordinator):
                    wants = (forward[stage], backward[stage])
                    actions.extend(self._tell(row, stage, site, token, wants, sources))
        return actions

    def _ensure_grant(self, row: int, stage: int) -> None:
        record = self._ledger.records[row, stage]
        if record["committed"]:
            owner = int(record["owner"])
            under_way = self.remakes_output(row, stage, owner) and any(
                self.is_expected(row, stage, owner, direction) for direction in Direction
            )
            if record["attempt"] != NOBODY and under_way:
                return
            pool = self._pools[stage]
            holder = int(record["holder"])
            if not pool:
                return
            self._ledger.revoke(row, stage)
            record["owner"] = holder if holder in pool else pool[row % len(pool)]
        elif record["owner"] < 0 or record["attempt"] != NOBODY:
            return
        self._ledger.grant(row, stage, int(record["owner"]), self._coordinator, self.next_attempt)
        self.next_attempt += 1

    def _sources(
        self, row: int, stage: int, forward: list[bool], backward: list[bool]
    ) -> tuple[int, int]:
        activation = FROM_DATA if stage == 0 else self._source(row, stage - 1, 0, forward)
        if not backward[stage]:
            return activation, NOT_YET
        last = stage == self._ledger.stages - 1
        gradient = FROM_DATA if last else self._source(row, stage + 1, 1, backward)
        return activation, gradient

    def _source(self, row: int, stage: int, direction: int, runs: list[bool]) -> int:
        record = self._ledger.records[row, stage]
        if record["output"][direction] >= 0:
            return int(record["output"][direction])
        if runs[stage] and record["attempt"] != NOBODY:
            return int(record["owner"])
        return NOT_YET

    def _tell(
        self,
        row: int,
        stage: int,
        site: int,
        token: Token,
        wants: tuple[bool, bool],
        sources: tuple[int, int],
    ) -> list[Action]:
        record = self._ledger.records[row, stage]
        keep = not bool(record["committed"])
        told = self._told.get((row, stage, site))
        activation, gradient = sources
        if told is not None and told.token == token:
            if keep and record["output"][0] == site:  # it keeps its activations
                activation = told.activation_from
            known = told.forward >= wants[0] and told.backward >= wants[1]
            if known and (told.activation_from, told.gradient_from) == (activation, gradient):
                return []
        self._told[row, stage, site] = _Told(token, *wants, keep, activation, gradient)
        incarnation = int(self._members.incarnation[site])
        key = self._ledger.key(row, stage)
        return [Assign(site, incarnation, key, token, *wants, keep, activation, gradient)]
