"""Uplink SINR over time: replay of a log, AR(1) shadowing, Jakes fading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ranloom.errors import InputError

JAKES_PATHS = 32  # plane waves a UE and antenna; the envelope is then Rayleigh within 1 % (tested)
CLARKE_COHERENCE = 0.423  # coherence time x Doppler, about 50 % correlation (Rappaport, 5.40c)


@dataclass(frozen=True, eq=False)
class SinrTrace:
    """Uplink SINR of every UE of a cell on a fixed grid; a sample holds until the next one.

    Args:
        sinr_db: [n_ue, n_samples] float32, wide-band SINR of one full-power transmission.
        period_us: length of a sample.
        model: what made it: ``replay``, ``ar1``, ``jakes``, ``constant`` or a combination.
        coherence_us: [n_ue] coherence time of each UE under the definition of that model, or
            ``None`` where no model states one (a replayed log).

    Raises:
        InputError: wrong shape, no samples, or an SINR that is not finite (row and UE named).
    """

    sinr_db: NDArray[np.float32]
    period_us: int
    model: str = "replay"
    coherence_us: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sinr_db = np.ascontiguousarray(self.sinr_db, np.float32)
        if sinr_db.ndim != 2 or 0 in sinr_db.shape:
            raise InputError("channel.sinr_db", sinr_db.shape, "needed: an array [n_ue, n_samples]")
        if self.period_us < 1:
            raise InputError("channel.period_us", self.period_us, "needed: at least 1")
        bad = np.argwhere(~np.isfinite(sinr_db))
        if bad.size:
            ue, sample = (int(i) for i in bad[0])
            value = float(sinr_db[ue, sample])
            raise InputError(f"channel.sinr_db[{ue}, {sample}]", value, "needed: a finite number")
        if self.coherence_us is not None and len(self.coherence_us) != sinr_db.shape[0]:
            raise InputError("channel.coherence_us", self.coherence_us, "needed: one value a UE")
        sinr_db.flags.writeable = False
        object.__setattr__(self, "sinr_db", sinr_db)

    @property
    def n_ue(self) -> int:
        """Number of UEs."""
        return int(self.sinr_db.shape[0])

    @property
    def duration_us(self) -> int:
        """Time that the samples cover."""
        return int(self.sinr_db.shape[1]) * self.period_us

    def loop_to(self, duration_us: int) -> SinrTrace:
        """Cut or repeat to the fewest samples that cover a duration."""
        wanted = n_samples(duration_us, self.period_us)
        index = np.arange(wanted) % self.sinr_db.shape[1]
        return SinrTrace(self.sinr_db[:, index], self.period_us, self.model, self.coherence_us)

    def shift(self, offset_db: float) -> SinrTrace:
        """Add a calibration offset to all samples (the noise offset of WEAVER, Eq. 13)."""
        if not np.isfinite(offset_db):
            raise InputError("offset_db", offset_db, "needed: a finite number")
        shifted = self.sinr_db + np.float32(offset_db)
        return SinrTrace(shifted, self.period_us, self.model, self.coherence_us)


def n_samples(duration_us: int, period_us: int) -> int:
    """Fewest samples of ``period_us`` that cover ``duration_us``."""
    if duration_us < 1 or period_us < 1:
        raise InputError(
            "duration_us, period_us", (duration_us, period_us), "needed: at least 1 each"
        )
    return -(-duration_us // period_us)


def constant(sinr_db: ArrayLike, duration_us: int) -> SinrTrace:
    """A channel that never changes: ``sinr_db`` [n_ue]."""
    per_ue = np.atleast_1d(np.asarray(sinr_db, np.float32))
    return SinrTrace(per_ue[:, None], duration_us, "constant")


def replay(
    time_us: Sequence[NDArray[np.int64]],
    sinr_db: Sequence[NDArray],
    duration_us: int,
    period_us: int,
) -> SinrTrace:
    """Put logged samples on the grid: each holds until the UE's next one, each log is looped.

    Before its first sample a UE has the value of that sample.

    Args:
        time_us: for each UE its sample times since the start, ascending.
        sinr_db: for each UE its samples, as long as the times.
        duration_us: time to cover.
        period_us: grid.

    Raises:
        InputError: a UE without samples, lengths that differ, times that do not ascend.
    """
    rows = []
    wanted = n_samples(duration_us, period_us)
    for ue, (times, values) in enumerate(zip(time_us, sinr_db, strict=True)):
        if times.size == 0 or times.size != len(values):
            raise InputError(
                f"channel of UE {ue}", times.size, "needed: samples with one time each"
            )
        if np.any(np.diff(times) <= 0) or times[0] < 0:
            row = int(np.argmax(np.diff(times, prepend=-1) <= 0))
            raise InputError(
                f"channel of UE {ue}, row {row}", int(times[row]), "needed: ascending times"
            )
        own = n_samples(int(times[-1]) + 1, period_us)
        grid_us = np.arange(own, dtype=np.int64) * period_us
        held = np.maximum(np.searchsorted(times, grid_us, side="right") - 1, 0)
        rows.append(np.asarray(values)[held][np.arange(wanted) % own])
    return SinrTrace(np.array(rows, np.float32), period_us, "replay")


def ar1(
    mean_db: ArrayLike,
    std_db: ArrayLike,
    coherence_us: ArrayLike,
    duration_us: int,
    period_us: int,
    rng: np.random.Generator,
) -> SinrTrace:
    """Gaussian first-order autoregression in dB: slow fading with an exponential memory.

    ``x[k] = rho x[k-1] + sqrt(1 - rho^2) w[k]`` with ``rho = exp(-period / coherence)``: the
    autocorrelation has fallen to 1/e after ``coherence_us``. Started in its stationary state.

    Args:
        mean_db: [n_ue] mean SINR.
        std_db: [n_ue] standard deviation, at least 0.
        coherence_us: [n_ue] or one value for all, above 0.
        duration_us: time to cover.
        period_us: grid.
        rng: random stream; every UE draws from its own child.
    """
    mean, std, coherence = np.broadcast_arrays(
        np.atleast_1d(np.asarray(mean_db, float)),
        np.atleast_1d(np.asarray(std_db, float)),
        np.atleast_1d(np.asarray(coherence_us, float)),
    )
    if np.any(std < 0) or np.any(coherence <= 0):
        raise InputError(
            "std_db, coherence_us", (std.min(), coherence.min()), "needed: >= 0 and > 0"
        )
    wanted = n_samples(duration_us, period_us)
    rho = np.exp(-period_us / coherence)
    noise = np.array([child.standard_normal(wanted) for child in rng.spawn(mean.size)])
    state = _autoregress(noise, rho)
    return SinrTrace(
        (mean[:, None] + std[:, None] * state).astype(np.float32),
        period_us,
        "ar1",
        tuple(int(c) for c in coherence),
    )


def jakes(
    mean_db: ArrayLike,
    doppler_hz: ArrayLike,
    duration_us: int,
    period_us: int,
    rng: np.random.Generator,
    rx_antennas: int = 1,
) -> SinrTrace:
    """Rayleigh fading with Clarke's isotropic scattering around a mean SINR.

    Each antenna sees ``JAKES_PATHS`` plane waves of equal power with random angle and phase, so
    that the complex gain has autocorrelation ``J0(2 pi f_D tau)``. Antennas are independent and
    combined by maximum ratio; the mean *linear* SINR is that of ``mean_db`` for any number of them.
    The stated coherence time is ``0.423 / f_D``.

    Args:
        mean_db: [n_ue] ``10 log10`` of the mean linear SINR.
        doppler_hz: [n_ue] or one value; above 0. 1.4 m/s at 3.5 GHz are 16 Hz.
        duration_us: time to cover.
        period_us: grid; must sample the Doppler (``period < 1 / (2 f_D)``).
        rng: random stream; every UE draws from its own child.
        rx_antennas: receive branches.
    """
    mean, doppler = np.broadcast_arrays(
        np.atleast_1d(np.asarray(mean_db, float)), np.atleast_1d(np.asarray(doppler_hz, float))
    )
    if np.any(doppler <= 0) or np.any(doppler * period_us * 2e-6 >= 1):
        raise InputError(
            "doppler_hz", doppler.max(), f"needed: above 0, below {0.5e6 / period_us:g}"
        )
    if rx_antennas < 1:
        raise InputError("rx_antennas", rx_antennas, "needed: at least 1")
    time_s = np.arange(n_samples(duration_us, period_us)) * (period_us * 1e-6)
    rows = []
    for child, mean_ue, doppler_ue in zip(rng.spawn(mean.size), mean, doppler, strict=True):
        power = np.zeros(time_s.size)
        for _ in range(rx_antennas):
            angle, phase = child.uniform(0.0, 2.0 * np.pi, (2, JAKES_PATHS))
            gain = np.zeros(time_s.size, complex)
            for a, p in zip(angle, phase, strict=True):
                gain += np.exp(1j * (2.0 * np.pi * doppler_ue * np.cos(a) * time_s + p))
            power += np.abs(gain) ** 2 / JAKES_PATHS
        rows.append(mean_ue + 10.0 * np.log10(np.maximum(power / rx_antennas, 1e-6)))
    coherence = tuple(int(1e6 * CLARKE_COHERENCE / f) for f in doppler)
    return SinrTrace(np.array(rows, np.float32), period_us, "jakes", coherence)


def stack(parts: Sequence[SinrTrace]) -> SinrTrace:
    """Put the UEs of several channels of one grid and length side by side."""
    if not parts or len({(p.period_us, p.sinr_db.shape[1]) for p in parts}) != 1:
        found = [(p.period_us, p.sinr_db.shape[1]) for p in parts]
        raise InputError("parts", found, "needed: one or more channels of equal period and length")
    stated = [p.coherence_us for p in parts]
    coherence = None
    if all(c is not None for c in stated):
        coherence = tuple(value for c in stated if c is not None for value in c)
    model = "+".join(dict.fromkeys(p.model for p in parts))
    return SinrTrace(
        np.concatenate([p.sinr_db for p in parts]), parts[0].period_us, model, coherence
    )


def _autoregress(noise: NDArray[np.float64], rho: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n_ue, n_samples] stationary AR(1) states of unit variance from white noise."""
    from scipy.signal import lfilter  # takes a second to import, and most of the package does not

    gain = np.sqrt(1.0 - rho**2)
    noise[:, 0] /= gain  # the first state is a draw from the stationary distribution
    return np.array([lfilter([g], [1.0, -r], w) for g, r, w in zip(gain, rho, noise, strict=True)])
