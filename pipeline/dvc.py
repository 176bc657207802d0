"""Calling DVC as a program."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import environment
from pipeline.runner import EXIT_BAD_INPUT, FAULTS_FILE

_WAITING = ("--wait-for-lock",)  # for another DVC process, instead of failing


@dataclass(frozen=True)
class Outcome:
    """How a rebuild ended.

    Args:
        code: exit code; 2 where a stage refused its input (DVC itself says 255 then).
        faults: the lines of a stage that refused its input.
    """

    code: int
    faults: tuple[str, ...]


def command(*arguments: str, parent: int | None = None) -> list[str]:
    """Command line of DVC in this Python environment; waits for other DVC processes.

    Args:
        arguments: those of DVC.
        parent: id of the process with which DVC shall end, however that ends.
    """
    bound = [] if parent is None else ["--parent", str(parent)]
    return [sys.executable, "-m", "pipeline.dvc_program", *bound, *_WAITING, *arguments]


def variables() -> dict[str, str]:
    """Environment for DVC: quiet, a shell that works, its stages find this Python as ``python``."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **environment.SETTINGS, "PATH": path, "SHELL": "/bin/sh"}


def call(root: Path, *arguments: str) -> None:
    """Run a DVC command.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(command(*arguments), cwd=root, env=variables(), check=True)


def repro(root: Path, arguments: Sequence[str] = ()) -> Outcome:
    """Rebuild what is not up to date; output goes to the terminal as it comes.

    Args:
        root: root of the workspace.
        arguments: stage names and options of ``dvc repro``.
    """
    with tempfile.TemporaryDirectory(prefix="ranloom-") as folder:
        report = Path(folder) / "faults"
        process = subprocess.Popen(
            command("repro", *arguments), cwd=root, env={**variables(), FAULTS_FILE: str(report)}
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:  # DVC and the stage got it, too: let them put things in order
            process.wait()
            raise
        faults = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    return Outcome(EXIT_BAD_INPUT if faults else code, tuple(faults))
