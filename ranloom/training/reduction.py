"""Reduction of a sealed step: from partial sums at the holders to a total that survives them.

Stage by stage, partial sums go up a tree to a root among the holders (Eq. 3). The coordinator
accepts a total only if the manifest of each partial sum in it equals the ledger's. A stage is
*reduced* when every surviving holder keeps the accepted total; until then a death may void the
reduction, which then starts anew under a higher task epoch. With tied embeddings the first and the
last stage add each other's sums and are therefore accepted, voided and reduced together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ranloom.training.ledger import StepLedger
from ranloom.training.membership import Members
from ranloom.training.messages import Action, Part, Recipient, Reduce, StageReduced, TotalHeld
from ranloom.training.tokens import Token


@dataclass(slots=True)
class _StageSum:
    epoch: int = 0
    token: Token | None = None
    root: int = -1
    parts: tuple[Part, ...] = ()
    required: set[int] = field(default_factory=set)
    accepted: bool = False
    squared_norm: float = 0.0
    digest: str = ""
    digests: dict[int, str] = field(default_factory=dict)

    @property
    def held_by(self) -> set[int]:
        """Sites that keep the accepted total."""
        if not self.accepted:
            return set()
        return {site for site, digest in self.digests.items() if digest == self.digest}


class Reduction:
    """Reduction of all stages of one step.

    Args:
        ledger: of the step.
        members: who is alive, under which incarnation.
        pools: sites of each stage; shared with the coordinator, which takes lost sites out.
        tied: whether first and last stage share a weight.
        fanout: children of a node in the reduction tree.
    """

    def __init__(
        self,
        ledger: StepLedger,
        members: Members,
        pools: list[tuple[int, ...]],
        tied: bool,
        fanout: int,
    ) -> None:
        self._ledger = ledger
        self._members = members
        self._pools = pools
        self._fanout = fanout
        self._sums = [_StageSum() for _ in pools]
        last = len(pools) - 1
        self._groups: list[tuple[int, ...]] = [(stage,) for stage in range(len(pools))]
        if tied and last > 0:
            self._groups = [(0, last), *((stage,) for stage in range(1, last))]

    @property
    def done(self) -> bool:
        """Whether every stage is reduced."""
        return all(self._group_reduced(group) for group in self._groups)

    @property
    def squared_norm(self) -> float:
        """Of the summed gradient over all stages."""
        return sum(stage.squared_norm for stage in self._sums)

    @property
    def begun(self) -> bool:
        """Whether some stage is being reduced."""
        return any(state.token is not None for state in self._sums)

    def is_current(self, stage: int, token: Token) -> bool:
        """Whether a token is that of the reduction under way."""
        return 0 <= stage < len(self._sums) and self._sums[stage].token == token

    def token(self, stage: int) -> Token:
        """Fence of the stage's accepted total.

        Raises:
            ValueError: no reduction of the stage is under way.
        """
        token = self._sums[stage].token
        if token is None:
            raise ValueError(f"stage {stage} of step {self._ledger.step} is not being reduced")
        return token

    def is_safe(self, stage: int) -> bool:
        """Whether a survivor keeps the accepted total, so that partial sums are not needed."""
        group = next(group for group in self._groups if stage in group)
        return all(self._sums[s].held_by & set(self._pools[s]) for s in group)

    def start(
        self, coordinator: int, shadows: tuple[tuple[int, Recipient, bool], ...]
    ) -> list[Action]:
        """Begin the reduction of every group that is not under way, its keys all committed.

        Args:
            coordinator: incarnation for the tokens.
            shadows: (stage, recipient, must acknowledge) of sites that copy layers.
        """
        actions: list[Action] = []
        for group in self._groups:
            if all(self._sums[stage].token is None for stage in group):
                parts = [self._live_parts(stage) for stage in group]
                if all(found is not None for found in parts):
                    for stage, found in zip(group, parts, strict=True):
                        self._begin(stage, found or (), coordinator, shadows)
                    for stage in group:
                        actions.extend(self._requests(stage, group, shadows))
        return actions

    def _live_parts(self, stage: int) -> tuple[Part, ...] | None:
        """Parts of the living holders if together they are the sealed set, else None."""
        parts = []
        for site in self._pools[stage]:
            incarnation = int(self._members.incarnation[site])
            part = Part(site, incarnation, self._ledger.part_of(site, incarnation, stage))
            if part.micro_batches:
                parts.append(part)
        count = sum(len(part.micro_batches) for part in parts)
        return tuple(parts) if parts and count == len(self._ledger.sealed_set()) else None

    def _begin(
        self,
        stage: int,
        parts: tuple[Part, ...],
        coordinator: int,
        shadows: tuple[tuple[int, Recipient, bool], ...],
    ) -> None:
        state = self._sums[stage]
        ledger = self._ledger
        state.token = Token(coordinator, ledger.layout_epoch, ledger.model_version, state.epoch, 0)
        state.parts = parts
        state.root = parts[0].site
        state.required = set(self._pools[stage])
        state.required.update(r.site for at, r, must in shadows if at == stage and must)

    def _requests(
        self,
        stage: int,
        group: tuple[int, ...],
        shadows: tuple[tuple[int, Recipient, bool], ...],
    ) -> list[Action]:
        state = self._sums[stage]
        parts, token = state.parts, self.token(stage)
        whole = [Recipient(site, -1, -1) for site in self._pools[stage] if site != state.root]
        recipients = (*whole, *(recipient for at, recipient, _ in shadows if at == stage))
        tied_stage = next((other for other in group if other != stage), -1)
        tied_root = self._sums[tied_stage].root if tied_stage >= 0 else -1
        actions: list[Action] = []
        for index, part in enumerate(parts):
            first = index * self._fanout + 1
            children = range(first, min(first + self._fanout, len(parts)))
            is_root = index == 0
            actions.append(
                Reduce(
                    part.site,
                    part.incarnation,
                    self._ledger.step,
                    stage,
                    token,
                    part,
                    tuple(self._subtree(parts, child) for child in children),
                    -1 if is_root else parts[(index - 1) // self._fanout].site,
                    recipients if is_root else (),
                    tied_root if is_root else -1,
                    tied_stage if is_root else -1,
                )
            )
        return actions

    def _subtree(self, parts: tuple[Part, ...], index: int) -> tuple[Part, ...]:
        first = index * self._fanout + 1
        below = range(first, min(first + self._fanout, len(parts)))
        found = [parts[index]]
        for child in below:
            found.extend(self._subtree(parts, child))
        return tuple(found)

    def accept_total(self, event: StageReduced) -> str:
        """Judge the root's report; empty if the total is accepted, else the reason."""
        reason = self._fence(event.step, event.stage, event.token)
        if reason:
            return reason
        state = self._sums[event.stage]
        if event.site != state.root:
            return "unauthorised"
        if state.accepted:
            return "duplicate"
        ledger_parts = {
            part.site: self._ledger.part_of(part.site, part.incarnation, event.stage)
            for part in state.parts
        }
        found = {part.site: part.micro_batches for part in event.parts}
        if len(found) != len(event.parts) or found != ledger_parts:
            return "manifest"
        state.accepted = True
        state.squared_norm = event.squared_norm
        state.digest = event.digest
        state.digests[event.site] = event.digest
        return ""

    def acknowledge(self, event: TotalHeld) -> str:
        """Judge a recipient's report; empty if it counts, else the reason."""
        reason = self._fence(event.step, event.stage, event.token)
        if reason:
            return reason
        state = self._sums[event.stage]
        if event.site not in state.required:
            return "unauthorised"
        if state.accepted and event.digest != state.digest:
            return "digest"
        state.digests[event.site] = event.digest
        return ""

    def lose_site(self, site: int) -> list[int]:
        """Take a lost site out; stages whose reduction is void because of it."""
        for state in self._sums:
            state.required.discard(site)
            state.digests.pop(site, None)
        void: list[int] = []
        for group in self._groups:
            concerned = any(
                site == state.root or any(part.site == site for part in state.parts)
                for state in (self._sums[stage] for stage in group)
                if state.token is not None
            )
            if concerned and not self.is_safe(group[0]):
                self._void(group)
                void.extend(group)
        return void

    def drop_shadows(self) -> None:
        """The change of layout is off: nobody but the holders of a stage keeps its total."""
        for stage, state in enumerate(self._sums):
            state.required.intersection_update(self._pools[stage])

    def void_unfinished(self) -> None:
        """The coordinator restarted: whatever is not reduced starts anew."""
        for group in self._groups:
            if not self._group_reduced(group):
                self._void(group)

    def _void(self, group: tuple[int, ...]) -> None:
        for stage in group:
            self._sums[stage] = _StageSum(epoch=self._sums[stage].epoch + 1)

    def _group_reduced(self, group: tuple[int, ...]) -> bool:
        return self.is_safe(group[0]) and all(
            self._sums[stage].required <= self._sums[stage].held_by for stage in group
        )

    def _fence(self, step: int, stage: int, token: Token) -> str:
        if step != self._ledger.step or not 0 <= stage < len(self._sums):
            return "stale_step"
        return "" if token == self._sums[stage].token else "stale_epoch"
