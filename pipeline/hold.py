"""A workspace that is being rebuilt: its parent run in MLflow stays open from stage to stage.

A shared lock on the folder of the workspace is the sign. The kernel drops it with the process, and
two rebuilds at once both hold it. On a file system without such locks nothing is ever held.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold a workspace while its stages are rebuilt one after another."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile has the descriptor, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def is_held(root: Path) -> bool:
    """Whether a process that lives, this one included, holds a workspace."""
    try:
        descriptor = os.open(root, os.O_RDONLY)
    except OSError:  # removed meanwhile
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
