"""Tables of ``plan_windows`` and their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.stage import Column, Table
from ranloom.transport.baselines import AGGREGATE_STRATEGIES, STRATEGIES
from ranloom.transport.calendar import PATH_SEPARATOR, Calendar
from ranloom.transport.comparison import Outcome
from ranloom.transport.demands import NS_PER_S, Demands, to_s
from ranloom.transport.plan import MODES
from ranloom.transport.topology import Topology

#: Federated aggregates and training transfers in one calendar; windows of it are listed too.
BOTH = "both_workloads"


def window_columns(outcomes: Mapping[str, Outcome], both: Calendar) -> dict[str, list[Any]]:
    """Windows of every strategy, and of the calendar of both workloads as planned."""
    columns: dict[str, list[Any]] = {c.name: [] for c in WINDOWS.columns}
    rows = [(BOTH, row, row.bytes) for row in both.windows]
    for strategy, outcome in reversed(list(outcomes.items())):
        planned, _ = outcome.calendars()
        used = [window.bytes for window in outcome.executed.windows]
        of_strategy = zip(planned[0].windows, used, strict=True)
        rows = [(strategy, row, size) for row, size in of_strategy] + rows
    for strategy, row, size in rows:
        values = asdict(row) | {"strategy": strategy, "bytes": size, "planned_bytes": row.bytes}
        for name, cells in columns.items():
            cells.append(values[name])
    return columns


def assignment_columns(outcomes: Mapping[str, Outcome]) -> dict[str, list[Any]]:
    """Every demand: planned, carried out, simulated."""
    columns: dict[str, list[Any]] = {c.name: [] for c in ASSIGNMENTS.columns}
    for strategy, outcome in outcomes.items():
        planned, executed = (calendar for calendar, _ in outcome.calendars())
        simulated = outcome.played.plan.finish_ns.tolist()
        rows = zip(planned.assignments, executed.assignments, simulated, strict=True)
        for before, after, played_ns in rows:
            values = asdict(after) | {
                "strategy": strategy,
                "planned_mode": before.mode,
                "planned_window_id": before.window_id,
                "planned_finish_s": before.finish_s,
                "simulated_finish_s": None if played_ns < 0 else played_ns / NS_PER_S,
            }
            for name, cells in columns.items():
                cells.append(values[name])
    return columns


def rate_columns(outcomes: Mapping[str, Outcome]) -> dict[str, list[Any]]:
    """Packet rates as carried out."""
    columns: dict[str, list[Any]] = {c.name: [] for c in RATES.columns}
    for strategy, outcome in outcomes.items():
        _, executed = (calendar for calendar, _ in outcome.calendars())
        for rate in executed.rates or ():
            for name, value in ({"strategy": strategy} | asdict(rate)).items():
                columns[name].append(value)
    return columns


def training_columns(both: Calendar, demands: Demands, first: int) -> dict[str, list[Any]]:
    """Training demands in the calendar of both workloads; they start at row ``first``."""
    rows = both.assignments[first:]
    mine = demands.take(np.arange(first, len(demands)))
    return {
        "demand_id": [row.demand_id for row in rows],
        "source": mine.source.tolist(),
        "destination": mine.destination.tolist(),
        "bytes": mine.bytes.tolist(),
        "release_s": to_s(mine.release_ns),
        "deadline_s": to_s(mine.deadline_ns),
        "mode": [row.mode for row in rows],
        "window_id": [row.window_id for row in rows],
        "finish_s": [row.finish_s for row in rows],
    }


def link_columns(calendars: Mapping[str, Calendar], topology: Topology) -> dict[str, list[Any]]:
    """Every fibre of the topology with the windows that each calendar lights on it."""
    columns: dict[str, list[Any]] = {c.name: [] for c in LINKS.columns}
    place = topology.graph.nodes
    for strategy, calendar in calendars.items():
        lit: dict[frozenset[str], list[float]] = {}
        for window in calendar.windows:
            for hop in pairwise(window.path.split(PATH_SEPARATOR)):
                lit.setdefault(frozenset(hop), []).append(window.end_s - window.start_s)
        for a, b, link in topology.graph.edges(data=True):
            lengths = lit.get(frozenset((a, b)), [])
            values: dict[str, Any] = {
                "strategy": strategy,
                **{f"a_{key}": place[a].get(key) for key in ("kind", "lat", "lon")},
                **{f"b_{key}": place[b].get(key) for key in ("kind", "lat", "lon")},
                **{key: link[key] for key in ("km", "packet_gbps", "wavelengths")},
                "a": a,
                "b": b,
                "windows": len(lengths),
                "circuit_s": sum(lengths),
            }
            for name, cells in columns.items():
                cells.append(values[name])
    return columns


WINDOWS = Table(
    "windows.parquet",
    "lit windows; times in seconds of the plan",
    (
        Column("strategy", "string", f"one of {', '.join(STRATEGIES)}, {BOTH}"),
        Column("window_id", "int32", "unique in a strategy, by start"),
        Column("source", "string", "sending node"),
        Column("destination", "string", "receiving node"),
        Column("path", "string", "node names joined by |"),
        Column("wavelength", "int16", "channel on the whole path"),
        Column("start_s", "float64", "start of the set-up"),
        Column("end_s", "float64", "end of light; the guard time follows"),
        Column("setup_s", "float64", "from the start until data can be sent"),
        Column("bytes", "int64", "payload that rode in it"),
        Column("planned_bytes", "int64", "payload that was planned to"),
    ),
)
ASSIGNMENTS = Table(
    "assignments.parquet",
    "what became of every demand under every strategy",
    (
        Column("strategy", "string", "strategy; per-UE strategies have per-UE demands"),
        Column("demand_id", "string", "as in transfers.parquet"),
        Column("mode", "string", f"carried out: {', '.join(MODES)}"),
        Column("window_id", "int32", "its window", nullable=True),
        Column("finish_s", "float64", "arrival; a missed demand may arrive late", nullable=True),
        Column("bytes", "int64", "payload"),
        Column("missed_bytes", "int64", "payload that is not there by the deadline"),
        Column("planned_mode", "string", f"planned: {', '.join(MODES)}"),
        Column("planned_window_id", "int32", "window of the plan", nullable=True),
        Column("planned_finish_s", "float64", "arrival in the plan", nullable=True),
        Column("simulated_finish_s", "float64", "arrival beside other traffic", nullable=True),
    ),
)
RATES = Table(
    "rates.parquet",
    "packet rates that shapers give to aggregates, as carried out",
    (
        Column("strategy", "string", "strategy"),
        Column("demand_id", "string", "as in transfers.parquet"),
        Column("start_s", "float64", "start of a stretch of constant rate"),
        Column("end_s", "float64", "its end"),
        Column("gbps", "float64", "rate, Gbit/s"),
    ),
)
STRATEGY_TABLE = Table(
    "strategies.parquet",
    "one row a strategy",
    (
        Column("strategy", "string", "strategy"),
        Column("missed_bytes", "int64", "payload not there by its deadline"),
        Column("missed_pct", "float64", "the same in percent of the offered bytes"),
        Column("setups", "int64", "windows"),
        Column("circuit_seconds", "float64", "light held, s"),
        Column("last_finish_s", "float64", "arrival of the last transfer, s"),
        Column("utilisation_pct", "float64", "of the held circuits' capacity; 0 without any"),
        Column("energy_kj", "float64", "ports working for these transfers, kJ"),
        Column("flows", "int64", "transfers"),
        Column("offered_bytes", "int64", "payload of all transfers"),
        Column("planned_missed_bytes", "int64", "payload that the plan gave up"),
        Column("simulated_missed_bytes", "int64", "missed beside other traffic"),
        Column("simulated_last_finish_s", "float64", "last arrival beside other traffic, s"),
        Column("background_delay_p99_ms", "float64", "99 % quantile of other traffic's wait, ms"),
        Column("background_loss_pct", "float64", "other traffic lost, %"),
        Column("peak_gbps", "float64", "highest packet rate of these transfers, Gbit/s"),
        Column("burstiness", "float64", "coefficient of variation of that rate per bin"),
    ),
)
SWEEP = Table(
    "sweep.parquet",
    "what windows buy in the first round: two grids of parameters",
    (
        Column("setup_s", "float64", "set-up time, s"),
        Column("packet_share", "float64", "granted share of each packet link"),
        Column("jobs", "int32", "concurrent copies of the demands"),
        Column("rank_factor", "float64", "LoRA rank over that of the demands"),
        Column("gnbs", "int32", "gNBs that send"),
        Column("packet_gbps", "float64", "granted rate on the narrowest route, Gbit/s"),
        Column("offered_bytes", "int64", "payload of all demands"),
        Column("median_bytes", "float64", "median payload"),
        Column("packet_missed_pct", "float64", "missed bytes with packets only, %"),
        Column("window_missed_pct", "float64", "missed bytes with windows only, %"),
        Column("selective_missed_pct", "float64", "missed bytes of the selective plan, %"),
        Column("selective_window_pct", "float64", "share of its bytes in windows, %"),
        Column("selective_setups", "int64", "its windows"),
        Column("selective_circuit_s", "float64", "its light, s"),
        Column("packet_mean_s", "float64", "mean transfer time, packets only, s", nullable=True),
        Column("window_mean_s", "float64", "mean transfer time, windows only, s", nullable=True),
        Column("packet_energy_kj", "float64", "energy, packets only, kJ"),
        Column("window_energy_kj", "float64", "energy, windows only, kJ"),
        Column("break_even_bytes", "float64", "Ts / (1/Rp - 1/Rc); null: never", nullable=True),
        Column("break_even_simulated_bytes", "float64", "by simulation", nullable=True),
        Column("break_even_error_pct", "float64", "simulation against theory, %", nullable=True),
        Column("pays", "string", "deadline: fewer misses; speed: median above break-even; no"),
    ),
)
JITTER = Table(
    "jitter.parquet",
    "the selective plan on shifted releases",
    (
        Column("sd_s", "float64", "standard deviation of the shifts, s"),
        Column("draws", "int32", "draws of all shifts"),
        Column("kept_missed_pct", "float64", "of the planned demands, windows kept, mean"),
        Column("kept_worst_pct", "float64", "the same in the worst draw"),
        Column("replanned_missed_pct", "float64", "with re-planning, mean"),
        Column("replanned_worst_pct", "float64", "the same in the worst draw"),
        Column("replannings", "float64", "mean number of re-plannings"),
        Column("extra_setups", "float64", "mean number of windows beyond the plan's"),
    ),
)
TRAINING = Table(
    "training.parquet",
    "transfers of elastic training in the calendar of both workloads",
    (
        Column("demand_id", "string", "sync/batch/stage/direction/nodes, or copy/number"),
        Column("source", "string", "sending node"),
        Column("destination", "string", "receiving node"),
        Column("bytes", "int64", "payload"),
        Column("release_s", "float64", "complete at the source"),
        Column("deadline_s", "float64", "due at the destination"),
        Column("mode", "string", f"planned: {', '.join(MODES)}"),
        Column("window_id", "int32", f"its window of {BOTH}", nullable=True),
        Column("finish_s", "float64", "arrival in the plan", nullable=True),
    ),
)
LINKS = Table(
    "links.parquet",
    "fibres of the topology and the windows of planned calendars on them, for a map",
    (
        Column("strategy", "string", f"one of {', '.join(AGGREGATE_STRATEGIES)}, {BOTH}"),
        Column("a", "string", "node at one end"),
        Column("b", "string", "node at the other"),
        Column("a_kind", "string", "kind of node a"),
        Column("b_kind", "string", "kind of node b"),
        Column("a_lat", "float64", "degrees", nullable=True),
        Column("a_lon", "float64", "degrees", nullable=True),
        Column("b_lat", "float64", "degrees", nullable=True),
        Column("b_lon", "float64", "degrees", nullable=True),
        Column("km", "float64", "length of fibre"),
        Column("packet_gbps", "float64", "packet rate in each direction, Gbit/s"),
        Column("wavelengths", "int32", "channels in each direction"),
        Column("windows", "int32", "windows lit on it, both directions"),
        Column("circuit_s", "float64", "their time of light, s"),
    ),
)
