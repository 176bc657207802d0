"""Tables of ``train_sites``."""

from __future__ import annotations

from typing import Any

from pipeline.stage import Column, Table
from ranloom.training.messages import NoteKind
from ranloom.training.runtime.notes import note_fields
from ranloom.training.simulator.comparison import figures
from ranloom.training.simulator.experiment import Experiment, SystemRun
from stages._train_params import Params


def throughput_row(experiment: Experiment, assumptions: str, done: SystemRun) -> dict[str, Any]:
    """A system on the testbed."""
    found = figures(experiment, done, experiment.activation.sites)
    return {
        "assumptions": assumptions,
        "model": done.model,
        "system": done.name,
        **vars(found),
        "stages": done.plan.layout.stages,
        "replicas": done.plan.layout.replicas,
        "micro_batch_samples": done.plan.micro_batch_samples,
        "peak_gb": done.peak_bytes / 1e9,
    }


def step_rows(params: Params, runs: list[tuple[str, SystemRun]]) -> list[dict[str, Any]]:
    """Closed steps of (experiment, run)."""
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


def timeline_rows(params: Params, runs: list[SystemRun]) -> list[dict[str, Any]]:
    """Executed tasks of the first steps."""
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


def decision_rows(done: SystemRun) -> list[dict[str, Any]]:
    """What the coordinator decided."""
    return [
        {"time_s": time_s, **note_fields(note)}
        for time_s, note in done.notes
        if note.kind is not NoteKind.COMMITTED
    ]


def columns(table: Table, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as the columns of a table."""
    return {column.name: [row[column.name] for row in rows] for column in table.columns}


SCALING = Table(
    "scaling.parquet",
    "hundreds of sites, in closed form",
    (
        Column("assumptions", "string", "published inputs, or reconciled"),
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
        Column("assumptions", "string", "published inputs, or reconciled"),
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

ORDERINGS = Table(
    "orderings.parquet",
    "systems on the testbed's sites as one condition changes, simulated",
    (
        Column("assumptions", "string", "published inputs, or reconciled"),
        Column("condition", "string", "bandwidth_factor, added_latency_ms or spare_share"),
        Column("value", "float64", "of the condition; the others are as in the run"),
        Column("model", "string", "model"),
        Column("system", "string", "training system, planned anew for the condition"),
        Column("tokens_per_s", "float64", "tokens of complete micro-batches a second"),
    ),
)

STEPS = Table(
    "steps.parquet",
    "closed steps of all simulated runs",
    (
        Column("experiment", "string", "throughput, dynamic, or one of these reconciled"),
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
