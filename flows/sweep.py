"""Many parameter points, each a run of the chain in a workspace of its own."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

import stages
from flows import dvc_process
from flows.chain import ROOT, RUNNER, WORKERS
from pipeline import tracking, workspace
from pipeline.check import check
from pipeline.cli import headline
from pipeline.documents import flattened
from pipeline.registry import METRICS, OUTS, Registry, discover, needed, unaffected
from ranloom.errors import InputError


@dataclass(frozen=True)
class Question:
    """A grid, and the metrics that answer what it asks.

    Args:
        grid: dotted parameter name to its values.
        answers: patterns of dotted metric names, each beginning with its stage.
    """

    grid: dict[str, list[Any]]
    answers: tuple[str, ...]


_SIM = ("train_sites.*sim.*.weaver.tokens_per_s",)
_SYSTEMS = ("train_sites.*sim.*.tokens_per_s",)
_SCALE = "train_sites.*scale.{}.*.*.ktokens_per_s"
_DYNAMIC = (
    "train_sites.*dynamic.weaver*.tokens_per_s",
    "train_sites.*dynamic.static.tokens_per_s",
)

# What the quick preset leaves out and an answer needs.
_WEAVER_ALONE: dict[str, list[Any]] = {"train_sites.sim.systems": [["weaver"]]}
_ALL_SYSTEMS: dict[str, list[Any]] = {
    "train_sites.sim.models": [["opt-1.3b"]],
    "train_sites.sim.systems": [
        ["weaver", "static", "dtfm", "asteroid", "confidant", "confidant_star", "diloco"]
    ],
}
_SIX_MINUTES: dict[str, list[Any]] = {
    **_WEAVER_ALONE,
    "train_sites.dynamic.duration_s": [360],
    "train_sites.dynamic.drops": [41],
}
_ALL_STAGES: dict[str, list[Any]] = {
    **_WEAVER_ALONE,
    "train_sites.scaling.stages": [[4, 8, 16, 20, 32, 40]],
}

READY: dict[str, Question] = {
    "sites": Question(
        {**_ALL_STAGES, "train_sites.scaling.sites": [[8], [32], [128], [512], [2048]]},
        (_SCALE.format("*"),),
    ),
    "core": Question(
        {
            **_ALL_STAGES,
            "train_sites.scaling.star.core_core_ms": [5, 20, 50],
            "train_sites.scaling.star.peer_gbps": [1, 10, 25],
        },
        (_SCALE.format("typical"),),
    ),
    "bandwidth": Question(
        {**_ALL_SYSTEMS, "train_sites.conditions.bandwidth_factor": [0.1, 0.3, 1, 3, 10, 30]},
        _SYSTEMS,
    ),
    "latency": Question(
        {**_ALL_SYSTEMS, "train_sites.conditions.added_latency_ms": [0, 10, 30, 100, 300]},
        _SYSTEMS,
    ),
    "spare": Question(
        {**_ALL_SYSTEMS, "train_sites.conditions.spare_share": [0.05, 0.1, 0.25, 0.5, 1]},
        _SYSTEMS,
    ),
    "scheduler": Question(
        {**_SIX_MINUTES, "train_sites.sim.weaver.controller": ["weaver", "noctrl"]},
        (*_SIM, *_DYNAMIC),
    ),
    "burstiness": Question(
        {
            **_SIX_MINUTES,
            "train_sites.dynamic.drops": [0, 20, 41, 80],
            "train_sites.dynamic.drop_length_s": [[2, 10], [10, 60], [60, 120]],
        },
        _DYNAMIC,
    ),
    "micro_batch": Question(
        # the weight copies of Confidant do not fit with micro-batches of 8 alone
        {**_WEAVER_ALONE, "train_sites.sim.micro_batch_samples": [[1], [2], [4], [8]]},
        _SIM,
    ),
    "window": Question(
        {
            **_WEAVER_ALONE,
            "train_sites.sim.unmerged_limits": [[1], [2], [4]],
            "train_sites.sim.micro_batch_samples": [[1], [2], [4], [8]],
        },
        _SIM,
    ),
    "thresholds": Question(
        {
            **_SIX_MINUTES,
            "train_sites.control.slack_fraction": [0.05, 0.1, 0.2],
            "train_sites.control.mlr_threshold": [0.3, 0.4, 0.5],
        },
        (
            *_DYNAMIC,
            "train_sites.*dynamic.air_handled_pct",
            "train_sites.*dynamic.mlr_events",
        ),
    ),
    "failures": Question(
        {"train_sites.dynamic.failures": [1, 2, 4, 8]},
        ("train_sites.reconciled.dynamic.weaver*.*tokens_per_s",),
    ),
    "windows": Question({**_SIX_MINUTES, "train_sites.circuits.gbps": [1, 10, 100]}, _DYNAMIC),
}
"""What the paper leaves open; ``python -m flows.sweep NAME`` runs the grid of one."""

USAGE = "usage: python -m flows.sweep NAME [--dask local | --dask ADDRESS]"


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of a grid: dotted parameter name to values."""
    names = sorted(grid)
    for values in itertools.product(*(grid[name] for name in names)):
        yield dict(zip(names, values, strict=True))


