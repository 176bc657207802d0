"""Everything that can be found wrong before a stage runs, in one go, one line a fault."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline import params
from pipeline.registry import Registry, location
from pipeline.runner import TOO_DEEP, missing_inputs, resolve, unreadable
from pipeline.stage import FromParam, FromRepo, Stage, StageParams


def check(root: Path, registry: Registry, input_error: type[Exception]) -> list[str]:
    """Faults of declarations, parameters and user files.

    Args:
        root: root of the workspace.
        registry: all declarations.
        input_error: what the library raises on bad input.

    Returns:
        One line a fault, each once; empty where all is in order.
    """
    try:
        document = params.load(root / params.PARAMS)
    except params.RefusedError as refused:
        return [fault.line() for fault in refused.faults]
    lines = [fault.line() for fault in params.unknown_blocks(document, registry)]
    for stage in registry.values():
        lines += _stage_faults(root, registry, stage, document, input_error)
    lines += _conflicts(root)
    declared = registry.faults()
    lines += declared if declared else _stale(root, registry)
    return list(dict.fromkeys(lines))


def _conflicts(root: Path) -> Iterator[str]:
    """Marks that a merge left in ``dvc.lock``, on which DVC would fail with an excerpt of it."""
    lock = root / "dvc.lock"
    text = lock.read_text(encoding="utf-8", errors="replace") if lock.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            yield f"dvc.lock: line {number}: merge conflict; take either side, then run again"
            return


def _stage_faults(
    root: Path,
    registry: Registry,
    stage: Stage,
    document: Mapping[str, Any],
    input_error: type[Exception],
) -> Iterator[str]:
    paths = _given_files(root, registry, stage, document)
    missing = missing_inputs(root, stage, paths)
    yield from (fault.line() for fault in missing)
    try:
        values = params.build(stage, document)
    except params.RefusedError as refused:
        yield from (fault.line() for fault in refused.faults)
        return
    if not missing and stage.check is not None:
        yield from _hook(stage, values, paths, input_error)


def _given_files(
    root: Path, registry: Registry, stage: Stage, document: Mapping[str, Any]
) -> dict[str, Path]:
    """Paths of inputs that no stage makes, as far as the parameters name them."""
    paths = {}
    for name, source in stage.inputs.items():
        if isinstance(source, FromParam | FromRepo):
            with contextlib.suppress(KeyError):
                paths[name] = root / resolve(location(source, registry), source, document)
    return paths


def _hook(
    stage: Stage, values: StageParams, paths: Mapping[str, Path], input_error: type[Exception]
) -> Iterator[str]:
    assert stage.check is not None
    try:
        yield from (fault.line() for fault in stage.check(values, paths))
    except input_error as error:
        yield " ".join(str(error).split())
    except RecursionError:
        yield f"{stage.name}: {TOO_DEEP}"
    except OSError as error:
        if (line := unreadable(error, paths)) is None:
            raise
        yield line


def _stale(root: Path, registry: Registry) -> Iterator[str]:
    from pipeline import render

    for name in render.stale(root, registry):
        yield f"{name}: does not match the declarations; run `python -m stages render`"
