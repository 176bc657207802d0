"""The ``ranloom`` command: run the chain, sync MLflow, check, examine."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pipeline import dvc, environment, params, runner, workspace
from pipeline.check import check
from pipeline.documents import flattened
from pipeline.hold import held
from pipeline.registry import MEASURED, METRICS, OUTS, Registry, discover
from pipeline.store import MLFLOW_CLIENT, store_folder

_PRELOAD_AFTER_S = 4.0
"""A rebuild that takes longer does something, and ends with MLflow: it is imported meanwhile."""
_LEVELS = {"ok": "green", "note": "yellow", "fault": "red"}


def main(root: Path, package: ModuleType, input_error: type[Exception]) -> None:
    """Run the command line.

    Args:
        root: root of the repository.
        package: package that holds the stage modules.
        input_error: what the library raises on bad input.
    """
    environment.apply()
    environment.collect_rarely()
    application(root, discover(package), input_error)()


def application(root: Path, registry: Registry, input_error: type[Exception]) -> typer.Typer:
    """The command line over a repository."""
    app = typer.Typer(
        name="ranloom",
        help="AI-RAN compute sharing: run the chain and look after it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.command()
    def run(
        stages: Annotated[
            list[str] | None, typer.Argument(help="stages to bring up to date; all by default")
        ] = None,
        preset: Annotated[
            str | None, typer.Option(help="overlay presets/NAME.yaml, in .ranloom/NAME")
        ] = None,
        force: Annotated[bool, typer.Option(help="run also what is up to date")] = False,
    ) -> None:
        """Check, rebuild what is not up to date, show the headline numbers."""
        unknown = [name for name in stages or () if name not in registry]
        if unknown:
            _refuse(
                [f"stage: {name!r} is not usable; known: {', '.join(registry)}" for name in unknown]
            )
        arguments = [*(["--force"] if force else []), *(stages or ())]
        raise typer.Exit(_run(root, registry, input_error, preset, arguments))

    @app.command()
    def sync() -> None:
        """Bring the MLflow store in line with dvc.lock and the outputs."""
        from pipeline import tracking

        try:
            report = tracking.sync(root, registry)
        except params.RefusedError as refused:
            raise typer.Exit(runner.refuse([fault.line() for fault in refused.faults])) from None
        except Exception as error:
            print(
                f"{store_folder(root) / 'mlflow.db'}: {tracking.one_line(error)}", file=sys.stderr
            )
            raise typer.Exit(1) from None
        for name in report.created:
            print(f"{name}: run made")
        for name in report.present:
            print(f"{name}: run present")
        for name, reason in report.skipped.items():
            print(f"{name}: skipped, {reason}")
        raise typer.Exit(1 if report.skipped else 0)

    @app.command(name="check")
    def check_command() -> None:
        """Validate parameters, user files and declarations; one line a fault, exit code 2."""
        _refuse(check(root, registry, input_error))
        print(f"{len(registry)} stages checked: parameters, files and declarations are in order")

    @app.command()
    def doctor() -> None:
        """Look for what is missing, stale or broken; exit code 1 if anything is."""
        from pipeline.doctor import examine

        findings = examine(root, registry, input_error)
        console = Console(soft_wrap=True, highlight=False)
        for finding in findings:
            level = Text(f"{finding.level:6}", style=_LEVELS[finding.level])
            console.print(level, f"{finding.subject:16}", finding.detail, markup=False)
        raise typer.Exit(1 if any(finding.level == "fault" for finding in findings) else 0)

    return app


def _run(
    root: Path,
    registry: Registry,
    input_error: type[Exception],
    preset: str | None,
    arguments: list[str],
) -> int:
    try:
        place = workspace.place(root, registry, preset, {})
    except params.RefusedError as refused:
        return runner.refuse([fault.line() for fault in refused.faults])
    faults = check(place, registry, input_error)
    if faults:
        return runner.refuse(faults)
    started, started_at_s = time.monotonic(), time.time()
    before = _content(place / "dvc.lock")
    preload = threading.Timer(_PRELOAD_AFTER_S, _preload)
    preload.daemon = True
    preload.start()
    try:
        with held(place):
            outcome = dvc.repro(place, arguments)
    except KeyboardInterrupt:
        _settle(place)
        return 130
    finally:
        preload.cancel()
    if outcome.code:
        for line in outcome.faults:  # once more, below what DVC said about them
            print(line, file=sys.stderr)
        _settle(place)
        return outcome.code
    if _content(place / "dvc.lock") != before or not (store_folder(place) / "mlflow.db").exists():
        _project(place, registry)
    elif _has_run(place, started_at_s):  # and gave what it had given before
        _settle(place)
    show_headline(place, registry, time.monotonic() - started)
    return 0


def _preload() -> None:
    from pipeline import tracking

    if tracking.enabled():
        importlib.import_module(MLFLOW_CLIENT)


def _has_run(place: Path, since_s: float) -> bool:
    """Whether a stage has written results since a time."""
    return any(p.stat().st_mtime >= since_s for p in (place / OUTS).glob(f"*/{METRICS}"))


def _settle(place: Path) -> None:
    from pipeline import tracking

    tracking.settle(place)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _project(place: Path, registry: Registry) -> None:
    from pipeline import tracking

    if not tracking.enabled():
        return
    try:
        skipped = tracking.sync(place, registry).skipped
    except Exception as error:  # MLflow only shows the results; they are there
        print(f"MLflow: {tracking.one_line(error)}; try `ranloom sync`", file=sys.stderr)
        return
    for name, reason in skipped.items():
        print(f"MLflow: {name}: {reason}", file=sys.stderr)


def show_headline(place: Path, registry: Registry, elapsed_s: float) -> None:
    """Print the headline numbers of a workspace and where to find the rest."""
    rows = [("stage", "metric", "value")]
    for stage, metric, value in headline(place, registry):
        rows.append((stage, metric, f"{value:.6g}" if isinstance(value, float) else str(value)))
    first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
    for stage, metric, shown in rows:
        print(f"{stage:{first}}  {metric:{second}}  {shown:>{third}}")
    print(f"\nUp to date after {elapsed_s:.1f} s.")
    report = place / OUTS / "report" / "index.html"
    if report.exists():
        print(f"Report    {report}")
    print(f"Numbers   {place / OUTS}/<stage>/{METRICS}")
    print("Compare   make ui, then http://127.0.0.1:5055: *Model training*, experiment `ranloom`")


def headline(place: Path, registry: Registry) -> Iterator[tuple[str, str, float | int | bool]]:
    """Stage, metric and value of every headline number that a workspace has."""
    for stage in registry.values():
        folder = place / OUTS / stage.name
        values: dict[str, Any] = {}
        for path in (folder / MEASURED / METRICS, folder / METRICS):
            if path.exists():
                values.update(flattened(json.loads(path.read_text(encoding="utf-8"))))
        yield from ((stage.name, name, values[name]) for name in stage.headline if name in values)


def _refuse(faults: list[str]) -> None:
    if faults:
        raise typer.Exit(runner.refuse(faults))
