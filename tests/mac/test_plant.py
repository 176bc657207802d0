"""Decode latency and its place in time, against the formula and hand-made overlaps."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.mac.config import PlantConfig
from ranloom.mac.harq import DecodeQueue, decode_queue, start_decode
from ranloom.mac.plant import decode_latency_us, plant_constants, plant_state, schedule_decode

WORK, SM = 3840, 16
P99 = 200.0 + 2.332 * WORK / SM + 0.0084 * WORK


def test_the_percentile_is_the_model() -> None:
    plant = plant_constants(PlantConfig(), 500)
    drawn = np.array([decode_latency_us(WORK, SM, 7, k, plant) for k in range(40_000)])
    assert np.mean(drawn > P99) == pytest.approx(0.01, abs=0.002)
    assert P99 / drawn.mean() == pytest.approx(1.13, abs=0.005)  # sd 0.054: P99 over mean


def test_without_tail_it_is_the_formula() -> None:
    plant = plant_constants(PlantConfig(tail_sigma=0.0), 500)
    assert decode_latency_us(WORK, SM, 7, 1, plant) == pytest.approx(P99)


def test_stalls() -> None:
    config = PlantConfig(tail_sigma=0.0, stall_probability=0.2, stall_mean_us=300.0)
    plant = plant_constants(config, 500)
    extra = np.array([decode_latency_us(WORK, SM, 7, k, plant) for k in range(20_000)]) - P99
    assert np.mean(extra > 0) == pytest.approx(0.2, abs=0.01)
    assert extra[extra > 0].mean() == pytest.approx(300.0, rel=0.05)


def place(overlap: str, *latencies: tuple[float, int]) -> DecodeQueue:
    """Decode one block per (latency, end of its slot)."""
    plant = plant_constants(PlantConfig(overlap=overlap), 500)
    queue, state = decode_queue(1, 16), plant_state()
    for latency, end in latencies:
        start_decode(0, 0, True, 20.0, end, True, queue)
        schedule_decode(latency, end, 1, plant, state, queue)
    return queue


def test_decodes_apart_do_not_meet() -> None:
    for overlap in ("serial", "shared", "summed"):
        queue = place(overlap, (400.0, 500), (400.0, 1000))
        assert queue.done_us[:2].tolist() == [900.0, 1400.0]
        assert queue.decode_us[:2].tolist() == [400.0, 400.0]


def test_serial_waits() -> None:
    queue = place("serial", (800.0, 500), (300.0, 1000), (300.0, 5500))
    assert queue.done_us[:3].tolist() == [1300.0, 1600.0, 5800.0]
    assert queue.decode_us[:3].tolist() == [800.0, 300.0, 300.0]


def test_summed_does_not() -> None:
    queue = place("summed", (800.0, 500), (300.0, 1000))
    assert queue.done_us[:2].tolist() == [1300.0, 1300.0]


def test_shared_runs_both_at_half_speed() -> None:
    # 300 us of the first are left at 1000: both need 600 us for them, then the second is alone
    queue = place("shared", (800.0, 500), (700.0, 1000))
    assert queue.done_us[:2].tolist() == [1600.0, 2000.0]
    assert queue.decode_us[:2].tolist() == [1100.0, 1000.0]
    # the second is the shorter one: done after 2 x 100 us, the first 100 us later than alone
    queue = place("shared", (800.0, 500), (100.0, 1000))
    assert queue.done_us[:2].tolist() == [1400.0, 1200.0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tail_sigma", -1.0), ("overlap", "both"), ("stall_probability", 2.0), ("grace_slots", -1)],
)
def test_bad_values(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"plant.{field}"):
        PlantConfig(**{field: value})
