"""How a stage's process ends: with DVC, and in order when it is asked to."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """On Linux, have the kernel end this process when its parent ends, whatever ends that.

    Without it a stage outlives a killed DVC, and the next run writes the same files beside it. The
    signal is SIGKILL: Python handlers wait for compiled code to return. The parent may have
    ended between its last sign of life and the request, hence the comparison.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def exit_on_terminate() -> None:
    """Turn SIGTERM into SystemExit, so that temporary files and child processes are cleared."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)
