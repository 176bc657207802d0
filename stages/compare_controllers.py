"""Stage ``compare_controllers``: who keeps the promise at which load, and what a change is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    FromParam,
    Plot,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.errors import InputError
from ranloom.mac.bar import Limits
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import UNLIMITED_BYTES, WeaverParams
from ranloom.mac.controllers.weaver_plus import WeaverPlusParams
from ranloom.mac.evaluation import Evaluation, evaluate
from ranloom.mac.model import CellModel
from ranloom.mac.sensitivity import transition_counts
from ranloom.mac.simulate import simulate
from ranloom.traffic import scenario as scenarios
from ranloom.traffic.scenario import Scenario, Source
from stages._cell import CALIBRATED_INPUTS, Base, check_cell, load_calibrated
from stages._controllers import LimitParams, WeaverPlusTable

_STREAM = 40  # child of the seed that belongs to this stage
NEVER = "weaver_never"  # weaver whose threshold is never passed


class LoadParams(StageParams):
    """One load."""

    scenario: Literal["scenario_1", "scenario_2", "stress"] = Field(description="whose traffic")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    uploaders: int = Field(ge=0, le=4, description="UEs that also send a large file")
    bsr_format: Literal["short", "long"] = Field(description="buffer status report, 5 or 8 bits")
    duration_s: float = Field(ge=1, le=1e5, description="length of each draw, s")

    @property
    def name(self) -> str:
        """Unique among loads that differ."""
        uploads = f", {self.uploaders} uploads" if self.uploaders else ""
        report = ", long BSR" if self.bsr_format == "long" else ""
        return f"{self.scenario} x{self.load_factor:g}{uploads}{report}"

    @property
    def is_scaled(self) -> bool:
        """Whether it is a TRACTOR scenario whose load alone was scaled."""
        return self.scenario != "stress" and self.uploaders == 0


class SensitivityParams(StageParams):
    """What is varied when transitions are counted."""

    load: int = Field(ge=0, le=1_000_000, description="which of the loads, from 0")
    quanta_sm: list[PositiveInt] = Field(min_length=1, description="SM quanta")
    every_ul_slots: list[PositiveInt] = Field(
        min_length=1, description="sampling periods, UL slots"
    )
    weaver: dict[str, list[Any]] = Field(description="other values of weaver's parameters")


class Params(StageParams):
    """Parameters of ``compare_controllers``."""

    base: Base
    source_path: str = Field(description="facts of the traffic generator, a YAML file")
    reading: Literal["cleaned", "as_published"] = Field(description="reading of the KPI logs")
    draws: int = Field(ge=1, le=100, description="independent draws of each load")
    controllers: list[str] = Field(min_length=1, description="controllers beside noctrl")
    weaver_plus: WeaverPlusTable
    limits: LimitParams
    mean_sm_from: float = Field(ge=0, le=1e6, description="lowest mean of noctrl that counts, SMs")
    mean_sm_to: float = Field(ge=0, le=1e6, description="highest mean of noctrl that counts, SMs")
    loads: list[LoadParams] = Field(min_length=1, description="loads")
    sensitivity: SensitivityParams


def build_load(
    params: Params, load: LoadParams, facts: Path, draw: int, longest_s: float = float("inf")
) -> Scenario:
    """One draw of a load, cut to ``longest_s``."""
    source = Source("generator", facts, params.reading)
    common: dict[str, Any] = {
        "seed": params.base.seed + _STREAM + 1000 * draw,
        "duration_s": min(load.duration_s, longest_s),
        "load_factor": load.load_factor,
    }
    if load.scenario == "stress":
        return scenarios.stress(source, **common)
    build = scenarios.scenario_1 if load.scenario == "scenario_1" else scenarios.scenario_2
    return build(source, uploaders=load.uploaders, **common)


def spec_of(label: str, weaver: WeaverParams, plus: WeaverPlusParams) -> ControllerSpec:
    """Controller behind a label: a registered name, or ``weaver_never``."""
    if label == NEVER:
        return ControllerSpec(
            "weaver",
            weaver=replace(
                weaver, backlog_threshold_bytes=UNLIMITED_BYTES, delay_threshold_ms=(0.0,)
            ),
        )
    return ControllerSpec(label, weaver=weaver, weaver_plus=plus)


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Evaluate every load, then vary the conventions at one of them."""
    (model,), weaver = load_calibrated(params.base, inputs, [params.base.n_prb])
    models = {
        bsr: replace(model, config=replace(model.config, bsr_format=bsr))
        for bsr in ("short", "long")
    }
    plus = WeaverPlusParams(**vars(params.weaver_plus))
    facts = inputs.path("source")
    specs = {"noctrl": ControllerSpec("noctrl")}
    specs |= {label: spec_of(label, weaver, plus) for label in params.controllers}
    limits = Limits(**vars(params.limits))
    verdicts: dict[str, list[Any]] = {c.name: [] for c in VERDICTS.columns}
    tally = _Tally(params, list(specs))
    for load in params.loads:
        draws = [build_load(params, load, facts, k) for k in range(params.draws)]
        found = evaluate(models[load.bsr_format], draws, specs, limits, params.base.seed)
        noctrl = found[0]
        mean_sm = noctrl.together.mean_sm
        in_range = params.mean_sm_from <= mean_sm <= params.mean_sm_to
        for one in found:
            _append(verdicts, load, one, noctrl, in_range)
        tally.add(load, found, in_range)
    outputs.table("verdicts", verdicts)
    budget_us = float(inputs.json("latency_model")["budget_us"])
    counts, variants = _sensitivity(params, models, weaver, budget_us, facts)
    outputs.table("transition_counts", counts)
    outputs.table("weaver_variants", variants)
    return Result(metrics=tally.metrics())


