"""DVC as a child process of a flow: its output streams, it never outlives the flow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pipeline import dvc
from pipeline.runner import FAULTS_FILE

_TERMINATE_GRACE_S = 10.0
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
# The kernel ends DVC together with the process that started it, whatever ends that. A stage
# asks for the same of DVC, so a killed flow leaves nothing behind that writes into outs/.
_LAUNCH = (
    "import runpy, sys; from pipeline.lifetime import die_with_parent; die_with_parent(); "
    "sys.argv = ['dvc', *sys.argv[1:]]; runpy.run_module('dvc', run_name='__main__')"
)

_running: set[subprocess.Popen[str]] = set()


class StageFailedError(RuntimeError):
    """A stage did not succeed; the message is its own error line."""


class WorkspaceBusyError(StageFailedError):
    """Another DVC process holds an output of the stage: worth one more try."""


class BadInputError(StageFailedError):
    """Parameters or user files cannot be used: trying again would not help."""


def repro(root: Path, what: str, arguments: list[str], emit: Callable[[str], None]) -> None:
    """Run ``dvc repro`` in a process group of its own and wait for it.

    Args:
        root: root of the workspace.
        what: name for messages.
        arguments: stage names and options of ``dvc repro``.
        emit: receives each line of output.

    Raises:
        BadInputError: a stage refused its parameters or input files.
        WorkspaceBusyError: another DVC process works on the same outputs.
        StageFailedError: any other failure.
    """
    lines: list[str] = []
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as faults:
        process = _start(root, arguments, faults.name)
        _running.add(process)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                emit(lines[-1])
            code = process.wait()
        finally:
            _stop(process)
            _running.discard(process)
        refused = [line for line in faults.read().splitlines() if line]
    if refused:
        raise BadInputError(f"{what}: {'; '.join(refused)}")
    if code and any("is busy" in line for line in lines):
        raise WorkspaceBusyError(f"{what}: another DVC process works in {root}")
    if code:
        raise StageFailedError(f"{what}: {_error_line(lines)}")


def stop_all() -> None:
    """End every DVC process group that this process started."""
    for process in list(_running):
        _stop(process)


def _start(root: Path, arguments: list[str], faults: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, *dvc.ARGUMENTS, "repro", *arguments],
        cwd=root,
        env={**dvc.variables(), "PYTHONPATH": path, FAULTS_FILE: faults, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process group: first asked to, then not asked."""
    if process.poll() is not None:
        return
    for signum, wait_s in ((signal.SIGTERM, _TERMINATE_GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return


def _error_line(lines: list[str]) -> str:
    """The last line that is not DVC's own framing of a failure."""
    framing = ("ERROR: failed to reproduce", "Running stage", "> ")
    own = [line for line in lines if line.strip() and not line.startswith(framing)]
    return own[-1] if own else "failed without a message"
