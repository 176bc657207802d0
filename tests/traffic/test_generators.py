from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest, truncnorm

from ranloom.errors import InputError
from ranloom.traffic import generators
from ranloom.traffic.arrivals import MAX_PACKET_BYTES

HOUR_US = 3_600_000_000
SMALL = {
    "on_off_bursts": {"on_mean_s": 0.5, "off_mean_s": 2.0, "rate_mbps": 2.0},
    "ftp_model_3": {"files_per_s": 2.0, "file_bytes": 20_000},
    "xr": {"video_mbps": 4.0, "jitter_std_ms": 2.0},
    "mmtc_background": {"reports_per_s": 5.0},
    "steady_with_burst": {"burst_start_s": 1.0, "burst_s": 2.0, "cycle_s": 10.0},
}


def rng(seed=1):
    return np.random.default_rng(seed)


def autocorrelation(series, lag):
    x = series - series.mean()
    return (x[:-lag] * x[lag:]).mean() / (x**2).mean()


def make(name, n_ue=3, duration_us=10_000_000, seed=1):
    return getattr(generators, name)(n_ue, duration_us, rng(seed), **SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_same_seed_same_packets_and_no_packet_is_wider_than_the_mtu(name):
    first, again, other = make(name), make(name), make(name, seed=2)
    assert np.array_equal(first.time_us, again.time_us)
    assert np.array_equal(first.size_bytes, again.size_bytes)
    assert not np.array_equal(first.time_us, other.time_us)
    assert first.size_bytes.max() <= MAX_PACKET_BYTES
    assert set(first.ue) == {0, 1, 2}


@pytest.mark.parametrize("name", SMALL)
def test_the_first_ue_does_not_depend_on_how_many_follow(name):
    alone, many = make(name, n_ue=1), make(name, n_ue=4)
    assert np.array_equal(alone.time_us, many.time_us[many.ue == 0])


@pytest.mark.parametrize("name", SMALL)
def test_positive_parameters_are_demanded(name):
    for key in SMALL[name]:
        for wrong in (-1.0, np.nan):
            with pytest.raises(InputError):
                getattr(generators, name)(2, 1_000_000, rng(), **(SMALL[name] | {key: wrong}))
    with pytest.raises(InputError):
        getattr(generators, name)(0, 1_000_000, rng(), **SMALL[name])


def test_on_off_rate_periods_and_memory():
    on_s, off_s, rate = 0.4, 0.6, 3.0
    flow = generators.on_off_bursts(
        1, HOUR_US, rng(), on_mean_s=on_s, off_mean_s=off_s, rate_mbps=rate
    )
    share = on_s / (on_s + off_s)
    assert flow.offered_mbps == pytest.approx(rate * share, rel=0.05)
    # An exponential on/off process has memory exp(-(1/on + 1/off) t); seen in 100 ms bins.
    bins = np.bincount(flow.time_us // 100_000, minlength=36_000).astype(float)
    decay = np.exp(-(1 / on_s + 1 / off_s) * 0.1)
    ratio = autocorrelation(bins, 3) / autocorrelation(bins, 2)
    assert ratio == pytest.approx(decay, rel=0.1)
    # Off periods: gaps well above the packet spacing (4 ms) are exponential beyond that.
    gaps_s = np.diff(flow.time_us) * 1e-6
    off = gaps_s[gaps_s > 0.1] - 0.1
    assert kstest(off, "expon", args=(0, off_s)).pvalue > 0.01


def test_on_off_starts_in_the_stationary_state():
    flows = generators.on_off_bursts(
        3_000, 100_000, rng(), on_mean_s=1.0, off_mean_s=3.0, rate_mbps=12.0, packet_bytes=150
    )
    busy = np.unique(flows.ue[flows.time_us < 1_000]).size
    assert busy / 3_000 == pytest.approx(0.25, abs=0.03)


def test_ftp_files_are_poisson():
    rate, size = 2.0, 7_400
    flow = generators.ftp_model_3(1, HOUR_US, rng(), files_per_s=rate, file_bytes=size)
    assert flow.offered_mbps == pytest.approx(rate * size * 8e-6, rel=0.04)
    starts = flow.time_us[::5]  # 7,400 bytes are four full packets and 1,400 bytes
    assert flow.size_bytes[:5].tolist() == [1500, 1500, 1500, 1500, 1400]
    gaps_s = np.diff(starts) * 1e-6
    assert kstest(gaps_s, "expon", args=(0, 1 / rate)).pvalue > 0.01
    per_second = np.bincount(starts // 1_000_000, minlength=3_600)
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.1)
    assert abs(autocorrelation(per_second.astype(float), 1)) < 0.06


def test_xr_frames_follow_38_838():
    mean = 4e6 / 8 / 60
    video = generators.xr(1, 600_000_000, rng(), video_mbps=4.0, pose=False)
    starts, index = np.unique(video.time_us, return_inverse=True)
    frames = np.bincount(index, weights=video.size_bytes)
    assert starts.size == pytest.approx(36_000, abs=1)
    assert set(np.diff(starts)) == {16_666, 16_667}
    assert frames.mean() == pytest.approx(mean, rel=0.002)
    assert frames.std() / mean == pytest.approx(0.105, rel=0.02)
    assert frames.min() >= 0.5 * mean - 1
    assert frames.max() <= 1.5 * mean + 1
    limits = 0.5 / 0.105
    assert kstest((frames - mean) / (0.105 * mean), truncnorm(-limits, limits).cdf).pvalue > 0.01


def test_xr_jitter_is_a_truncated_gaussian():
    video = generators.xr(1, 600_000_000, rng(), video_mbps=1.0, jitter_std_ms=2.0, pose=False)
    starts = np.unique(video.time_us).astype(float)
    phase = (starts / (1e6 / 60)) % 1.0
    centre = np.angle(np.exp(2j * np.pi * phase).mean()) / (2 * np.pi)
    late_ms = ((phase - centre + 0.5) % 1.0 - 0.5) * 1e3 / 60
    assert kstest(late_ms[::7] / 2.0, truncnorm(-2, 2).cdf).pvalue > 0.01


def test_xr_pose_every_4_ms():
    both = generators.xr(1, 10_000_000, rng(), video_mbps=0.5)
    pose = both.size_bytes == 100
    assert pose.sum() == 2_500
    assert set(np.diff(both.time_us[pose])) == {4_000}


def test_mmtc_reports_are_poisson_with_cut_pareto_sizes():
    flow = generators.mmtc_background(1, HOUR_US, rng(), reports_per_s=4.0)
    assert flow.time_us.size == pytest.approx(4 * 3_600, rel=0.03)
    gaps_s = np.diff(flow.time_us) * 1e-6
    assert kstest(gaps_s, "expon", args=(0, 0.25)).pvalue > 0.01
    sizes = flow.size_bytes
    assert (sizes.min(), sizes.max()) == (20, 200)
    # Survival of a Pareto of shape 2.5 from 20 bytes: (20 / x) ** 2.5.
    for x in (25, 40, 80, 200):
        assert np.mean(sizes >= x) == pytest.approx((20 / x) ** 2.5, abs=0.012)


def test_stress_is_what_the_paper_says():
    flow = generators.steady_with_burst(3, 90_000_000, rng())
    second = np.bincount(flow.time_us // 1_000_000, weights=flow.size_bytes, minlength=90) * 8e-6
    burst = np.zeros(90, bool)
    burst[35:55] = True
    assert second[burst] == pytest.approx(13.2, rel=0.01)
    assert second[~burst] == pytest.approx(2.4, rel=0.01)
    assert flow.bytes_per_ue * 8 / 90e6 == pytest.approx(1.6, rel=0.002)


def test_stress_repeats_and_staggers():
    flow = generators.steady_with_burst(2, 180_000_000, rng(), stagger_s=20.0)
    per_ue = [
        np.bincount(flow.time_us[flow.ue == u] // 1_000_000, minlength=180) > 400 for u in (0, 1)
    ]
    assert np.flatnonzero(per_ue[0]).tolist() == [*range(35, 55), *range(125, 145)]
    assert np.flatnonzero(per_ue[1]).tolist() == [*range(55, 75), *range(145, 165)]
    with pytest.raises(InputError, match="burst_start_s"):
        generators.steady_with_burst(4, 90_000_000, rng(), stagger_s=20.0)