class _Tally:
    """Loads that count, and those of them that each controller passes."""

    def __init__(self, params: Params, labels: list[str]) -> None:
        self.loads = {"scaled": 0, "others": 0}
        self.passed = {kind: dict.fromkeys(labels, 0) for kind in self.loads}
        self.worst_ratio = dict.fromkeys(labels, float("inf"))
        self.yinyangran: list[float] = []
        self.total = len(params.loads)

    def add(self, load: LoadParams, found: list[Evaluation], in_range: bool) -> None:
        if not in_range:
            return
        kind = "scaled" if load.is_scaled else "others"
        self.loads[kind] += 1
        by_label = {one.controller: one for one in found}
        for label, one in by_label.items():
            self.passed[kind][label] += one.verdict.passes
            if kind == "scaled":
                ratio = one.verdict.transitions_ratio
                self.worst_ratio[label] = min(self.worst_ratio[label], ratio)
        if {"yinyangran", "weaver"} <= by_label.keys():
            weaver = by_label["weaver"].together.mean_sm
            self.yinyangran.append(by_label["yinyangran"].together.mean_sm / weaver)

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {
            "loads": self.total,
            "scaled_in_range": self.loads["scaled"],
            "others_in_range": self.loads["others"],
        }
        for label in self.passed["scaled"]:
            metrics[label] = {
                "scaled_passed": self.passed["scaled"][label],
                "others_passed": self.passed["others"][label],
            }
            if self.loads["scaled"]:
                metrics[label]["least_transitions_ratio"] = self.worst_ratio[label]
        if self.yinyangran:
            metrics["least_yinyangran_over_weaver"] = min(self.yinyangran)
        return metrics


