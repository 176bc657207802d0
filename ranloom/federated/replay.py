"""Simulated uploads replayed, event by event, through the gNBs' aggregators of a job.

The aggregators are the ones that the live server runs; here time comes from the radio
simulation and the payloads from a function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ranloom.federated.aggregator import Aggregator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.payload import Payload, payload_bytes
from ranloom.federated.radio import ARRIVED, GAVE_UP, LEFT, SAT_OUT, UNFINISHED, Uploads
from ranloom.federated.rounds import Population
from ranloom.federated.update import Answer, Counted, Duplicate, Refused, UpdateHeader
from ranloom.federated.wave import Wave

# at equal times: what ends before what begins, as the radio simulation has it
_OFFER, _CHUNK, _MOVE, _BEGIN, _RETRY = range(5)
_NEVER_SENT = {LEFT: "left", GAVE_UP: "gave_up", UNFINISHED: "unfinished"}


@dataclass(frozen=True)
class UpdateFate:
    """What became of one UE's part in one round.

    Args:
        ue: number of the UE.
        round: round that it trained for.
        fate: ``delivered``, ``carried`` (counted in a later round) or ``dropped``.
        reason: why it was dropped, else empty.
        gnb: gNB that counted it, else the last that served it, or -1.
        counted_round: round that it counted in, or -1.
        wave: wave of that round that ships it, or -1 (no wave has shipped it by the end).
        payload_sha256: of its payload; empty when none was sent.
        retransmitted: whether it was sent again after it had counted (a lost answer).
    """

    ue: int
    round: int
    fate: str
    reason: str
    gnb: int
    counted_round: int
    wave: int
    payload_sha256: str
    retransmitted: bool


@dataclass(frozen=True)
class JobReplay:
    """Result of :func:`replay_job`.

    Args:
        waves: all waves, by round, gNB and index.
        fates: one for each UE and round that it took part in, by round and UE.
        duplicates: updates answered as duplicates.
        machines: the aggregators as they were at the end, by gNB.
    """

    waves: tuple[Wave, ...]
    fates: tuple[UpdateFate, ...]
    duplicates: int
    machines: tuple[Aggregator, ...]


class _Run:
    """Serving gNBs, aggregators and answers while the events of a job pass by."""

    def __init__(
        self,
        population: Population,
        uploads: Uploads,
        job: int,
        config: AggregatorConfig,
        gnb_names: Sequence[str],
        payload_of: Callable[[int, int], Payload],
        before_round: Callable[[int, Sequence[Wave]], None],
    ) -> None:
        self.population, self.uploads, self.job = population, uploads, job
        self.config, self.payload_of = config, payload_of
        self.before_round = before_round
        self.machines = [Aggregator(replace(config, gnb=name)) for name in gnb_names]
        self.serving = population.plan.home.copy()
        self.open: dict[tuple[int, int], tuple[UpdateHeader, list[bytes]]] = {}
        self.final: dict[tuple[int, int], tuple[Answer, int]] = {}
        self.hashes: dict[tuple[int, int], str] = {}
        self.waves: list[Wave] = []
        self.duplicates: dict[tuple[int, int], None] = {}

    def update(self, ue: int, round_index: int) -> tuple[UpdateHeader, list[bytes]]:
        """Header and chunks, made when the upload begins."""
        key = (ue, round_index)
        if key not in self.open:
            payload = self.payload_of(ue, round_index)
            data, size = bytes(payload.data), self.config.chunk_bytes
            self.hashes[key] = hashlib.sha256(data).hexdigest()
            name = self.population.names[ue]
            header = UpdateHeader(
                update_id=f"{self.population.jobs[self.job].name}/{round_index}/{name}",
                ue=name,
                round=round_index,
                n_k=int(self.population.n_k[ue]),
                dtype=payload.dtype,
                exponent=payload.exponent,
                layout_digest=self.config.layout.digest,
                payload_sha256=self.hashes[key],
            )
            self.open[key] = (header, [data[i : i + size] for i in range(0, len(data), size)])
        return self.open[key]

    def offer(self, now_s: float, ue: int, round_index: int) -> None:
        self.machines[int(self.serving[ue])].offer(self.update(ue, round_index)[0], now_s)

    def chunk(self, now_s: float, ue: int, round_index: int, index: int) -> None:
        header, chunks = self.update(ue, round_index)
        gnb = int(self.serving[ue])
        answer = self.machines[gnb].chunk(header.update_id, index, chunks[index], now_s)
        if index == len(chunks) - 1:
            self.final[ue, round_index] = (answer, gnb)
            del self.open[ue, round_index]
        self.collect(gnb)

    def retry(self, now_s: float, ue: int, round_index: int) -> None:
        """The answer to a counted update was lost: the UE offers it again."""
        if isinstance(self.final[ue, round_index][0], Counted):
            header, _ = self.update(ue, round_index)
            answer = self.machines[int(self.serving[ue])].offer(header, now_s)
            assert isinstance(answer, Duplicate | Refused)
            if isinstance(answer, Duplicate):
                self.duplicates[ue, round_index] = None
            del self.open[ue, round_index]

    def move(self, now_s: float, ue: int, to: int, *, keep_chunks: bool) -> None:
        name = self.population.names[ue]
        old = int(self.serving[ue])
        context = self.machines[old].detach(name, now_s, keep_chunks=keep_chunks)
        self.machines[to].attach(name, now_s, context)
        self.serving[ue] = to
        self.collect(old)

    def begin(self, now_s: float, round_index: int) -> None:
        mine = self.population.plan.job == self.job
        for gnb, machine in enumerate(self.machines):
            members = np.flatnonzero(mine & (self.uploads.gnb[:, round_index] == gnb))
            expected = {self.population.names[ue] for ue in members}
            machine.begin_round(round_index, now_s, expected)
            self.collect(gnb)
        self.before_round(round_index, self.waves)

    def collect(self, gnb: int) -> None:
        self.waves += self.machines[gnb].take_waves()


def replay_job(
    population: Population,
    uploads: Uploads,
    job: int,
    config: AggregatorConfig,
    gnb_names: Sequence[str],
    update_dtype: str,
    payload_of: Callable[[int, int], Payload],
    answer_lost: NDArray[np.bool_],
    retry_s: float,
    before_round: Callable[[int, Sequence[Wave]], None] = lambda _round, _waves: None,
) -> JobReplay:
    """Run the aggregators of one job over the simulated uploads.

    Args:
        population: UEs and rounds.
        uploads: what the radio simulation made of them.
        job: index of the job.
        config: of the aggregators; the gNB's name is filled in.
        gnb_names: one for each gNB.
        update_dtype: wire format of all payloads.
        payload_of: payload of (UE number, round), asked for when its upload begins.
        answer_lost: whether the gNB's last answer is lost, so that the UE offers its update
            again, shape (ues, rounds).
        retry_s: how long a UE waits for an answer.
        before_round: called when a round begins, before any of its payloads is asked for, with
            all waves closed so far.
    """
    run = _Run(population, uploads, job, config, gnb_names, payload_of, before_round)
    plan = population.plan
    for member in np.flatnonzero(plan.job == job):
        run.machines[plan.home[member]].attach(population.names[member], 0.0)
    for now_s, kind, ue, argument, index in _events(
        population, uploads, job, run, update_dtype, answer_lost, retry_s
    ):
        if kind == _OFFER:
            run.offer(now_s, ue, argument)
        elif kind == _CHUNK:
            run.chunk(now_s, ue, argument, index)
        elif kind == _MOVE:
            run.move(now_s, ue, argument, keep_chunks=not plan.restart_on_move)
        elif kind == _BEGIN:
            run.begin(now_s, argument)
        else:
            run.retry(now_s, ue, argument)
    begun = uploads.begin_s[job][np.isfinite(uploads.begin_s[job])]
    end_s = max(float(begun[-1]), plan.until_s) + plan.drain_s
    for gnb, machine in enumerate(run.machines):
        machine.tick(max(end_s, machine.now_s))
        run.collect(gnb)
    order = {name: number for number, name in enumerate(gnb_names)}
    waves = sorted(run.waves, key=lambda w: (w.round, order[w.gnb], w.index))
    return JobReplay(
        tuple(waves), tuple(_fates(run, waves)), len(run.duplicates), tuple(run.machines)
    )


def _events(
    population: Population,
    uploads: Uploads,
    job: int,
    run: _Run,
    update_dtype: str,
    answer_lost: NDArray[np.bool_],
    retry_s: float,
) -> list[tuple[float, int, int, int, int]]:
    """(time, kind, UE, round or gNB, chunk) in the order of their happening."""
    plan, rounds = population.plan, population.rounds
    size = payload_bytes(update_dtype, run.config.layout.elements)
    chunks = -(-size // run.config.chunk_bytes)
    events: list[tuple[float, int, int, int, int]] = []
    for round_index, begin_s in enumerate(uploads.begin_s[job]):
        if np.isfinite(begin_s):
            events.append((float(begin_s), _BEGIN, 0, round_index, 0))
    for move_s, ue, to in zip(plan.move_s, plan.move_ue, plan.move_to, strict=True):
        if plan.job[ue] == job:
            events.append((float(move_s), _MOVE, int(ue), int(to), 0))
    bits = plan.update_bits[job]
    sent: dict[int, float] = {}
    for task, start_s, end_s, part in zip(
        uploads.segment_task,
        uploads.segment_start_s,
        uploads.segment_end_s,
        uploads.segment_bits,
        strict=True,
    ):
        ue, round_index = divmod(int(task), rounds)
        if plan.job[ue] != job:
            continue
        before = 0.0 if plan.restart_on_move else sent.get(task, 0.0)
        sent[task] = before + part
        if end_s < start_s:
            continue  # moved on, or ended, before the interruption was over
        events.append((float(start_s), _OFFER, ue, round_index, 0))
        done = int(before / bits * chunks + 1e-9)
        reached = int((before + part) / bits * chunks + 1e-9)
        for index in range(done, min(reached, chunks - 1)):
            share = ((index + 1) / chunks * bits - before) / part
            moment = start_s + min(max(share, 0.0), 1.0) * (end_s - start_s)
            events.append((float(moment), _CHUNK, ue, round_index, index))
        if (
            uploads.outcome[ue, round_index] == ARRIVED
            and end_s == uploads.arrival_s[ue, round_index]
        ):
            events.append((float(end_s), _CHUNK, ue, round_index, chunks - 1))
            if answer_lost[ue, round_index]:
                events.append((float(end_s) + retry_s, _RETRY, ue, round_index, 0))
    return sorted(events)


def _fates(run: _Run, waves: Sequence[Wave]) -> list[UpdateFate]:
    shipped = {update_id: wave for wave in waves for update_id in wave.manifest}
    fates = []
    outcome = run.uploads.outcome
    for round_index in range(run.population.rounds):
        for ue in np.flatnonzero(run.population.plan.job == run.job):
            if outcome[ue, round_index] == SAT_OUT:
                continue
            key = (int(ue), round_index)
            answer, gnb = run.final.get(key, (None, int(run.uploads.gnb[ue, round_index])))
            wave = shipped.get(answer.update_id) if answer is not None else None
            if isinstance(answer, Counted):
                fate, reason = ("carried" if answer.staleness else "delivered"), ""
            elif isinstance(answer, Refused):
                # never offered, because the gNB had no room for it when its upload began
                fate = "dropped"
                reason = "no_room" if answer.reason == "not_offered" else answer.reason
            elif answer is not None:
                fate, reason = "dropped", "no_room"  # the first chunks found none
            else:
                fate, reason = "dropped", _NEVER_SENT[int(outcome[ue, round_index])]
            fates.append(
                UpdateFate(
                    ue=key[0],
                    round=round_index,
                    fate=fate,
                    reason=reason,
                    gnb=gnb,
                    counted_round=answer.round if isinstance(answer, Counted) else -1,
                    wave=wave.index if wave is not None else -1,
                    payload_sha256=run.hashes.get(key, ""),
                    retransmitted=key in run.duplicates,
                )
            )
    return fates
