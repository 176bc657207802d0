"""Starting, killing and ending the processes of a run on this machine; none outlives its parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from ranloom.errors import InputError
from ranloom.processes import die_with_parent, process_cpu_s

_PRELOAD = ["ranloom.training.runtime.preload"]
_IMPORTER = os.getpid()
"""Process that imported this module: in a child, the server that it was forked from."""


def start_server() -> None:
    """Let the server that children are forked from import torch while the caller does other work.

    A run starts it otherwise, and waits.
    """
    _context()
    forkserver.ensure_running()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


class Children:
    """Processes of a run, by name; a context that ends them all when it is left.

    Children are forked from a server process that has imported torch once, so a start takes tenths
    of a second instead of seconds.

    Args:
        folder: where each child's output goes (``<name>.log``).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = _context()
        self._running: dict[str, ForkServerProcess] = {}

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()

    def start(self, name: str, run: Callable[[Any], None], config: Any) -> None:
        """Start a child that calls ``run(config)``; one of that name must not be alive."""
        if name in self._running:
            if self._running[name].is_alive():
                raise RuntimeError(f"{name} is running already")
            self._running[name].close()
        child = self._context.Process(
            target=_child, args=(run, config, self._folder / f"{name}.log", name), daemon=True
        )
        child.start()
        self._running[name] = child

    def alive(self, name: str) -> bool:
        """Whether a child runs."""
        return name in self._running and self._running[name].is_alive()

    def exit_code(self, name: str) -> int | None:
        """How a child ended, None while it runs."""
        return self._running[name].exitcode

    def signal(self, name: str, number: int) -> bool:
        """Send a signal to a child; whether there was one to receive it."""
        pid = self._running[name].pid
        if not self.alive(name) or pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def wait(self, name: str, timeout_s: float) -> bool:
        """Wait for a child to end; whether it did."""
        self._running[name].join(timeout_s)
        return not self._running[name].is_alive()

    def last_words(self, name: str) -> str:
        """Last line of a child's output."""
        path = self._folder / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else ""

    def resident_bytes(self) -> dict[str, int]:
        """Proportional set size of each living child."""
        sizes = {}
        for name, child in self._running.items():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{child.pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        sizes[name] = int(line.split()[1]) * 1024
        return sizes

    def cpu_s(self, name: str) -> float:
        """Processor time of a child so far, 0 if it is gone."""
        pid = self._running[name].pid
        return process_cpu_s(pid) if pid is not None else 0.0

    def end_all(self) -> None:
        """Kill what still runs and collect it."""
        for name, child in self._running.items():
            self.signal(name, signal.SIGKILL)
            child.join(5.0)
        for child in self._running.values():
            if not child.is_alive():
                child.close()
        self._running.clear()


def _child(run: Callable[[Any], None], config: Any, output: Path, name: str) -> None:
    # A server that could not preload has left the import to the child.
    die_with_parent(_IMPORTER if os.getpid() != _IMPORTER else os.getppid())
    import torch

    torch.set_num_threads(1)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        run(config)
    except InputError as error:
        print(error, flush=True)
        _leave(2)
    except Exception as error:
        traceback.print_exc()
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
        _leave(1)
    _leave(0)


def _leave(code: int) -> None:
    """End at once: nothing that another thread or an exit handler does may delay it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for(condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.02) -> bool:
    """Look again and again until the condition holds or the time is over; whether it held."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return condition()
        time.sleep(pause_s)
    return True
