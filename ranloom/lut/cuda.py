"""Backend ``cuda``: the CUDA decoder timed on partitions of a GPU.

Time runs from the first launch of a slot's decode until the host knows that it is done: launch
cost counts, copies to and from the device do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.gpu.partition import SIMULATOR, Device, clock_and_driver, partition
from ranloom.ldpc.cuda import CudaDecoder
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.ldpc.transport_block import Receiver, encode_transport_block
from ranloom.lut.characterise import Allocation
from ranloom.lut.cpu import transport_block_format
from ranloom.lut.measurements import Measurements, from_cells


def measure_cuda(
    points: Iterable[tuple[int, int]],
    levels: Sequence[int],
    allocation: Allocation,
    settings: DecoderSettings,
    device: Device,
    card: Card,
    *,
    repetitions: int,
    warm_up: int,
    seed: int,
    progress: Callable[[int, int, int, float], None] | None = None,
) -> Measurements:
    """Decode times of transport blocks by MCS, PRB and SM count.

    Args:
        points: (MCS, PRB) pairs.
        levels: SM counts, each a level of the card.
        allocation: shape of the allocation.
        settings: flooding, without early stop.
        device: the device.
        card: its card.
        repetitions: timed decodes a point.
        warm_up: decodes before those.
        seed: of the transmitted bits and the noise.
        progress: called with MCS, PRB, SMs and the P99 in us after each point.

    Raises:
        InputError: an SM count is no level, no repetition, or a point outside the table.
    """
    for sm in levels:
        card.check_level(sm, "sm")
    if repetitions < 1 or warm_up < 0:
        raise InputError("repetitions", repetitions, "allowed: at least 1, warm_up at least 0")
    cells: dict[tuple[int, int, int], tuple[float, float, int]] = {}
    for mcs, n_prb in points:
        form = transport_block_format(mcs, n_prb, allocation)
        rng = np.random.default_rng(np.random.SeedSequence([seed, mcs, n_prb]))
        sent = encode_transport_block(rng.integers(0, 2, form.tbs_bits, dtype=np.uint8), form)
        receiver = Receiver(form, settings)
        receiver.add(4.0 * (1.0 - 2.0 * sent) + rng.normal(0.0, 2.0, form.coded_bits))
        values, blocks = receiver.quantised(), form.segmentation
        for sm in levels:
            with partition(device, sm) as stream:
                decoder = CudaDecoder(
                    form.graph, blocks.lifting_size, len(values), settings, form.rows_needed
                )
                times_us = []
                for repetition in range(warm_up + repetitions):
                    decoder.load(values, stream)
                    stream.synchronize()
                    start = time.perf_counter_ns()
                    decoder.run(stream)
                    stream.synchronize()
                    if repetition >= warm_up:
                        times_us.append((time.perf_counter_ns() - start) / 1e3)
            p50, p99 = np.quantile(times_us, [0.5, 0.99], method="higher")
            cells[mcs, n_prb, sm] = (float(p50), float(p99), repetitions)
            if progress is not None:
                progress(mcs, n_prb, sm, float(p99))
    how = {
        "backend": "cuda (numba, flooding, two kernels an iteration)",
        "device": f"{SIMULATOR}: no measurement of any GPU" if device.simulated else device.name,
        "card": card.name,
        "clock_max_clock_driver": clock_and_driver(device),
        "decoder": f"flooding {settings.check_rule} int{settings.message_bits}, "
        f"{settings.iterations} iterations",
        "repetitions": f"{repetitions} after {warm_up} to warm up",
    }
    return from_cells(cells, "measured", how)
