"""Stage ``generate_traces``: traffic through the cell, reservations of every controller out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    Folder,
    FromParam,
    Plot,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.errors import InputError
from ranloom.mac import shared_gpu, tables
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.controllers.weaver_plus import WeaverPlusParams
from ranloom.mac.experiment import REFERENCE, run_controllers
from ranloom.mac.kpis import cell_kpis
from ranloom.mac.lanes import run_lanes
from ranloom.mac.model import CellModel
from ranloom.mac.offline import Fewest, fewest_transitions, problem_of
from ranloom.mac.reports import json_lines
from ranloom.mac.simulate import CellRun
from ranloom.mac.sites import peak_overlap, peak_spare
from ranloom.traffic import scenario as scenarios
from ranloom.traffic.diurnal import HOURS, read_loads
from ranloom.traffic.macro import MacroCell, macro
from ranloom.traffic.scenario import Scenario, Source
from stages._cell import CALIBRATED_INPUTS, Base, cell_config, check_cell, load_calibrated
from stages._controllers import WeaverPlusTable

_STREAM = 30  # child of the seed that belongs to this stage
MACRO = "macro"
TIMELINES = ("scenario_2", "scenario_2_scaled")  # scenarios shown slot by slot, as in Fig. 10
REPORTED = ("noctrl", "weaver")  # controllers whose runs of these are also written second by second


class TableTenParams(StageParams):
    """Scenario 1 or 2 of Table 10."""

    duration_s: float = Field(ge=1, le=1e6, description="window, s")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    uploaders: int = Field(ge=0, le=4, description="UEs that also send a large file")
    sinr_offset_db: float = Field(ge=-60, le=60, description="added to every SINR sample, dB")


class StressParams(StageParams):
    """D-ITG stress of D.1.3."""

    duration_s: float = Field(ge=1, le=1e6, description="window, s")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    n_ue: int = Field(ge=1, le=4, description="UEs")
    stagger_s: float = Field(ge=0, le=1e5, description="how much later each next burst starts, s")
    sinr_offset_db: float = Field(ge=-60, le=60, description="added to every SINR sample, dB")


class WidebandParams(StageParams):
    """Large uploads on a wide carrier."""

    duration_s: float = Field(ge=1, le=1e6, description="window, s")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    n_ue: int = Field(ge=1, le=64, description="UEs")
    n_prb: int = Field(ge=5, le=275, description="carrier width, PRBs")
    sinr_offset_db: float = Field(ge=-60, le=60, description="added to every SINR sample, dB")


class MacroParams(StageParams):
    """Sites over a day; meaning of the cell's values in ``ranloom.traffic.scenario.MacroCell``."""

    seconds_per_hour: int = Field(ge=1, le=3600, description="simulated seconds of each hour")
    n_ue: int = Field(ge=1, le=64, description="UEs of a cell")
    busy_hour_mbps: float = Field(gt=0, le=1e4, description="offered at load 1, Mbit/s")
    file_bytes: int = Field(
        ge=1, le=1_000_000_000_000, description="size of an uploaded file, bytes"
    )
    background_reports_per_s: float = Field(gt=0, le=1e4, description="reports of every UE")
    sinr_mean_db: float = Field(ge=-20, le=60, description="mean SINR over UEs, dB")
    sinr_spread_db: float = Field(ge=0, le=40, description="sd over UEs, dB")
    sinr_std_db: float = Field(ge=0, le=40, description="sd over time, dB")
    sinr_coherence_s: float = Field(gt=0, le=1e4, description="coherence time, s")
    sinr_period_ms: int = Field(ge=1, le=10_000, description="grid of the channel, ms")

    def cell(self) -> MacroCell:
        """What every cell has in common."""
        return MacroCell(**{k: v for k, v in vars(self).items() if k != "seconds_per_hour"})


class OfflineParams(StageParams):
    """The yardstick; meaning in ``ranloom.mac.offline``."""

    delays_ms: list[PositiveFloat] = Field(
        min_length=1, description="later than noctrl; metrics: the first"
    )
    mean_sm_pct: float = Field(ge=0, le=100, description="higher mean reservation than noctrl's")
    steps: int = Field(ge=1, le=60, description="prices of a transition that are tried")
    max_labels: int = Field(ge=2, le=100_000, description="labels of a tier; more: tighter bounds")


