"""The whole chain as a flow: check, one task a stage, a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner

import stages
from flows import dvc_process
from pipeline import tracking, workspace
from pipeline.check import check
from pipeline.cli import headline
from pipeline.registry import OUTS, Registry, discover, upstream
from pipeline.store import Store, store_folder
from ranloom.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
# Independent stages may run side by side; more than two do not fit in 4 GB.
WORKERS = 2
RUNNER: Any = ThreadPoolTaskRunner(max_workers=WORKERS)


def retry_if_busy(_task: Any, _run: TaskRun, state: State[Any]) -> bool:
    """One more try pays where another DVC process held the outputs, and only there."""
    try:
        state.result()
    except dvc_process.WorkspaceBusyError:
        return True
    except Exception:
        return False
    return False


@task(
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=5,
    retry_condition_fn=retry_if_busy,
)
def reproduce(root: Path, stage: str, processes: dvc_process.Processes) -> None:
    """Bring one stage up to date; DVC's output streams into the task's log."""
    emit = get_run_logger().info
    processes.repro(root, stage, ["--single-item", stage], emit)


@flow(name="ranloom-chain", task_runner=RUNNER)
def chain(
    preset: str | None = None, overrides: dict[str, Any] | None = None, root: Path = ROOT
) -> str | None:
    """Bring every stage up to date.

    Args:
        preset: name of a file in ``presets/``.
        overrides: dotted parameter name to value. With a preset or overrides the chain runs
            in a workspace of its own and leaves the main results as they are.
        root: root of the repository.

    Returns:
        Id of the MLflow parent run, where runs are tracked.

    Raises:
        BadInputError: ``check`` found faults, or a stage refused its input.
        StageFailedError: a stage failed.
    """
    registry = discover(stages)
    place = workspace.place(root, registry, preset, overrides or {})
    return run_stages(place, registry)


def run_stages(root: Path, registry: Registry) -> str | None:
    """Check a workspace, reproduce its stages in order, sync MLflow, leave a summary.

    Must be called inside a flow.
    """
    faults = check(root, registry, InputError)
    if faults:
        raise dvc_process.BadInputError("; ".join(faults))
    with tracking.rebuild(root):
        _reproduce(root, registry)
    parent = tracking.sync(root, registry).parent if tracking.enabled() else None
    create_markdown_artifact(
        summary(root, registry, parent), key="ranloom-headlines", description="headline numbers"
    )
    return parent


def _reproduce(root: Path, registry: Registry) -> None:
    futures: dict[str, PrefectFuture[None]] = {}
    processes = dvc_process.Processes()
    try:
        for name, stage in registry.items():
            before = [futures[u] for u in upstream(stage)]
            futures[name] = reproduce.submit(
                root, name, processes, wait_for=before, return_state=False
            )
        for future in futures.values():  # a failed stage does not end those beside it
            future.wait()
        for future in futures.values():
            future.result()
    finally:  # a cancelled flow leaves no process behind
        processes.stop()


def summary(root: Path, registry: Registry, parent: str | None) -> str:
    """Markdown with the headline numbers and where to look further."""
    lines = ["# RANLoom", "", "| stage | metric | value |", "| --- | --- | ---: |"]
    lines += [f"| {s} | {m} | {float(v):.6g} |" for s, m, v in headline(root, registry)]
    page = root / OUTS / "report" / "index.html"
    if page.exists():
        lines += ["", f"Report: `{page}`"]
    if parent is not None:
        experiment = Store.open(root).experiment_id
        link = f"{tracking.UI_ADDRESS}/#/experiments/{experiment}/runs/{parent}?{tracking.UI_MODE}"
        lines += ["", f"MLflow (`make ui`): [{parent}]({link}), store `{store_folder(root)}`"]
    return "\n".join(lines) + "\n"
