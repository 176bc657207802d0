# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The plant: how long the GPU really decodes what was received in a slot.

Latency follows from the transport blocks of the slot (code blocks x lifting size), the SMs in
force, and a random tail. Nothing here reads the lookup table that a controller plans with.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ranloom.gpu.latency import decode_p99_us
from ranloom.mac.config import OVERLAPS, PlantConfig
from ranloom.mac.draws import STREAM_STALL, STREAM_STALL_LENGTH, normal, uniform
from ranloom.mac.kernel import kernel

SERIAL, SHARED, SUMMED = (OVERLAPS.index(name) for name in ("serial", "shared", "summed"))
P99_NORMAL = float(ndtri(0.99))


class Plant(NamedTuple):
    """Constants of the plant, see :class:`~ranloom.mac.config.PlantConfig`."""

    a_us: float
    k_us_sm: float
    b_us: float
    tail_sigma: float
    stall_probability: float
    stall_mean_us: float
    overlap: int
    grace_us: float


class PlantState(NamedTuple):
    """What the plant remembers from the decode before.

    Attributes:
        busy_until_us: float64[1], end of the last decode.
        last: int64[2], position in the decode queue and number of blocks of the last decode.
    """

    busy_until_us: NDArray[np.float64]
    last: NDArray[np.int64]


def plant_constants(config: PlantConfig, slot_us: int) -> Plant:
    """Constants for the kernels."""
    return Plant(
        config.a_us,
        config.k_us_sm,
        config.b_us,
        config.tail_sigma,
        config.stall_probability,
        config.stall_mean_us,
        OVERLAPS.index(config.overlap),
        float(config.grace_slots * slot_us),
    )


def plant_state() -> PlantState:
    """An idle GPU."""
    return PlantState(np.zeros(1), np.zeros(2, np.int64))


@kernel
def decode_latency_us(work, sm, seed, ul_index, plant):
    """One decode: the percentile times a lognormal tail that has it as its 99th percentile."""
    latency = decode_p99_us(work, sm, plant.a_us, plant.k_us_sm, plant.b_us)
    if plant.tail_sigma > 0.0:
        latency *= math.exp(plant.tail_sigma * (normal(seed, ul_index) - P99_NORMAL))
    if plant.stall_probability > 0.0 and (
        uniform(seed, STREAM_STALL, 0, ul_index) < plant.stall_probability
    ):
        latency -= plant.stall_mean_us * math.log(uniform(seed, STREAM_STALL_LENGTH, 0, ul_index))
    return latency


@kernel
def schedule_decode(latency_us, slot_end_us, n_blocks, plant, state, queue):
    """Place the decode of the last ``n_blocks`` of the queue in time and set their end.

    ``serial``: it waits for the decode before. ``shared``: both run at half speed while they
    overlap, which delays the earlier one too. ``summed``: each has SMs of its own.
    """
    mask = queue.ue.shape[0] - 1
    begin = queue.head[1] - n_blocks
    busy_until = state.busy_until_us[0]
    done = slot_end_us + latency_us
    duration = latency_us
    overlap = busy_until - slot_end_us
    if overlap > 0.0:
        if plant.overlap == SERIAL:
            done = busy_until + latency_us
        elif plant.overlap == SHARED:
            both = min(overlap, latency_us)
            done += both
            duration += both
            for i in range(state.last[0], state.last[0] + state.last[1]):
                queue.done_us[i & mask] += both
                queue.decode_us[i & mask] += both
            busy_until += both
    for i in range(begin, begin + n_blocks):
        queue.done_us[i & mask] = done
        queue.decode_us[i & mask] = duration
    state.busy_until_us[0] = max(done, busy_until)
    state.last[0] = begin
    state.last[1] = n_blocks