def _append(
    columns: dict[str, list[Any]],
    load: LoadParams,
    one: Evaluation,
    noctrl: Evaluation,
    in_range: bool,
) -> None:
    transitions, mean_sm = one.over_draws("transitions"), one.over_draws("mean_sm")
    delay = one.over_draws("delay_p95_ms")
    row = {
        "load": load.name,
        "scenario": load.scenario,
        "load_factor": load.load_factor,
        "uploaders": load.uploaders,
        "bsr_format": load.bsr_format,
        "controller": one.controller,
        "draws": len(one.draws),
        "noctrl_mean_sm": noctrl.together.mean_sm,
        "noctrl_transitions": noctrl.over_draws("transitions").mean,
        "in_range": in_range,
        "transitions": transitions.mean,
        "transitions_pm": transitions.half_width,
        "mean_sm": mean_sm.mean,
        "mean_sm_pm": mean_sm.half_width,
        "delay_p95_ms": delay.mean,
        "delay_p95_ms_pm": delay.half_width,
        "throughput_mbps": one.over_draws("throughput_mbps").mean,
        "passes_1_to_3_pct": one.together.passes_1_to_3_pct,
        "transitions_ratio": one.verdict.transitions_ratio,
        "mean_sm_pct": one.verdict.mean_sm_pct,
        "delay_p95_added_ms": one.verdict.delay_p95_ms,
        "delay_p95_added_ms_mean": one.added_delay_p95_ms.mean,
        "delay_p95_added_ms_pm": one.added_delay_p95_ms.half_width,
        "throughput_pct": one.verdict.throughput_pct,
        "missed": " ".join(one.verdict.missed),
    }
    for name, value in row.items():
        columns[name].append(value)


def _sensitivity(
    params: Params,
    models: Mapping[str, CellModel],
    weaver: WeaverParams,
    budget_us: float,
    facts: Path,
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    load = params.loads[params.sensitivity.load]
    model, draw = models[load.bsr_format], build_load(params, load, facts, 0)
    length = model.config.ul_slots_in(draw.duration_us)
    traced = simulate(
        model, draw.arrivals, draw.channel, ControllerSpec("noctrl"), params.base.seed,
        trace=(0, length),
    )  # fmt: skip
    counts: dict[str, list[Any]] = {c.name: [] for c in COUNTS.columns}
    chosen = params.sensitivity
    for count in transition_counts(
        traced, model, budget_us, chosen.quanta_sm, chosen.every_ul_slots
    ):
        for name, value in asdict(count).items():
            counts[name].append(value)
    variants: dict[str, list[Any]] = {c.name: [] for c in VARIANTS.columns}
    settings = {"calibrated": ("", weaver)} | {
        f"{name}={value}": (name, _variant(weaver, name, value))
        for name, values in chosen.weaver.items()
        for value in values
    }
    limits = Limits(**vars(params.limits))
    specs = {label: ControllerSpec("weaver", weaver=w) for label, (_, w) in settings.items()}
    for one in evaluate(model, [draw], specs, limits, params.base.seed):
        figures = one.together
        row = {
            "setting": one.controller,
            "transitions": figures.transitions,
            "mean_sm": figures.mean_sm,
            "delay_p95_ms": figures.delay_p95_ms,
            "passes_1_to_3_pct": figures.passes_1_to_3_pct,
        }
        for column, entry in row.items():
            variants[column].append(entry)
    return counts, variants


def _variant(weaver: WeaverParams, name: str, value: Any) -> WeaverParams:
    if not hasattr(weaver, name):
        known = ", ".join(vars(weaver))
        raise InputError("compare_controllers.sensitivity.weaver", name, f"allowed: {known}")
    changed: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value}
    return replace(weaver, **changed)


def check(params: Params, paths: Mapping[str, Path]) -> Iterator[Fault]:
    """Faults of the cell, of the controllers, of the loads and of the settings."""
    try:
        registered = [label for label in params.controllers if label != NEVER]
        check_cell(params.base, paths, {"compare_controllers.controllers": registered})
        WeaverPlusParams(**vars(params.weaver_plus))
        for load in params.loads:
            build_load(params, load, paths["source"], 0, longest_s=1.0)
        names = [load.name for load in params.loads]
        if len(set(names)) != len(names):
            raise InputError("compare_controllers.loads", names, "needed: loads that differ")
        if params.sensitivity.load >= len(names):
            allowed = f"allowed: 0 to {len(names) - 1}"
            raise InputError(
                "compare_controllers.sensitivity.load", params.sensitivity.load, allowed
            )
        for name, values in params.sensitivity.weaver.items():
            for value in values:
                _variant(WeaverParams(), name, value)
    except InputError as error:
        yield Fault(error.where, error.value, error.allowed)


