"""Stage ``calibrate_scheduler``: lookup table and controller parameters, tried in the cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    File,
    FromParam,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.errors import InputError
from ranloom.mac.bar import Limits
from ranloom.mac.calibrate import (
    OBJECTIVES,
    Bench,
    Search,
    Trial,
    choose,
    objectives,
    pareto,
    search,
    settings,
)
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.lut_calibration import (
    LoadTest,
    added_misses_pct,
    calibrate_budgets,
    level_budgets,
    with_budgets,
)
from ranloom.mac.model import CellModel
from ranloom.traffic import scenario as scenarios
from ranloom.traffic.scenario import Scenario, Source
from stages._cell import CELL_INPUTS, Base, check_cell, load_model
from stages._controllers import LimitParams

_STREAM = 20  # child of the seed that belongs to this stage


class LutTestParams(StageParams):
    """End-to-end test of the lookup table (App. B.1)."""

    n_ue: int = Field(ge=1, le=64, description="UEs with full buffers")
    duration_s: float = Field(ge=0.1, le=1e4, description="length of one try, s")
    extra_overdue_pct: float = Field(ge=0, le=100, description="overdue feedback beyond all SMs'")


class LoadParams(StageParams):
    """One calibration load."""

    scenario: Literal["scenario_1", "scenario_2", "stress"] = Field(description="whose traffic")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    uploaders: int = Field(ge=0, le=4, description="UEs that also send a large file")


class WeaverTable(StageParams):
    """Algorithm 1; meaning of each in ``ranloom.mac.controllers.weaver.WeaverParams``."""

    step_sm: int = Field(ge=1, le=1024, description="STEP, SMs")
    backlog_threshold_bytes: int = Field(
        ge=0, le=1_000_000_000_000, description="BACKLOG_THR, bytes"
    )
    patience: int = Field(ge=1, le=1_000_000, description="DECR_THR, in patience_unit")
    patience_unit: Literal["slots", "ul_slots"] = Field(description="unit of the patience")
    patience_count: Literal["literal", "per_slot"] = Field(description="line 30: a pass or a slot")
    prb_tolerance: int = Field(ge=0, le=275, description="PRB_TOL, PRBs")
    max_iterations: int = Field(ge=1, le=100, description="MAX_ITER")
    high_tier_cap_sm: int = Field(ge=1, le=1024, description="HIGH_TIER_CAP, SMs")
    succeed_when_served: bool = Field(description="line 41 succeeds when no backlog is left")
    never_lower_on_ramp_up: bool = Field(description="line 15 takes the maximum")
    sum_backlog: Literal["total", "residual"] = Field(description="backlog of lines 9, 14, 19, 36")
    delay_threshold_ms: list[NonNegativeFloat] = Field(
        min_length=1, description="0: bytes decide, ms"
    )


class SearchParams(StageParams):
    """Multi-objective search; meaning in ``ranloom.mac.calibrate.Search``."""

    trials: int = Field(ge=0, le=10_000, description="settings that the search tries; 0: none")
    thresholds_bytes: tuple[PositiveInt, PositiveInt] = Field(
        description="lowest and highest, bytes"
    )
    patiences: tuple[PositiveInt, PositiveInt] = Field(
        description="lowest and highest, in patience_unit"
    )
    steps_sm: list[PositiveInt] = Field(min_length=1, description="steps, SMs")

    def space(self) -> Search:
        """What the search may choose from."""
        return Search(
            self.trials, self.thresholds_bytes, self.patiences, tuple(sorted(set(self.steps_sm)))
        )


class Params(StageParams):
    """Parameters of ``calibrate_scheduler``."""

    base: Base
    source_path: str = Field(description="facts of the traffic generator, a YAML file")
    reading: Literal["cleaned", "as_published"] = Field(description="reading of the KPI logs")
    duration_s: float = Field(ge=1, le=1e5, description="length of a calibration load, s")
    loads: list[LoadParams] = Field(min_length=1, description="calibration loads")
    mcs_rounding: Literal["ceil", "nearest", "floor"] = Field(description="average MCS to index")
    lut_test: LutTestParams
    weaver: WeaverTable
    thresholds_bytes: list[PositiveInt] = Field(min_length=1, description="thresholds tried, bytes")
    patiences: list[PositiveInt] = Field(
        min_length=1, description="patiences tried, in patience_unit"
    )
    search: SearchParams
    limits: LimitParams

    def published(self) -> WeaverParams:
        """Algorithm 1 as published."""
        values = vars(self.weaver) | {"delay_threshold_ms": tuple(self.weaver.delay_threshold_ms)}
        return WeaverParams(**values)


def _loads(
    params: Params, facts: Path, longest_s: float = float("inf")
) -> list[tuple[str, Scenario]]:
    """Name and traffic of each load, cut to ``longest_s``."""
    source = Source("generator", facts, params.reading)
    seed = params.base.seed + _STREAM  # traffic of its own, not that of the evaluation
    loads = []
    for load in params.loads:
        common: dict[str, Any] = {
            "seed": seed,
            "duration_s": min(params.duration_s, longest_s),
            "load_factor": load.load_factor,
        }
        name = f"{load.scenario} x{load.load_factor:g}"
        if load.scenario == "stress":
            built = scenarios.stress(source, **common)
        else:
            build = scenarios.scenario_1 if load.scenario == "scenario_1" else scenarios.scenario_2
            built = build(source, uploaders=load.uploaders, **common)
            name += f", {load.uploaders} uploads" if load.uploaders else ""
        loads.append((name, built))
    return loads


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Calibrate the lookup table, then try the settings on it."""
    base = params.base
    widest = int(inputs.columns("lut")["prb"].max())
    wide = load_model(base, inputs, params.mcs_rounding, widest)
    test = LoadTest(**vars(params.lut_test))
    budgets = calibrate_budgets(wide, test, base.seed)
    profiled = level_budgets(wide.tables)
    model = load_model(base, inputs, params.mcs_rounding)
    model = replace(model, tables=with_budgets(model.tables, budgets))
    published = params.published()
    loads = _loads(params, inputs.path("source"))
    bench = Bench(model, loads, Limits(**vars(params.limits)), base.seed)
    trials = [
        trial
        for setting in settings(published, params.thresholds_bytes, params.patiences)
        for trial in bench.try_setting(setting)
    ]
    swept = len(trials)
    trials += search(bench, published, params.search.space(), base.seed)
    choice = choose(trials, published)
    rows = _setting_columns(trials, swept, choice.params, len(loads))
    outputs.table("settings", rows)
    outputs.table("budgets", _budget_columns(wide, profiled, budgets))
    outputs.table("trials", _trial_columns(trials, choice.params))
    outputs.json(
        "scheduler",
        {
            "controller": "weaver",
            "params": asdict(choice.params),
            "mcs_rounding": params.mcs_rounding,
            "why": choice.why,
        },
    )
    extreme = added_misses_pct(model, choice.params, test, base.seed)
    passed = [t for t in trials if t.params == choice.params and t.verdict.passes]
    return Result(
        metrics={
            "settings": len({t.params for t in trials}),
            "loads": len(params.loads),
            "on_front": sum(rows["on_front"]),
            "lut_budgets_lowered": int((budgets < profiled).sum()),
            "extreme_load": {
                "weaver_added_overdue_pct": extreme[0],
                "weaver_added_long_decodes_pct": extreme[1],
            },
            "chosen": {
                "backlog_threshold_bytes": choice.params.backlog_threshold_bytes,
                "patience": choice.params.patience,
                "step_sm": choice.params.step_sm,
                "limits_missed": choice.missed,
                "transitions": choice.transitions,
                "loads_passed": len(passed),
            },
        }
    )


