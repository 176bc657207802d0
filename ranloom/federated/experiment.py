"""Federated jobs run over simulated uploads: population, radio, aggregators, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.forecast import ReleaseHistory
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import Payload, encode, payload_bytes
from ranloom.federated.radio import CellRates, Uploads, simulate_uploads
from ranloom.federated.replay import JobReplay, replay_job
from ranloom.federated.rounds import Behaviour, Job, Population, draw_population
from ranloom.federated.transfers import Shipping, arrival_offsets, release_offsets

_CHUNKS = 16
_DRAWN, _ANSWERS, _HISTORY = 1, 2, 3  # children of the seed


@dataclass(frozen=True)
class JobSetup:
    """A job with everything that its aggregators need.

    Args:
        job: rounds and sizes.
        config: of its aggregators, with the layout of the tensors that really are added up.
        update_dtype: wire format of the updates.
        shipping: how waves leave a gNB.
    """

    job: Job
    config: AggregatorConfig
    update_dtype: str
    shipping: Shipping


@dataclass(frozen=True)
class Network:
    """The gNBs.

    Args:
        names: node names.
        neighbours: for each gNB those that a UE may move to.
        rates: left-over uplink rates.
    """

    names: tuple[str, ...]
    neighbours: tuple[tuple[int, ...], ...]
    rates: CellRates

    def first(self, count: int) -> Network:
        """The first ``count`` gNBs as a network of their own, in a ring."""
        return Network(
            self.names[:count],
            tuple(tuple((g + step) % count for step in (1, count - 1)) for g in range(count)),
            CellRates(
                self.rates.mbps[:count],
                self.rates.series_count[:count],
                self.rates.phase_s[:count],
            ),
        )


@dataclass(frozen=True)
class Answers:
    """Answers of a gNB that get lost.

    Args:
        lost_probability: that the last answer to an upload does not reach the UE.
        retry_s: after which the UE sends everything again.
    """

    lost_probability: float
    retry_s: float


@dataclass(frozen=True)
class Simulation:
    """What happened, with one replay a job."""

    population: Population
    uploads: Uploads
    replays: tuple[JobReplay, ...]


PayloadOf = Callable[[int, int, int], Payload]


def chunk_bytes(dtype: str, layout: TensorLayout) -> int:
    """Chunk size that cuts a payload into (at most) sixteen."""
    return max(1, -(-payload_bytes(dtype, layout.elements) // _CHUNKS))


def random_updates(
    setups: Sequence[JobSetup], scale: float, seed: Sequence[int]
) -> Callable[[int, int, int], np.ndarray]:
    """Update vectors of (job, UE, round), each from a random stream of its own."""

    def values(job: int, ue: int, round_index: int) -> np.ndarray:
        stream = np.random.SeedSequence([*seed, job, ue, round_index])
        elements = setups[job].config.layout.elements
        return scale * np.random.default_rng(stream).standard_normal(elements)

    return values


def simulate(
    setups: Sequence[JobSetup],
    network: Network,
    behaviour: Behaviour,
    answers: Answers,
    payload_of: PayloadOf,
    seed: Sequence[int],
) -> Simulation:
    """Run all jobs.

    Args:
        setups: the jobs.
        network: the gNBs.
        behaviour: of the UEs.
        answers: which get lost.
        payload_of: payload of (job, UE, round).
        seed: entropy of the random streams.
    """
    population = draw_population(
        [setup.job for setup in setups],
        len(network.names),
        network.neighbours,
        behaviour,
        [*seed, _DRAWN],
    )
    uploads = simulate_uploads(network.rates, population.plan)
    rng = np.random.default_rng(np.random.SeedSequence([*seed, _ANSWERS]))
    lost = rng.random(uploads.outcome.shape) < answers.lost_probability
    replays = []
    for index, setup in enumerate(setups):

        def payload(ue: int, round_index: int, job: int = index) -> Payload:
            return payload_of(job, ue, round_index)

        replays.append(
            replay_job(
                population,
                uploads,
                index,
                setup.config,
                network.names,
                setup.update_dtype,
                payload,
                lost,
                answers.retry_s,
            )
        )
    return Simulation(population, uploads, tuple(replays))


@dataclass(frozen=True)
class Histories:
    """Earlier releases of waves and arrivals of updates of one job."""

    waves: ReleaseHistory
    updates: ReleaseHistory


def earlier_rounds(
    setups: Sequence[JobSetup],
    network: Network,
    behaviour: Behaviour,
    rounds: int,
    seed: Sequence[int],
) -> list[Histories]:
    """What happened in ``rounds`` earlier rounds: the same network and behaviour, other draws.

    Only times matter here, so the updates are a single zero.
    """
    layout = TensorLayout.of([("time", (_CHUNKS,))])
    before = []
    for setup in setups:
        dtype = "fp32"
        config = replace(
            setup.config,
            layout=layout,
            chunk_bytes=chunk_bytes(dtype, layout),
            staging_bytes=2**40,
        )
        job = replace(setup.job, rounds=rounds)
        before.append(JobSetup(job, config, dtype, setup.shipping))
    blank = encode(np.zeros(layout.elements), "fp32")
    past = simulate(
        before,
        network,
        behaviour,
        Answers(0.0, 1.0),
        lambda _job, _ue, _round: blank,
        [*seed, _HISTORY],
    )
    number = {name: gnb for gnb, name in enumerate(network.names)}
    histories = []
    for index, setup in enumerate(before):
        waves, updates = ReleaseHistory(), ReleaseHistory()
        replay = past.replays[index]
        for _, name, wave, offset_s in release_offsets(
            past.population, past.uploads, index, replay, setup.shipping
        ):
            waves.add(number[name], wave, offset_s)
        for _, gnb, kind, offset_s in arrival_offsets(past.population, past.uploads, index, replay):
            updates.add(gnb, kind, offset_s)
        histories.append(Histories(waves, updates))
    return histories
