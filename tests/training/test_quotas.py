"""Contribution debt and quotas (Eqs. 4, 5, 11)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranloom.training.quotas import DebtQuotas


def test_debt_follows_the_paper():
    quotas = DebtQuotas(np.array([10.0, 6.0]), gain=0.5, max_debt=np.inf)
    quotas.settle(np.array([7.0, 9.0]))
    assert quotas.debt == pytest.approx([3.0, -3.0])
    assert quotas.samples() == pytest.approx([11.5, 4.5])


@given(
    gain=st.floats(0.05, 0.95),
    noise=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=200),
    start=st.floats(-50.0, 50.0),
)
def test_unclipped_debt_obeys_equation_11(gain, noise, start):
    """n = n_target + kappa d + xi with |xi| <= 1 keeps |d| <= (1 - kappa)^t |d(0)| + 1 / kappa."""
    quotas = DebtQuotas(np.array([100.0]), gain, max_debt=np.inf)
    quotas.debt = np.array([start])
    for step, xi in enumerate(noise, start=1):
        quotas.settle(quotas.base + gain * quotas.debt + xi)
        bound = (1.0 - gain) ** step * abs(start) + 1.0 / gain
        assert abs(quotas.debt[0]) <= bound * (1.0 + 1e-9)


def test_a_site_that_never_delivers_owes_at_most_the_bound():
    quotas = DebtQuotas(np.array([8.0, 8.0]), gain=0.3, max_debt=20.0)
    for _ in range(100):
        quotas.settle(np.array([0.0, 16.0]))
    assert quotas.debt == pytest.approx([20.0, -20.0])
    quotas.rebase(np.array([4.0, 12.0]))
    assert quotas.debt == pytest.approx([0.0, 0.0])


@given(
    base=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=8),
    total=st.integers(0, 60),
)
def test_micro_batches_sum_up_and_stay_within_one_of_their_share(base, total):
    quotas = DebtQuotas(np.array(base), gain=0.5, max_debt=10.0)
    counts = quotas.micro_batches(total)
    assert counts.sum() == total
    assert (counts >= 0).all()
    weight = np.array(base) if sum(base) > 0 else np.ones(len(base))
    assert np.abs(counts - total * weight / weight.sum()).max() < 1.0