class Params(StageParams):
    """Parameters of ``generate_traces``."""

    base: Base
    source: Literal["generator", "tractor", "csv"] = Field(description="where traffic comes from")
    source_path: str = Field(description="facts (YAML), TRACTOR folder, or CSV file or folder")
    reading: Literal["cleaned", "as_published"] = Field(description="reading of the KPI logs")
    csv_sinr_db: float = Field(ge=-20, le=60, description="SINR of a CSV source without channel")
    diurnal_path: str = Field(description="load by hour and cell, CSV")
    controllers: list[str] = Field(min_length=1, description="controllers of single cells")
    macro_controllers: list[str] = Field(min_length=1, description="controllers of the sites")
    demand: Literal["slot_total", "per_block"] = Field(description="demand of a slot")
    hold_empty: bool = Field(description="noctrl keeps its reservation in empty slots")
    constant_capped: bool = Field(description="const_<n> limits the PRBs to what n SMs decode")
    weaver_plus: WeaverPlusTable
    scenario_1: TableTenParams
    scenario_2: TableTenParams
    scenario_1_scaled: TableTenParams
    scenario_2_scaled: TableTenParams
    stress: StressParams
    wideband: WidebandParams
    macro: MacroParams
    offline: OfflineParams
    timeline_ul_slots: int = Field(ge=1, le=100_000, description="length of the timeline, UL slots")

    def traffic(self, path: Path) -> Source:
        """Source of the single-cell scenarios."""
        return Source(self.source, path, self.reading, self.csv_sinr_db)

    def specs(self, names: list[str], weaver: WeaverParams) -> list[ControllerSpec]:
        """Controllers by name."""
        return [
            ControllerSpec(
                name,
                weaver=weaver,
                weaver_plus=WeaverPlusParams(**vars(self.weaver_plus)),
                demand=self.demand,
                hold_empty=self.hold_empty,
                constant_capped=self.constant_capped,
            )
            for name in names
        ]


def build_scenarios(
    params: Params, path: Path, longest_s: float = float("inf")
) -> Iterator[Scenario]:
    """Traffic and channel of the single-cell scenarios, cut to ``longest_s``."""
    source = params.traffic(path)
    seed = params.base.seed + _STREAM

    def values(name: str) -> dict[str, Any]:
        given: dict[str, Any] = vars(getattr(params, name))
        return given | {"duration_s": min(given["duration_s"], longest_s)}

    for name in ("scenario_1", "scenario_2"):
        build = scenarios.scenario_1 if name == "scenario_1" else scenarios.scenario_2
        yield build(source, seed=seed, **values(name))
        scaled = build(source, seed=seed, **values(f"{name}_scaled"))
        yield replace(scaled, name=f"{name}_scaled")
    yield scenarios.stress(source, seed=seed, **values("stress"))
    wide = {k: v for k, v in values("wideband").items() if k != "n_prb"}
    yield scenarios.uploads(source, seed=seed, name="wideband", **wide)


