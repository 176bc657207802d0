"""Many parameter points, each a run of the chain in a workspace of its own."""

from __future__ import annotations

import itertools
import sys
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

READY: dict[str, dict[str, list[Any]]] = {
    "sites": {"train_sites.scaling.sites": [[8], [32], [128], [512], [2048]]},
    "scheduler": {"train_sites.sim.weaver.controller": ["weaver", "noctrl"]},
    "micro_batch": {"train_sites.sim.micro_batch_samples": [[1], [2], [4], [8]]},
    "failures": {"train_sites.dynamic.failures": [0, 2, 8, 32]},
    "window": {
        "train_sites.sim.unmerged_limits": [[1], [2], [4]],
        "train_sites.sim.micro_batch_samples": [[1], [2], [4], [8]],
    },
    "thresholds": {
        "train_sites.control.slack_fraction": [0.05, 0.1, 0.2],
        "train_sites.control.mlr_threshold": [0.3, 0.4, 0.5],
    },
    "burstiness": {
        "train_sites.dynamic.drops": [0, 20, 41, 80],
        "train_sites.dynamic.drop_length_s": [[2, 10], [10, 60], [60, 120]],
    },
    "core": {
        "train_sites.scaling.star.core_core_ms": [5, 20, 50],
        "train_sites.scaling.star.peer_gbps": [1, 10, 25],
    },
}
"""Grids for questions that the paper leaves open; ``python -m flows.sweep NAME`` runs one."""


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


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in READY:
        sys.exit(f"usage: python -m flows.sweep NAME; allowed: {', '.join(READY)}")
    sweep(READY[sys.argv[1]], targets=["train_sites"])
