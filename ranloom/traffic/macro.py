"""Cells over a day: the macro-scale view of WEAVER, section 3.2 and Fig. 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic import arrivals as flows
from ranloom.traffic import channel as channels
from ranloom.traffic import generators
from ranloom.traffic.arrivals import Arrivals
from ranloom.traffic.channel import SinrTrace
from ranloom.traffic.diurnal import HOURS
from ranloom.traffic.scenario import Scenario, streams, window_us


@dataclass(frozen=True)
class MacroCell:
    """What every cell of ``macro`` has in common.

    Args:
        n_ue: UEs of a cell.
        busy_hour_mbps: offered uplink of a cell at load 1.0.
        file_bytes: size of the files that make it up (FTP model 3).
        background_reports_per_s: mMTC reports of every UE, at any hour.
        sinr_mean_db: mean over UEs of a UE's mean SINR.
        sinr_spread_db: standard deviation over UEs (their places in the cell).
        sinr_std_db: standard deviation over time of one UE.
        sinr_coherence_s: time in which that falls to 1/e.
        sinr_period_ms: grid.
    """

    n_ue: int
    busy_hour_mbps: float
    file_bytes: int
    background_reports_per_s: float
    sinr_mean_db: float
    sinr_spread_db: float
    sinr_std_db: float
    sinr_coherence_s: float
    sinr_period_ms: int = 50

    def __post_init__(self) -> None:
        for name in (
            "n_ue",
            "busy_hour_mbps",
            "file_bytes",
            "background_reports_per_s",
            "sinr_coherence_s",
            "sinr_period_ms",
        ):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"macro.{name}", value, "needed: a positive number")
        if min(self.sinr_spread_db, self.sinr_std_db) < 0:
            allowed = "needed: standard deviations of at least 0"
            raise InputError("macro.sinr_*_db", (self.sinr_spread_db, self.sinr_std_db), allowed)


def macro(
    loads: NDArray[np.float64], cell: MacroCell, *, seed: int, seconds_per_hour: float
) -> tuple[Scenario, ...]:
    """Cells over a day, each hour sampled by a few seconds; the samples follow one another.

    At load ``x`` a cell offers ``x * busy_hour_mbps`` on average: files arrive at its UEs in a
    Poisson process (FTP model 3) whose rate follows the load while the file size stays; the mMTC
    background comes on top. UEs keep their mean SINR over the day.

    Args:
        loads: [cell, 24], see ``diurnal.read_loads``.
        cell: what the cells have in common.
        seed: root of the random streams.
        seconds_per_hour: length of a sample; hour ``h`` fills seconds ``h * s`` to ``(h + 1) * s``.

    Returns:
        One scenario a cell.

    Raises:
        InputError: a parameter out of range.
    """
    if loads.ndim != 2 or loads.shape[1] != HOURS or np.any(~(loads >= 0)):
        raise InputError("loads", loads.shape, "needed: an array [cell, 24] of numbers from 0 on")
    hour_us = window_us(seconds_per_hour)
    return tuple(
        Scenario("macro", number, *_macro_cell(day, cell, seed, number, hour_us))
        for number, day in enumerate(loads)
    )


def _macro_cell(
    day: NDArray[np.float64], cell: MacroCell, seed: int, number: int, hour_us: int
) -> tuple[Arrivals, SinrTrace]:
    hours = []
    for hour, load in enumerate(day):
        files_rng, background_rng = streams(seed, "macro", number, hour)
        parts = [
            generators.mmtc_background(
                cell.n_ue, hour_us, background_rng, reports_per_s=cell.background_reports_per_s
            )
        ]
        if load > 0:
            files_per_s = load * cell.busy_hour_mbps * 1e6 / 8.0 / cell.file_bytes / cell.n_ue
            parts.append(
                generators.ftp_model_3(
                    cell.n_ue,
                    hour_us,
                    files_rng,
                    files_per_s=files_per_s,
                    file_bytes=cell.file_bytes,
                )
            )
        hours.append(flows.merge(parts))
    arrivals = flows.concatenate(hours)
    place_rng, fading_rng = streams(seed, "macro", number, HOURS)
    channel = channels.ar1(
        cell.sinr_mean_db + cell.sinr_spread_db * place_rng.standard_normal(cell.n_ue),
        cell.sinr_std_db,
        1e6 * cell.sinr_coherence_s,
        arrivals.duration_us,
        1000 * cell.sinr_period_ms,
        fading_rng,
    )
    return arrivals, channel
