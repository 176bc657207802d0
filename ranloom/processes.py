"""What the system knows of processes: cores to use, a parent's death, processor time."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_CPUCLOCK_SCHED = 2


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone (Linux).

    Args:
        parent: id of the process that started this one, known before: one that has ended by now
            sends no signal, and whoever has adopted this process would be taken for it.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def process_cpu_s(pid: int) -> float:
    """Processor time of a process so far, all its threads, 0 if it is gone.

    The clock of another process (clock_getcpuclockid(3)) is not rounded to ticks of 10 ms.
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return 0.0
