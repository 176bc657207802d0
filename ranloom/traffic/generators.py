"""Synthetic uplink traffic: the models that 3GPP and the WEAVER paper define.

Every generator is a pure function of its arguments and the random stream ``rng``; each UE draws
from its own child of that stream, so the packets of UE 0 do not depend on how many UEs follow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic.arrivals import MAX_PACKET_BYTES, Arrivals, from_unsorted, merge

Packets = tuple[NDArray[np.int64], NDArray[np.int64]]  # times in us, sizes in bytes


def on_off_bursts(
    n_ue: int,
    duration_us: int,
    rng: np.random.Generator,
    *,
    on_mean_s: float,
    off_mean_s: float,
    rate_mbps: float,
    packet_bytes: int = MAX_PACKET_BYTES,
) -> Arrivals:
    """Bursts of constant rate whose on and off periods are exponential.

    Starts in the stationary state (on with probability ``on / (on + off)``). The mean rate is
    ``rate_mbps * on / (on + off)``.
    """
    _positive(on_mean_s=on_mean_s, off_mean_s=off_mean_s, rate_mbps=rate_mbps)
    _positive(packet_bytes=packet_bytes)
    spacing_us = 8.0 * packet_bytes / rate_mbps

    def one(child: np.random.Generator) -> Packets:
        on = bool(child.random() < on_mean_s / (on_mean_s + off_mean_s))
        now_us, bursts = 0.0, []
        while now_us < duration_us:
            length_us = 1e6 * child.exponential(on_mean_s if on else off_mean_s)
            if on:
                # A uniform phase of the first packet keeps the mean rate exact for short bursts.
                first_us = now_us + child.random() * spacing_us
                end_us = min(now_us + length_us, duration_us)
                bursts.append(np.arange(first_us, end_us, spacing_us))
            now_us += length_us
            on = not on
        time_us = np.concatenate([*bursts, np.empty(0)]).astype(np.int64)
        return time_us, np.full(time_us.size, packet_bytes)

    return _per_ue(n_ue, duration_us, rng, one)


def ftp_model_3(
    n_ue: int,
    duration_us: int,
    rng: np.random.Generator,
    *,
    files_per_s: float,
    file_bytes: int = 500_000,
) -> Arrivals:
    """FTP model 3 (TR 36.889, A.1.1): each UE sends files of one size in a Poisson process.

    A file enters the buffer at once, as full packets and a remainder. The mean rate of a UE is
    ``8 * files_per_s * file_bytes``.
    """
    _positive(files_per_s=files_per_s, file_bytes=file_bytes)

    def one(child: np.random.Generator) -> Packets:
        time_us = _poisson_us(child, files_per_s, duration_us)
        return time_us, np.full(time_us.size, file_bytes)

    return _per_ue(n_ue, duration_us, rng, one).split_records()[0]


def xr(
    n_ue: int,
    duration_us: int,
    rng: np.random.Generator,
    *,
    video_mbps: float = 10.0,
    frames_per_s: float = 60.0,
    jitter_std_ms: float = 0.0,
    pose: bool = True,
) -> Arrivals:
    """Extended reality uplink (TR 38.838, 5.3 and 5.5): video frames, and a pose every 4 ms.

    Frame sizes are Gaussian with a standard deviation of 10.5 % of the mean, truncated to 50 % and
    150 % of it. Frame arrival may jitter (Gaussian, truncated to twice its deviation; 2 ms in the
    3GPP downlink). A pose is 100 bytes. Each UE has its own random phase for either stream.
    """
    _positive(video_mbps=video_mbps, frames_per_s=frames_per_s)
    if not (np.isfinite(jitter_std_ms) and jitter_std_ms >= 0):
        raise InputError("jitter_std_ms", jitter_std_ms, "needed: at least 0")
    mean_bytes = video_mbps * 1e6 / 8.0 / frames_per_s

    def frames(child: np.random.Generator) -> Packets:
        period_us = 1e6 / frames_per_s
        time_us = np.arange(child.random() * period_us, duration_us, period_us)
        sizes = _truncated_normal(child, mean_bytes, 0.105 * mean_bytes, 0.5 * mean_bytes, time_us)
        if jitter_std_ms:
            jitter = 1e3 * jitter_std_ms
            time_us = time_us + _truncated_normal(child, 0.0, jitter, 2.0 * jitter, time_us)
        inside = (time_us >= 0) & (time_us < duration_us)
        return time_us[inside].astype(np.int64), np.rint(sizes[inside]).astype(np.int64)

    def poses(child: np.random.Generator) -> Packets:
        time_us = np.arange(child.random() * 4e3, duration_us, 4e3).astype(np.int64)
        return time_us, np.full(time_us.size, 100)

    video_rng, pose_rng = rng.spawn(2)
    video = _per_ue(n_ue, duration_us, video_rng, frames).split_records()[0]
    if not pose:
        return video
    return merge([video, _per_ue(n_ue, duration_us, pose_rng, poses)])


def mmtc_background(
    n_ue: int,
    duration_us: int,
    rng: np.random.Generator,
    *,
    reports_per_s: float,
) -> Arrivals:
    """Small reports in a Poisson process (TR 45.820, E.2.1, mobile autonomous reporting).

    Payload sizes are Pareto with shape 2.5 and minimum 20 bytes, cut off at 200 bytes.
    """
    _positive(reports_per_s=reports_per_s)

    def one(child: np.random.Generator) -> Packets:
        time_us = _poisson_us(child, reports_per_s, duration_us)
        sizes = np.minimum(20.0 * (1.0 + child.pareto(2.5, time_us.size)), 200.0)
        return time_us, sizes.astype(np.int64)

    return _per_ue(n_ue, duration_us, rng, one)


def steady_with_burst(
    n_ue: int,
    duration_us: int,
    rng: np.random.Generator,
    *,
    steady_mbps: float = 0.8,
    burst_mbps: float = 3.6,
    burst_s: float = 20.0,
    cycle_s: float = 90.0,
    burst_start_s: float = 35.0,
    stagger_s: float = 0.0,
    packet_bytes: int = 512,
) -> Arrivals:
    """The D-ITG stress traffic of WEAVER, D.1.3: a steady UDP flow and one burst a cycle.

    During a burst a UE offers ``steady + burst``: three UEs bursting together peak at 13.2 Mbit/s,
    the figure of the paper, and offer 1.6 Mbit/s each on average over 90 s. The cycle length, the
    packet size (D-ITG's default) and the position of the burst are not published.

    Args:
        n_ue: number of UEs.
        duration_us: length; the cycle repeats if it is longer.
        rng: draws only the phase of each UE's packets (below one packet spacing).
        steady_mbps: rate of the steady flow.
        burst_mbps: rate added during a burst.
        burst_s: length of a burst.
        cycle_s: one burst in every cycle.
        burst_start_s: start of the burst of UE 0 in the cycle.
        stagger_s: how much later the burst of each next UE starts (0: all together).
        packet_bytes: UDP payload.
    """
    _positive(steady_mbps=steady_mbps, burst_mbps=burst_mbps, burst_s=burst_s, cycle_s=cycle_s)
    _positive(packet_bytes=packet_bytes)
    last_end_s = burst_start_s + stagger_s * (n_ue - 1) + burst_s
    if not (burst_start_s >= 0 and stagger_s >= 0 and last_end_s <= cycle_s):
        raise InputError(
            "burst_start_s", burst_start_s, f"needed: bursts that end by {cycle_s:g} s"
        )
    starts_s = iter(burst_start_s + stagger_s * np.arange(n_ue))

    def one(child: np.random.Generator) -> Packets:
        steady_us = 8.0 * packet_bytes / steady_mbps
        flows = [np.arange(child.random() * steady_us, duration_us, steady_us)]
        spacing_us = 8.0 * packet_bytes / burst_mbps
        for start_us in np.arange(1e6 * next(starts_s), duration_us, 1e6 * cycle_s):
            end_us = min(start_us + 1e6 * burst_s, duration_us)
            flows.append(np.arange(start_us + child.random() * spacing_us, end_us, spacing_us))
        time_us = np.sort(np.concatenate(flows)).astype(np.int64)
        return time_us, np.full(time_us.size, packet_bytes)

    return _per_ue(n_ue, duration_us, rng, one)


def _per_ue(
    n_ue: int,
    duration_us: int,
    rng: np.random.Generator,
    one: Callable[[np.random.Generator], Packets],
) -> Arrivals:
    if n_ue < 1 or duration_us < 1:
        raise InputError("n_ue, duration_us", (n_ue, duration_us), "needed: at least 1 each")
    flows = [one(child) for child in rng.spawn(n_ue)]
    return from_unsorted(
        np.concatenate([time_us for time_us, _ in flows]),
        np.repeat(np.arange(n_ue), [time_us.size for time_us, _ in flows]),
        np.concatenate([sizes for _, sizes in flows]),
        n_ue,
        duration_us,
    )


def _poisson_us(rng: np.random.Generator, rate_per_s: float, duration_us: int) -> NDArray[np.int64]:
    """Sorted instants of a Poisson process: their number is Poisson, their places uniform."""
    count = rng.poisson(rate_per_s * duration_us * 1e-6)
    return np.sort(rng.integers(0, duration_us, count))


def _truncated_normal(
    rng: np.random.Generator, mean: float, std: float, reach: float, like: NDArray
) -> NDArray[np.float64]:
    """Gaussian draws, redrawn while further than ``reach`` from the mean."""
    values = rng.normal(mean, std, like.size)
    while np.any(outside := np.abs(values - mean) > reach):
        values[outside] = rng.normal(mean, std, int(outside.sum()))
    return values


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (np.isfinite(value) and value > 0):
            raise InputError(name, value, "needed: a positive number")
