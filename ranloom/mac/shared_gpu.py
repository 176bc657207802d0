"""Several cells on one GPU: their reservations add up, or one partition decodes for all.

``summed``: each cell has a partition of its own, as its controller asks. ``pooled``: the blocks of
all cells that fall into the same UL slot are decoded by one partition, sized by the latency model;
it shares the floor of the smallest reservation, and peaks of different cells seldom coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.mac.model import CellModel
from ranloom.mac.recorder import TRACE_COLUMNS
from ranloom.mac.sensitivity import exact_sm, in_quanta
from ranloom.mac.simulate import CellRun

SHARINGS = ("summed", "pooled")


@dataclass(frozen=True)
class SharedGpu:
    """What a number of cells takes of one GPU together.

    Attributes:
        cells: how many.
        mean_sm: mean over UL slots.
        peak_sm: highest.
        p999_sm: 99.9th percentile.
        transitions: changes of the total.
        over_device_pct: UL slots in which it exceeds the device, per cent.
    """

    cells: int
    mean_sm: float
    peak_sm: int
    p999_sm: float
    transitions: int
    over_device_pct: float


def per_slot(run: CellRun) -> NDArray[np.int64]:
    """Reservation of each UL slot."""
    held = np.diff(run.changes.ul_index, append=run.ul_slots)
    return np.repeat(run.changes.sm, held)


def _figures(total: NDArray[np.int64], cells: int, sm_max: int) -> SharedGpu:
    return SharedGpu(
        cells,
        float(total.mean()),
        int(total.max()),
        float(np.percentile(total, 99.9)),
        int(np.count_nonzero(np.diff(total))),
        100.0 * float((total > sm_max).mean()),
    )


def _aligned(runs: Sequence[CellRun]) -> None:
    if not runs or len({run.ul_slots for run in runs}) != 1:
        raise InputError("runs", [run.ul_slots for run in runs], "needed: runs of equal length")


def summed(runs: Sequence[CellRun], sm_max: int) -> SharedGpu:
    """Partitions side by side.

    Args:
        runs: one a cell, on a common slot clock.
        sm_max: SMs of the GPU.

    Raises:
        InputError: no run, or runs that differ in length.
    """
    _aligned(runs)
    total = np.sum([per_slot(run) for run in runs], axis=0)
    return _figures(total, len(runs), sm_max)


def pooled(runs: Sequence[CellRun], model: CellModel, budget_us: float) -> SharedGpu:
    """One partition for the blocks of all cells, as large as each slot needs.

    Args:
        runs: one a cell, traced in full, on a common slot clock.
        model: a cell on that GPU.
        budget_us: decode budget of a slot.

    Raises:
        InputError: no run, runs that differ in length, or without their trace.
    """
    _aligned(runs)
    if any(len(run.trace) != run.ul_slots for run in runs):
        raise InputError("runs", [len(run.trace) for run in runs], "needed: runs traced in full")
    work = np.sum([run.trace[:, TRACE_COLUMNS.index("work")] for run in runs], axis=0)
    # beyond the device the demand is still counted, so that it shows as too much
    needed = exact_sm(work, model.plant_config, budget_us, 1_000_000)
    total = in_quanta(needed, model.tables.sm_min, 1_000_000)
    return _figures(total, len(runs), model.tables.sm_max)