def _budget_columns(
    model: CellModel, profiled: np.ndarray, budgets: np.ndarray
) -> dict[str, np.ndarray]:
    n_mcs, n_levels = budgets.shape
    return {
        "mcs": np.repeat(np.arange(n_mcs), n_levels),
        "sm": np.tile(model.tables.levels, n_mcs),
        "profiled_prb": profiled.ravel(),
        "max_prb": budgets.ravel(),
    }


def _setting_columns(
    trials: list[Trial], swept: int, chosen: WeaverParams, n_loads: int
) -> dict[str, list[Any]]:
    """One row a setting, in the order in which they were tried; repeated ones once."""
    columns: dict[str, list[Any]] = {c.name: [] for c in SETTINGS.columns}
    groups: dict[WeaverParams, tuple[str, list[Trial]]] = {}
    for at in range(0, len(trials), n_loads):
        own = trials[at : at + n_loads]
        groups.setdefault(own[0].params, ("sweep" if at < swept else "search", own))
    points = [objectives(own) for _, own in groups.values()]
    for (params, (how, own)), point, front in zip(
        groups.items(), points, pareto(points), strict=True
    ):
        row = {
            "how": how,
            "backlog_threshold_bytes": params.backlog_threshold_bytes,
            "patience": params.patience,
            "step_sm": params.step_sm,
            **dict(zip(OBJECTIVES, point, strict=True)),
            "limits_missed": sum(len(t.verdict.missed) for t in own),
            "on_front": front,
            "chosen": params == chosen,
        }
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _trial_columns(trials: list[Trial], chosen: WeaverParams) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {c.name: [] for c in TRIALS.columns}
    for trial in trials:
        row = {
            "load": trial.load,
            "backlog_threshold_bytes": trial.params.backlog_threshold_bytes,
            "patience": trial.params.patience,
            "step_sm": trial.params.step_sm,
            "noctrl_transitions": trial.noctrl.transitions,
            "noctrl_mean_sm": trial.noctrl.mean_sm,
            "transitions": trial.kpis.transitions,
            "mean_sm": trial.kpis.mean_sm,
            "delay_p95_ms": trial.kpis.delay_p95_ms,
            "throughput_mbps": trial.kpis.throughput_mbps,
            "transitions_ratio": trial.verdict.transitions_ratio,
            "mean_sm_pct": trial.verdict.mean_sm_pct,
            "delay_p95_added_ms": trial.verdict.delay_p95_ms,
            "missed": " ".join(trial.verdict.missed),
            "chosen": trial.params == chosen,
        }
        for name, value in row.items():
            columns[name].append(value)
    return columns


