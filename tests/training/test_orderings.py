"""Flips on numbers made by hand."""

from __future__ import annotations

import pytest

from ranloom.training.orderings import flips, nearest


def test_a_flip_is_read_between_the_points() -> None:
    assert flips([0, 10], [1, 3], [2, 2], log=False) == pytest.approx([5.0])
    assert flips([1, 100], [1, 3], [2, 2], log=True) == pytest.approx([10.0])
    # lead of 3 at one point, -1 at the next: three quarters of the way
    assert flips([0, 4], [5, 2], [2, 3], log=False) == pytest.approx([3.0])


def test_the_order_of_the_points_does_not_matter() -> None:
    assert flips([10, 0, 20], [3, 1, 3], [2, 2, 4], log=False) == pytest.approx([5.0, 15.0])


@pytest.mark.parametrize(("ours", "theirs"), [([2, 3], [1, 1]), ([1, 1], [2, 3]), ([2, 2], [2, 2])])
def test_systems_that_keep_their_places_have_no_flip(ours: list, theirs: list) -> None:
    assert flips([1, 10], ours, theirs, log=True) == ()


def test_equal_rates_are_not_ahead() -> None:
    assert flips([0, 1, 2], [3, 2, 2], [2, 2, 2], log=False) == pytest.approx([1.0])
    assert flips([0, 1, 2], [2, 2, 3], [2, 2, 2], log=False) == pytest.approx([1.0])


def test_a_rate_of_nothing_is_a_rate() -> None:
    assert flips([0, 1], [0, 4], [1, 1], log=False) == pytest.approx([0.25])


def test_the_nearest_flip_is_nearest_in_ratio_for_factors() -> None:
    assert nearest([0.1, 5.0], 1.0, log=True) == 5.0
    assert nearest([0.1, 5.0], 1.0, log=False) == 0.1
    assert nearest([], 1.0, log=True) is None
