from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.traffic.arrivals import Arrivals, concatenate, from_unsorted, merge, stack


def packets(time_us, ue, size, n_ue=2, duration_us=1_000) -> Arrivals:
    return Arrivals(np.array(time_us), np.array(ue), np.array(size), n_ue, duration_us)


THREE = packets([0, 10, 999], [0, 1, 0], [100, 40, 1500])


@pytest.mark.parametrize(
    ("columns", "where", "value"),
    [
        (([0, 5, 4], [0, 0, 0], [1, 1, 1]), "arrivals.time_us[2]", 4),
        (([0, -1], [0, 0], [1, 1]), "arrivals.time_us[1]", -1),
        (([0, 1_000], [0, 0], [1, 1]), "arrivals.time_us[1]", 1_000),
        (([0, 1], [0, 2], [1, 1]), "arrivals.ue[1]", 2),
        (([0, 1], [0, 70_000], [1, 1]), "arrivals.ue[1]", 70_000),
        (([0, 1], [0, -1], [1, 1]), "arrivals.ue[1]", -1),
        (([0, 1], [0, 1], [1, 0]), "arrivals.size_bytes[1]", 0),
        (([0, 1], [0, 1], [-7, 1]), "arrivals.size_bytes[0]", -7),
        (([0, 1], [0, 1], [1, 2**40]), "arrivals.size_bytes[1]", 2**40),
        (([0.5, 1.0], [0, 1], [1, 1]), "arrivals.time_us", "float64"),
        (([0, 1], [0], [1, 1]), "arrivals", ((2,), (1,), (2,))),
    ],
)
def test_refuses_what_breaks_a_rule_and_names_the_row(columns, where, value):
    with pytest.raises(InputError) as caught:
        packets(*columns)
    assert caught.value.where == where
    assert caught.value.value == value


@pytest.mark.parametrize(("n_ue", "duration_us"), [(0, 10), (40_000, 10), (1, 0)])
def test_refuses_impossible_cells(n_ue, duration_us):
    with pytest.raises(InputError):
        packets([], [], [], n_ue, duration_us)


def test_arrays_cannot_be_changed_and_caller_arrays_can():
    time_us = np.array([1, 2])
    flow = Arrivals(time_us, np.array([0, 0]), np.array([5, 6]), 1, 10)
    with pytest.raises(ValueError, match="read-only"):
        flow.time_us[0] = 0
    time_us[0] = 0
    assert flow.time_us[0] == 1


def test_totals():
    assert THREE.total_bytes == 1640
    assert THREE.bytes_per_ue.tolist() == [1600, 40]
    assert THREE.offered_mbps == pytest.approx(1640 * 8 / 1000)


def test_loop_repeats_without_a_pause_and_cuts():
    twice = THREE.loop_to(2_005)
    assert twice.time_us.tolist() == [0, 10, 999, 1000, 1010, 1999, 2000]
    assert twice.ue.tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert twice.size_bytes.tolist() == [100, 40, 1500, 100, 40, 1500, 100]
    assert THREE.loop_to(10).time_us.tolist() == [0]
    assert THREE.loop_to(1_000).time_us.tolist() == THREE.time_us.tolist()


def test_rotation_keeps_every_packet():
    later = THREE.rotate(10)
    assert later.time_us.tolist() == [0, 989, 990]
    assert later.size_bytes.tolist() == [40, 1500, 100]


def test_integer_scale_replicates_each_packet():
    scaled = THREE.scale(3.0)
    assert scaled.time_us.tolist() == [0, 0, 0, 10, 10, 10, 999, 999, 999]
    assert scaled.total_bytes == 3 * THREE.total_bytes


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=300),
    factor=st.floats(0.01, 20.0),
)
def test_scaled_bytes_follow_the_factor_within_one_packet(sizes, factor):
    n = len(sizes)
    ue = np.arange(n) % 2
    flow = packets(np.arange(n), ue, sizes)
    scaled = flow.scale(factor)
    for u in (0, 1):
        before = np.cumsum(np.where(ue == u, sizes, 0))
        after = np.array(
            [scaled.size_bytes[(scaled.ue == u) & (scaled.time_us <= t)].sum() for t in range(n)]
        )
        assert np.all(np.abs(after - factor * before) <= 1500)
    assert set(scaled.size_bytes) <= set(sizes)


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan, np.inf])
def test_scale_refuses(factor):
    with pytest.raises(InputError, match="load_factor"):
        THREE.scale(factor)


def test_split_records():
    flow = packets([1, 2, 3], [0, 1, 0], [1500, 1501, 9978])
    split, count = flow.split_records()
    assert count == 2
    assert split.size_bytes.tolist() == [1500, 1500, 1, *[1500] * 6, 978]
    assert split.time_us.tolist() == [1, 2, 2, *[3] * 7]
    assert split.bytes_per_ue.tolist() == flow.bytes_per_ue.tolist()


def test_merge_stack_concatenate():
    other = packets([5, 10], [1, 0], [7, 8])
    both = merge([THREE, other])
    assert both.time_us.tolist() == [0, 5, 10, 10, 999]
    assert both.size_bytes.tolist() == [100, 7, 40, 8, 1500]
    side = stack([THREE, other])
    assert side.n_ue == 4
    assert side.ue.tolist() == [0, 3, 1, 2, 0]
    after = concatenate([THREE, other])
    assert after.duration_us == 2_000
    assert after.time_us.tolist() == [0, 10, 999, 1005, 1010]


def test_combining_refuses_what_does_not_fit():
    short = packets([1], [0], [1], n_ue=2, duration_us=10)
    narrow = packets([1], [0], [1], n_ue=1)
    for combine, other in ((merge, short), (merge, narrow), (stack, short), (concatenate, narrow)):
        with pytest.raises(InputError):
            combine([THREE, other])
        with pytest.raises(InputError):
            combine([])


def test_from_unsorted_keeps_the_order_of_equal_times():
    flow = from_unsorted([5, 1, 5], [0, 0, 0], [1, 2, 3], 1, 10)
    assert flow.size_bytes.tolist() == [2, 1, 3]