def build_sites(params: Params, diurnal: Path) -> tuple[Scenario, ...]:
    """Traffic and channel of the sites over a day."""
    return macro(
        read_loads(diurnal),
        params.macro.cell(),
        seed=params.base.seed + _STREAM,
        seconds_per_hour=params.macro.seconds_per_hour,
    )


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Simulate every scenario under its controllers."""
    carriers = (params.base.n_prb, params.wideband.n_prb)
    (model, wide), weaver = load_calibrated(params.base, inputs, carriers)
    seed = params.base.seed
    collected: dict[str, list[tables.Columns]] = {
        name: [] for name, output in STAGE.outputs.items() if isinstance(output, Table)
    }
    metrics: dict[str, Any] = {}
    notes: list[str] = []
    specs = params.specs(params.controllers, weaver)
    k_us_sm = model.plant_config.k_us_sm
    budget_us = float(inputs.json("latency_model")["budget_us"])
    for scenario in build_scenarios(params, inputs.path("source")):
        cell = wide if scenario.name == "wideband" else model
        length = cell.config.ul_slots_in(scenario.duration_us)
        runs = run_controllers(cell, scenario, specs, seed, trace=(0, length))
        _collect(collected, cell, scenario, runs, 1)
        metrics[scenario.name] = _scenario_metrics({n: [r] for n, r in runs.items()}, k_us_sm)
        metrics[scenario.name] |= {"split_records": scenario.counts.get("split_records", 0)}
        notes += [f"{scenario.name}: {note}" for note in scenario.notes]
        if REFERENCE in runs:
            found = _yardstick(params.offline, cell, runs[REFERENCE])
            collected["offline"].append(tables.offline_columns(scenario.name, found, length))
            first_found = next(iter(found.values()))
            metrics[scenario.name]["offline"] = {
                "transitions_lower": first_found.transitions_lower,
                "transitions_upper": first_found.plan.transitions,
                "mean_sm": first_found.plan.sm_slots / length,
            }
        if scenario.name in TIMELINES:
            for name in REPORTED:
                if name in runs:
                    collected["distributions"].append(
                        tables.distribution_columns(
                            scenario.name, runs[name], cell.plant_config, budget_us
                        )
                    )
                    path = outputs.path("reports") / f"{scenario.name}.{name}.jsonl"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text("\n".join(json_lines(runs[name])) + "\n", encoding="utf-8")
            chosen = runs.get(REFERENCE, next(iter(runs.values())))
            first = tables.busiest_window(chosen, params.timeline_ul_slots)
            collected["timeline"] += [
                tables.timeline_columns(
                    scenario.name, scenario.cell, r, first, params.timeline_ul_slots
                )
                for r in runs.values()
            ]
    sites: dict[str, list[CellRun]] = {}
    specs = params.specs(params.macro_controllers, weaver)
    for scenario in build_sites(params, inputs.path("diurnal")):
        length = model.config.ul_slots_in(scenario.duration_us)
        runs = run_controllers(model, scenario, specs, seed + scenario.cell, trace=(0, length))
        _collect(collected, model, scenario, runs, HOURS)
        for name, site in runs.items():
            sites.setdefault(name, []).append(site)
    metrics[MACRO] = _scenario_metrics(sites, k_us_sm)
    collected["shared_gpu"] = [
        tables.shared_gpu_columns(name, sharing, one)
        for name, runs in sites.items()
        for n in range(1, len(runs) + 1)
        for sharing, one in (
            ("summed", shared_gpu.summed(runs[:n], model.tables.sm_max)),
            ("pooled", shared_gpu.pooled(runs[:n], model, budget_us)),
        )
    ]
    for name, parts in collected.items():
        outputs.table(name, tables.stack(parts))
    shown = tables.stack(p for p in collected["cells"] if p["scenario"][0] == MACRO)
    metrics[MACRO] |= peak_spare(shown, params.macro_controllers[-1])
    metrics[MACRO]["peak_overlap"] = peak_overlap(shown, params.macro_controllers[-1])
    shared = tables.stack(collected["shared_gpu"])
    for sharing in shared_gpu.SHARINGS:
        own = (shared["controller"] == params.macro_controllers[-1]) & (
            shared["sharing"] == sharing
        )
        metrics[MACRO][f"one_gpu_{sharing}"] = {
            name: shared[name][own][-1].item()
            for name in ("cells", "mean_sm", "p999_sm", "over_device_pct")
        }
    for note in notes:
        print(f"note: {note}", flush=True)
    return Result(metrics=metrics)


def _yardstick(params: OfflineParams, model: CellModel, noctrl: CellRun) -> dict[float, Fewest]:
    """Fewest transitions by the delay that is allowed."""
    mean_sm = noctrl.mean_sm * (1.0 + 0.01 * params.mean_sm_pct)
    tasks = [
        partial(
            fewest_transitions, problem_of(noctrl, model, delay), mean_sm,
            steps=params.steps, max_labels=params.max_labels,
        )
        for delay in params.delays_ms
    ]  # fmt: skip
    return dict(zip(params.delays_ms, run_lanes(tasks), strict=True))


def _collect(
    collected: dict[str, list[tables.Columns]],
    model: CellModel,
    scenario: Scenario,
    runs: Mapping[str, CellRun],
    hours: int,
) -> None:
    """Append the rows of one cell."""
    name, cell = scenario.name, scenario.cell
    first = next(iter(runs.values()))
    collected["scenarios"].append(tables.scenario_columns(scenario, first))
    foreground = runs.get(REFERENCE, first)
    collected["ue_rates"].append(tables.ue_rate_columns(model, scenario, foreground))
    for run_ in runs.values():
        collected["reservations"].append(tables.reservation_columns(name, cell, run_))
        collected["ue_kpis"].append(tables.ue_kpi_columns(name, cell, run_))
        collected["performance"].append(tables.performance_columns(name, cell, run_))
        k_us_sm = model.plant_config.k_us_sm
        collected["cells"].append(tables.cell_columns(name, cell, run_, k_us_sm, hours))


def _scenario_metrics(runs: Mapping[str, list[CellRun]], k_us_sm: float) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for name, cells in runs.items():
        metrics[name] = asdict(cell_kpis(cells, k_us_sm))
    metrics["byte_balance_error"] = max(m["byte_balance_error"] for m in metrics.values())
    return metrics


def check(params: Params, paths: Mapping[str, Path]) -> Iterator[Fault]:
    """Faults of the cell, of the controllers and of the traffic files."""
    try:
        lists = ("controllers", "macro_controllers")
        check_cell(
            params.base, paths, {f"generate_traces.{key}": getattr(params, key) for key in lists}
        )
        cell_config(params.base, params.wideband.n_prb)
        WeaverPlusParams(**vars(params.weaver_plus))
        for _ in build_scenarios(params, paths["source"], longest_s=1.0):
            pass
        read_loads(paths["diurnal"])
        params.macro.cell()
    except InputError as error:
        yield Fault(error.where, error.value, error.allowed)


_SCENARIO = Column("scenario", "string", "name of the scenario")
_CONTROLLER = Column("controller", "string", "name of the controller")
_CELL = Column("cell", "int32", "cell of the scenario, from 0")
_UE = Column("ue", "int32", "UE of the cell, from 0")

STAGE = Stage(
    name="generate_traces",
    title="Reservations and deliveries of the uplink cell",
    params=Params,
    inputs={
        **CALIBRATED_INPUTS,
        "source": FromParam("generate_traces.source_path", folder=True),
        "diurnal": FromParam("generate_traces.diurnal_path"),
    },
    outputs={
        "reservations": Table(
            "reservations.parquet",
            "Reservation over time: one row per change, the first at slot 0",
            (
                _SCENARIO,
                _CONTROLLER,
                _CELL,
                Column("slot", "int64", "effective slot, from the start of the scenario"),
                Column("sm", "int16", "SMs reserved from that slot on"),
                Column(
                    "reason",
                    "string",
                    "what changed it: start, demand, ramp_up, fast_exit, ramp_down, safeguard, "
                    "retransmission, plan, second_peak, deadline, credit",
                ),
                Column("passes", "int16", "PRB allocation passes of that slot"),
                Column("lut_mcs", "float64", "average MCS of the table query; 0: none was made"),
                Column("lut_prb", "int16", "PRBs of the table query; 0: none was made"),
            ),
        ),
        "scenarios": Table(
            "scenarios.parquet",
            "Length and size of each scenario, needed to close its last interval",
            (
                _SCENARIO,
                _CELL,
                Column("slots", "int64", "slots simulated"),
                Column("ul_slots", "int64", "uplink slots among them"),
                Column("n_ue", "int32", "UEs"),
                Column("sm_max", "int16", "SMs of the device"),
                Column("slot_us", "int32", "length of a slot, us"),
            ),
        ),
        "ue_kpis": Table(
            "ue_kpis.parquet",
            "Where every byte of a UE is at the end, and the figures of its packets",
            (
                _SCENARIO,
                _CONTROLLER,
                _CELL,
                _UE,
                Column("offered_bytes", "int64", "bytes that arrived"),
                Column("delivered_bytes", "int64", "bytes of delivered packets"),
                Column("queued_bytes", "int64", "bytes in the UE's buffer"),
                Column("in_flight_bytes", "int64", "bytes in HARQ or in reassembly"),
                Column("dropped_bytes", "int64", "bytes refused at the buffer limit"),
                Column("lost_bytes", "int64", "bytes of packets lost on the air"),
                Column("throughput_mbps", "float64", "delivered rate"),
                Column("delay_mean_ms", "float64", "mean packet delay, 0 without any"),
                Column("delay_p95_ms", "float64", "95th percentile of it"),
                Column("jitter_ms", "float64", "mean difference of successive delays"),
                Column("loss_pct", "float64", "packets dropped or lost"),
            ),
        ),
        "ue_rates": Table(
            "ue_rates.parquet",
            "Uplink rate that the foreground (noctrl) leaves for a background upload",
            (
                _SCENARIO,
                _CELL,
                _UE,
                Column("second", "int32", "second of the scenario"),
                Column("capacity_mbps", "float64", "rate of this UE's upload if it were alone"),
                Column("served_mbps", "float64", "foreground rate delivered for this UE"),
            ),
        ),
        "cells": Table(
            "cells.parquet",
            "Each cell by hour; scenarios without hours have one row",
            (
                _SCENARIO,
                _CONTROLLER,
                _CELL,
                Column("hour", "int16", "hour of the day; 0 where there are none"),
                Column("mean_sm", "float64", "mean reservation over UL slots"),
                Column("spare_pct", "float64", "SMs not reserved, per cent"),
                Column("transitions", "int64", "changes of the reservation"),
                Column("prb_used_pct", "float64", "PRBs used of those of all UL slots"),
                Column("smu_pct", "float64", "SM time busy with decoding"),
                Column("offered_mbps", "float64", "offered rate"),
                Column("decode_starts", "int64", "decodes started"),
            ),
        ),
        "performance": Table(
            "performance.parquet",
            "Measurements of each run under their names in 3GPP TS 28.552",
            (
                _SCENARIO,
                _CONTROLLER,
                _CELL,
                Column("measurement", "string", "name in 28.552, or with the prefix X-RANLOOM"),
                Column("ue", "int32", "UE of the cell; -1: the whole cell"),
                Column("value", "float64", "value over the whole run"),
                Column("unit", "string", "unit in 28.552"),
            ),
        ),
        "offline": Table(
            "offline.parquet",
            "Reservations that no controller can beat: corners of mean reservation and transitions",
            (
                _SCENARIO,
                Column("delay_ms", "float64", "by how much later than noctrl work may be decoded"),
                Column("price_sm_slots", "float64", "of a transition, SM x UL slots"),
                Column("mean_sm", "float64", "mean reservation over UL slots"),
                Column("transitions", "int64", "changes of the reservation"),
                Column("cost_lower", "float64", "no reservation has less SM x UL slots + price"),
                Column("within", "bool", "the one with fewest transitions at the allowed mean"),
            ),
        ),
        "shared_gpu": Table(
            "shared_gpu.parquet",
            "Sites 0 to n of the macro scenario on one GPU",
            (
                _CONTROLLER,
                Column("sharing", "string", "summed: partitions side by side; pooled: one for all"),
                Column("cells", "int16", "cells on the GPU"),
                Column("mean_sm", "float64", "mean over UL slots"),
                Column("p999_sm", "float64", "99.9th percentile"),
                Column("peak_sm", "int32", "highest"),
                Column("transitions", "int64", "changes of the total"),
                Column("over_device_pct", "float64", "UL slots that ask for more than the device"),
            ),
        ),
        "distributions": Table(
            "distributions.parquet",
            "Distributions of the scenarios that are shown slot by slot, noctrl and weaver",
            (
                _SCENARIO,
                _CONTROLLER,
                Column("kind", "string", "delay, margin, prb_mcs or harq_round"),
                Column("ue", "int32", "UE of a delay; -1: the whole cell"),
                Column("x", "float64", "delay in ms; margin in us; PRBs; round, 0: given up"),
                Column("y", "float64", "MCS of prb_mcs, else 0"),
                Column("share", "float64", "delay: of packets that are later; else of all"),
            ),
        ),
        "reports": Folder("reports", "runs second by second as JSON Lines in srsRAN's shape"),
        "timeline": Table(
            "timeline.parquet",
            "Scenario 2 slot by slot, where noctrl changes most often (as Fig. 10)",
            (
                _SCENARIO,
                _CONTROLLER,
                _CELL,
                Column("ul_slot", "int64", "uplink slot number"),
                Column("slot", "int64", "absolute slot"),
                Column("demand_sm", "int16", "SMs by one table query of the slot's PRBs"),
                Column("demand_per_block_sm", "int16", "SMs summed over the slot's blocks"),
                Column("reserved_sm", "int16", "SMs reserved"),
                Column("n_prb", "int16", "PRBs granted, retransmissions included"),
                Column("mcs_mean", "float64", "PRB-weighted average MCS, 0 without PRBs"),
                Column("backlog_bytes", "int64", "reported and not scheduled before the slot"),
            ),
        ),
    },
    run=run,
    headline=(
        "scenario_1_scaled.noctrl.transitions",
        "scenario_1_scaled.weaver.transitions",
        "scenario_1_scaled.weaver.mean_sm",
        "macro.busiest_site_spare_reservation_pct",
    ),
    plots=(
        Plot(
            "cells",
            x="hour",
            y="spare_pct",
            title="Spare SMs of site 6 over a day, weaver",
            where={"scenario": MACRO, "controller": "weaver", "cell": 5},
        ),
        Plot(
            "timeline",
            x="ul_slot",
            y="reserved_sm",
            title="Reservation of noctrl, scenario 2 scaled",
            where={"scenario": "scenario_2_scaled", "controller": REFERENCE},
        ),
        Plot(
            "timeline",
            x="ul_slot",
            y="reserved_sm",
            title="Reservation of weaver, scenario 2 scaled",
            where={"scenario": "scenario_2_scaled", "controller": "weaver"},
        ),
    ),
    check=check,
)
