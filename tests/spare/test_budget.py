"""Reservations and what they leave free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.spare.budget import from_changes, rescale, spare_sm


def test_intervals_mean_and_transitions() -> None:
    trace = from_changes(np.array([0, 10, 30]), np.array([8, 24, 8]), 40, 500.0, sm_max=48)
    assert trace.slots.tolist() == [10, 20, 10]
    assert trace.transitions == 2
    assert trace.mean_sm == pytest.approx((8 * 20 + 24 * 20) / 40)


def test_spare_is_rounded_down_to_a_partition(root: Path) -> None:
    spark = load_card(root / "data/cards/dgx_spark.yaml")
    sm = np.array([0, 8, 12, 41, 44, 48])
    trace = from_changes(np.arange(6), sm, 6, 500.0, sm_max=48)
    # 48 - 12 = 36 is no multiple of 8; 48 - 41 = 7 is below the smallest partition.
    assert spare_sm(trace, spark).tolist() == [48, 40, 32, 0, 0, 0]


def test_rescaling_never_reserves_less_than_the_share(root: Path) -> None:
    l40s = load_card(root / "data/cards/l40s.yaml")
    trace = from_changes(np.arange(4), np.array([0, 8, 24, 48]), 4, 500.0, sm_max=48)
    scaled = rescale(trace, 48, l40s)
    assert scaled.sm.tolist() == [0, 24, 72, 142]  # 142/6 = 23.7 and 71 rounded up to even
    assert (scaled.sm >= trace.sm * 142 / 48 - 1e-9).all()


@pytest.mark.parametrize(
    ("slot", "sm", "message"),
    [
        ([], [], "first change must lie at slot 0"),
        ([1, 2], [8, 8], "first change must lie at slot 0"),
        ([0, 5, 5], [8, 16, 8], "row 2: slot: 5"),
        ([0, 50], [8, 16], "the trace has 40 slots"),
        ([0, 5], [8, 56], "row 1: sm: 56"),
        ([0, 5], [8, -1], "row 1: sm: -1"),
    ],
)
def test_bad_traces_are_refused(slot: list[int], sm: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_changes(np.array(slot, dtype=int), np.array(sm, dtype=int), 40, 500.0, sm_max=48)
