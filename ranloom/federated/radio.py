"""Uploads of many UEs through the uplink that their cells have left, on one time axis.

Each cell gives, per second, the rate that a UE would get for a background upload if it were
alone. Several uploading UEs of a cell take turns on the same resource blocks: with m of them,
each gets 1/m of its own rate. Rates are constant within a second; completions, hand-overs and
departures fall between seconds and are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError

SAT_OUT, ARRIVED, LEFT, GAVE_UP, UNFINISHED = range(5)


@dataclass(frozen=True)
class CellRates:
    """Left-over uplink rates of the gNBs' cells, repeated cyclically.

    Args:
        mbps: shape (gnbs, series, seconds): rate of a traced UE of the cell in a second. A UE
            with number u follows series ``u % series_count`` of its serving gNB.
        series_count: traced UEs of each gNB, shape (gnbs,).
        phase_s: second of the series at time 0, shape (gnbs,).

    Raises:
        InputError: shapes that do not fit, a negative or non-finite rate, or a cell without any.
    """

    mbps: NDArray[np.float64]
    series_count: NDArray[np.int64]
    phase_s: NDArray[np.int64]

    def __post_init__(self) -> None:
        gnbs = self.mbps.shape[0]
        if self.mbps.ndim != 3 or not (self.series_count.shape == self.phase_s.shape == (gnbs,)):
            raise InputError("rates", self.mbps.shape, "allowed: (gnbs, series, seconds)")
        if not (np.isfinite(self.mbps).all() and (self.mbps >= 0.0).all()):
            raise InputError("rates", "negative or not finite", "allowed: rates >= 0 in Mbit/s")
        for gnb in range(gnbs):
            used = self.mbps[gnb, : self.series_count[gnb]]
            if not used.any(axis=1).all() or not used.size:
                raise InputError(f"rates of gnb {gnb}", 0.0, "allowed: some rate left for each UE")


@dataclass(frozen=True)
class UploadPlan:
    """What every UE will do, apart from how long its uploads take.

    UEs are numbered through all jobs; R is the largest number of rounds of a job.

    Args:
        job: job of each UE, shape (ues,).
        home: serving gNB of each UE at time 0, shape (ues,).
        begin_s: begin of each round of each job, shape (jobs, R), infinity where it has fewer.
        until_s: 0: rounds begin at ``begin_s``. Else only the first one does, and each next one
            as soon as nobody of the job works for the last, if that is before ``until_s``.
        downlink_bits: bits of the model that a UE fetches first, shape (jobs,).
        update_bits: bits of an update, shape (jobs,).
        compute_s: training time, shape (ues, R).
        leave_s: when the UE vanishes, seconds after the begin of the round; infinity: it stays;
            shape (ues, R).
        away_rounds: rounds that it sits out after it vanished, shape (ues, R).
        move_s: times of hand-overs, ascending, shape (moves,).
        move_ue: who moves, shape (moves,).
        move_to: to which gNB, shape (moves,).
        downlink_mbps: downlink rate of a cell for the distribution of models.
        multicast: whether a cell sends a model once to all its UEs or to one after the other.
        restart_on_move: whether an upload restarts at the new gNB.
        move_gap_s: interruption of an upload by a hand-over.
        give_up: whether a UE gives up an unfinished upload when the next round begins.
        drain_s: an upload unfinished this long after the last begin never arrives.
    """

    job: NDArray[np.int64]
    home: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    until_s: float
    downlink_bits: NDArray[np.float64]
    update_bits: NDArray[np.float64]
    compute_s: NDArray[np.float64]
    leave_s: NDArray[np.float64]
    away_rounds: NDArray[np.int64]
    move_s: NDArray[np.float64]
    move_ue: NDArray[np.int64]
    move_to: NDArray[np.int64]
    downlink_mbps: float
    multicast: bool
    restart_on_move: bool
    move_gap_s: float
    give_up: bool
    drain_s: float


@dataclass(frozen=True)
class Uploads:
    """What happened, arrays of shape (ues, R) unless stated.

    Args:
        begin_s: when each round of each job began, shape (jobs, R), infinity if it never did.
        outcome: ``SAT_OUT`` (busy or away when the round began), ``ARRIVED``, ``LEFT`` (vanished),
            ``GAVE_UP`` or ``UNFINISHED``.
        start_s: begin of the upload (NaN if it never began).
        arrival_s: last bit at the gNB (NaN if it never came).
        gnb: gNB that served the UE when the round began (-1 if it sat out), and
        arrival_gnb: when the last bit came (-1 if it never did).
        segment_task: ue * R + round of each stretch of an upload at one gNB, shape (segments,).
        segment_gnb: its gNB.
        segment_start_s: its begin.
        segment_end_s: its end.
        segment_bits: bits sent in it.
        offered_bits: bits that came in from UEs, per gNB and second, shape (gnbs, seconds).
    """

    begin_s: NDArray[np.float64]
    outcome: NDArray[np.int8]
    start_s: NDArray[np.float64]
    arrival_s: NDArray[np.float64]
    gnb: NDArray[np.int64]
    arrival_gnb: NDArray[np.int64]
    segment_task: NDArray[np.int64]
    segment_gnb: NDArray[np.int64]
    segment_start_s: NDArray[np.float64]
    segment_end_s: NDArray[np.float64]
    segment_bits: NDArray[np.float64]
    offered_bits: NDArray[np.float64]


class _Air:
    """The state of all UEs while time passes from event to event."""

    def __init__(self, rates: CellRates, plan: UploadPlan) -> None:
        self.rates, self.plan = rates, plan
        ues, rounds = plan.compute_s.shape
        self.rounds = np.isfinite(plan.begin_s).sum(axis=1)
        self.begin_s = np.full(plan.begin_s.shape, np.inf)
        planned = plan.begin_s[:, :1] if plan.until_s > 0.0 else plan.begin_s
        self.begins = sorted(
            (float(planned[job, r]), int(job), int(r))
            for job, r in np.argwhere(np.isfinite(planned))
        )
        self.end_s = max(self.begins[-1][0], plan.until_s) + plan.drain_s
        self.moves = list(
            zip(plan.move_s.tolist(), plan.move_ue.tolist(), plan.move_to.tolist(), strict=True)
        )
        self.now_s = 0.0
        self.serving = plan.home.copy()
        self.current = np.full(ues, -1)  # round that a UE works on
        self.ready_s = np.full(ues, np.inf)  # its training is done
        self.started = np.zeros(ues, np.bool_)  # its upload has begun
        self.gone_s = np.full(ues, np.inf)
        self.blocked_s = np.zeros(ues)  # a hand-over interrupts it until then
        self.back_round = np.zeros(ues, np.int64)
        self.remaining = np.zeros(ues)
        self.segment_begin_s = np.zeros(ues)
        self.segment_sent = np.zeros(ues)
        self.outcome = np.full((ues, rounds), SAT_OUT, np.int8)
        self.start_s = np.full((ues, rounds), np.nan)
        self.arrival_s = np.full((ues, rounds), np.nan)
        self.gnb = np.full((ues, rounds), -1, np.int64)
        self.arrival_gnb = np.full((ues, rounds), -1, np.int64)
        self.segments: list[tuple[int, int, float, float, float]] = []
        self.offered = np.zeros((rates.mbps.shape[0], math.ceil(self.end_s) + 1))

    def run(self) -> None:
        """Until nothing is left to happen, or ``end_s``."""
        while self.begins or (self.current >= 0).any():
            self._send_until_next_event()
            self._start_uploads()
            self._finish(self._arrived(), ARRIVED)
            self._finish(np.flatnonzero(self.gone_s <= self.now_s), LEFT)
            if self.now_s >= self.end_s:
                self._finish(np.flatnonzero(self.current >= 0), UNFINISHED)
            if self.plan.until_s > 0.0:
                self._begin_next_rounds()
            while self.moves and self.moves[0][0] <= self.now_s:
                _, ue, to = self.moves.pop(0)
                self._move(ue, to)
            while self.begins and self.begins[0][0] <= self.now_s:
                _, job, round_index = self.begins.pop(0)
                self._begin(job, round_index)

    def _send_until_next_event(self) -> None:
        now, second = self.now_s, math.floor(self.now_s)
        working = self.current >= 0
        training = working & (self.ready_s > now)
        held = working & ~training & (self.blocked_s > now)
        who = np.flatnonzero(working & ~training & ~held)
        at = self.serving[who]
        sharing = np.bincount(at, minlength=self.offered.shape[0])
        column = (second + self.rates.phase_s[at]) % self.rates.mbps.shape[2]
        alone = self.rates.mbps[at, who % self.rates.series_count[at], column]
        rate = alone * 1e6 / sharing[at]
        done_s = np.full(who.size, np.inf)
        np.divide(self.remaining[who], rate, out=done_s, where=rate > 0.0)
        done_s += now
        event = min(
            self.end_s,
            second + 1.0 if who.size else math.inf,
            self.begins[0][0] if self.begins else math.inf,
            self.moves[0][0] if self.moves else math.inf,
            float(np.min(self.ready_s[training], initial=np.inf)),
            float(np.min(self.blocked_s[held], initial=np.inf)),
            float(np.min(self.gone_s, initial=np.inf)),
            float(np.min(done_s, initial=np.inf)),
        )
        left = self.remaining[who]
        bits = np.where(done_s <= event, left, np.minimum(left, rate * (event - now)))
        self.remaining[who] -= bits
        self.segment_sent[who] += bits
        np.add.at(self.offered[:, second], at, bits)
        self.now_s = event

    def _start_uploads(self) -> None:
        for ue in np.flatnonzero(~self.started & (self.ready_s <= self.now_s)):
            self.started[ue] = True
            self.start_s[ue, self.current[ue]] = self.now_s
            self._open_segment(int(ue), self.now_s)

    def _arrived(self) -> NDArray[np.int64]:
        done = np.flatnonzero((self.current >= 0) & (self.remaining <= 0.0))
        rounds = self.current[done]
        self.arrival_s[done, rounds] = self.now_s
        self.arrival_gnb[done, rounds] = self.serving[done]
        return done

    def _finish(self, ues: NDArray[np.int64], outcome: int) -> None:
        for ue in ues:
            round_index = self.current[ue]
            self.outcome[ue, round_index] = outcome
            if outcome == LEFT:
                away = self.plan.away_rounds[ue, round_index]
                self.back_round[ue] = round_index + 1 + away
            self._close_segment(ue)
            self.current[ue], self.started[ue] = -1, False
            self.ready_s[ue], self.gone_s[ue] = np.inf, np.inf

    def _open_segment(self, ue: int, start_s: float) -> None:
        self.segment_begin_s[ue], self.segment_sent[ue] = start_s, 0.0

    def _close_segment(self, ue: int) -> None:
        if not self.started[ue]:
            return
        round_index = self.current[ue]
        task = int(ue) * self.outcome.shape[1] + int(round_index)
        begin_s, sent = float(self.segment_begin_s[ue]), float(self.segment_sent[ue])
        self.segments.append((task, int(self.serving[ue]), begin_s, self.now_s, sent))

    def _move(self, ue: int, to: int) -> None:
        if self.started[ue]:
            self._close_segment(ue)
            self.blocked_s[ue] = self.now_s + self.plan.move_gap_s
            self._open_segment(ue, self.blocked_s[ue])
            if self.plan.restart_on_move:
                self.remaining[ue] = self.plan.update_bits[self.plan.job[ue]]
        self.serving[ue] = to

    def _begin_next_rounds(self) -> None:
        waiting = {job for _, job, _ in self.begins}
        for job in range(len(self.begin_s)):
            idle = not (self.current[self.plan.job == job] >= 0).any()
            begun = int(np.isfinite(self.begin_s[job]).sum())
            more = 0 < begun < self.rounds[job] and self.now_s < self.plan.until_s
            if idle and more and job not in waiting:
                self.begins.append((self.now_s, job, begun))
        self.begins.sort()

    def _begin(self, job: int, round_index: int) -> None:
        plan = self.plan
        self.begin_s[job, round_index] = self.now_s
        mine = plan.job == job
        if plan.give_up:
            self._finish(np.flatnonzero(mine & (self.current >= 0)), GAVE_UP)
        joining = np.flatnonzero(mine & (self.current < 0) & (self.back_round <= round_index))
        at = self.serving[joining]
        copies = 1 if plan.multicast else np.bincount(at, minlength=self.offered.shape[0])[at]
        fetch_s = copies * plan.downlink_bits[job] / (plan.downlink_mbps * 1e6)
        self.current[joining] = round_index
        self.gnb[joining, round_index] = at
        self.ready_s[joining] = self.now_s + fetch_s + plan.compute_s[joining, round_index]
        self.gone_s[joining] = self.now_s + plan.leave_s[joining, round_index]
        self.remaining[joining] = plan.update_bits[job]
        self.blocked_s[joining] = 0.0


def simulate_uploads(rates: CellRates, plan: UploadPlan) -> Uploads:
    """Run all rounds of all jobs.

    A UE takes part in a round when it is present and idle as the round begins: it fetches the
    model, trains, uploads. One that is still uploading sits the next round out (``give_up``
    False) or gives the upload up (True).

    Raises:
        InputError: a time of the plan that is not above 0 where it has to be.
    """
    for name in ("compute_s", "leave_s", "move_gap_s", "drain_s"):
        if not np.min(getattr(plan, name)) > 0.0:
            raise InputError(name, np.min(getattr(plan, name)), "allowed: above 0")
    air = _Air(rates, plan)
    air.run()
    return Uploads(
        begin_s=air.begin_s,
        outcome=air.outcome,
        start_s=air.start_s,
        arrival_s=air.arrival_s,
        gnb=air.gnb,
        arrival_gnb=air.arrival_gnb,
        segment_task=np.array([s[0] for s in air.segments], dtype=np.int64),
        segment_gnb=np.array([s[1] for s in air.segments], dtype=np.int64),
        segment_start_s=np.array([s[2] for s in air.segments], dtype=np.float64),
        segment_end_s=np.array([s[3] for s in air.segments], dtype=np.float64),
        segment_bits=np.array([s[4] for s in air.segments], dtype=np.float64),
        offered_bits=air.offered,
    )
