"""Counter-based numbers are uniform, independent over their coordinates, and repeatable."""

from __future__ import annotations

import numpy as np
from scipy import stats

from ranloom.mac.draws import normal, uniform


def _sample(seed: int, stream: int, lane: int, count: int = 20_000) -> np.ndarray:
    return np.array([uniform(seed, stream, lane, k) for k in range(count)])


def test_uniform() -> None:
    drawn = _sample(1, 0, 0)
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0
    assert stats.kstest(drawn, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.03


def test_coordinates_are_independent() -> None:
    base = _sample(1, 0, 0)
    for seed, stream, lane in ((2, 0, 0), (1, 1, 0), (1, 0, 1)):
        other = _sample(seed, stream, lane)
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.03
        assert stats.kstest(other, "uniform").pvalue > 0.01


def test_normal() -> None:
    drawn = np.array([normal(5, k) for k in range(20_000)])
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    assert normal(5, 123) == drawn[123]
