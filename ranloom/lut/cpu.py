"""Backend ``cpu``: the numba decoder timed on one core.

A correctness reference and a yardstick, not an SM curve: its ``sm`` column counts cores (one),
which is no level of a GPU card. Times are CPU time of the decoding thread: what else runs on the
machine does not count.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.transport_block import TransportBlockFormat


@dataclass(frozen=True)
class CpuDecodes:
    """Decodes on one core; see :class:`ranloom.lut.measure.Decodes`."""

    settings: DecoderSettings
    levels: Sequence[int] = (1,)

    def times_us(
        self,
        values: NDArray[np.int16],
        form: TransportBlockFormat,
        level: int,  # noqa: ARG002 one core only
        repetitions: int,
    ) -> list[float]:
        """CPU times of the decoding thread."""
        z, rows = form.segmentation.lifting_size, form.rows_needed
        times_us = []
        for _ in range(repetitions):
            start = time.thread_time_ns()
            decode(values, form.graph, z, self.settings, rows)
            times_us.append((time.thread_time_ns() - start) / 1e3)
        return times_us

    def describe(self) -> Mapping[str, str]:
        """The processor."""
        return {
            "backend": "cpu (numba, one core, CPU time; sm counts cores)",
            "device": cpu_name(),
        }


def cpu_name() -> str:
    """Name of the CPU where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
