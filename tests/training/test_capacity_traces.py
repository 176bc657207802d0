"""Draws of site traces: repeatable, cyclic, and never of a site without compute."""

from __future__ import annotations

import numpy as np

from ranloom.training.capacity_traces import draw_failures, draw_traces


def test_draws_are_pieces_of_the_pool() -> None:
    pool = [np.arange(10.0) + 1, np.arange(5.0) + 101]
    drawn = draw_traces(pool, 20, 7, seed=3)
    assert np.array_equal(drawn, draw_traces(pool, 20, 7, seed=3))
    for row in drawn:
        trace = pool[0] if row[0] < 100 else pool[1]
        start = int(np.flatnonzero(trace == row[0])[0])
        assert np.array_equal(row, trace[(start + np.arange(7)) % trace.size])
    assert {row[0] > 100 for row in drawn} == {True, False}


def test_an_idle_window_moves_to_the_next_second_with_compute() -> None:
    trace = np.zeros(100)
    trace[40] = 7.0
    drawn = draw_traces([trace], 50, 5, seed=1)
    assert (drawn.max(axis=1) == 7.0).all()
    # A trace without any compute stays what it is.
    assert not draw_traces([np.zeros(9)], 3, 4, seed=1).any()


def test_more_failures_are_fewer_ones_and_some_more():
    few, many = (draw_failures(4, 100.0, count, (5.0, 20.0), seed=3) for count in (3, 8))
    assert set(few) < set(many)
    assert [len(few), len(many)] == [3, 8]
    assert many == tuple(sorted(many))
    for at_s, site, back_s in many:
        assert 0.0 <= at_s < 100.0
        assert site in range(4)
        assert 5.0 <= back_s - at_s <= 20.0
    assert draw_failures(4, 100.0, 3, (5.0, 20.0), seed=4) != few
