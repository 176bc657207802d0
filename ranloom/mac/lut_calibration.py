"""End-to-end calibration of the lookup table (paper, App. B.1, second step).

A profile says how long one decode takes. In the cell decodes may queue behind each other, and
several UEs share a slot, whose blocks are more work than one block of the same PRBs. Each PRB
budget is therefore tried in the cell under full load: UEs with full buffers at one MCS, the
reservation held. It is lowered until the reservation makes no more HARQ feedback overdue than
reserving the whole device does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.kpis import cell_kpis
from ranloom.mac.model import CellModel
from ranloom.mac.simulate import simulate
from ranloom.mac.sm_tables import SmTables
from ranloom.traffic.arrivals import Arrivals, from_unsorted
from ranloom.traffic.channel import ar1, constant

CLEAR_SKY_DB = 60.0  # no block errors at any MCS: retransmissions would dilute the load
_PACKET_BYTES = 1500
_EXTREME_DB, _EXTREME_STD_DB, _EXTREME_COHERENCE_US = (2.0, 34.0), 8.0, 20_000.0


@dataclass(frozen=True)
class LoadTest:
    """The load under which a budget is tried.

    Args:
        n_ue: UEs with full buffers; they share each slot.
        duration_s: simulated time of one try.
        extra_overdue_pct: HARQ feedback that may be overdue beyond that with all SMs reserved,
            percentage points.

    Raises:
        InputError: a value is out of range.
    """

    n_ue: int = 4
    duration_s: float = 5.0
    extra_overdue_pct: float = 0.02

    def __post_init__(self) -> None:
        if not 1 <= self.n_ue <= 64:
            raise InputError("lut_test.n_ue", self.n_ue, "allowed: 1 to 64")
        if not 0.1 <= self.duration_s <= 1e4:
            raise InputError("lut_test.duration_s", self.duration_s, "allowed: 0.1 to 10000")
        if not 0.0 <= self.extra_overdue_pct <= 100.0:
            allowed = "allowed: 0 to 100"
            raise InputError("lut_test.extra_overdue_pct", self.extra_overdue_pct, allowed)


def full_buffers(n_ue: int, duration_us: int, peak_bytes: int) -> Arrivals:
    """UEs that always have more to send than ``peak_bytes`` a millisecond."""
    per_ms = -(-peak_bytes // _PACKET_BYTES)
    times = np.repeat(np.arange(0, duration_us, 1000, dtype=np.int64), per_ms * n_ue)
    ue = np.tile(np.arange(n_ue), len(times) // n_ue)
    return from_unsorted(times, ue, np.full(len(times), _PACKET_BYTES), n_ue, duration_us)


def with_budgets(tables: SmTables, max_prb: NDArray[np.int64]) -> SmTables:
    """Lookup table with other PRB budgets.

    Args:
        tables: the table.
        max_prb: int64[n_mcs, n_levels], budget of each reservation that the device allows.

    Returns:
        A table that is monotone: a budget is at most that of a lower MCS and of more SMs.
    """
    budgets = np.minimum.accumulate(max_prb, axis=0)
    budgets = np.minimum.accumulate(budgets[:, ::-1], axis=1)[:, ::-1]
    n_mcs, n_prb = tables.min_sm.shape[0], tables.min_sm.shape[1] - 1
    budgets = np.minimum(budgets, n_prb)
    at = np.searchsorted(tables.levels, np.arange(tables.sm_max + 1), side="right") - 1
    by_sm = np.where(at >= 0, budgets[:, np.maximum(at, 0)], 0)
    enough = budgets[:, None, :] >= np.arange(n_prb + 1)[None, :, None]
    first = np.where(enough.any(axis=2), enough.argmax(axis=2), len(tables.levels) - 1)
    min_sm = tables.levels[first].reshape(n_mcs, n_prb + 1)
    # C order as in the table: another memory layout would compile the slot loop again
    return tables._replace(
        min_sm=np.ascontiguousarray(min_sm, np.int64), max_prb=np.ascontiguousarray(by_sm, np.int64)
    )


def level_budgets(tables: SmTables) -> NDArray[np.int64]:
    """PRB budget of each reservation that the device allows, int64[n_mcs, n_levels]."""
    return tables.max_prb[:, tables.levels]


def calibrate_budgets(model: CellModel, test: LoadTest, seed: int) -> NDArray[np.int64]:
    """PRB budgets that survive full load in the cell.

    Args:
        model: the cell; its carrier should be as wide as the lookup table.
        test: load and tolerance.
        seed: root of the decode tails.

    Returns:
        int64[n_mcs, n_levels], at most the profiled budgets.
    """
    duration_us = round(test.duration_s * 1e6)
    channel = constant(np.full(test.n_ue, CLEAR_SKY_DB), duration_us)
    profiled = level_budgets(model.tables)
    budgets = profiled.copy()
    n_mcs, n_levels = profiled.shape
    for mcs in range(n_mcs):
        config = replace(model.config, max_mcs=mcs, initial_mcs=mcs, allocation="shared")
        at_mcs = CellModel(config, model.plant_config, model.tables, model.curves)
        slot_bytes = int(at_mcs.blocks.tbs_bytes[mcs, config.n_prb])
        arrivals = full_buffers(test.n_ue, duration_us, max(1, slot_bytes // 2 // test.n_ue))

        def overdue_pct(level: int, n_prb: int, at_mcs: CellModel = at_mcs, mcs: int = mcs,
                        arrivals: Arrivals = arrivals) -> float:  # fmt: skip
            tried = profiled.copy()
            tried[mcs:, level:] = np.minimum(tried[mcs:, level:], n_prb)
            tried[mcs, level] = n_prb
            tables = model.tables._replace(
                max_prb=with_budgets(model.tables, tried).max_prb, min_sm=model.tables.min_sm
            )
            trial = replace(at_mcs, tables=tables)
            spec = ControllerSpec(f"const_{int(model.tables.levels[level])}")
            run = simulate(trial, arrivals, channel, spec, seed)
            return 100.0 - cell_kpis([run], trial.plant_config.k_us_sm).harq_met_pct

        whole_device = n_levels - 1
        base = overdue_pct(whole_device, int(profiled[mcs, whole_device]))
        for level in range(n_levels - 1):
            high = int(profiled[mcs, level])
            if overdue_pct(level, high) <= base + test.extra_overdue_pct:
                continue
            low = model.config.min_rb  # assumed to pass: the smallest grant there is
            while high - low > 1:
                middle = (low + high) // 2
                if overdue_pct(level, middle) <= base + test.extra_overdue_pct:
                    low = middle
                else:
                    high = middle
            budgets[mcs, level] = low
    return budgets


def added_misses_pct(
    model: CellModel, params: WeaverParams, test: LoadTest, seed: int
) -> tuple[float, float]:
    """What ``weaver`` adds to the misses of ``noctrl`` under full buffers and an extreme channel.

    UEs spread from the edge of the cell to its centre, each swinging by many dB within 20 ms, so
    that MCS and demand jump from slot to slot.

    Args:
        model: the cell, with the calibrated table.
        params: the controller.
        test: number of UEs and duration.
        seed: root of channel, block errors and decode tails.

    Returns:
        Overdue HARQ feedback and decodes above 1 ms, percentage points above ``noctrl``'s.
    """
    duration_us = round(test.duration_s * 1e6)
    slot_bytes = int(model.blocks.tbs_bytes[-1, model.config.n_prb])
    arrivals = full_buffers(test.n_ue, duration_us, max(1, slot_bytes // 2 // test.n_ue))
    channel = ar1(
        np.linspace(*_EXTREME_DB, test.n_ue), _EXTREME_STD_DB, _EXTREME_COHERENCE_US, duration_us,
        5_000, np.random.default_rng(seed),
    )  # fmt: skip
    overdue, long = [], []
    for spec in (ControllerSpec("noctrl"), ControllerSpec("weaver", weaver=params)):
        run = simulate(model, arrivals, channel, spec, seed)
        kpis = cell_kpis([run], model.plant_config.k_us_sm)
        overdue.append(100.0 - kpis.harq_met_pct)
        long.append(kpis.decode_over_1ms_pct)
    return overdue[1] - overdue[0], long[1] - long[0]
