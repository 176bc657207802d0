"""Checks of a finished simulation: is the hierarchical average the flat one, is nothing lost?

Everything here is recomputed from the UEs' side: the values that they sent, the answers that they
got, the simulated radio. The gNBs' own accounts are only compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.federated.accumulator import Accumulator
from ranloom.federated.experiment import JobSetup, PayloadOf, Simulation
from ranloom.federated.hub import Hub, flat_average, relative_error
from ranloom.federated.payload import Payload, decode, encode, peak_magnitude
from ranloom.federated.radio import SAT_OUT
from ranloom.federated.replay import UpdateFate
from ranloom.federated.wave import split

_WEIGHT_STEPS = 2**20

ValuesOf = Callable[[int, int, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Flat:
    """A round's updates in one place.

    Args:
        round: the round in which they count.
        fates: of the updates, by UE and round.
        weights: one each.
        average: their weighted average, shape (elements,).
    """

    round: int
    fates: tuple[UpdateFate, ...]
    weights: tuple[float, ...]
    average: NDArray[np.float64]


def flat_rounds(
    simulation: Simulation, job: int, setup: JobSetup, payload_of: PayloadOf
) -> list[Flat]:
    """Flat FedAvg over the updates that the UEs were told to have counted, shipped ones only."""
    rounds = []
    fates = [f for f in simulation.replays[job].fates if f.wave >= 0]
    alpha = setup.config.alpha if setup.config.late == "carry_discount" else 0.0
    for round_index in sorted({f.counted_round for f in fates}):
        members = [f for f in fates if f.counted_round == round_index]
        weights = [
            round(
                float(simulation.population.n_k[f.ue])
                * (1.0 + round_index - f.round) ** -alpha
                * _WEIGHT_STEPS
            )
            / _WEIGHT_STEPS
            for f in members
        ]
        values = [decode(payload_of(job, f.ue, f.round)) for f in members]
        average = flat_average(values, weights)
        rounds.append(Flat(round_index, tuple(members), tuple(weights), average))
    return rounds


def merged(simulation: Simulation, job: int, setup: JobSetup) -> Hub:
    """The hub's view: all waves as they were added up at the gNBs."""
    config = setup.config
    hub = Hub(config.layout.elements, config.arithmetic, config.fraction_bits)
    for wave in simulation.replays[job].waves:
        hub.merge(wave)
    return hub


def merged_as_shipped(simulation: Simulation, job: int, setup: JobSetup, dtype: str) -> Hub:
    """The hub's view of waves that travelled in a wire format."""
    hub = Hub(setup.config.layout.elements, "float64")
    parts = len(setup.shipping.part_bytes())
    for wave in simulation.replays[job].waves:
        hub.merge(wave, split(wave, dtype, parts))
    return hub


def worst_error(hub: Hub, flat: list[Flat]) -> float:
    """Largest relative deviation of any round's average from the flat one."""
    return max((relative_error(hub.average(f.round), f.average) for f in flat), default=0.0)


class _Waves:
    """The same updates in the same waves, added up anew in other formats and arithmetic."""

    def __init__(
        self, simulation: Simulation, job: int, setup: JobSetup, flat: Sequence[Flat]
    ) -> None:
        self.waves = simulation.replays[job].waves
        self.setup = setup
        names = simulation.population.names
        self.by_id = {
            f"{setup.job.name}/{f.round}/{names[f.ue]}": (f, weight)
            for rnd in flat
            for f, weight in zip(rnd.fates, rnd.weights, strict=True)
        }

    def total(
        self,
        members: Sequence[tuple[UpdateFate, float]],
        arithmetic: str,
        payload_of: Callable[[UpdateFate], Payload],
    ) -> Accumulator:
        """Sum over updates."""
        config = self.setup.config
        sums = Accumulator(config.layout.elements, arithmetic, config.fraction_bits)
        for fate, weight in members:
            payload = payload_of(fate)
            sums.add(payload, weight, peak_magnitude(payload))
        return sums

    def over_waves(
        self, round_index: int, arithmetic: str, payload_of: Callable[[UpdateFate], Payload]
    ) -> Accumulator:
        """Sum over the sums of a round's waves."""
        sums = self.total([], arithmetic, payload_of)
        for wave in self.waves:
            if wave.round == round_index:
                members = [self.by_id[update] for update in wave.manifest]
                sums.merge(self.total(members, arithmetic, payload_of))
        return sums


