"""How a stage's process ends: with DVC, and in order when it is asked to."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """On Linux, have the kernel end this process when its parent ends, whatever ends that.

    Without it a stage outlives a killed DVC, and the next run writes the same files beside it. The
    signal is SIGKILL: Python handlers wait for compiled code to return. Call it before anything
    that takes time: a parent that has ended by then sends no signal.

    Args:
        parent: id of the process that started this one. Where it is not known, a parent in another
            session is taken for the process that adopts orphans.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _orphaned(os.getppid(), parent):
        os.kill(os.getpid(), signal.SIGKILL)


def _orphaned(current: int, parent: int | None) -> bool:
    if parent is not None:
        return current != parent
    try:
        return os.getsid(current) != os.getsid(0)
    except ProcessLookupError:  # a parent outside this process namespace, or gone by now
        return current != os.getppid()


def exit_on_terminate() -> None:
    """Turn SIGTERM into SystemExit, so that temporary files and child processes are cleared."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def to_the_end() -> Iterator[None]:
    """Ignore requests to stop: what has begun here is short, and half of it is worth nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
