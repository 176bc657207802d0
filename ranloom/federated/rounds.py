"""The UEs of federated jobs: data, speed, presence and mobility, drawn from a seed.

Everything random of a run is drawn here, before any upload is simulated; the rest of the
package is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.federated.mobility import Mobility
from ranloom.federated.radio import UploadPlan


@dataclass(frozen=True)
class UeClass:
    """A class of devices.

    Args:
        name: shown in tables.
        share: of the UEs; shares sum to 1.
        median_s: median training time of a round.
        sigma: of the log of the training time, from round to round.
    """

    name: str
    share: float
    median_s: float
    sigma: float


@dataclass(frozen=True)
class SampleCounts:
    """Distribution of the data size n_k of a UE.

    Args:
        kind: ``lognormal`` (``median``, spread ``sigma`` of the log) or ``zipf``
            (P(n) proportional to n**-exponent for n from 1 to ``most``).
        median: of ``lognormal``.
        sigma: of ``lognormal``.
        exponent: of ``zipf``.
        most: largest count of either kind.
    """

    kind: str
    median: float
    sigma: float
    exponent: float
    most: int

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw ``count`` data sizes, each from 1 to ``most``.

        Raises:
            InputError: unknown kind.
        """
        if self.kind == "lognormal":
            raw = np.exp(math.log(self.median) + self.sigma * rng.standard_normal(count))
            return np.clip(np.rint(raw), 1, self.most).astype(np.int64)
        if self.kind == "zipf":
            masses = np.arange(1, self.most + 1, dtype=np.float64) ** -self.exponent
            cumulative = np.cumsum(masses)
            drawn = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
            counts: NDArray[np.int64] = np.minimum(drawn + 1, self.most).astype(np.int64)
            return counts
        raise InputError("samples.kind", self.kind, "allowed: lognormal, zipf")


@dataclass(frozen=True)
class Job:
    """A federated job.

    Args:
        name: in ids and tables.
        rounds: number of rounds.
        first_begin_s: begin of round 0.
        period_s: from one round's begin to the next.
        deadline_s: an aggregate has to be at the hub this long after the begin.
        ues_per_gnb: UEs of this job at each gNB at time 0.
        model_bytes: fetched by a UE before it trains.
        update_bytes: uploaded by a UE.
    """

    name: str
    rounds: int
    first_begin_s: float
    period_s: float
    deadline_s: float
    ues_per_gnb: int
    model_bytes: int
    update_bytes: int


@dataclass(frozen=True)
class Behaviour:
    """How UEs behave, the same for all jobs.

    Args:
        classes: device classes.
        samples: data sizes.
        work: ``fixed_steps`` (training time independent of n_k) or ``one_epoch`` (proportional
            to n_k over the median of its job).
        leave_probability: that a UE vanishes while it works for a round.
        return_probability: that one that is away is back at the next begin, each time.
        mobility: when they change their gNB.
        downlink_mbps: of a cell, for model distribution.
        multicast: whether the cell sends the model once for all its UEs.
        restart_on_move: whether a hand-over restarts an upload.
        move_gap_s: interruption of an upload by a hand-over.
        give_up: whether an unfinished upload is given up at the next begin.
        drain_s: after the last begin, how long uploads are waited for.
        until_s: 0: rounds begin on their timetable; else each begins when nobody works for the
            last one, up to this time.
    """

    classes: tuple[UeClass, ...]
    samples: SampleCounts
    work: str
    leave_probability: float
    return_probability: float
    mobility: Mobility
    downlink_mbps: float
    multicast: bool
    restart_on_move: bool
    move_gap_s: float
    give_up: bool
    drain_s: float
    until_s: float


@dataclass(frozen=True)
class Population:
    """The UEs of all jobs and what they will do.

    Args:
        jobs: the jobs.
        names: name of each UE, shape (ues,).
        n_k: data sizes, shape (ues,).
        ue_class: index of the device class, shape (ues,).
        plan: for :func:`ranloom.federated.radio.simulate_uploads`.
    """

    jobs: tuple[Job, ...]
    names: tuple[str, ...]
    n_k: NDArray[np.int64]
    ue_class: NDArray[np.int64]
    plan: UploadPlan

    @property
    def rounds(self) -> int:
        """Largest number of rounds of a job."""
        return int(self.plan.compute_s.shape[1])


