"""Stage ``train_sites``: training on spare compute, simulated at scale and live on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    File,
    FromParam,
    FromStage,
    Plot,
    Result,
    Stage,
    Table,
)
from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.training.baselines.confidant import Confidant
from ranloom.training.baselines.policy import Reaction
from ranloom.training.capacity_traces import draw_traces, trace_pool, with_drops
from ranloom.training.links import Links, read_links
from ranloom.training.messages import NoteKind
from ranloom.training.model_shapes import HOST_OPTIMIZER, MIXED_PRECISION_ADAM, model_shape
from ranloom.training.placement import PlacementProblem
from ranloom.training.reference import train_reference
from ranloom.training.scaling import (
    ScalePoint,
    StarTopology,
    replicated,
    rescaled_links,
    single_pipeline,
)
from ranloom.training.simulator.comparison import (
    WEAVER,
    Compared,
    adaptation,
    costs_by_size,
    figures,
    run_baseline,
    run_weaver,
)
from ranloom.training.simulator.experiment import Experiment, SystemRun
from ranloom.training.simulator.network import CircuitWindow
from stages._train_live import live_setup, measure_live
from stages._train_params import Params

CIRCUITS = "weaver_circuits"


def check(params: Params, files: Mapping[str, Path]) -> Iterator[Fault]:
    """Faults of parameters that depend on each other, and of the links file."""
    block = "params.yaml: train_sites"
    try:
        sites = read_links(files["links"]).sites
        if params.sim.sites > sites:
            yield Fault(f"{block}.sim.sites", params.sim.sites, f"allowed: up to {sites} (links)")
    except InputError as error:
        yield Fault(error.where, error.value, error.allowed)
    for model in params.sim.models:
        if model not in params.sim.duration_s:
            yield Fault(f"{block}.sim.duration_s", model, "allowed: a duration for every model")
    if not any(params.sim.step_samples % m == 0 for m in params.sim.micro_batch_samples):
        sizes = params.sim.micro_batch_samples
        yield Fault(f"{block}.sim.micro_batch_samples", sizes, "allowed: a divisor of step_samples")
    for name in ("drop_left", "drop_length_s"):
        low, high = getattr(params.dynamic, name)
        if not 0 <= low <= high:
            yield Fault(f"{block}.dynamic.{name}", [low, high], "allowed: least, then largest")
    live = params.live
    places = live.stages * live.replicas
    if len(live.budget_shares) != places:
        shares = live.budget_shares
        yield Fault(f"{block}.live.budget_shares", shares, f"allowed: one a site, {places}")
    if live.cut_site >= places:
        yield Fault(f"{block}.live.cut_site", live.cut_site, f"allowed: 0 to {places - 1}")
    if live.faults.kill_site >= places:
        site = live.faults.kill_site
        yield Fault(f"{block}.live.faults.kill_site", site, f"allowed: 0 to {places - 1}")
    if live.stages > live.layers:
        yield Fault(f"{block}.live.stages", live.stages, f"allowed: up to {live.layers} (layers)")
    if live.width % live.heads:
        yield Fault(f"{block}.live.heads", live.heads, f"allowed: a divisor of {live.width}")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Simulate, scale up, and train for real."""
    card = load_card(inputs.path("card"))
    links = _first_sites(read_links(inputs.path("links")), params.sim.sites)
    spare = inputs.columns("spare")
    runs: list[tuple[str, SystemRun]] = []
    metrics: dict[str, Any] = {"sim": {}, "scale": {}}
    throughput: list[dict[str, Any]] = []
    for model in params.sim.models:
        experiment = _experiment(params, card, links, model, params.sim.duration_s[model])
        for done in _compare(params, experiment, spare):
            row = _throughput_row(params, experiment, model, done)
            throughput.append(row)
            runs.append(("throughput", done))
            kept = ("tokens_per_s", "peak_share_pct", "cv_pct", "drop_pct")
            metrics["sim"].setdefault(model, {})[done.name] = {name: row[name] for name in kept}
    windows = _circuits(params, inputs, links.sites)
    metrics["dynamic"], dynamic_runs = _dynamic(params, card, links, spare, windows, outputs)
    runs.extend(("dynamic", done) for done in dynamic_runs)
    points = _scaling(params, card, read_links(inputs.path("links")), spare)
    metrics["scale"] = _scale_metrics(params, points)
    outputs.table("throughput", _columns(THROUGHPUT, throughput))
    outputs.table("steps", _columns(STEPS, _step_rows(params, runs)))
    outputs.table("timeline", _columns(TIMELINE, _timeline_rows(params, dynamic_runs)))
    outputs.table("scaling", _columns(SCALING, points))
    metrics["reference"] = _reference(params, outputs)
    measured = {"real": measure_live(params, spare, outputs)}
    return Result(metrics, measured)