@task(task_run_name="{label}", cache_policy=NO_CACHE)
def run_point(
    root: Path,
    start: Path,
    label: str,
    preset: str | None,
    overrides: dict[str, Any],
    targets: list[str],
    answers: tuple[str, ...],
    processes: dvc_process.Processes,
) -> dict[str, float | str | None]:
    """Run one point and return its headline numbers and the metrics that were asked for.

    A point keeps its workspace, so DVC resumes a sweep where it stopped. A new one begins with the
    results of the workspace ``start`` that its changes do not reach.
    """
    registry = discover(stages)
    place = workspace.place(root, registry, preset, overrides)
    workspace.seed(start, place, unaffected(registry, overrides))
    _rebuild(place, registry, label, targets, processes)
    parent = tracking.sync(place, registry).parent if tracking.enabled() else None
    numbers = {f"{s}.{m}": float(v) for s, m, v in headline(place, registry)}
    return {"mlflow_run": parent, **numbers, **matching(place, answers)}


def matching(place: Path, patterns: Sequence[str]) -> dict[str, float]:
    """Metrics of a workspace, ``stage.metric`` to value, whose names match a pattern."""
    found = {}
    for path in sorted((place / OUTS).glob(f"*/{METRICS}")):
        for metric, value in flattened(json.loads(path.read_text(encoding="utf-8"))):
            name = f"{path.parent.name}.{metric}"
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                found[name] = float(value)
    return found


