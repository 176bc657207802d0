from __future__ import annotations

import numpy as np
import pytest

from ranloom.traffic.arrivals import from_unsorted
from ranloom.traffic.burst_model import LEVELS, Quantiles, fit, runs


def rng(seed=1):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "data",
    [
        rng().exponential(500.0, 5_000) + 1,
        rng().lognormal(5.0, 1.5, 5_000) + 1,
        np.full(10, 42.0),
        np.array([1.0, 1.0, 1e6]),
    ],
)
def test_quantiles_keep_the_mean_and_the_shape(data):
    table = Quantiles.of(data)
    drawn = table.sample(rng(2), 200_000)
    assert table.mean == pytest.approx(data.mean())
    assert drawn.mean() == pytest.approx(data.mean(), rel=0.02)
    if data.size > 100:
        inner = slice(1, -2)
        ratio = np.quantile(drawn, LEVELS[inner]) / np.quantile(data, LEVELS[inner])
        assert ratio == pytest.approx(np.ones(len(LEVELS[inner])), rel=0.15)


def test_simultaneous_packets_count_as_one_microsecond():
    assert Quantiles.of([0.0, 0.0]).values == (1.0,) * len(LEVELS)


def test_runs_split_at_gaps_above_100_ms():
    first, last = runs(np.array([0, 100_000, 200_001, 200_001, 500_000]), 100_000)
    assert first.tolist() == [0, 2, 4]
    assert last.tolist() == [1, 3, 4]


def test_fit_reads_the_facts_off_a_made_trace():
    # Bursts of 100, 4,500 and 100 bytes in turn, 1 s apart, packets 10 ms apart, for 3,000 s.
    times, sizes = [], []
    for i in range(3_000):
        packets = [100] if i % 3 else [1_500] * 3
        times += [1_000_000 * i + 500_000 + 10_000 * k for k in range(len(packets))]
        sizes += packets
    model = fit(from_unsorted(times, np.zeros(len(times)), sizes, 1, 3_000_000_000))
    assert model.bursts_per_s == pytest.approx(1.0)
    assert model.mean_kbps == pytest.approx(4_700 / 3 * 8e-3)
    assert model.next_class[0] == pytest.approx((0.5, 0.5, 0.0))
    assert model.next_class[1] == pytest.approx((1.0, 0.0, 0.0))
    assert model.classes[2] is None
    assert model.class_shares() == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert model.classes[0].train_bytes.mean == 100
    assert model.classes[1].burst_bytes == 4_500
    assert model.classes[1].burst_trains.mean == 3
    assert model.classes[1].train_gap_us.mean == 10_000
    assert model.idle_us.mean == pytest.approx(1e6 - 20_000 / 3)


def test_a_sample_of_a_made_trace_looks_like_it():
    times, sizes = [], []
    for i in range(300):
        packets = [100] if i % 3 else [1_500] * 3
        times += [1_000_000 * i + 500_000 + 10_000 * k for k in range(len(packets))]
        sizes += packets
    model = fit(from_unsorted(times, np.zeros(len(times)), sizes, 1, 300_000_000))
    drawn = model.sample(3_000_000_000, rng())
    again = fit(drawn)
    assert drawn.offered_mbps * 1e3 == pytest.approx(model.mean_kbps, rel=0.05)
    assert again.class_shares() == pytest.approx(model.class_shares(), abs=0.03)
    assert set(drawn.size_bytes) == {100, 1_500}
    assert again.next_class[1] == pytest.approx((1.0, 0.0, 0.0))


def test_one_packet_is_enough_to_fit():
    model = fit(from_unsorted([5], [0], [40], 1, 1_000_000))
    drawn = model.sample(1_000_000_000, rng())
    assert drawn.offered_mbps == pytest.approx(40 * 8e-6, rel=0.01)


def test_packets_at_most_a_millisecond_apart_are_one_train():
    times = [0, 200, 1_200, 2_201, 2_400]
    (burst, *_) = fit(from_unsorted(times, [0] * 5, [10, 20, 30, 40, 50], 1, 1_000_000)).classes
    assert burst.burst_trains.mean == 2
    assert burst.train_packets.mean == 2.5
    assert burst.train_bytes.mean == 75
    assert burst.train_gap_us.mean == 1_001
    assert burst.packet_gap_us == pytest.approx((1_200 + 199) / 3)