# --- simulation ----------------------------------------------------------------------------------


def _first_sites(links: Links, sites: int) -> Links:
    some = np.ix_(range(sites), range(sites))
    return Links(
        links.name,
        links.bandwidth_gbps[some],
        links.latency_s[some],
        links.coordinator_latency_s[:sites],
    )


def _experiment(
    params: Params, card: Card, links: Links, model: str, duration_s: float
) -> Experiment:
    sim = params.sim
    return Experiment(
        shape=model_shape(model),
        sizes=HOST_OPTIMIZER if sim.optimizer_on_host else MIXED_PRECISION_ADAM,
        sequence=sim.sequence,
        step_samples=sim.step_samples,
        activation=links,
        sync=links,
        windows=(),
        chunks=sim.reduce_chunks,
        memory_bytes=int(card.memory_gb * 1e9 * sim.memory_share),
        peak_tflops=card.fp16_tensor_tflops,
        duration_s=duration_s,
        plan_seconds=sim.plan_seconds,
        tied=sim.tied_embeddings,
        task_overhead_s=sim.task_overhead_ms / 1000.0,
        budget_period_s=sim.budget_period_s,
    )


def _compared(params: Params, least_replicas: int) -> Compared:
    sim, baselines = params.sim, params.baselines
    return Compared(
        settings=params.control.settings(1, sim.step_samples),
        micro_batch_samples=sim.micro_batch_samples,
        least_replicas=least_replicas,
        least_sites=sim.least_sites,
        unmerged_limits=sim.unmerged_limits,
        reaction=Reaction(
            baselines.slowdown, baselines.detect_s, baselines.plan_s, baselines.quiet_s
        ),
        storage_gbps=baselines.storage_gbps,
        epoch_samples=baselines.epoch_steps * sim.step_samples,
        copy_memory_share=baselines.copy_memory_share,
        population=baselines.population,
        trials=baselines.trials,
        seed=params.base.seed,
    )


def _traces(
    params: Params, spare: Mapping[str, np.ndarray], system: str, sites: int, seconds: int
) -> np.ndarray:
    """Independent draws for a system's sites, from the traces of its way to share the GPU."""
    own = params.sim.weaver if system.startswith(WEAVER) else params.sim.baselines
    pool = trace_pool(spare, params.sim.scenarios, own.controller, own.mechanism)
    return draw_traces(pool, sites, seconds, params.base.seed)


def _compare(
    params: Params, experiment: Experiment, spare: Mapping[str, np.ndarray]
) -> list[SystemRun]:
    seconds = int(np.ceil(experiment.duration_s))
    sites = experiment.activation.sites
    compared = _compared(params, params.sim.least_replicas)
    tflops = {name: _traces(params, spare, name, sites, seconds) for name in params.sim.systems}
    return [
        run_weaver(experiment, compared, tflops[name])
        if name == WEAVER
        else run_baseline(experiment, compared, tflops[name], name)
        for name in params.sim.systems
    ]


def _circuits(params: Params, inputs: Inputs, sites: int) -> tuple[CircuitWindow, ...]:
    """Planned windows as bandwidth between training sites: the first source nodes are the sites.

    A circuit to the hub adds its rate from its site to every other one while it carries light.
    """
    table = inputs.columns("windows")
    mine = np.flatnonzero(table["strategy"] == params.circuits.strategy)
    nodes = sorted({str(table["source"][row]) for row in mine})[:sites]
    number = {node: site for site, node in enumerate(nodes)}
    found = []
    for row in mine:
        site = number.get(str(table["source"][row]))
        if site is not None:
            start_s = float(table["start_s"][row] + table["setup_s"][row])
            end_s = float(table["end_s"][row])
            for other in range(sites):
                if other != site and end_s > start_s:
                    window = (site, other, start_s, end_s, params.circuits.gbps)
                    found.append(CircuitWindow(*window))
    return tuple(found)


