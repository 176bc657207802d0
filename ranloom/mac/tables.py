"""Runs as columns of tables; the stage declares the same names with their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ranloom.gpu.latency import LatencyModel
from ranloom.mac.background import capacity_mbps, served_mbps
from ranloom.mac.config import PlantConfig
from ranloom.mac.controllers.decision import REASONS
from ranloom.mac.kpis import ue_kpis
from ranloom.mac.model import CellModel
from ranloom.mac.offline import Fewest
from ranloom.mac.recorder import SECOND_COLUMNS, TRACE_COLUMNS
from ranloom.mac.reports import performance
from ranloom.mac.shared_gpu import SharedGpu
from ranloom.mac.simulate import CellRun
from ranloom.traffic.scenario import Scenario

Columns = dict[str, Any]
_SECOND_US = 1_000_000


def stack(parts: Iterable[Mapping[str, Any]]) -> Columns:
    """Put tables of the same columns under each other."""
    tables = list(parts)
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


def _labels(count: int, scenario: str, controller: str | None, cell: int) -> Columns:
    columns: Columns = {"scenario": np.full(count, scenario, object)}
    if controller is not None:
        columns["controller"] = np.full(count, controller, object)
    columns["cell"] = np.full(count, cell, np.int32)
    return columns


def reservation_columns(scenario: str, cell: int, run: CellRun) -> Columns:
    """One row per change of the reservation, the first at slot 0."""
    changes = run.changes
    return _labels(len(changes.sm), scenario, run.controller, cell) | {
        "slot": changes.slot,
        "sm": changes.sm,
        "reason": np.array(REASONS, object)[changes.reason],
        "passes": changes.passes,
        "lut_mcs": changes.lut_mcs,
        "lut_prb": changes.lut_prb,
    }


def scenario_columns(scenario: Scenario, run: CellRun) -> Columns:
    """One row: what is needed to read the reservations of a cell."""
    return _labels(1, scenario.name, None, scenario.cell) | {
        "slots": np.array([run.duration_us // run.config.slot_us]),
        "ul_slots": np.array([run.ul_slots]),
        "n_ue": np.array([scenario.n_ue]),
        "sm_max": np.array([run.sm_max]),
        "slot_us": np.array([run.config.slot_us]),
    }


def ue_kpi_columns(scenario: str, cell: int, run: CellRun) -> Columns:
    """One row per UE: the byte ledger and the figures of its packets."""
    kpis, ledger = ue_kpis(run), run.ledger
    n_ue = len(ledger.offered)
    return _labels(n_ue, scenario, run.controller, cell) | {
        "ue": np.arange(n_ue),
        "offered_bytes": ledger.offered,
        "delivered_bytes": ledger.delivered,
        "queued_bytes": ledger.queued,
        "in_flight_bytes": ledger.in_flight,
        "dropped_bytes": ledger.dropped,
        "lost_bytes": ledger.lost,
        "throughput_mbps": kpis.throughput_mbps,
        "delay_mean_ms": kpis.delay_mean_ms,
        "delay_p95_ms": kpis.delay_p95_ms,
        "jitter_ms": kpis.jitter_ms,
        "loss_pct": kpis.loss_pct,
    }


def ue_rate_columns(model: CellModel, scenario: Scenario, run: CellRun) -> Columns:
    """One row per UE and second: what a background upload could get, and what was served."""
    capacity = capacity_mbps(model, run, scenario.channel)
    n_ue, n_seconds = capacity.shape
    return _labels(n_ue * n_seconds, scenario.name, None, scenario.cell) | {
        "ue": np.repeat(np.arange(n_ue), n_seconds),
        "second": np.tile(np.arange(n_seconds), n_ue),
        "capacity_mbps": capacity.ravel(),
        "served_mbps": served_mbps(run).ravel(),
    }


def cell_columns(scenario: str, cell: int, run: CellRun, k_us_sm: float, hours: int = 1) -> Columns:
    """One row per hour: the seconds of a run split into ``hours`` equal parts.

    Args:
        scenario: name of the scenario.
        cell: cell of it.
        run: the run.
        k_us_sm: us x SM per unit of decoder work, for the SM utilisation.
        hours: parts; each a whole number of seconds unless there is one.
    """
    edges_us = np.arange(hours + 1) * run.duration_us // hours
    ul_edges = np.array([run.config.ul_slots_in(int(t)) for t in edges_us])
    changes = run.changes
    held = np.diff(changes.ul_index, append=run.ul_slots)
    # reserved SM x UL slots up to each UL slot edge: whole changes before it, and the rest
    before = np.concatenate([[0], np.cumsum(held * changes.sm)])
    at = np.searchsorted(changes.ul_index, ul_edges, side="right") - 1
    reserved = before[at] + (ul_edges - changes.ul_index[at]) * changes.sm[at]
    mean_sm = np.diff(reserved) / np.diff(ul_edges)
    transitions = np.diff(np.searchsorted(changes.ul_index[1:], ul_edges, side="left"))
    second_edges = edges_us[:-1] // _SECOND_US
    seconds = {
        name: np.add.reduceat(run.seconds[:, i], second_edges)
        for i, name in enumerate(SECOND_COLUMNS)
        if name != "demand_peak_sm"
    }
    length_us = np.diff(edges_us)
    offered = np.histogram(run.packet_time_us, bins=edges_us, weights=run.packet_bytes)[0]
    return _labels(hours, scenario, run.controller, cell) | {
        "hour": np.arange(hours),
        "mean_sm": mean_sm,
        "spare_pct": 100.0 * (1.0 - mean_sm / run.sm_max),
        "transitions": transitions,
        "prb_used_pct": 100.0 * seconds["used_prb"] / (np.diff(ul_edges) * run.config.n_prb),
        "smu_pct": 100.0 * k_us_sm * seconds["work"] / (run.sm_max * length_us),
        "offered_mbps": 8.0 * offered / length_us,
        "decode_starts": seconds["decodes"],
    }


def busiest_window(run: CellRun, ul_slots: int) -> int:
    """First UL slot of the stretch of a trace with most changes of the reservation."""
    reserved = run.trace[:, TRACE_COLUMNS.index("reserved_sm")]
    changed = np.concatenate([[0], np.cumsum(np.diff(reserved) != 0)])
    if len(changed) <= ul_slots:
        return 0
    return int(np.argmax(changed[ul_slots - 1 :] - changed[: len(changed) - ul_slots + 1]))


def timeline_columns(scenario: str, cell: int, run: CellRun, first: int, ul_slots: int) -> Columns:
    """One row per UL slot of a stretch of a traced run."""
    rows = run.trace[first : first + ul_slots]
    by_name = {name: rows[:, i] for i, name in enumerate(TRACE_COLUMNS)}
    index = run.trace_from + first + np.arange(len(rows))
    n_prb = by_name["n_prb"]
    return _labels(len(rows), scenario, run.controller, cell) | {
        "ul_slot": index,
        "slot": np.array([run.config.slot_of(int(j)) for j in index], np.int64),
        "demand_sm": by_name["demand_sm"],
        "demand_per_block_sm": by_name["demand_per_block_sm"],
        "reserved_sm": by_name["reserved_sm"],
        "n_prb": n_prb,
        "mcs_mean": by_name["mcs_prb"] / np.maximum(n_prb, 1),
        "backlog_bytes": by_name["backlog_bytes"],
    }


def performance_columns(scenario: str, cell: int, run: CellRun) -> Columns:
    """One row per measurement of 28.552."""
    rows = performance(run)
    return _labels(len(rows), scenario, run.controller, cell) | {
        "measurement": np.array([row[0] for row in rows], object),
        "ue": np.array([row[1] for row in rows], np.int32),
        "value": np.array([row[2] for row in rows]),
        "unit": np.array([row[3] for row in rows], object),
    }


def offline_columns(scenario: str, found: Mapping[float, Fewest], ul_slots: int) -> Columns:
    """One row per price and delay that the yardstick tried."""
    rows = [(delay, few, plan) for delay, few in found.items() for plan in few.front]
    return {
        "scenario": np.full(len(rows), scenario, object),
        "delay_ms": np.array([delay for delay, _, _ in rows], np.float64),
        "price_sm_slots": np.array([plan.price for _, _, plan in rows]),
        "mean_sm": np.array([plan.sm_slots / ul_slots for _, _, plan in rows]),
        "transitions": np.array([plan.transitions for _, _, plan in rows], np.int64),
        "cost_lower": np.array([plan.cost_lower for _, _, plan in rows]),
        "within": np.array([plan is few.plan for _, few, plan in rows], bool),
    }


def shared_gpu_columns(controller: str, sharing: str, shared: SharedGpu) -> Columns:
    """One row."""
    return {
        "controller": np.array([controller], object),
        "sharing": np.array([sharing], object),
    } | {name: np.array([value]) for name, value in vars(shared).items()}


_CCDF = 10.0 ** -np.linspace(0.0, 4.0, 41)  # shares of packets that are later
_MARGIN_US, _PRB_BIN = 25.0, 8


def distribution_columns(
    scenario: str, run: CellRun, plant: PlantConfig, deadline_us: float
) -> Columns:
    """Distributions of a traced run, long form: ``kind``, ``ue``, ``x``, ``y``, ``share``.

    ``delay``: share of a UE's packets (``y`` unused) later than ``x`` ms. ``margin``: share of
    decodes whose latency stays ``x`` to ``x`` + 25 us below the deadline (latency of the slot's
    work at the reservation in force, 99th percentile). ``prb_mcs``: share of busy UL slots with
    ``x`` to ``x`` + 7 PRBs at an average MCS that rounds up to ``y``. ``harq_round``: share of
    transmissions that are first ones (``x`` = 1) or repeated (2), and of blocks given up (0).

    Args:
        scenario: name.
        run: traced in full.
        plant: the GPU.
        deadline_us: decode budget of a slot.
    """
    rows: list[tuple[str, int, float, float, float]] = []
    for ue in range(len(run.ledger.offered)):
        delay_us = run.packet_delay_us[run.packet_ue == ue]
        delay_us = delay_us[delay_us >= 0]
        if len(delay_us):
            later = np.quantile(delay_us, 1.0 - _CCDF) / 1e3
            rows += [("delay", ue, x, 0.0, s) for x, s in zip(later, _CCDF, strict=True)]
    column = {name: run.trace[:, i] for i, name in enumerate(TRACE_COLUMNS)}
    busy = column["work"] > 0
    work, sm, n_prb = (column[name][busy] for name in ("work", "reserved_sm", "n_prb"))
    latency_us = LatencyModel(plant.a_us, plant.k_us_sm, plant.b_us, 1.0).p99_us(work, sm)
    margin = np.floor((deadline_us - latency_us) / _MARGIN_US) * _MARGIN_US
    values, counts = np.unique(margin, return_counts=True)
    total = max(int(busy.sum()), 1)
    rows += [("margin", -1, x, 0.0, n / total) for x, n in zip(values, counts, strict=True)]
    mcs = np.ceil(column["mcs_prb"][busy] / np.maximum(n_prb, 1) - 1e-9)
    pairs = np.stack([(n_prb - 1) // _PRB_BIN * _PRB_BIN + 1, mcs], axis=1)
    cells, counts = np.unique(pairs, axis=0, return_counts=True)
    rows += [("prb_mcs", -1, x, y, n / total) for (x, y), n in zip(cells, counts, strict=True)]
    first, again = (int(run.counters[n]) for n in ("initial_blocks", "retransmissions"))
    sent = max(first + again, 1)
    rows += [
        ("harq_round", -1, 1.0, 0.0, first / sent),
        ("harq_round", -1, 2.0, 0.0, again / sent),
        ("harq_round", -1, 0.0, 0.0, int(run.counters["failed_blocks"]) / max(first, 1)),
    ]
    names = ("kind", "ue", "x", "y", "share")
    columns: Columns = dict(zip(names, (np.array(c) for c in zip(*rows, strict=True)), strict=True))
    columns["kind"] = columns["kind"].astype(object)
    columns["ue"] = columns["ue"].astype(np.int32)
    return {
        "scenario": np.full(len(rows), scenario, object),
        "controller": np.full(len(rows), run.controller, object),
    } | columns
