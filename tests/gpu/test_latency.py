"""Latency model: formula, matches with published thresholds, and its two fits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.gpu.latency import (
    LatencyModel,
    decode_p99_us,
    fit_latencies,
    fit_table,
    match_table,
)
from ranloom.nr.segmentation import work_table

LEVELS = np.arange(8, 49, 8)
SPARK = LatencyModel(a_us=200, k_us_sm=2.332, b_us=0.0084, p99_over_mean=1.13)

# Fig. 7c of the paper, typed in again: rows 273 to 25 PRB, columns MCS 0 to 27
PRB = [273, 217, 162, 106, 52, 25]
MCS = [0, 5, 10, 15, 20, 25, 27]
PUBLISHED = [
    [8, 8, 16, 24, 32, 48, 48],
    [8, 8, 16, 16, 24, 40, 40],
    [8, 8, 8, 16, 16, 32, 24],
    [8, 8, 8, 8, 16, 16, 24],
    [8, 8, 8, 8, 8, 8, 16],
    [8, 8, 8, 8, 8, 8, 8],
]


@pytest.fixture(scope="module")
def published():
    work = work_table(273)
    cells = np.array([[work[m, p] for m in MCS] for p in PRB]).ravel()
    return cells.astype(np.int64), np.array(PUBLISHED).ravel()


def test_formula():
    assert SPARK.p99_us(2816, 16) == pytest.approx(200 + 2.332 * 176 + 23.6544)
    assert SPARK.p99_us(0, 16) == 0.0
    assert SPARK.p50_us(2816, 16) == pytest.approx(634.0864 / 1.13)
    assert decode_p99_us(2816, 16, 200, 2.332, 0.0084) == pytest.approx(634.0864)
    assert decode_p99_us(0, 16, 200, 2.332, 0.0084) == 0.0


def test_matches_41_of_42_published_cells(published):
    work, min_sm = published
    match = match_table(SPARK, work, min_sm, LEVELS, 800.0)
    assert (match.matched, match.cells) == (41, 42)
    assert match.min_margin_us >= 8.0
    # the one that no model monotone in W can match together with (MCS 25, 162 PRB)
    missed = np.flatnonzero(match.margins_us < 0)
    assert missed.tolist() == [PRB.index(162) * len(MCS) + MCS.index(27)]
    at_25 = PRB.index(162) * len(MCS) + MCS.index(25)
    assert work[missed[0]] >= work[at_25]
    assert min_sm[missed[0]] < min_sm[at_25]


def test_infeasible_from_263_prb_at_mcs_28():
    work = work_table(273)
    needed = SPARK.min_sm(work, LEVELS, 800.0, infeasible=999)
    assert np.flatnonzero(needed[28] == 999).tolist() == list(range(263, 274))
    assert (needed[:28] <= 48).all()
    assert SPARK.p99_us(work[28, 273], 48) == pytest.approx(834.6, abs=0.05)


def test_reservation_slows_down_by_1_76():
    work = work_table(273)[15, 162]
    assert SPARK.p99_us(work, 16) / SPARK.p99_us(work, 48) == pytest.approx(1.76, abs=0.005)


@settings(deadline=None)
@given(work=st.integers(1, 20_000), budget=st.floats(150, 2000))
def test_min_sm_is_the_least_level_within_the_budget(work, budget):
    found = int(SPARK.min_sm(np.array(work), LEVELS, budget, infeasible=999))
    fitting = [s for s in LEVELS if decode_p99_us(work, s, 200, 2.332, 0.0084) <= budget]
    assert found == (fitting[0] if fitting else 999)


@settings(deadline=None)
@given(a=st.floats(10, 500), k=st.floats(0.1, 10), b=st.floats(1e-4, 0.1), seed=st.integers(0, 99))
def test_latency_fit_recovers_the_model(a, k, b, seed):
    rng = np.random.default_rng(seed)
    work = rng.integers(100, 12_000, 200)
    sm = rng.choice(LEVELS, 200)
    exact = LatencyModel(a, k, b, 1.2).p99_us(work, sm)
    model = fit_latencies(work, sm, exact, 1.2)
    assert (model.a_us, model.k_us_sm, model.b_us) == pytest.approx((a, k, b), rel=1e-6)
    noisy = fit_latencies(work, sm, exact * rng.normal(1.0, 0.01, 200), 1.2)
    np.testing.assert_allclose(noisy.p99_us(work, sm), exact, rtol=0.03)


def test_latency_fit_needs_points():
    with pytest.raises(InputError, match="at least 3 points"):
        fit_latencies(np.array([5, 6]), np.array([8, 16]), np.array([1.0, 2.0]), 1.0)
    latency = np.array([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"1 SM count\(s\), 3 size\(s\).*2 SM counts"):
        fit_latencies(np.array([5, 6, 7]), np.array([8, 8, 8]), latency, 1.0)
    # of one size of work only, a fixed cost and one that does not spread are the same
    with pytest.raises(InputError, match=r"3 SM count\(s\), 1 size\(s\)"):
        fit_latencies(np.array([5, 5, 5]), np.array([8, 16, 24]), latency, 1.0)


@pytest.mark.parametrize("a_us", [0.0, 100.0, 200.0, 300.0])
def test_threshold_fit_reaches_the_ceiling(published, a_us):
    work, min_sm = published
    model = fit_table(work, min_sm, LEVELS, 800.0, a_us, 1.13)
    match = match_table(model, work, min_sm, LEVELS, 800.0)
    assert match.matched == 41
    # a wider margin than that of the rounded parameters, in the same share of 800 - a
    assert match.min_margin_us / (800.0 - a_us) >= 8.06 / 600.0


def test_threshold_fit_gives_the_shipped_parameters(published):
    work, min_sm = published
    model = fit_table(work, min_sm, LEVELS, 800.0, 200.0, 1.13)
    assert model.k_us_sm == pytest.approx(2.332, rel=0.01)
    assert model.b_us == pytest.approx(0.0084, rel=0.03)
    assert fit_table(work, min_sm, LEVELS, 800.0, 200.0, 1.13) == model


def test_threshold_fit_of_a_made_up_model(published):
    work, _ = published
    truth = LatencyModel(150.0, 3.0, 0.01, 1.0)
    min_sm = truth.min_sm(work, LEVELS, 900.0, infeasible=0)
    keep = min_sm > 0
    model = fit_table(work[keep], min_sm[keep], LEVELS, 900.0, 150.0, 1.0)
    match = match_table(model, work[keep], min_sm[keep], LEVELS, 900.0)
    assert match.matched == keep.sum()


def test_fixed_cost_above_the_budget_is_refused(published):
    work, min_sm = published
    with pytest.raises(InputError, match="a_us: 800"):
        fit_table(work, min_sm, LEVELS, 800.0, 800.0, 1.13)