def _dynamic(
    params: Params,
    card: Card,
    links: Links,
    spare: Mapping[str, np.ndarray],
    windows: tuple[CircuitWindow, ...],
    outputs: Outputs,
) -> tuple[dict[str, Any], list[SystemRun]]:
    """Section 7.2.2: same traces, GPU sharing and first layout for all, drops in capacity on top.

    WEAVER runs once more with the planned optical windows under its sums.
    """
    dynamic = params.dynamic
    experiment = replace(
        _experiment(params, card, links, dynamic.model, dynamic.duration_s),
        sizes=HOST_OPTIMIZER if dynamic.optimizer_on_host else MIXED_PRECISION_ADAM,
    )
    seconds = int(np.ceil(dynamic.duration_s))
    tflops = with_drops(
        _traces(params, spare, WEAVER, links.sites, seconds),
        dynamic.drops,
        dynamic.drop_left,
        dynamic.drop_length_s,
        params.base.seed,
    )
    compared = _compared(params, dynamic.least_replicas)
    weaver = run_weaver(experiment, compared, tflops, record_tasks=True)
    lit = replace(experiment, windows=windows)
    runs = [weaver, run_weaver(lit, compared, tflops, CIRCUITS)]
    for name in dynamic.systems:
        runs.append(run_baseline(experiment, compared, tflops, name, weaver.plan, True))
    metrics: dict[str, Any] = {}
    for done in runs:
        found = figures(experiment, done, links.sites)
        metrics[done.name] = {
            "tokens_per_s": found.tokens_per_s,
            "peak_share_pct": found.peak_share_pct,
            "cv_pct": found.cv_pct,
        }
        if done.name == WEAVER:
            metrics.update(vars(adaptation(done, tflops, dynamic.shift_threshold)))
            outputs.table("decisions", _columns(DECISIONS, _decision_rows(done)))
    outputs.table(
        "capacity",
        {
            "site": np.repeat(np.arange(links.sites), seconds),
            "second": np.tile(np.arange(seconds), links.sites),
            "tflops": tflops.ravel(),
        },
    )
    return metrics, runs


