"""Stage ``generate_traces``: traffic through the cell, reservations of every controller out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Fault,
    Folder,
    FromParam,
    Plot,
    Result,
    Stage,
    Table,
)
from ranloom.errors import InputError
from ranloom.mac import shared_gpu, tables
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
from ranloom.traffic.macro import macro
from ranloom.traffic.scenario import Scenario
from stages._cell import CALIBRATED_INPUTS, cell_config, check_cell, load_calibrated
from stages._traces_params import OfflineParams, Params
from stages._traces_tables import (
    CELLS,
    DISTRIBUTIONS,
    OFFLINE,
    PERFORMANCE,
    RESERVATIONS,
    SCENARIOS,
    SHARED_GPU,
    TIMELINE,
    UE_KPIS,
    UE_RATES,
)

_STREAM = 30  # child of the seed that belongs to this stage
MACRO = "macro"
TIMELINES = ("scenario_2", "scenario_2_scaled")  # scenarios shown slot by slot, as in Fig. 10
REPORTED = ("noctrl", "weaver")  # controllers whose runs of these are also written second by second


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
        "reservations": RESERVATIONS,
        "scenarios": SCENARIOS,
        "ue_kpis": UE_KPIS,
        "ue_rates": UE_RATES,
        "cells": CELLS,
        "performance": PERFORMANCE,
        "offline": OFFLINE,
        "shared_gpu": SHARED_GPU,
        "distributions": DISTRIBUTIONS,
        "reports": Folder("reports", "runs second by second as JSON Lines in srsRAN's shape"),
        "timeline": TIMELINE,
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
