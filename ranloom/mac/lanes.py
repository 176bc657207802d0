"""Independent cells on as many cores as there are: lanes that share nothing but code.

The slot loop holds no interpreter lock, so threads are enough. Results do not depend on how many
there are, and come back in the order of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ranloom.processes import cores

T = TypeVar("T")


def run_lanes(tasks: Sequence[Callable[[], T]], workers: int | None = None) -> list[T]:
    """Call every task, at most ``workers`` at a time (default: one a core).

    The first one runs alone: it compiles what the others then find.

    Raises:
        Exception: that of the first task in order that failed; the others are waited for.
    """
    if not tasks:
        return []
    done = [tasks[0]()]
    with ThreadPoolExecutor(workers or cores()) as pool:
        waiting = [pool.submit(task) for task in tasks[1:]]
    return done + [task.result() for task in waiting]
