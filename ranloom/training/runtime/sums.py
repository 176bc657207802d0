"""Partial sums, the reduction tree (Eq. 3 of WEAVER) and the totals of a step, as one site sees it.

A merged gradient goes into the step's partial sum and its number into the manifest. ``Reduce``
says which manifests must meet; the site adds its children's sums to its own and pushes the result
to its parent, the root distributes the total. Pushes repeat until they are acknowledged. Sums stay
until the step is applied or dropped, so a reduction can always be done over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ranloom.training.messages import Part, PartialRefused, Reduce, StageReduced, TotalHeld
from ranloom.training.optimizer import squared_norm
from ranloom.training.runtime.exchange import Send
from ranloom.training.runtime.journal import Journal
from ranloom.training.runtime.peer_messages import Ack, PartialSum, Pushed, TiedSum, Total
from ranloom.training.runtime.stage_worker import TIED_PARAMETER, Gradients, TrainedLayers
from ranloom.training.tokens import Token

StepStage = tuple[int, int]
_EARLY_LIMIT = 256
_COPY_LAG_STEPS = 32


@dataclass
class PartialSums:
    """Sum of the merged gradients of a step, with its manifest."""

    micro_batches: list[int] = field(default_factory=list)
    tensors: Gradients = field(default_factory=dict)


@dataclass(frozen=True)
class KeptTotal:
    """A stage's total, checked against its digest."""

    token: Token
    digest: str
    tensors: Mapping[str, Tensor]


@dataclass
class _Round:
    """A reduction in progress."""

    reduce: Reduce
    sums: dict[int, Gradients] = field(default_factory=dict)
    summed: Gradients | None = None
    tied: Tensor | None = None
    done: bool = False


@dataclass
class _Push:
    message: Any
    tensors: dict[str, Tensor]
    sent_at_s: float
    to_copy: bool


