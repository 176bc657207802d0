"""Which process owns a run, and whether it still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Owner:
    """A process, told apart from a later one with the same id by its start time.

    Args:
        host: host name.
        pid: process id.
        started: when it started, in whatever unit the system tells it.
    """

    host: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Owner:
        """A running process of this machine."""
        return cls(socket.gethostname(), pid, _started(psutil.Process(pid)))

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> Owner | None:
        """Owner noted in run tags; ``None`` where there is none."""
        try:
            return cls(
                tags["ranloom.owner.host"],
                int(tags["ranloom.owner.pid"]),
                tags["ranloom.owner.started"],
            )
        except (KeyError, ValueError):
            return None

    def tags(self) -> dict[str, str]:
        """Run tags that name this owner."""
        return {
            "ranloom.owner.host": self.host,
            "ranloom.owner.pid": str(self.pid),
            "ranloom.owner.started": self.started,
        }

    def is_dead(self) -> bool:
        """Whether the process is known to be gone; on another host nobody can tell."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            return _started(process) != self.started or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


def _started(process: psutil.Process) -> str:
    """Start time by a clock that nobody sets, where the system tells it."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{process.create_time():.2f}"
    return stat.rpartition(")")[2].split()[19]  # ticks since the machine started, proc(5)
