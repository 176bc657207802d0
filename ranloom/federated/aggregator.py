"""The aggregator of one federated job at one gNB: a state machine without clock or socket.

It stages the updates that are under way, checks each when its last chunk is in, adds it to one
running sum and forgets its payload: memory is one vector plus the staging limit, however many
updates come. A *wave* ships the running sum. Time is an argument of every event; what was due
before that time happens first, so results do not depend on how often :meth:`Aggregator.tick`
is called.

Each update counts at most once. An id that was counted is answered as a duplicate, also after
its UE moved: a hand-over takes along what this gNB knows about the UE's updates, and a gNB talks
only to UEs that are attached to it.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ranloom.errors import InputError
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.ledger import COUNTED, DROPPED, STAGED, Account, Entry, HandOver, Ledger
from ranloom.federated.payload import WIRE_DTYPES, Payload, peak_magnitude
from ranloom.federated.update import (
    Accepted,
    Answer,
    Counted,
    Deferred,
    Duplicate,
    Refused,
    Stored,
    UpdateHeader,
)
from ranloom.federated.wave import Wave

_WEIGHT_STEP = 2.0**-20
_FINAL = ("not_finite", "overflow", "withdrawn")  # sending it again would not help


class Aggregator:
    """See the module's docstring. All times are seconds on one axis.

    Args:
        config: limits and policies.
    """

    def __init__(self, config: AggregatorConfig) -> None:
        self.config = config
        self.ledger = Ledger(config.layout.elements)
        self.refusals: dict[str, int] = {}
        self.now_s = -math.inf
        self.round = -1
        self.collecting = False
        self._attached: set[str] = set()
        self._awaited: set[str] = set()
        self._begin_s = 0.0
        self._arrivals_s: list[float] = []  # of this round's updates, after its begin, ascending
        self._closed: list[Wave] = []
        self._wave_index = 0
        # the wave under collection; between cut-off and the next begin it gathers late updates
        self._sums: Accumulator | None = None
        self._weight = 0.0
        self._samples = 0
        self._manifest: list[str] = []
        self._wave_open_s = math.inf

    def attach(self, ue: str, now_s: float, context: HandOver | None = None) -> None:
        """A UE is served here from now on, with what its last gNB knew of its updates.

        Raises:
            InputError: the context is another UE's, or time runs backwards.
        """
        self._advance(now_s)
        if context is not None and context.ue != ue:
            raise InputError("hand_over.ue", context.ue, f"allowed: {ue}")
        self._attached.add(ue)
        if context is None:
            return
        if self.collecting and context.awaited_round == self.round:
            self._awaited.add(ue)
        for entry in context.entries:
            room = self.config.staging_bytes - self.ledger.staged_bytes
            if entry.state == STAGED and self.ledger.size_bytes(entry.header) > room:
                self.ledger.arrive(replace(entry, state=DROPPED, reason="no_room"), now_s)
            else:
                self.ledger.arrive(entry, now_s)

    def detach(self, ue: str, now_s: float, *, keep_chunks: bool) -> HandOver:
        """A UE leaves for another gNB; what is known of its updates goes with it.

        Args:
            ue: name of the UE; an unknown one has nothing to pass on.
            now_s: time of the event.
            keep_chunks: whether chunks already received go along (the upload continues) or
                not (it restarts).
        """
        self._advance(now_s)
        awaited_round = self.round if self.collecting and ue in self._awaited else -1
        self._attached.discard(ue)
        self._awaited.discard(ue)
        return HandOver(ue, awaited_round, self.ledger.leave(ue, keep_chunks=keep_chunks))

    def begin_round(self, round_index: int, now_s: float, expected: set[str]) -> None:
        """A round begins, its UEs have been told to train; one still collecting is cut off.

        Args:
            round_index: one more than the last (any to start with).
            now_s: time of the event.
            expected: UEs whose updates to wait for, all attached.

        Raises:
            InputError: a round out of turn, or a UE that is not attached.
        """
        self._advance(now_s)
        if round_index < 0 or self.round not in (-1, round_index - 1):
            raise InputError("round", round_index, f"allowed: {self.round + 1}")
        strangers = sorted(expected - self._attached)
        if strangers:
            raise InputError("expected", strangers[0], "allowed: UEs attached to this gNB")
        if self.collecting:
            self._cut_off("next_round")
        self.round, self.collecting = round_index, True
        self._begin_s, self._wave_index = now_s, 0
        self._awaited, self._arrivals_s = set(expected), []
        if self._manifest:
            self._wave_open_s = now_s
        for entry in self.ledger.staged():
            if self._lateness_fault(entry.header) is not None:
                self.ledger.drop(entry, "stale")
        self.ledger.forget_before(round_index - self.config.max_staleness)

    def offer(self, header: UpdateHeader, now_s: float) -> Answer:
        """A UE offers an update; sending the same offer again is harmless."""
        self._advance(now_s)
        update_id = header.update_id
        fault = self._header_fault(header)
        if fault is not None:
            return self._refuse(update_id, fault)
        known = self.ledger.get(update_id)
        if known is not None and known.state != DROPPED:
            if known.header != header:
                return self._refuse(update_id, "conflicting_content")
            if known.state == COUNTED:
                return Duplicate(update_id)
            self.ledger.touch(known, now_s)
            return Accepted(update_id, self._missing(known))
        fault = self._lateness_fault(header)
        if fault is not None:
            if known is None and fault == "late":
                self.ledger.record_dropped(header, fault, now_s)
            return self._refuse(update_id, fault)
        if self.ledger.staged_bytes + self.ledger.size_bytes(header) > self.config.staging_bytes:
            return Deferred(update_id)
        entry = Entry(header, STAGED, now_s)
        self.ledger.stage(entry, now_s)
        return Accepted(update_id, self._missing(entry))

    def chunk(self, update_id: str, index: int, data: bytes, now_s: float) -> Answer:
        """One chunk of an offered update; chunks may come in any order and more than once."""
        self._advance(now_s)
        entry = self.ledger.get(update_id)
        if entry is None:
            return self._refuse(update_id, "not_offered")
        if entry.state == COUNTED:
            return Duplicate(update_id)
        if entry.state == DROPPED:
            return self._refuse(update_id, entry.reason)
        if not 0 <= index < self._chunks(entry):
            return self._refuse(update_id, "chunk_index")
        size = self.config.chunk_bytes
        if len(data) != min(size, self.ledger.size_bytes(entry.header) - index * size):
            return self._refuse(update_id, "chunk_size")
        if entry.chunks.setdefault(index, data) != data:
            return self._refuse(update_id, "conflicting_content")
        self.ledger.touch(entry, now_s)
        remaining = self._chunks(entry) - len(entry.chunks)
        return Stored(update_id, remaining) if remaining else self._complete(entry)

    def withdraw(self, update_id: str, now_s: float) -> Answer:
        """A UE gives up an unfinished update."""
        self._advance(now_s)
        entry = self.ledger.get(update_id)
        if entry is None:
            return self._refuse(update_id, "not_offered")
        if entry.state == COUNTED:
            return Duplicate(update_id)
        if entry.state == DROPPED:
            return self._refuse(update_id, entry.reason)
        return self._drop(entry, "withdrawn")

    def tick(self, now_s: float) -> None:
        """Time passes: whatever is due until ``now_s`` happens."""
        self._advance(now_s)

    def take_waves(self) -> list[Wave]:
        """Waves closed since the last call; the caller ships them."""
        waves, self._closed = self._closed, []
        return waves

    def due_s(self) -> float:
        """When something happens next by itself; infinity when nothing is due."""
        return min(self._cut_off_s(), self._wave_due_s(), self._stall_due_s())

    def waiting_samples(self) -> int:
        """Sum of n_k in the wave under collection."""
        return self._samples

    def _advance(self, now_s: float) -> None:
        if not now_s >= self.now_s:
            raise InputError("now_s", now_s, f"allowed: {self.now_s} or later")
        while (due := self.due_s()) <= now_s and due < math.inf:
            # a rule may turn out to have been met by an event of the past: then it is met now
            self.now_s = max(self.now_s, due)
            if self._cut_off_s() <= due:
                self._cut_off("cut_off" if self._awaited else "complete")
            elif self._wave_due_s() <= due:
                self._close_wave("wave_time")
            else:
                stalled = self.ledger.oldest_staged()
                assert stalled is not None
                self.ledger.drop(stalled, "stalled")
        self.now_s = now_s

    def _cut_off_s(self) -> float:
        if not self.collecting:
            return math.inf
        expected = len(self._arrivals_s) + len(self._awaited)
        return self._begin_s + self.config.cut_off.due_s(self._arrivals_s, expected)

    def _wave_due_s(self) -> float:
        return self._wave_open_s + self.config.wave_max_s if self.collecting else math.inf

    def _stall_due_s(self) -> float:
        oldest = self.ledger.oldest_staged()
        return math.inf if oldest is None else oldest.touched_s + self.config.stall_s

    def _cut_off(self, closed_by: str) -> None:
        self._close_wave(closed_by)
        self.collecting = False
        self._awaited = set()
        if self.config.late == "drop":
            for entry in self.ledger.staged():
                self.ledger.drop(entry, "late")

    def _close_wave(self, closed_by: str) -> None:
        if self._sums is not None:
            wave = Wave(
                gnb=self.config.gnb,
                round=self.round,
                index=self._wave_index,
                closed_s=self.now_s,
                closed_by=closed_by,
                sums=self._sums,
                weight=self._weight,
                samples=self._samples,
                manifest=tuple(self._manifest),
            )
            self._closed.append(wave)
            self._wave_index += 1
        self._sums, self._weight, self._samples, self._manifest = None, 0.0, 0, []
        self._wave_open_s = math.inf

    def _header_fault(self, header: UpdateHeader) -> str | None:
        fault = header.fault()
        if fault is not None:
            return fault
        if header.ue not in self._attached:
            return "not_attached"
        if header.layout_digest != self.config.layout.digest:
            return "shape_mismatch"
        if header.dtype not in WIRE_DTYPES:
            return "dtype"
        if header.dtype == "fix64" and (
            self.config.arithmetic != "fixed64" or self.config.late == "carry_discount"
        ):
            return "dtype"  # masked values can only be added as they are
        if header.dtype == "fix64" and header.exponent != self.config.fraction_bits:
            return "exponent"
        if header.dtype not in ("fix64", "fp16") and header.exponent != 0:
            return "exponent"
        if self.ledger.size_bytes(header) > self.config.staging_bytes:
            return "staging_size"
        return None

    def _counting_round(self) -> int:
        return self.round if self.collecting else self.round + 1

    def _lateness_fault(self, header: UpdateHeader) -> str | None:
        staleness = self._counting_round() - header.round
        if header.round < 0 or header.round > self.round:
            return "unknown_round"
        if staleness > self.config.max_staleness:
            return "stale"  # and beyond the ledger's memory: it may have counted long ago
        return "late" if staleness > 0 and self.config.late == "drop" else None

    def _complete(self, entry: Entry) -> Answer:
        header = entry.header
        data = b"".join(entry.chunks[index] for index in range(self._chunks(entry)))
        if hashlib.sha256(data).hexdigest() != header.payload_sha256:
            return self._drop(entry, "payload_hash")
        fault = self._lateness_fault(header)
        if fault is not None:
            return self._drop(entry, fault)
        payload = Payload(header.dtype, self.config.layout.elements, data, header.exponent)
        peak = peak_magnitude(payload)
        if not math.isfinite(peak):
            return self._drop(entry, "not_finite")
        counting_round = self._counting_round()
        staleness = counting_round - header.round
        weight = self._weight_of(header, staleness)
        sums = self.config.new_sums() if self._sums is None else self._sums
        factor = 1.0 if header.dtype == "fix64" else weight
        if not sums.fits(factor, peak):
            return self._drop(entry, "overflow")
        sums.add(payload, factor, peak)
        self._sums = sums
        self._weight += weight
        self._samples += header.n_k
        self._manifest.append(header.update_id)
        self.ledger.count(entry, counting_round)
        self._wave_open_s = min(self._wave_open_s, self.now_s)
        if self.collecting and staleness == 0:
            self._awaited.discard(header.ue)
            bisect.insort(self._arrivals_s, self.now_s - self._begin_s)
        return Counted(header.update_id, counting_round, staleness)

    def _weight_of(self, header: UpdateHeader, staleness: int) -> float:
        """Weight as a multiple of 2**-20: sums of weights are then exact in any order."""
        if self.config.late != "carry_discount" or staleness == 0:
            return float(header.n_k)
        discounted = header.n_k * (1.0 + staleness) ** -self.config.alpha
        return max(1.0, float(round(discounted / _WEIGHT_STEP))) * _WEIGHT_STEP

    def _chunks(self, entry: Entry) -> int:
        return -(-self.ledger.size_bytes(entry.header) // self.config.chunk_bytes)

    def _missing(self, entry: Entry) -> tuple[int, ...]:
        return tuple(i for i in range(self._chunks(entry)) if i not in entry.chunks)

    def _drop(self, entry: Entry, reason: str) -> Refused:
        self.ledger.drop(entry, reason)
        if reason in _FINAL and entry.header.round == self.round:
            self._awaited.discard(entry.header.ue)
        return self._refuse(entry.header.update_id, reason)

    def _refuse(self, update_id: str, reason: str) -> Refused:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        return Refused(update_id, reason)

    def state(self) -> dict[str, Any]:
        """Everything but the ledger's entries and the sums, as plain values."""
        return {
            "now_s": self.now_s,
            "round": self.round,
            "collecting": self.collecting,
            "attached": sorted(self._attached),
            "awaited": sorted(self._awaited),
            "begin_s": self._begin_s,
            "arrivals_s": list(self._arrivals_s),
            "wave_index": self._wave_index,
            "wave_open_s": self._wave_open_s,
            "manifest": list(self._manifest),
            "refusals": dict(self.refusals),
            "account": asdict(self.ledger.account),
        }

    @classmethod
    def restore(
        cls,
        config: AggregatorConfig,
        state: Mapping[str, Any],
        entries: list[Entry],
        payload_of: Callable[[str], bytes],
    ) -> Aggregator:
        """The aggregator that :meth:`state` was asked of.

        The sums are added up again in the order of the manifest, hence bit-identical.

        Args:
            config: as before.
            state: from :meth:`state`.
            entries: of the ledger, those staged with their chunks.
            payload_of: payload of an update of the manifest.
        """
        machine = cls(config)
        machine.ledger.load(entries, Account(**state["account"]))
        machine.refusals = dict(state["refusals"])
        machine.now_s = state["now_s"]
        machine.round = state["round"]
        machine.collecting = state["collecting"]
        machine._attached = set(state["attached"])
        machine._awaited = set(state["awaited"])
        machine._begin_s = state["begin_s"]
        machine._arrivals_s = list(state["arrivals_s"])
        machine._wave_index = state["wave_index"]
        machine._wave_open_s = state["wave_open_s"]
        for update_id in state["manifest"]:
            entry = machine.ledger.get(update_id)
            assert entry is not None
            header = entry.header
            weight = machine._weight_of(header, entry.counted_round - header.round)
            payload = Payload(
                header.dtype, config.layout.elements, payload_of(update_id), header.exponent
            )
            if machine._sums is None:
                machine._sums = config.new_sums()
            factor = 1.0 if header.dtype == "fix64" else weight
            machine._sums.add(payload, factor, peak_magnitude(payload))
            machine._weight += weight
            machine._samples += header.n_k
            machine._manifest.append(update_id)
        return machine