def check(params: Params, paths: Mapping[str, Path]) -> Iterator[Fault]:
    """Faults of the cell, of the setting and of the traffic facts."""
    try:
        check_cell(params.base, paths)
        params.published()
        params.search.space()
        _loads(params, paths["source"], longest_s=1.0)
    except InputError as error:
        yield Fault(error.where, error.value, error.allowed)


TRIALS = Table(
    "trials.parquet",
    "Every setting of weaver on every calibration load",
    (
        Column("load", "string", "calibration load"),
        Column("backlog_threshold_bytes", "int64", "BACKLOG_THR"),
        Column("patience", "int32", "DECR_THR, in the unit of the parameters"),
        Column("step_sm", "int16", "STEP, SMs"),
        Column("noctrl_transitions", "int64", "transitions without control"),
        Column("noctrl_mean_sm", "float64", "mean reservation without control, SMs"),
        Column("transitions", "int64", "changes of the reservation"),
        Column("mean_sm", "float64", "mean reservation, SMs"),
        Column("delay_p95_ms", "float64", "95th percentile of packet delay"),
        Column("throughput_mbps", "float64", "delivered rate"),
        Column("transitions_ratio", "float64", "times fewer transitions than without control"),
        Column("mean_sm_pct", "float64", "mean reservation against no control"),
        Column("delay_p95_added_ms", "float64", "95th percentile against no control"),
        Column("missed", "string", "limits that are not met, separated by blanks"),
        Column("chosen", "bool", "whether this is the chosen setting"),
    ),
)

SETTINGS = Table(
    "settings.parquet",
    "Every setting by its objectives, each at its worst load; the front is what none beats in all",
    (
        Column("how", "string", "sweep, or search"),
        Column("backlog_threshold_bytes", "int64", "BACKLOG_THR"),
        Column("patience", "int32", "DECR_THR, in the unit of the parameters"),
        Column("step_sm", "int16", "STEP, SMs"),
        Column("transitions_share", "float64", "transitions as a share of noctrl's"),
        Column("mean_sm_pct", "float64", "mean reservation against no control, per cent"),
        Column("delay_p95_ms", "float64", "95th percentile against no control"),
        Column("deadlines_pct", "float64", "missed deadlines against no control, points"),
        Column("limits_missed", "int16", "limits missed over all loads, transitions included"),
        Column("on_front", "bool", "whether no other setting beats it"),
        Column("chosen", "bool", "whether this is the chosen setting"),
    ),
)

STAGE = Stage(
    name="calibrate_scheduler",
    title="Lookup table and controller parameters, tried in the cell",
    params=Params,
    inputs={
        **CELL_INPUTS,
        "source": FromParam("calibrate_scheduler.source_path", folder=True),
    },
    outputs={
        "budgets": Table(
            "prb_budgets.parquet",
            "PRBs that each reservation decodes in time, in the cell under full load",
            (
                Column("mcs", "int16", "MCS index"),
                Column("sm", "int16", "SMs, a level of the card"),
                Column("profiled_prb", "int16", "budget of the profiled table"),
                Column("max_prb", "int16", "budget after the end-to-end test, at most that"),
            ),
        ),
        "trials": TRIALS,
        "settings": SETTINGS,
        "scheduler": File("scheduler.json", "chosen parameters of weaver, and why"),
    },
    run=run,
    headline=(
        "chosen.backlog_threshold_bytes",
        "chosen.patience",
        "chosen.limits_missed",
        "lut_budgets_lowered",
    ),
    check=check,
)
