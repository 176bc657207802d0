"""What may be wrong with an installation or a workspace, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

from pipeline import render, runner
from pipeline.check import check
from pipeline.fingerprint import locked_entries, locked_outs
from pipeline.registry import Registry
from pipeline.store import store_folder

LOCK = "requirements.lock"
_FREE_GIB = 2


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Args:
        level: ``ok``, ``note`` (works, worth knowing) or ``fault``.
        subject: what was looked at.
        detail: what was found, and what helps.
    """

    level: Literal["ok", "note", "fault"]
    subject: str
    detail: str


def examine(root: Path, registry: Registry, input_error: type[Exception]) -> list[Finding]:
    """Look at everything; changes nothing."""
    looks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        lambda: _packages(root),
        lambda: _tools(root),
        lambda: _declarations(root, registry, input_error),
        lambda: _results(root, registry),
        lambda: _store(root),
        lambda: _locks(root),
        lambda: _leftovers(root),
    ]
    return [finding for look in looks for finding in look()]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    tested = sys.version_info[:2] == (3, 11)
    detail = version if tested else f"{version}; tested with 3.11"
    yield Finding("ok" if tested else "note", "Python", detail)


def _packages(root: Path) -> Iterator[Finding]:
    lock = root / LOCK
    if not lock.exists():
        yield Finding("fault", LOCK, "missing")
        return
    problems = []
    count = 0
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        count += 1
        try:
            installed = Version(importlib.metadata.version(requirement.name))
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(installed.public, prereleases=True):
            problems.append(f"{requirement.name} {installed}, locked {requirement.specifier}")
    for problem in problems:
        yield Finding("fault", "package", f"{problem}; `make .venv` installs the lock")
    if not problems:
        yield Finding("ok", "packages", f"{count} as locked")


def _tools(root: Path) -> Iterator[Finding]:
    git = shutil.which("git")
    yield Finding("ok" if git else "fault", "git", git or "not found on PATH")
    inside = (root / ".git").exists()
    yield Finding(
        "ok" if inside else "note", "repository", str(root) + ("" if inside else ", no git")
    )
    ready = (root / ".dvc" / "config").exists()
    yield Finding(
        "ok" if ready else "fault", "DVC", "set up" if ready else ".dvc/config is missing"
    )
    free = shutil.disk_usage(root).free / 2**30
    enough = free >= _FREE_GIB
    yield Finding("ok" if enough else "note", "disk", f"{free:.1f} GiB free")


def _declarations(
    root: Path, registry: Registry, input_error: type[Exception]
) -> Iterator[Finding]:
    faults = check(root, registry, input_error)
    for line in faults:
        yield Finding("fault", "check", line)
    if not faults:
        yield Finding("ok", "check", f"parameters, files and {render.DVC_YAML} are in order")


def _results(root: Path, registry: Registry) -> Iterator[Finding]:
    locked = locked_entries(root)
    waiting = [name for name in registry if name not in locked]
    if waiting:
        yield Finding("note", "results", f"not built yet: {', '.join(waiting)}; `ranloom run`")
    absent = [
        path for name in registry for path in locked_outs(root, name) if not (root / path).exists()
    ]
    if absent:
        shown = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        yield Finding("note", "results", f"missing: {shown}; `dvc checkout`, `dvc pull` or a run")
    if not waiting and not absent:
        yield Finding("ok", "results", f"all outputs of {len(registry)} stages are here")


def _store(root: Path) -> Iterator[Finding]:
    database = store_folder(root) / "mlflow.db"
    if not database.exists():
        yield Finding(
            "note", "MLflow store", f"{database} does not exist yet; `ranloom sync` makes it"
        )
        return
    try:
        with sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=5) as connection:
            (runs,) = connection.execute("SELECT COUNT(*) FROM runs").fetchone()
    except sqlite3.Error as error:
        yield Finding(
            "fault", "MLflow store", f"{database}: {error}; remove it, `ranloom sync` rebuilds it"
        )
        return
    yield Finding("ok", "MLflow store", f"{database}, {runs} runs")


def _locks(root: Path) -> Iterator[Finding]:
    path = root / ".dvc" / "tmp" / "rwlock"
    try:
        document = json.loads(path.read_text(encoding="utf-8") or "{}") if path.exists() else {}
    except ValueError:
        yield Finding("fault", "DVC locks", f"{path} is no JSON; remove it while no DVC runs")
        return
    readers = [holder for held in document.get("read", {}).values() for holder in held]
    holders = {h["pid"]: h["cmd"] for h in [*readers, *document.get("write", {}).values()]}
    for pid, command in sorted(holders.items()):
        if psutil.pid_exists(pid):
            yield Finding("note", "DVC locks", f"held by process {pid}: {command}")
        else:
            yield Finding("note", "DVC locks", f"left by dead process {pid}; DVC drops it itself")
    if not holders:
        yield Finding("ok", "DVC locks", "none held")


def _leftovers(root: Path) -> Iterator[Finding]:
    folders = runner.orphans(root)
    for folder in folders:
        shown = folder.relative_to(root)
        yield Finding(
            "note", "unfinished work", f"{shown}; the stage removes it when it runs again"
        )
    if not folders:
        yield Finding("ok", "unfinished work", "none")