class StageSums:
    """Sums and totals of one site.

    Args:
        site: its number.
        incarnation: its incarnation.
        layers: of the stage that it holds.
        stage: the stage.
        send: way to other sites.
        report: way to the coordinator.
        journal: the site's record.
        retry_s: time after which a push is repeated.
    """

    def __init__(
        self,
        site: int,
        incarnation: int,
        layers: TrainedLayers,
        stage: int,
        send: Send,
        report: Callable[[Any], None],
        journal: Journal,
        retry_s: float,
    ) -> None:
        self.partial: dict[int, PartialSums] = {}
        self.totals: dict[StepStage, KeptTotal] = {}
        self._site = site
        self._incarnation = incarnation
        self._layers = layers
        self._stage = stage
        self._send = send
        self._report = report
        self._journal = journal
        self._retry_s = retry_s
        self._now_s = 0.0
        self._ended_step = -1
        self._rounds: dict[StepStage, _Round] = {}
        self._early: dict[tuple[int, int, Token, int], tuple[tuple[Part, ...], Gradients]] = {}
        self._early_tied: dict[tuple[int, Token, int], Tensor] = {}
        self._pushes: dict[tuple[int, Pushed, int, int, Token], _Push] = {}

    # --- partial sums ---

    def merge(
        self, step: int, micro_batch: int, gradients: Gradients, samples: Iterable[int]
    ) -> None:
        """Add a micro-batch to the step's partial sum; one that is in it already is left out."""
        partial = self.partial.setdefault(step, PartialSums())
        again = micro_batch in partial.micro_batches
        self._journal.write(
            "merged",
            site=self._site,
            incarnation=self._incarnation,
            step=step,
            stage=self._stage,
            micro_batch=micro_batch,
            samples=list(samples),
            again=again,
        )
        if again:
            return
        partial.micro_batches = sorted([*partial.micro_batches, micro_batch])
        if partial.tensors:
            for name, gradient in gradients.items():
                partial.tensors[name] += gradient
        else:
            partial.tensors = {name: gradient.clone() for name, gradient in gradients.items()}

    def manifest(self, step: int) -> Part:
        """What this site has merged in a step."""
        numbers = self.partial[step].micro_batches if step in self.partial else []
        return Part(self._site, self._incarnation, tuple(numbers))

    # --- reduction ---

    def start(self, reduce: Reduce, now_s: float) -> None:
        """Take part in a reduction; a newer token replaces an older one."""
        self._now_s = now_s
        place = (reduce.step, reduce.stage)
        known = self._rounds.get(place)
        if reduce.step <= self._ended_step or (known and known.reduce.token >= reduce.token):
            return
        own = self.manifest(reduce.step)
        if own != reduce.part:
            self._report(
                PartialRefused(
                    self._site, self._incarnation, reduce.step, reduce.stage, reduce.token, own
                )
            )
            return
        self._drop_round(place)
        self.totals.pop(place, None)
        current = self._rounds[place] = _Round(reduce)
        for parts in reduce.children:
            child = parts[0].site
            early = self._early.pop((*place, reduce.token, child), None)
            if early is not None and early[0] == parts:
                current.sums[child] = early[1]
        current.tied = self._early_tied.pop((reduce.step, reduce.token, reduce.tied_root), None)
        self._advance(current)

    def on_partial(
        self, sender: int, message: PartialSum, tensors: Gradients, now_s: float
    ) -> None:
        """A child's sum: taken if its manifests are exactly those that ``Reduce`` names."""
        self._now_s = now_s
        if not self._layers.are_sums(tensors):
            self._journal.write("fault", of="partial sum", step=message.step, sender=sender)
            return
        self._acknowledge(sender, Pushed.PARTIAL, message.step, message.stage, message.token)
        if message.step <= self._ended_step:
            return
        place = (message.step, message.stage)
        current = self._rounds.get(place)
        if current is None or current.reduce.token < message.token:
            if len(self._early) < _EARLY_LIMIT:
                self._early[(*place, message.token, sender)] = (message.parts, tensors)
            return
        expected = {parts[0].site: parts for parts in current.reduce.children}
        if current.reduce.token != message.token or expected.get(sender) != message.parts:
            self._journal.write("refused_sum", step=message.step, sender=sender)
            return
        current.sums[sender] = tensors
        self._advance(current)

    def on_tied(self, sender: int, message: TiedSum, value: Tensor, now_s: float) -> None:
        """The other root's sum of the tied weight."""
        self._now_s = now_s
        if not self._layers.are_sums({TIED_PARAMETER: value}, (TIED_PARAMETER,)):
            self._journal.write("fault", of="tied sum", step=message.step, sender=sender)
            return
        self._acknowledge(sender, Pushed.TIED, message.step, message.stage, message.token)
        if message.step <= self._ended_step:
            return
        for current in self._rounds.values():
            if (
                current.reduce.step == message.step
                and current.reduce.tied_root == sender
                and current.reduce.token == message.token
            ):
                current.tied = value
                self._advance(current)
                return
        self._early_tied[message.step, message.token, sender] = value

    def on_total(
        self, sender: int, message: Total, tensors: Gradients, now_s: float
    ) -> KeptTotal | None:
        """A total from the root; kept and reported if it is whole and not outdated.

        Returns:
            The total, if it was taken.
        """
        self._now_s = now_s
        place = (message.step, message.stage)
        current = self._rounds.get(place)
        outdated = message.step <= self._ended_step or (
            current is not None and current.reduce.token > message.token
        )
        whole = self._layers.are_sums(tensors)
        if not outdated and not (whole and matches_digest(message, tensors, self._layers.names())):
            self._journal.write("fault", of="total digest", step=message.step, sender=sender)
            return None
        self._acknowledge(sender, Pushed.TOTAL, message.step, message.stage, message.token)
        known = self.totals.get(place)
        if outdated or (known is not None and known.token >= message.token):
            return None
        kept = self.totals[place] = KeptTotal(message.token, message.digest, tensors)
        self._report(
            TotalHeld(self._site, self._incarnation, *place, message.token, message.digest)
        )
        return kept

    def on_ack(self, sender: int, message: Ack) -> None:
        """A push has arrived."""
        self._pushes.pop((sender, message.pushed, message.step, message.stage, message.token), None)

    def settle(self, now_s: float) -> None:
        """Repeat pushes that nobody has acknowledged."""
        self._now_s = now_s
        for (to, *_), push in self._pushes.items():
            if now_s - push.sent_at_s >= self._retry_s:
                push.sent_at_s = now_s
                self._send(to, push.message, push.tensors)

    def end_steps(self, step: int) -> None:
        """The step is applied or dropped: free what belongs to it and to earlier ones."""
        self._ended_step = max(self._ended_step, step)
        for place in [place for place in self._rounds if place[0] <= step]:
            self._drop_round(place)
        for place in [place for place in self.totals if place[0] <= step]:
            del self.totals[place]
        for old in [old for old in self.partial if old <= step]:
            del self.partial[old]
        self._early = {key: v for key, v in self._early.items() if key[0] > step}
        self._early_tied = {key: v for key, v in self._early_tied.items() if key[0] > step}
        # A site that copies layers may be behind; it needs the totals of ended steps, too.
        self._pushes = {
            key: push
            for key, push in self._pushes.items()
            if key[2] > step or (push.to_copy and key[2] > step - _COPY_LAG_STEPS)
        }

    def _drop_round(self, place: StepStage) -> None:
        if self._rounds.pop(place, None) is not None:
            self._pushes = {key: v for key, v in self._pushes.items() if key[2:4] != place}

    def _advance(self, current: _Round) -> None:
        reduce = current.reduce
        children = [parts[0].site for parts in reduce.children]
        if current.done or any(child not in current.sums for child in children):
            return
        if self.manifest(reduce.step) != reduce.part:
            # Something was merged since: this reduction is void, another one will come.
            return
        if current.summed is None:
            current.summed = self._own_sum(reduce.step)
            for child in children:
                for name, tensor in current.summed.items():
                    tensor += current.sums[child][name]
            self._note_contribution(reduce)
            if reduce.parent < 0 and reduce.tied_root >= 0:
                own = {"value": current.summed[TIED_PARAMETER]}
                tied = TiedSum(reduce.step, reduce.stage, reduce.token)
                self._push(reduce.tied_root, Pushed.TIED, tied, own)
        if reduce.parent >= 0:
            parts = (reduce.part, *(part for parts in reduce.children for part in parts))
            message = PartialSum(reduce.step, reduce.stage, reduce.token, parts)
            self._push(reduce.parent, Pushed.PARTIAL, message, current.summed)
            current.done = True
        elif reduce.tied_root < 0 or current.tied is not None:
            self._finish(current)

    def _own_sum(self, step: int) -> Gradients:
        if step in self.partial:
            return {name: tensor.clone() for name, tensor in self.partial[step].tensors.items()}
        return self._layers.zeros()

    def _note_contribution(self, reduce: Reduce) -> None:
        self._journal.write(
            "contributed",
            site=self._site,
            incarnation=self._incarnation,
            step=reduce.step,
            stage=reduce.stage,
            reduction=reduction_name(reduce.step, reduce.stage, reduce.token),
            micro_batches=list(self.manifest(reduce.step).micro_batches),
        )

    def _finish(self, current: _Round) -> None:
        """At the root: the total is complete."""
        current.done = True
        reduce, total = current.reduce, current.summed
        assert total is not None
        if current.tied is not None:
            own = total[TIED_PARAMETER]
            is_first = self._layers.module.is_first
            total[TIED_PARAMETER] = own + current.tied if is_first else current.tied + own
        entries = tuple((name, tensor_digest(total[name])) for name in sorted(total))
        digest = entries_digest(entries)
        self.totals[reduce.step, reduce.stage] = KeptTotal(reduce.token, digest, total)
        counted = total
        if current.tied is not None and not self._layers.module.is_first:
            counted = {n: t for n, t in total.items() if n != TIED_PARAMETER}
        parts = (reduce.part, *(part for parts in reduce.children for part in parts))
        self._journal.write(
            "reduced",
            site=self._site,
            incarnation=self._incarnation,
            step=reduce.step,
            stage=reduce.stage,
            reduction=reduction_name(reduce.step, reduce.stage, reduce.token),
            parts=[[part.site, part.incarnation] for part in parts],
        )
        self._report(
            StageReduced(
                self._site,
                self._incarnation,
                reduce.step,
                reduce.stage,
                reduce.token,
                parts,
                squared_norm(counted),
                digest,
            )
        )
        message = Total(reduce.step, reduce.stage, reduce.token, digest, entries)
        for recipient in reduce.recipients:
            wanted = self._layers.names_within(recipient.first_layer, recipient.end_layer)
            tensors = {name: total[name] for name in wanted}
            to_copy = recipient.first_layer >= 0
            self._push(recipient.site, Pushed.TOTAL, message, tensors, to_copy)

    def _push(
        self,
        to: int,
        pushed: Pushed,
        message: Any,
        tensors: dict[str, Tensor],
        to_copy: bool = False,
    ) -> None:
        key = (to, pushed, message.step, message.stage, message.token)
        self._pushes[key] = _Push(message, tensors, self._now_s, to_copy)
        self._send(to, message, tensors)

    def _acknowledge(self, to: int, pushed: Pushed, step: int, stage: int, token: Token) -> None:
        self._send(to, Ack(pushed, step, stage, token), {})


def reduction_name(step: int, stage: int, token: Token) -> str:
    """Name of a reduction in the journals."""
    return (
        f"{step}/{stage}/{token.coordinator}.{token.layout_epoch}.{token.model_version}"
        f".{token.task_epoch}.{token.attempt}"
    )


def tensor_digest(tensor: Tensor) -> str:
    """Digest of a tensor's bytes."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data.data, digest_size=16).hexdigest()


def entries_digest(entries: Iterable[tuple[str, str]]) -> str:
    """One digest over named digests."""
    joined = "\n".join(f"{name} {digest}" for name, digest in entries)
    return hashlib.blake2b(joined.encode(), digest_size=16).hexdigest()


def matches_digest(message: Total, tensors: Mapping[str, Tensor], names: Iterable[str]) -> bool:
    """Whether a total, or a slice of it, is the named tensors with the bytes that it promises."""
    promised = dict(message.entries)
    return (
        tensors.keys() == set(names)
        and entries_digest(message.entries) == message.digest
        and all(promised.get(name) == tensor_digest(tensor) for name, tensor in tensors.items())
    )
