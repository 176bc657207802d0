"""Many parameter points, each a run of the chain in a workspace of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

import stages
from flows import dvc_process
from flows.chain import ROOT, RUNNER
from pipeline import tracking, workspace
from pipeline.check import check
from pipeline.cli import headline
from pipeline.registry import discover
from ranloom.errors import InputError


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of a grid: dotted parameter name to values."""
    names = sorted(grid)
    for values in itertools.product(*(grid[name] for name in names)):
        yield dict(zip(names, values, strict=True))


@task(task_run_name="{label}", cache_policy=NO_CACHE)
def run_point(
    root: Path,
    label: str,
    preset: str | None,
    overrides: dict[str, Any],
    targets: list[str],
    processes: dvc_process.Processes,
) -> dict[str, float | str | None]:
    """Run one point and return its headline numbers.

    A point keeps its workspace, so DVC resumes a sweep where it stopped.
    """
    registry = discover(stages)
    place = workspace.place(root, registry, preset, overrides)
    faults = check(place, registry, InputError)
    if faults:
        raise dvc_process.BadInputError("; ".join(faults))
    processes.repro(place, label, targets, get_run_logger().info)
    parent = tracking.sync(place, registry).parent if tracking.enabled() else None
    numbers = {f"{s}.{m}": float(v) for s, m, v in headline(place, registry)}
    return {"mlflow_run": parent, **numbers}


@flow(name="ranloom-sweep", task_runner=RUNNER)
def sweep(
    grid: dict[str, list[Any]],
    preset: str | None = "quick",
    targets: list[str] | None = None,
    root: Path = ROOT,
) -> list[dict[str, Any]]:
    """Run every combination of a grid; a failed point does not lose the others.

    Args:
        grid: dotted parameter name to its values.
        preset: overlay under every point.
        targets: stages to bring up to date, all by default.
        root: root of the repository.

    Returns:
        One row a point that succeeded: its parameters, headline numbers and MLflow run.

    Raises:
        StageFailedError: points failed; the others are done and listed in the artifact.
    """
    todo = list(points(grid))
    rows, failed = [], []
    processes = dvc_process.Processes()
    try:
        futures = []
        for overrides in todo:
            label = ",".join(f"{k.rpartition('.')[2]}={v}" for k, v in overrides.items())
            futures.append(
                run_point.submit(root, label, preset, overrides, targets or [], processes)
            )
        for overrides, future in zip(todo, futures, strict=True):
            future.wait()
            if future.state.is_completed():
                rows.append({**overrides, **future.result()})
            else:
                failed.append(f"{overrides}: {future.state.message}")
    finally:
        processes.stop()
    create_table_artifact(rows, key="ranloom-sweep", description="points that succeeded")
    if failed:
        raise dvc_process.StageFailedError(
            f"{len(failed)} of {len(todo)} points failed: " + "; ".join(failed)
        )
    return rows