VERDICTS = Table(
    "verdicts.parquet",
    "Every controller at every load, over independent draws; `_pm`: half of the 95 % interval",
    (
        Column("load", "string", "load"),
        Column("scenario", "string", "whose traffic"),
        Column("load_factor", "float64", "multiplies every UE's bytes"),
        Column("uploaders", "int16", "UEs that also send a large file"),
        Column("bsr_format", "string", "buffer status report"),
        Column("controller", "string", "controller; weaver_never: its threshold is never passed"),
        Column("draws", "int16", "independent draws of the traffic"),
        Column("noctrl_mean_sm", "float64", "mean reservation without control, SMs"),
        Column("noctrl_transitions", "float64", "transitions a draw without control"),
        Column("in_range", "bool", "whether that mean is one at which the test counts"),
        Column("transitions", "float64", "changes of the reservation, mean over draws"),
        Column("transitions_pm", "float64", "of it"),
        Column("mean_sm", "float64", "mean reservation, SMs"),
        Column("mean_sm_pm", "float64", "of it"),
        Column("delay_p95_ms", "float64", "95th percentile of packet delay, mean over draws"),
        Column("delay_p95_ms_pm", "float64", "of it"),
        Column("throughput_mbps", "float64", "delivered rate, mean over draws"),
        Column("passes_1_to_3_pct", "float64", "scheduled slots with at most three passes"),
        Column("transitions_ratio", "float64", "times fewer transitions than without control"),
        Column("mean_sm_pct", "float64", "mean reservation against no control"),
        Column("delay_p95_added_ms", "float64", "95th percentile of all draws' packets together"),
        Column("delay_p95_added_ms_mean", "float64", "added on the same draw, mean over draws"),
        Column("delay_p95_added_ms_pm", "float64", "of it"),
        Column("throughput_pct", "float64", "throughput against no control"),
        Column("missed", "string", "limits that are not met, separated by blanks"),
    ),
)

COUNTS = Table(
    "transition_counts.parquet",
    "Transitions of one run of noctrl under each convention of counting",
    (
        Column("demand", "string", "slot_total, per_block or work"),
        Column("quantum_sm", "int16", "SMs are reserved in multiples of this"),
        Column("every_ul_slots", "int32", "the reservation may change only so often"),
        Column("hold_empty", "bool", "an empty slot keeps the demand before it"),
        Column("transitions", "int64", "changes of the reservation"),
        Column("mean_sm", "float64", "its mean"),
    ),
)

VARIANTS = Table(
    "weaver_variants.parquet",
    "Algorithm 1 with one parameter changed at a time, beside noctrl",
    (
        Column("setting", "string", "what differs from the calibrated setting"),
        Column("transitions", "int64", "changes of the reservation"),
        Column("mean_sm", "float64", "its mean"),
        Column("delay_p95_ms", "float64", "95th percentile of packet delay"),
        Column("passes_1_to_3_pct", "float64", "scheduled slots with at most three passes"),
    ),
)

STAGE = Stage(
    name="compare_controllers",
    title="Which controller keeps the promise at which load",
    params=Params,
    inputs={
        **CALIBRATED_INPUTS,
        "source": FromParam("compare_controllers.source_path", folder=True),
    },
    outputs={"verdicts": VERDICTS, "transition_counts": COUNTS, "weaver_variants": VARIANTS},
    run=run,
    headline=("scaled_in_range", "weaver.scaled_passed", "weaver_plus.scaled_passed"),
    plots=(
        Plot(
            "verdicts",
            x="noctrl_mean_sm",
            y="transitions_ratio",
            title="Times fewer transitions by load, weaver",
            where={"controller": "weaver"},
        ),
    ),
    check=check,
)
