"""Moving layers between sites beside training (MLR: PREPARE / COPY / COMMIT, App. C.1).

A source keeps a snapshot of layers with their optimizer state and hands it out piece by piece,
each tensor with its digest; a receiver asks for the next piece from where it got to. Totals of
later steps reach the receiver like any holder and are applied in order once the snapshot is
there. ``Install`` then puts the copied layers in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ranloom.training.messages import Apply, Copy, CopyDone, Offer
from ranloom.training.optimizer import OptimizerState
from ranloom.training.runtime.exchange import Send
from ranloom.training.runtime.journal import Journal
from ranloom.training.runtime.peer_messages import FetchLayers, LayerTensors, Total
from ranloom.training.runtime.stage_worker import Gradients, TrainedLayers, Workload
from ranloom.training.runtime.sums import matches_digest, tensor_digest

_PIECE_BYTES = 4 << 20
_STATE = "optimizer/"


def flatten(weights: Mapping[str, Tensor], state: OptimizerState) -> dict[str, Tensor]:
    """Weights and optimizer tensors under one level of names."""
    flat = dict(weights)
    for name, entries in state.items():
        flat |= {f"{_STATE}{name}/{entry}": tensor for entry, tensor in entries.items()}
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], OptimizerState]:
    """Inverse of ``flatten``."""
    weights: dict[str, Tensor] = {}
    state: OptimizerState = {}
    for name, tensor in flat.items():
        if name.startswith(_STATE):
            parameter, entry = name.removeprefix(_STATE).rsplit("/", 1)
            state.setdefault(parameter, {})[entry] = tensor
        else:
            weights[name] = tensor
    return weights, state


@dataclass
class _Snapshot:
    model_version: int
    first_layer: int
    end_layer: int
    tensors: dict[str, Tensor]


@dataclass
class _Incoming:
    """Layers on their way in, and the updates that wait for them."""

    copy: Copy
    asked_at_s: float
    received: dict[str, Tensor] = field(default_factory=dict)
    layers: TrainedLayers | None = None


class Relocation:
    """Snapshots handed out and copies taken in by one site.

    Args:
        site: its number.
        incarnation: its incarnation.
        workload: what is trained.
        send: way to other sites.
        report: way to the coordinator.
        journal: the site's record.
        retry_s: time after which an open question is asked again.
    """

    def __init__(
        self,
        site: int,
        incarnation: int,
        workload: Workload,
        send: Send,
        report: Callable[[Any], None],
        journal: Journal,
        retry_s: float,
    ) -> None:
        self._site = site
        self._incarnation = incarnation
        self._workload = workload
        self._send = send
        self._report = report
        self._journal = journal
        self._retry_s = retry_s
        self._snapshots: dict[int, list[_Snapshot]] = {}
        self._incoming: dict[int, list[_Incoming]] = {}
        self._done: set[int] = set()
        self._totals: dict[tuple[int, int], tuple[Total, Gradients]] = {}
        self._updates: list[Apply] = []

    # --- source ---

    def offer(self, offer: Offer, layers: TrainedLayers) -> None:
        """Keep a snapshot of some of the layers held."""
        names = set(layers.names_within(offer.first_layer, offer.end_layer))
        weights = {n: t for n, t in layers.weights().items() if n in names}
        state = {n: e for n, e in layers.optimizer_state().items() if n in names}
        snapshot = _Snapshot(
            offer.model_version, offer.first_layer, offer.end_layer, flatten(weights, state)
        )
        self._snapshots.setdefault(offer.layout_epoch, []).append(snapshot)

    def on_fetch(self, sender: int, ask: FetchLayers) -> None:
        """Answer with the next piece of a snapshot; not yet offered ones are asked for again."""
        for snapshot in self._snapshots.get(ask.layout_epoch, []):
            same = (
                snapshot.model_version == ask.model_version
                and snapshot.first_layer <= ask.first_layer
                and ask.end_layer <= snapshot.end_layer
            )
            if same:
                self._send_piece(sender, ask, self._range(snapshot, ask))
                return

    def _range(self, snapshot: _Snapshot, ask: FetchLayers) -> dict[str, Tensor]:
        if (snapshot.first_layer, snapshot.end_layer) == (ask.first_layer, ask.end_layer):
            return snapshot.tensors
        wanted = set(self._workload.names(ask.first_layer, ask.end_layer))
        weights, state = unflatten(snapshot.tensors)
        return flatten(
            {n: t for n, t in weights.items() if n in wanted},
            {n: e for n, e in state.items() if n in wanted},
        )

    def _send_piece(self, to: int, ask: FetchLayers, tensors: dict[str, Tensor]) -> None:
        names = sorted(tensors)
        piece: dict[str, Tensor] = {}
        for name in names[ask.start :]:
            piece[name] = tensors[name]
            if sum(t.nbytes for t in piece.values()) >= _PIECE_BYTES:
                break
        digests = tuple(tensor_digest(tensor) for tensor in piece.values())
        answer = LayerTensors(
            ask.layout_epoch,
            ask.model_version,
            ask.first_layer,
            ask.end_layer,
            ask.start,
            len(names),
            digests,
        )
        self._send(to, answer, piece)

    # --- receiver ---

    def copy(self, copy: Copy, now_s: float) -> None:
        """Start to fetch layers."""
        incoming = _Incoming(copy, now_s)
        self._incoming.setdefault(copy.layout_epoch, []).append(incoming)
        self._ask(incoming, now_s)

    def on_layers(
        self, sender: int, piece: LayerTensors, tensors: dict[str, Tensor], now_s: float
    ) -> None:
        """Take in a piece if it is the next one and every digest fits; else ask for it again."""
        for incoming in self._incoming.get(piece.layout_epoch, []):
            copy = incoming.copy
            expected = (copy.source, copy.model_version, copy.first_layer, copy.end_layer)
            found = (sender, piece.model_version, piece.first_layer, piece.end_layer)
            if incoming.layers is None and expected == found:
                self._take(incoming, piece, tensors, now_s)

    def _take(
        self, incoming: _Incoming, piece: LayerTensors, tensors: dict[str, Tensor], now_s: float
    ) -> None:
        if piece.start != len(incoming.received):
            return
        if tuple(tensor_digest(tensor) for tensor in tensors.values()) != piece.digests:
            self._journal.write("fault", of="layer digest", source=incoming.copy.source)
            self._ask(incoming, now_s)
            return
        incoming.received |= tensors
        if len(incoming.received) < piece.count:
            self._ask(incoming, now_s)
            return
        copy = incoming.copy
        layers = TrainedLayers(self._workload, copy.first_layer, copy.end_layer, copy.model_version)
        layers.load(*unflatten(incoming.received))
        incoming.layers = layers
        self._advance()

    def on_total(self, total: Total, tensors: Gradients) -> bool:
        """Keep a slice of another stage's total for the layers on their way in."""
        wanted = {
            name
            for incoming in self._all_incoming()
            if incoming.copy.stage == total.stage
            for name in self._names(incoming)
        }
        if not matches_digest(total, tensors, wanted):
            self._journal.write("fault", of="total digest", step=total.step)
            return False
        self._totals[total.step, total.stage] = (total, tensors)
        self._advance()
        return True

    def update(self, apply: Apply) -> None:
        """Queue an update of the copied layers; one that their snapshot contains is left out."""
        if any(
            incoming.copy.stage == apply.stage and incoming.copy.model_version < apply.model_version
            for incoming in self._all_incoming()
        ):
            self._updates.append(apply)
            self._advance()

    def caught_up(self, layout_epoch: int, model_version: int) -> bool:
        """Whether every copy for a layout is at this version."""
        return all(
            incoming.layers is not None and incoming.layers.version == model_version
            for incoming in self._incoming.get(layout_epoch, [])
        )

    def copied(self, layout_epoch: int) -> list[TrainedLayers]:
        """Layers copied for a layout."""
        return [i.layers for i in self._incoming.get(layout_epoch, []) if i.layers is not None]

    @property
    def receiving(self) -> bool:
        """Whether layers are on their way in or wait for their ``Install``."""
        return bool(self._incoming)

    @property
    def complete(self) -> bool:
        """Whether all layers on their way in have arrived and only totals follow."""
        return self._done >= self._incoming.keys()

    def abort(self, layout_epoch: int) -> None:
        """Free snapshots and copies of a layout."""
        self._snapshots.pop(layout_epoch, None)
        self._incoming.pop(layout_epoch, None)
        self._done.discard(layout_epoch)
        if not self._incoming:
            self._totals.clear()
            self._updates.clear()

    def settle(self, now_s: float) -> None:
        """Ask again for pieces that did not come."""
        for incoming in self._all_incoming():
            if incoming.layers is None and now_s - incoming.asked_at_s >= self._retry_s:
                self._ask(incoming, now_s)

    def _advance(self) -> None:
        """Apply what can be applied, in order; report copies that are complete."""
        if any(incoming.layers is None for incoming in self._all_incoming()):
            return
        while self._updates:
            apply = self._updates[0]
            kept = self._totals.get((apply.step, apply.stage))
            if kept is None or kept[0].token != apply.token:
                return
            for incoming in self._all_incoming():
                layers = incoming.layers
                assert layers is not None
                if incoming.copy.stage == apply.stage:
                    layers.apply(kept[1], apply.samples, apply.squared_norm)
                    layers.version = apply.model_version
            del self._updates[0], self._totals[apply.step, apply.stage]
        for layout_epoch, copies in self._incoming.items():
            versions = {i.layers.version for i in copies if i.layers is not None}
            if layout_epoch not in self._done and len(versions) == 1:
                self._done.add(layout_epoch)
                self._report(CopyDone(self._site, self._incarnation, layout_epoch, versions.pop()))

    def _ask(self, incoming: _Incoming, now_s: float) -> None:
        copy = incoming.copy
        incoming.asked_at_s = now_s
        ask = FetchLayers(
            copy.layout_epoch,
            copy.model_version,
            copy.first_layer,
            copy.end_layer,
            len(incoming.received),
        )
        self._send(copy.source, ask, {})

    def _names(self, incoming: _Incoming) -> tuple[str, ...]:
        return self._workload.names(incoming.copy.first_layer, incoming.copy.end_layer)

    def _all_incoming(self) -> list[_Incoming]:
        return [incoming for copies in self._incoming.values() for incoming in copies]