def _scaling(
    params: Params, card: Card, testbed: Links, spare: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    scaling = params.scaling
    wanted = [(scaling.model, count) for count in scaling.sites]
    wanted += [(model, max(scaling.sites)) for model in scaling.large_models]
    star = StarTopology(**vars(scaling.star))
    rows: list[dict[str, Any]] = []
    for model, count in wanted:
        for setting in ("rescaled", "typical"):
            links = star.links(count) if setting == "typical" else rescaled_links(testbed, count)
            for system in (WEAVER, "confidant_star", "confidant"):
                experiment = _experiment(params, card, links, model, 1.0)
                seconds = params.sim.plan_seconds
                tflops = _traces(params, spare, system, count, seconds).mean(axis=1)
                point = _scale_point(params, experiment, system, np.maximum(tflops, 1e-6))
                rows.append(
                    {
                        "setting": setting,
                        "sites": count,
                        "model": model,
                        "system": system,
                        "tokens_per_s": point.tokens_per_s,
                        "peak_gb": point.peak_bytes / 1e9,
                        "oom": point.oom,
                        "stages": point.stages,
                        "replicas": point.replicas,
                        "micro_batch_samples": point.micro_batch_samples,
                    }
                )
    return rows


def _scale_point(
    params: Params, experiment: Experiment, system: str, tflops: np.ndarray
) -> ScalePoint:
    scaling = params.scaling
    samples = scaling.step_samples
    if system == "confidant_star":
        samples *= scaling.epoch_steps
    problem = PlacementProblem(
        sites=tuple(range(len(tflops))),
        seconds_per_flop=1.0 / (tflops * 1e12),
        memory_bytes=np.full(len(tflops), experiment.memory_bytes, dtype=np.int64),
        activation=experiment.activation,
        sync=experiment.sync,
        step_samples=samples,
        tied=params.sim.tied_embeddings,
        fanout=params.control.reduce_fanout,
        chunks=params.sim.reduce_chunks,
    )
    lengths = [p for p in scaling.stages if p <= min(experiment.shape.layers, len(tflops))]
    costs_of = costs_by_size(experiment, max(params.sim.unmerged_limits) if system == WEAVER else 0)
    if system != "confidant":
        sizes = scaling.micro_batch_samples
        return replicated(problem, costs_of, experiment.sequence, lengths, sizes)
    compared = replace(
        _compared(params, 1),
        micro_batch_samples=scaling.micro_batch_samples,
        epoch_samples=scaling.step_samples * scaling.epoch_steps,
    )
    planner = compared.baseline(system)
    if not isinstance(planner, Confidant):
        raise TypeError(f"{system} is planned by {type(planner).__name__}")
    return single_pipeline(problem, costs_of, experiment.sequence, lengths, planner)


def _scale_metrics(params: Params, points: list[dict[str, Any]]) -> dict[str, Any]:
    metrics: dict[str, Any] = {"large": {}}
    for row in points:
        ktokens = row["tokens_per_s"] / 1000.0
        if row["model"] == params.scaling.model:
            place = metrics.setdefault(row["setting"], {}).setdefault(str(row["sites"]), {})
            place[row["system"]] = {"ktokens_per_s": ktokens}
        else:
            place = metrics["large"].setdefault(row["model"], {}).setdefault(row["system"], {})
            place[f"{row['setting']}_ktokens_per_s"] = ktokens
            place["peak_gb"] = row["peak_gb"]
            place["oom"] = row["oom"]
    return metrics


def _reference(params: Params, outputs: Outputs) -> dict[str, Any]:
    """One-process training of the live model, every step with the micro-batches planned for it."""
    setup = live_setup(params)
    corpus = setup.corpus()
    size = params.live.step_micro_batches
    merged = {step: range(step * size, (step + 1) * size) for step in range(params.live.steps)}
    order = setup.order(corpus)
    done = train_reference(setup.model, setup.optimizer, corpus, order, merged, setup.seed)
    save_file(dict(sorted(done.weights.items())), outputs.path("checkpoint"))
    return {"first_loss": done.losses[0], "final_loss": done.losses[-1]}


# --- tables --------------------------------------------------------------------------------------


def _throughput_row(
    params: Params, experiment: Experiment, model: str, done: SystemRun
) -> dict[str, Any]:
    found = figures(experiment, done, params.sim.sites)
    return {
        "model": model,
        "system": done.name,
        **vars(found),
        "stages": done.plan.layout.stages,
        "replicas": done.plan.layout.replicas,
        "micro_batch_samples": done.plan.micro_batch_samples,
        "peak_gb": done.peak_bytes / 1e9,
    }


def _step_rows(params: Params, runs: list[tuple[str, SystemRun]]) -> list[dict[str, Any]]:
    return [
        {
            "experiment": experiment,
            "system": done.name,
            "model": done.model,
            "step": row.step,
            "start_s": row.start_s,
            "end_s": row.end_s,
            "tokens": row.samples * params.sim.sequence,
            "reroutes": row.reroutes,
            "deferred": row.deferred,
            "mlr": row.mlr,
            "b_step": row.samples,
        }
        for experiment, done in runs
        for row in done.steps
    ]


def _timeline_rows(params: Params, runs: list[SystemRun]) -> list[dict[str, Any]]:
    rows = []
    for done in runs:
        moved = {
            (note.step, note.micro_batch, note.stage, note.site)
            for _, note in done.notes
            if note.kind is NoteKind.REROUTED
        }
        for task in done.tasks:
            if task.step < params.sim.timeline_steps:
                key = (task.step, task.micro_batch, task.stage, task.site)
                rows.append(
                    {
                        "system": done.name,
                        "step": task.step,
                        "site": task.site,
                        "stage": task.stage,
                        "micro_batch": task.micro_batch,
                        "direction": task.direction.name.lower(),
                        "start_s": task.start_s,
                        "end_s": task.end_s,
                        "rerouted": key in moved,
                    }
                )
    return rows


def _decision_rows(done: SystemRun) -> list[dict[str, Any]]:
    return [
        {
            "time_s": time_s,
            "kind": note.kind.value,
            "step": note.step,
            "site": note.site,
            "stage": note.stage,
            "micro_batch": note.micro_batch,
            "value": note.value,
            "reason": note.reason,
        }
        for time_s, note in done.notes
        if note.kind is not NoteKind.COMMITTED
    ]


def _columns(table: Table, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {column.name: [row[column.name] for row in rows] for column in table.columns}


SCALING = Table(
    "scaling.parquet",
    "hundreds of sites, in closed form",
    (
        Column("setting", "string", "rescaled testbed or typical star"),
        Column("sites", "int32", "sites of the deployment"),
        Column("model", "string", "model"),
        Column("system", "string", "training system"),
        Column("tokens_per_s", "float64", "predicted rate, 0 where the model does not fit"),
        Column("peak_gb", "float64", "memory of the fullest site, GB"),
        Column("oom", "bool", "whether that is more than there is"),
        Column("stages", "int32", "pipeline stages of the best layout"),
        Column("replicas", "int32", "replicas of the best layout"),
        Column("micro_batch_samples", "int32", "samples of a micro-batch"),
    ),
)

THROUGHPUT = Table(
    "throughput.parquet",
    "systems on the testbed's sites, simulated",
    (
        Column("model", "string", "model"),
        Column("system", "string", "training system"),
        Column("tokens_per_s", "float64", "tokens of complete micro-batches a second"),
        Column("peak_share_pct", "float64", "achieved operations over the peak of all devices"),
        Column("cv_pct", "float64", "coefficient of variation of the rate, by portions of B*"),
        Column("drop_pct", "float64", "portions below 80 % of the mean rate"),
        Column("stages", "int32", "pipeline stages"),
        Column("replicas", "int32", "replicas"),
        Column("micro_batch_samples", "int32", "samples of a micro-batch"),
        Column("peak_gb", "float64", "memory of the fullest site, GB"),
    ),
)

STEPS = Table(
    "steps.parquet",
    "closed steps of all simulated runs",
    (
        Column("experiment", "string", "throughput or dynamic"),
        Column("system", "string", "training system"),
        Column("model", "string", "model"),
        Column("step", "int32", "step"),
        Column("start_s", "float64", "opening"),
        Column("end_s", "float64", "its sum is reduced"),
        Column("tokens", "int64", "tokens merged"),
        Column("reroutes", "int32", "stage tasks that got another owner"),
        Column("deferred", "int32", "micro-batches that had to wait"),
        Column("mlr", "bool", "a new layout was committed right before"),
        Column("b_step", "int32", "samples merged, B_t"),
    ),
)

TIMELINE = Table(
    "timeline.parquet",
    "executed tasks of the first steps of the dynamic runs",
    (
        Column("system", "string", "training system"),
        Column("step", "int32", "step"),
        Column("site", "int32", "executor"),
        Column("stage", "int32", "pipeline stage"),
        Column("micro_batch", "int32", "number in the global queue"),
        Column("direction", "string", "forward or backward"),
        Column("start_s", "float64", "begin"),
        Column("end_s", "float64", "end"),
        Column("rerouted", "bool", "executed elsewhere than planned at the opening of the step"),
    ),
)

DECISIONS = Table(
    "decisions.parquet",
    "what WEAVER's coordinator decided in the dynamic run",
    (
        Column("time_s", "float64", "virtual time"),
        Column("kind", "string", "kind of note"),
        Column("step", "int32", "step, or -1"),
        Column("site", "int32", "site, or -1"),
        Column("stage", "int32", "stage, or -1"),
        Column("micro_batch", "int32", "micro-batch, or -1"),
        Column("value", "float64", "count, seconds or fraction, as the kind says"),
        Column("reason", "string", "of a reroute, rejection or abort"),
    ),
)

CAPACITY = Table(
    "capacity.parquet",
    "usable compute in the dynamic runs",
    (
        Column("site", "int32", "site"),
        Column("second", "int32", "second"),
        Column("tflops", "float64", "usable compute, 1e12 operations a second"),
    ),
)

STAGE = Stage(
    name="train_sites",
    title="Training across sites on spare compute",
    params=Params,
    inputs={
        "spare": FromStage("replay_spare", "spare"),
        "windows": FromStage("plan_windows", "windows"),
        "card": FromParam("train_sites.card"),
        "links": FromParam("train_sites.links"),
        "text": FromParam("train_sites.live.text_path"),
    },
    outputs={
        "scaling": SCALING,
        "throughput": THROUGHPUT,
        "steps": STEPS,
        "timeline": TIMELINE,
        "decisions": DECISIONS,
        "capacity": CAPACITY,
        "checkpoint": File(
            "checkpoint.safetensors",
            "weights of the live model after one-process training, every step as planned",
        ),
    },
    run=run,
    check=check,
    measured=True,
    headline=(
        "sim.opt-1.3b.weaver.tokens_per_s",
        "sim.opt-6.7b.weaver.tokens_per_s",
        "dynamic.air_handled_pct",
    ),
    plots=(
        Plot("throughput", "system", "tokens_per_s", "Tokens per second", {"model": "opt-1.3b"}),
    ),
)
