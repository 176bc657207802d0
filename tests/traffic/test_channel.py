from __future__ import annotations

import numpy as np
import pytest
from scipy.special import j0
from scipy.stats import kstest

from ranloom.errors import InputError
from ranloom.traffic.channel import SinrTrace, ar1, constant, jakes, n_samples, replay, stack


def rng(seed=1):
    return np.random.default_rng(seed)


def autocorrelation(series, lag):
    x = series - series.mean()
    return (x[:-lag] * np.conj(x[lag:])).mean().real / (np.abs(x) ** 2).mean()


def test_refuses_a_nan_with_its_place():
    sinr = np.zeros((2, 5), np.float32)
    sinr[1, 3] = np.nan
    with pytest.raises(InputError) as caught:
        SinrTrace(sinr, 1_000)
    assert caught.value.where == "channel.sinr_db[1, 3]"


@pytest.mark.parametrize(
    ("sinr", "period"), [(np.zeros(3), 1), (np.zeros((1, 0)), 1), (np.zeros((1, 1)), 0)]
)
def test_refuses_shapes(sinr, period):
    with pytest.raises(InputError):
        SinrTrace(sinr, period)


def test_replay_holds_loops_and_extends_backwards():
    trace = replay(
        [np.array([2_000, 5_000]), np.array([0])],
        [np.array([10.0, 20.0]), np.array([3.0])],
        duration_us=9_500,
        period_us=1_000,
    )
    assert trace.sinr_db[0].tolist() == [10, 10, 10, 10, 10, 20, 10, 10, 10, 10]
    assert trace.sinr_db[1].tolist() == [3] * 10
    assert trace.duration_us == 10_000
    assert trace.coherence_us is None


@pytest.mark.parametrize("times", [[], [0, 0], [5, 1], [-1, 2]])
def test_replay_refuses(times):
    with pytest.raises(InputError, match="channel of UE 0"):
        replay([np.array(times)], [np.zeros(len(times))], 10, 1)


def test_loop_and_shift():
    trace = SinrTrace(np.array([[1.0, 2.0, 3.0]]), 10)
    assert trace.loop_to(71).sinr_db[0].tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert trace.shift(-1.5).sinr_db[0].tolist() == [-0.5, 0.5, 1.5]
    with pytest.raises(InputError):
        trace.shift(np.nan)


def test_constant_covers_the_window():
    trace = constant([3.0, 4.0], 10_000)
    assert trace.duration_us == 10_000
    assert trace.sinr_db.tolist() == [[3.0], [4.0]]


def test_ar1_has_its_moments_memory_and_distribution():
    period, coherence = 10_000, 100_000
    trace = ar1([20.0, -3.0], [4.0, 1.0], coherence, 4_000_000_000, period, rng())
    assert trace.coherence_us == (coherence, coherence)
    # 400,000 samples of memory 10: about 20,000 independent ones, so 5 sigma are 0.035 std.
    for ue, (mean, std) in enumerate([(20.0, 4.0), (-3.0, 1.0)]):
        series = trace.sinr_db[ue].astype(float)
        assert series.mean() == pytest.approx(mean, abs=0.035 * std)
        assert series.std() == pytest.approx(std, rel=0.03)
        for lag in (1, 5, 10, 20):
            expected = np.exp(-lag * period / coherence)
            assert autocorrelation(series, lag) == pytest.approx(expected, abs=0.03)
        independent = (series[::100] - mean) / std
        assert kstest(independent, "norm").pvalue > 0.01
    assert abs(np.corrcoef(trace.sinr_db)[0, 1]) < 0.03


def test_ar1_starts_in_its_stationary_state():
    first = ar1(np.zeros(4_000), 5.0, 1e9, 2, 1, rng(3)).sinr_db[:, 0]
    assert first.std() == pytest.approx(5.0, rel=0.06)


def test_ar1_without_deviation_is_constant():
    assert np.all(ar1([7.0], 0.0, 1e3, 10_000, 100, rng()).sinr_db == 7.0)


@pytest.mark.parametrize("n_ue", [2, 5])
def test_a_ue_does_not_depend_on_how_many_follow(n_ue):
    alone = ar1([20.0], 4.0, 1e5, 10_000_000, 10_000, rng())
    many = ar1([20.0] * n_ue, 4.0, 1e5, 10_000_000, 10_000, rng())
    assert np.array_equal(alone.sinr_db[0], many.sinr_db[0])
    alone = jakes([20.0], 10.0, 1_000_000, 10_000, rng())
    many = jakes([20.0] * n_ue, 10.0, 1_000_000, 10_000, rng())
    assert np.array_equal(alone.sinr_db[0], many.sinr_db[0])


def test_jakes_power_is_exponential_with_clarkes_memory():
    doppler, period, n_ue = 10.0, 5_000, 600
    trace = jakes(np.full(n_ue, 15.0), doppler, 1_000_000, period, rng(5))
    power = 10 ** ((trace.sinr_db.astype(float) - 15.0) / 10.0)
    assert power.mean() == pytest.approx(1.0, rel=0.03)
    # Rayleigh envelope: exponential power, one independent sample a UE.
    assert kstest(power[:, 0], "expon").pvalue > 0.01
    # Ensemble autocorrelation of the power of a complex Gaussian with J0 memory is J0 squared.
    centred = power - 1.0
    for lag in (1, 4, 8, 16, 40):
        found = (centred[:, :-lag] * centred[:, lag:]).mean() / (centred**2).mean()
        expected = j0(2 * np.pi * doppler * lag * period * 1e-6) ** 2
        assert found == pytest.approx(expected, abs=0.05)
    assert trace.coherence_us[0] == 42_300


def test_jakes_antennas_keep_the_mean_and_narrow_the_spread():
    one = jakes(np.full(300, 0.0), 10.0, 1_000_000, 5_000, rng(), rx_antennas=1)
    four = jakes(np.full(300, 0.0), 10.0, 1_000_000, 5_000, rng(), rx_antennas=4)
    power = 10 ** (four.sinr_db.astype(float) / 10)
    assert power.mean() == pytest.approx(1.0, rel=0.03)
    assert power.var() == pytest.approx(0.25, rel=0.1)
    assert four.sinr_db.std() < one.sinr_db.std() / 1.8


@pytest.mark.parametrize(
    "call",
    [
        lambda: ar1([0.0], -1.0, 1e3, 10, 1, rng()),
        lambda: ar1([0.0], 1.0, 0.0, 10, 1, rng()),
        lambda: jakes([0.0], 0.0, 10, 1, rng()),
        lambda: jakes([0.0], 200.0, 1_000_000, 5_000, rng()),
        lambda: jakes([0.0], 1.0, 10, 1, rng(), rx_antennas=0),
        lambda: n_samples(0, 1),
        lambda: stack([]),
        lambda: stack([constant([1.0], 5), constant([1.0], 6)]),
    ],
)
def test_generators_refuse(call):
    with pytest.raises(InputError):
        call()


def test_stack_joins_ues_and_models():
    both = stack([ar1([1.0], 0.0, 1e3, 100, 10, rng()), SinrTrace(np.full((1, 10), 2.0), 10)])
    assert both.sinr_db[:, 0].tolist() == [1.0, 2.0]
    assert both.model == "ar1+replay"
    assert both.coherence_us is None
