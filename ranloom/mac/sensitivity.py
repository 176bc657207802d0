"""How much the number of transitions depends on how a transition is counted.

Demand, SM quantum, sampling and what an empty slot asks for are conventions. Each is varied here
on one traced run of ``noctrl``; the same traffic then shows transition counts that differ by orders
of magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.mac.config import PlantConfig
from ranloom.mac.model import CellModel
from ranloom.mac.recorder import TRACE_COLUMNS
from ranloom.mac.simulate import CellRun

DEMANDS = ("slot_total", "per_block", "work")


@dataclass(frozen=True)
class Count:
    """Transitions under one convention.

    Attributes:
        demand: ``slot_total`` is one table query of the slot's PRBs at their average MCS,
            ``per_block`` the sum of a query per transport block (in the table's quantum only),
            ``work`` what the blocks of the slot take by the latency model.
        quantum_sm: SMs are reserved in multiples of this.
        every_ul_slots: the reservation may change only so often, and covers the peak until then.
        hold_empty: an empty slot keeps the demand before it instead of asking for the least.
        transitions: changes of the reservation.
        mean_sm: its mean.
    """

    demand: str
    quantum_sm: int
    every_ul_slots: int
    hold_empty: bool
    transitions: int
    mean_sm: float


def exact_sm(
    work: NDArray[np.int64], plant: PlantConfig, budget_us: float, sm_max: int
) -> NDArray[np.float64]:
    """SMs that decode a slot's work within the budget, not rounded; ``sm_max`` where none do."""
    room_us = budget_us - plant.a_us - plant.b_us * work
    needed = np.divide(
        plant.k_us_sm * work, room_us, where=room_us > 0, out=np.full(len(work), 1e9)
    )
    return np.asarray(np.minimum(needed, sm_max))


def in_quanta(sm: NDArray, quantum_sm: int, sm_max: int) -> NDArray[np.int64]:
    """Round up to a multiple of the quantum, at least one quantum, at most the device."""
    quanta = np.maximum(np.ceil(np.asarray(sm) / quantum_sm - 1e-9), 1.0)
    return np.minimum(quanta.astype(np.int64) * quantum_sm, sm_max)


def reservation(
    demand: NDArray[np.int64], empty: NDArray[np.bool_], every: int, hold_empty: bool
) -> NDArray[np.int64]:
    """The reservation that follows a demand: held over empty slots, sampled by its peak."""
    if hold_empty:
        last = np.maximum.accumulate(np.where(empty, 0, np.arange(len(demand))))
        demand = demand[last]
    if every == 1:
        return demand
    starts = np.arange(0, len(demand), every)
    peaks = np.maximum.reduceat(demand, starts)
    return np.repeat(peaks, np.diff(starts, append=len(demand)))


def transition_counts(
    run: CellRun,
    model: CellModel,
    budget_us: float,
    quanta_sm: Sequence[int],
    every_ul_slots: Sequence[int],
) -> Iterator[Count]:
    """Every combination of the conventions on a run of ``noctrl``.

    Args:
        run: traced in full.
        model: its cell.
        budget_us: of the lookup table.
        quanta_sm: quanta to try.
        every_ul_slots: sampling periods to try.

    Raises:
        InputError: the run is not traced in full.
    """
    if run.trace_from != 0 or len(run.trace) != run.ul_slots:
        raise InputError("run", len(run.trace), f"needed: a trace of its {run.ul_slots} UL slots")
    column = {name: run.trace[:, i] for i, name in enumerate(TRACE_COLUMNS)}
    n_prb, sm_max = column["n_prb"], model.tables.sm_max
    empty = n_prb == 0
    mcs = np.ceil(column["mcs_prb"] / np.maximum(n_prb, 1) - 1e-9).astype(np.int64)
    table_quantum = int(np.gcd.reduce(model.tables.levels))
    plant = model.plant_config
    for demand in DEMANDS:
        for quantum in quanta_sm:
            if demand == "per_block":
                if quantum != table_quantum:
                    continue
                sm = column["demand_per_block_sm"]
            elif demand == "slot_total" and quantum == table_quantum:
                sm = column["demand_sm"]
            else:
                work = column["work"] if demand == "work" else model.blocks.work[mcs, n_prb]
                sm = in_quanta(exact_sm(work, plant, budget_us, sm_max), quantum, sm_max)
            for every in every_ul_slots:
                for hold in (False, True):
                    reserved = reservation(sm, empty, every, hold)
                    changes = int(np.count_nonzero(np.diff(reserved)))
                    yield Count(demand, quantum, every, hold, changes, float(reserved.mean()))
