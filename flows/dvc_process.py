"""DVC as a child process of a flow: its output streams, it never outlives the flow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from pipeline import dvc
from pipeline.runner import FAULTS_FILE

_TERMINATE_GRACE_S = 10.0
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_BUSY = "is busy, it is being blocked by"
"""How DVC says that another of its processes holds an output."""


class StageFailedError(RuntimeError):
    """A stage did not succeed; the message is its own error line."""


class WorkspaceBusyError(StageFailedError):
    """Another DVC process holds an output of the stage: worth one more try."""


class BadInputError(StageFailedError):
    """Parameters or user files cannot be used: trying again would not help."""


class StoppedError(StageFailedError):
    """The flow was cancelled before this stage began or while it ran."""


class Processes:
    """The DVC processes of one flow run, so that ending it ends them and no others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def __reduce__(self) -> tuple[type[Processes], tuple[()]]:
        """Task runners on other machines start with an empty set: processes do not travel."""
        return Processes, ()

    def repro(
        self, root: Path, what: str, arguments: list[str], emit: Callable[[str], None]
    ) -> None:
        """Run ``dvc repro`` in a process group of its own and wait for it.

        Args:
            root: root of the workspace.
            what: name for messages.
            arguments: stage names and options of ``dvc repro``.
            emit: receives each line of output.

        Raises:
            BadInputError: a stage refused its parameters or input files.
            WorkspaceBusyError: another DVC process works on the same outputs.
            StoppedError: the flow was stopped.
            StageFailedError: any other failure.
        """
        lines: list[str] = []
        with tempfile.NamedTemporaryFile("r", suffix=".txt") as faults:
            with self._lock:
                if self._stopped:
                    raise StoppedError(f"{what}: the flow was stopped")
                process = _start(root, arguments, faults.name)
                self._running.add(process)
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append(line.rstrip())
                    emit(lines[-1])
                code = process.wait()
            finally:
                _stop(process)
                self._running.discard(process)
            refused = [line for line in faults.read().splitlines() if line]
        if self._stopped:
            raise StoppedError(f"{what}: the flow was stopped")
        if refused:
            raise BadInputError(f"{what}: {'; '.join(refused)}")
        if code and any(_BUSY in line for line in lines):
            raise WorkspaceBusyError(f"{what}: another DVC process works in {root}")
        if code:
            raise StageFailedError(f"{what}: {_error_line(lines)}")

    def stop(self) -> None:
        """End what runs and let nothing new begin."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _stop(process)


def _start(root: Path, arguments: list[str], faults: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        # A stage asks of DVC what DVC asks of the flow here: a flow that is killed leaves nothing
        # behind that writes into outs/.
        dvc.command("repro", *arguments, parent=os.getpid()),
        cwd=root,
        env={**dvc.variables(), "PYTHONPATH": path, FAULTS_FILE: faults, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """End DVC and its stage.

    The stage is asked first, because DVC would end at once and take it along before it has put
    things in order; then both are asked, then not asked any more.
    """
    if process.poll() is not None:
        return
    asks: list[tuple[Callable[[], None], float | None]] = [
        (lambda: _terminate_stages(process.pid), _TERMINATE_GRACE_S),
        (lambda: os.killpg(process.pid, signal.SIGTERM), _TERMINATE_GRACE_S),
        (lambda: os.killpg(process.pid, signal.SIGKILL), None),
    ]
    for ask, wait_s in asks:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            ask()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return


def _terminate_stages(dvc_pid: int) -> None:
    stages = psutil.Process(dvc_pid).children()
    for stage in stages:
        stage.terminate()
    if not stages:  # DVC is between two stages
        os.kill(dvc_pid, signal.SIGTERM)


def _error_line(lines: list[str]) -> str:
    """The last line that is not DVC's own framing of a failure."""
    framing = ("ERROR: failed to reproduce", "Running stage", "> ")
    own = [line for line in lines if line.strip() and not line.startswith(framing)]
    return own[-1] if own else "failed without a message"
