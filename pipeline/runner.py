"""Run one stage: check its parameters and inputs, work aside, move the result into place.

Nothing under ``outs/`` changes before the stage has succeeded as a whole. A file appears by a
rename, so that a reader, DVC included, never sees half of one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline import documents, lifetime, params
from pipeline.registry import MEASURED, METRICS, OUTS, PLOTS, Registry, location
from pipeline.stage import ABSENT, Fault, Folder, FromParam, FromRepo, Input, Stage, StageParams

PARTIAL = ".partial"
EXIT_BAD_INPUT = 2
TOO_DEEP = "an input file is nested deeper than it can be read"
FAULTS_FILE = "RANLOOM_FAULTS"
"""Environment variable: file to which a refused stage appends its lines for its caller."""


def run(root: Path, registry: Registry, name: str, input_error: type[Exception]) -> int:
    """Run a stage in place.

    Args:
        root: root of the workspace, with ``params.yaml`` and ``outs/``.
        registry: all declarations.
        name: which stage.
        input_error: what the library raises on bad input.

    Returns:
        Exit code: 0, or 2 where parameters or inputs cannot be used (one line each on stderr).
    """
    stage = registry[name]
    if declared := list(registry.faults_of(stage)):
        return refuse(declared)
    try:
        document = params.load(root / params.PARAMS)
        values = params.build(stage, document)
        paths = input_paths(root, registry, stage, document)
        faults = [*missing_inputs(root, stage, paths), *missing_upstream(root, stage, paths)]
        if faults:
            raise params.RefusedError(faults)
        _execute(root, registry, stage, values, paths)
    except params.RefusedError as refused:
        return refuse([fault.line() for fault in refused.faults])
    except input_error as error:
        return refuse([" ".join(str(error).split())])
    except RecursionError:
        return refuse([f"{name}: {TOO_DEEP}"])
    except OSError as error:
        if (line := unreadable(error, paths)) is None:
            raise
        return refuse([line])
    return 0


def refuse(lines: list[str]) -> int:
    """Report unusable input, one line a fault.

    Returns:
        The exit code for it.
    """
    for line in lines:
        print(line, file=sys.stderr)
    if target := os.environ.get(FAULTS_FILE):
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)
    return EXIT_BAD_INPUT


def input_paths(
    root: Path, registry: Registry, stage: Stage, document: Mapping[str, Any]
) -> dict[str, Path]:
    """Logical input name to path; relative paths of users are relative to the root."""
    return {
        name: root / resolve(location(source, registry), source, document)
        for name, source in stage.inputs.items()
    }


def resolve(place: str, source: Input, document: Mapping[str, Any]) -> str:
    """Replace the placeholder of a user's path by the value of its parameter."""
    return str(params.lookup(document, source.key)) if isinstance(source, FromParam) else place


def missing_inputs(root: Path, stage: Stage, paths: Mapping[str, Path]) -> list[Fault]:
    """Files and folders of users and of the repository that are not there.

    Args:
        root: root of the workspace; paths in it are shown relative to it.
        stage: the declaration.
        paths: logical input name to path; names that are left out are not looked at.
    """
    faults = []
    for name, source in stage.inputs.items():
        if name not in paths or _is_usable(source, paths[name]):
            continue
        if isinstance(source, FromParam):
            allowed = "an existing file or folder" if source.folder else "an existing file"
            where = f"{params.PARAMS}: {source.key}"
            path = paths[name]
            shown = path.relative_to(root) if path.is_relative_to(root) else path
            faults.append(Fault(where, str(shown), f"{allowed} is expected"))
        elif isinstance(source, FromRepo):
            faults.append(Fault(source.path, ABSENT, "a file of the repository"))
    return faults


def _is_usable(source: Input, path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:  # not there, a name that is too long, a folder that may not be entered
        return False
    return stat.S_ISREG(mode) or not (isinstance(source, FromParam) and not source.folder)


def unreadable(error: OSError, paths: Mapping[str, Path]) -> str | None:
    """One line on an input that the system does not let us read; ``None`` for another file."""
    if not isinstance(error.filename, str | os.PathLike):
        return None
    place = Path(error.filename)
    if not any(place.is_relative_to(path) for path in paths.values()):
        return None
    return f"{place}: {error.strerror}; a file that can be read is expected"


def missing_upstream(root: Path, stage: Stage, paths: Mapping[str, Path]) -> list[Fault]:
    """Outputs of other stages that are not there."""
    return [
        Fault(
            str(paths[name].relative_to(root)),
            ABSENT,
            f"output of stage {source.stage}, which must run first",
        )
        for name, source in stage.inputs.items()
        if not isinstance(source, FromParam | FromRepo) and not paths[name].exists()
    ]


def _execute(
    root: Path, registry: Registry, stage: Stage, values: StageParams, paths: Mapping[str, Path]
) -> None:
    from pipeline import recorder
    from pipeline.io import Inputs, Outputs, write_plots

    target = root / OUTS / stage.name
    with (
        recorder.stage_run(root, registry, stage.name) as live,
        _work_folder(root, stage.name) as work,
    ):
        result = stage.run(values, Inputs(paths), Outputs(stage, work, live))
        absent = [n for n, output in stage.outputs.items() if not (work / output.file).exists()]
        if absent:
            raise RuntimeError(f"stage {stage.name} did not write {', '.join(absent)}")
        if result.measured and not stage.measured:
            raise RuntimeError(f"stage {stage.name} declares no measured outputs")
        documents.write_metrics(work / METRICS, result.metrics)
        if stage.measured:
            documents.write_metrics(work / MEASURED / METRICS, result.measured)
        write_plots(stage, work)
        with lifetime.to_the_end():
            _move_into_place(stage, work, target)
            live.finish()


@contextmanager
def _work_folder(root: Path, name: str) -> Iterator[Path]:
    """A folder on the file system of ``outs/``; those of dead runs of the stage are removed.

    A lock on the folder is the sign of life. The kernel drops it with the process, also in another
    container, where the process id says nothing.
    """
    partial = root / OUTS / PARTIAL
    for folder in orphans(root):
        if folder.name.rpartition(".")[0] == name:
            shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=partial))
    work.chmod(0o777 & ~_umask())  # what is moved into outs/ has the usual permissions
    descriptor = os.open(work, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: its folders are never taken for dead
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    finally:
        os.close(descriptor)
        shutil.rmtree(work, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def orphans(root: Path) -> list[Path]:
    """Work folders whose process is gone."""
    partial = root / OUTS / PARTIAL
    return [f for f in sorted(partial.glob("*.*")) if f.is_dir() and _is_free(f)]


def _is_free(folder: Path) -> bool:
    """Whether no process holds the lock of a work folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # removed meanwhile
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _move_into_place(stage: Stage, work: Path, target: Path) -> None:
    """Rename every output; ``metrics.json`` last, as the sign that the others are there."""
    folders = [output.file for output in stage.outputs.values() if isinstance(output, Folder)]
    folders += [name for name in (MEASURED, PLOTS) if (work / name).is_dir()]
    files = [output.file for output in stage.outputs.values() if output.file not in folders]
    target.mkdir(parents=True, exist_ok=True)
    for name in folders:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (target / name).exists():
            (target / name).rename(work / f"{name}.previous")
        (work / name).rename(target / name)
    for name in [*files, METRICS]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).replace(target / name)