def fixed_point_identical(
    simulation: Simulation, job: int, setup: JobSetup, payload_of: PayloadOf, flat: Sequence[Flat]
) -> bool:
    """Whether 64-bit fixed-point sums over waves equal, bit for bit, sums in another order."""
    waves = _Waves(simulation, job, setup, flat)

    def payload(fate: UpdateFate) -> Payload:
        return payload_of(job, fate.ue, fate.round)

    for rnd in flat:
        reverse = list(zip(rnd.fates, rnd.weights, strict=True))[::-1]
        at_once = waves.total(reverse, "fixed64", payload)
        over_waves = waves.over_waves(rnd.round, "fixed64", payload)
        if not np.array_equal(over_waves.total, at_once.total):
            return False
    return True


def float64_error(
    simulation: Simulation, job: int, setup: JobSetup, values_of: ValuesOf, flat: Sequence[Flat]
) -> float:
    """Largest deviation of hierarchical from flat averages if updates travelled in float64.

    Updates in fp16 have so few digits that their weighted sums are often exact; in float64 the
    order of addition shows.
    """
    waves = _Waves(simulation, job, setup, flat)

    def payload(fate: UpdateFate) -> Payload:
        return encode(values_of(job, fate.ue, fate.round), "fp64")

    worst = 0.0
    for rnd in flat:
        sums = waves.over_waves(rnd.round, "float64", payload).sums()
        values = [values_of(job, f.ue, f.round) for f in rnd.fates]
        reference = flat_average(values, rnd.weights)
        worst = max(worst, relative_error(sums / sum(rnd.weights), reference))
    return worst


@dataclass(frozen=True)
class Weights:
    """Samples (sums of n_k) of all jobs by fate.

    Args:
        in_: of every UE and round that took part, from the radio simulation.
        delivered: counted in their own round.
        carried: counted in a later round (``waiting`` of them not yet shipped at the end).
        dropped: not counted.
        waiting: in a wave that had not closed when the simulation ended.
        conserved: whether in = delivered + carried + dropped, whether the gNBs' accounts say the
            same, and whether the hub received exactly what was counted and shipped.
    """

    in_: int
    delivered: int
    carried: int
    dropped: int
    waiting: int
    conserved: bool


def weigh(simulation: Simulation, hubs: list[Hub]) -> Weights:
    """Where every sample went."""
    population, uploads = simulation.population, simulation.uploads
    took_part = (uploads.outcome != SAT_OUT).sum(axis=1)
    total_in = int((took_part * population.n_k).sum())

    def samples(chosen: Callable[[UpdateFate], bool]) -> int:
        return sum(
            int(population.n_k[f.ue]) for r in simulation.replays for f in r.fates if chosen(f)
        )

    delivered = samples(lambda f: f.fate == "delivered")
    carried = samples(lambda f: f.fate == "carried")
    dropped = samples(lambda f: f.fate == "dropped")
    waiting = samples(lambda f: f.fate != "dropped" and f.wave < 0)
    machines = [m for r in simulation.replays for m in r.machines]
    conserved = (
        total_in == delivered + carried + dropped
        and sum(m.ledger.account.delivered for m in machines) == delivered
        and sum(m.ledger.account.carried for m in machines) == carried
        and sum(m.waiting_samples() for m in machines) == waiting
        and sum(h.samples(r) for h in hubs for r in h.rounds()) == delivered + carried - waiting
    )
    return Weights(total_in, delivered, carried, dropped, waiting, conserved)