def apportion(shares: Sequence[float], count: int) -> list[int]:
    """Whole numbers that sum to ``count`` in proportion to ``shares`` (largest remainders)."""
    exact = [share * count for share in shares]
    whole = [math.floor(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: count - sum(whole)]:
        whole[i] += 1
    return whole


def draw_population(
    jobs: Sequence[Job],
    gnbs: int,
    neighbours: Sequence[Sequence[int]],
    behaviour: Behaviour,
    seed: Sequence[int],
) -> Population:
    """Draw UEs and their behaviour.

    Args:
        jobs: at least one.
        gnbs: number of gNBs.
        neighbours: for each gNB those that its UEs may move to.
        behaviour: distributions.
        seed: entropy of the random streams; each job, and mobility, has a child of its own.

    Raises:
        InputError: shares that do not sum to 1, or an unknown kind of work or data size.
    """
    if abs(sum(c.share for c in behaviour.classes) - 1.0) > 1e-9:
        shares = [c.share for c in behaviour.classes]
        raise InputError("ue_classes.share", shares, "allowed: shares that sum to 1")
    if behaviour.work not in ("fixed_steps", "one_epoch"):
        raise InputError("work", behaviour.work, "allowed: fixed_steps, one_epoch")
    rounds = max(job.rounds for job in jobs)
    begin_s = np.full((len(jobs), rounds), np.inf)
    names: list[str] = []
    parts: dict[str, list[NDArray]] = {}
    for index, job in enumerate(jobs):
        rng = np.random.default_rng(np.random.SeedSequence([*seed, index]))
        count = gnbs * job.ues_per_gnb
        begin_s[index, : job.rounds] = job.first_begin_s + job.period_s * np.arange(job.rounds)
        names += [f"{job.name}-ue{number:04d}" for number in range(count)]
        sizes = apportion([c.share for c in behaviour.classes], count)
        ue_class = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        n_k = behaviour.samples.draw(count, rng)
        median = np.array([c.median_s for c in behaviour.classes])[ue_class]
        sigma = np.array([c.sigma for c in behaviour.classes])[ue_class]
        jitter = np.exp(sigma[:, None] * rng.standard_normal((count, rounds)))
        load = n_k / np.median(n_k) if behaviour.work == "one_epoch" else np.ones(count)
        compute_s = median[:, None] * load[:, None] * jitter
        leaves = rng.random((count, rounds)) < behaviour.leave_probability
        moment = rng.random((count, rounds)) * job.period_s
        away = rng.geometric(behaviour.return_probability, (count, rounds)) - 1
        drawn = {
            "job": np.full(count, index, np.int64),
            "home": np.repeat(np.arange(gnbs, dtype=np.int64), job.ues_per_gnb),
            "n_k": n_k,
            "ue_class": ue_class.astype(np.int64),
            "compute_s": compute_s,
            "leave_s": np.where(leaves, moment, np.inf),
            "away_rounds": away.astype(np.int64),
        }
        for key, values in drawn.items():
            parts.setdefault(key, []).append(values)
    ues = {key: np.concatenate(values) for key, values in parts.items()}
    last_s = max(float(begin_s[np.isfinite(begin_s)].max()), behaviour.until_s)
    rng = np.random.default_rng(np.random.SeedSequence([*seed, len(jobs)]))
    move_s, move_ue, move_to = _moves(
        ues["home"], neighbours, behaviour, last_s + behaviour.drain_s, rng
    )
    plan = UploadPlan(
        job=ues["job"],
        home=ues["home"],
        begin_s=begin_s,
        until_s=behaviour.until_s,
        downlink_bits=np.array([8.0 * job.model_bytes for job in jobs]),
        update_bits=np.array([8.0 * job.update_bytes for job in jobs]),
        compute_s=ues["compute_s"],
        leave_s=ues["leave_s"],
        away_rounds=ues["away_rounds"],
        move_s=move_s,
        move_ue=move_ue,
        move_to=move_to,
        downlink_mbps=behaviour.downlink_mbps,
        multicast=behaviour.multicast,
        restart_on_move=behaviour.restart_on_move,
        move_gap_s=behaviour.move_gap_s,
        give_up=behaviour.give_up,
        drain_s=behaviour.drain_s,
    )
    return Population(tuple(jobs), tuple(names), ues["n_k"], ues["ue_class"], plan)


def _moves(
    home: NDArray[np.int64],
    neighbours: Sequence[Sequence[int]],
    behaviour: Behaviour,
    end_s: float,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Hand-overs of each UE along the neighbour relation."""
    events: list[tuple[float, int, int]] = []
    for ue in range(home.size):
        at = int(home[ue])
        for moment in behaviour.mobility.times_s(end_s, rng):
            if neighbours[at]:
                at = int(neighbours[at][int(rng.integers(len(neighbours[at])))])
                events.append((float(moment), ue, at))
    events.sort()
    moments = np.array([e[0] for e in events], dtype=np.float64)
    who = np.array([e[1] for e in events], dtype=np.int64)
    where = np.array([e[2] for e in events], dtype=np.int64)
    return moments, who, where
