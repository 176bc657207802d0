"""Backend ``cuda``: the CUDA decoder timed on partitions of a GPU.

Time runs from the first launch of a slot's decode until the host knows that it is done: launch
cost counts, copies to and from the device do not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.gpu.partition import SIMULATOR, Device, clock_and_driver, partition
from ranloom.ldpc.cuda import CudaDecoder
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.transport_block import TransportBlockFormat


@dataclass(frozen=True)
class CudaDecodes:
    """Decodes on partitions of one GPU; see :class:`ranloom.lut.measure.Decodes`.

    Args:
        settings: how to decode.
        device: the GPU.
        card: its card.
        levels: SM counts, each a level of the card.

    Raises:
        InputError: an SM count is no level of the card.
    """

    settings: DecoderSettings
    device: Device
    card: Card
    levels: Sequence[int]
    _clocks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for sm in self.levels:
            self.card.check_level(sm, "sm")

    def times_us(
        self, values: NDArray[np.int16], form: TransportBlockFormat, level: int, repetitions: int
    ) -> list[float]:
        """Times on a partition of ``level`` SMs.

        Raises:
            InputError: the driver does not grant the partition, or the device decodes wrongly.
        """
        z, rows = form.segmentation.lifting_size, form.rows_needed
        with partition(self.device, level) as stream:
            decoder = CudaDecoder(form.graph, z, len(values), self.settings, rows)
            times_us = []
            for _ in range(repetitions):
                decoder.load(values, stream)
                stream.synchronize()
                start = time.perf_counter_ns()
                decoder.run(stream)
                stream.synchronize()
                times_us.append((time.perf_counter_ns() - start) / 1e3)
            found = decoder.result(stream)
        if level == max(self.levels):
            self._clocks.append(clock_and_driver(self.device))  # while the GPU is still warm
            expected = decode(values, form.graph, z, self.settings, rows)
            if not np.array_equal(found.words, expected.words):
                wrong = int((found.words != expected.words).sum())
                raise InputError(
                    f"device {self.device.name}", f"{wrong} bits", "needed: the bits of the CPU"
                )
        return times_us

    def describe(self) -> Mapping[str, str]:
        """Device, card, and the clocks that were seen under load."""
        name = f"{SIMULATOR}: no measurement of any GPU" if self.device.simulated else None
        return {
            "backend": "cuda (numba kernels on green contexts; launch to completion)",
            "device": name or self.device.name,
            "card": self.card.name,
            "clock_max_clock_driver": "; ".join(dict.fromkeys(self._clocks)),
        }