@flow(name="ranloom-sweep", task_runner=RUNNER)
def sweep(
    grid: dict[str, list[Any]],
    preset: str | None = "quick",
    targets: list[str] | None = None,
    root: Path = ROOT,
    answers: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Run every combination of a grid; a failed point does not lose the others.

    What the grid does not reach is computed once, in the workspace of the preset.

    Args:
        grid: dotted parameter name to its values.
        preset: overlay under every point.
        targets: stages to bring up to date, all by default.
        root: root of the repository.
        answers: patterns of metric names (``train_sites.*.tokens_per_s``) to have in the rows.

    Returns:
        One row a point that succeeded: its parameters, headline numbers, answers and MLflow run.

    Raises:
        StageFailedError: points failed; the others are done and listed in the artifact. Or what all
            points share failed, and none was begun.
    """
    todo = {label_of(grid, overrides): overrides for overrides in points(grid)}
    rows: dict[str, dict[str, Any]] = {}
    failed = []
    processes = dvc_process.Processes()
    try:
        start = _start(root, preset, grid, targets or [], processes)
        futures = {}
        for label, overrides in todo.items():
            what = (preset, overrides, targets or [], tuple(answers))
            futures[label] = run_point.submit(root, start, label, *what, processes)
        for label, future in futures.items():
            future.wait()
            if future.state.is_completed():
                rows[label] = {**todo[label], **future.result()}
            else:
                failed.append(f"{todo[label]}: {future.state.message}")
    finally:
        processes.stop()
    create_table_artifact(
        list(rows.values()), key="ranloom-sweep", description="points that succeeded"
    )
    for line in answer_lines(rows, answers):
        get_run_logger().info(line)
    if failed:
        raise dvc_process.StageFailedError(
            f"{len(failed)} of {len(todo)} points failed: " + "; ".join(failed)
        )
    return list(rows.values())


def _rebuild(
    place: Path,
    registry: Registry,
    what: str,
    targets: list[str],
    processes: dvc_process.Processes,
) -> None:
    """Check a workspace and bring stages of it up to date."""
    faults = check(place, registry, InputError)
    if faults:
        raise dvc_process.BadInputError("; ".join(faults))
    with tracking.rebuild(place):
        processes.repro(place, what, targets, get_run_logger().info)


def label_of(grid: Mapping[str, Sequence[Any]], overrides: Mapping[str, Any]) -> str:
    """What a point has for itself: the last parts of the names that vary, and their values."""
    varied = [key for key, values in grid.items() if len(values) > 1] or list(grid)
    return ",".join(f"{key.rpartition('.')[2]}={overrides[key]}" for key in sorted(varied))


def answer_lines(rows: Mapping[str, Mapping[str, Any]], patterns: Sequence[str]) -> Iterator[str]:
    """Lines of a table: a metric that answers in each, a point in each column.

    Args:
        rows: point to its metrics; what a point lacks is left empty.
        patterns: of the metrics' names.
    """
    metrics = dict.fromkeys(
        key
        for row in rows.values()
        for key in row
        if isinstance(row[key], float) and any(fnmatchcase(key, pattern) for pattern in patterns)
    )
    if metrics:
        first = max(map(len, metrics))
        yield "  ".join([" " * first, *rows])
        for metric in metrics:
            cells = (f"{row[metric]:.6g}" if metric in row else "" for row in rows.values())
            places = (f"{c:>{len(label)}}" for c, label in zip(cells, rows, strict=True))
            yield "  ".join([metric.ljust(first), *places])


def _start(
    root: Path,
    preset: str | None,
    grid: Mapping[str, Any],
    targets: Sequence[str],
    processes: dvc_process.Processes,
) -> Path:
    """Workspace without the grid's changes, with the stages up to date that all points share.

    The main one is taken as it is.
    """
    registry = discover(stages)
    place = workspace.place(root, registry, preset, {})
    wanted = needed(registry, targets or registry)
    shared = [name for name in unaffected(registry, grid) if name in wanted]
    if shared and place != root:
        _rebuild(place, registry, str(preset), shared, processes)
    return place


def dask_runner(where: str) -> Any:
    """Task runner that gives points to the workers of a Dask cluster.

    The workers see the repository at the same path and import the same environment. Ending the
    flow ends the workers of a local cluster with their points; those of another one finish theirs.

    Args:
        where: ``local`` for two workers of this machine, or the address of a scheduler.

    Raises:
        InputError: the extra is not installed.
    """
    try:
        from prefect_dask import DaskTaskRunner
    except ModuleNotFoundError:
        allowed = "needed: the extra, pip install -c requirements.lock -e '.[dask]'"
        raise InputError("--dask", where, allowed) from None
    if where != "local":
        return DaskTaskRunner(address=where)
    workers = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    return DaskTaskRunner(cluster_kwargs=workers)


def main(arguments: Sequence[str]) -> None:
    """Run a ready sweep on threads of this process, or on a Dask cluster."""
    name, *more = arguments or [""]
    if name not in READY or (more and (len(more) != 2 or more[0] != "--dask")):
        raise InputError("sweep", " ".join(arguments), f"{USAGE}; NAME: {', '.join(READY)}")
    runner = dask_runner(more[1]) if more else RUNNER
    asked = READY[name]
    on_runner = sweep.with_options(task_runner=runner)
    on_runner(asked.grid, targets=["train_sites"], answers=asked.answers)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
