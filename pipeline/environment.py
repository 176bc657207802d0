"""Settings that keep the tools quiet: nothing of the project reaches the network by itself."""

from __future__ import annotations

import gc
import os

SETTINGS = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "GIT_PYTHON_REFRESH": "quiet",
}

_ALLOCATIONS = 100 * gc.get_threshold()[0]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def apply() -> None:
    """Set them in this process (and thereby its children); call before importing a tool."""
    os.environ.update(SETTINGS)


def single_threaded() -> None:
    """One thread for BLAS and OpenMP: sums must not depend on the number of cores.

    Must run before NumPy or torch is imported.
    """
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    os.environ["MPLBACKEND"] = "Agg"


def collect_rarely() -> None:
    """Look for garbage cycles a hundred times less often than Python does.

    Stages, and what they import, make many objects that live until the end of a short process;
    looking through them again and again takes up to a fifth of its time.
    """
    gc.set_threshold(_ALLOCATIONS, *gc.get_threshold()[1:])
