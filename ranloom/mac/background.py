"""What a background upload could get from the uplink that the foreground leaves over.

The federated updates ride on the simulated cell this way: a UE that uploads alone takes the PRBs
that the foreground traffic of the cell did not use, at the MCS that its channel supports.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.model import CellModel
from ranloom.mac.recorder import SECOND_COLUMNS
from ranloom.mac.simulate import CellRun
from ranloom.traffic.channel import SinrTrace

_SECOND_US = 1_000_000


def _sinr_by_second(channel: SinrTrace, n_seconds: int) -> NDArray[np.float64]:
    """[n_ue, n_seconds] mean SINR in dB of each second; the last sample is held."""
    samples_us = np.arange(n_seconds * _SECOND_US // channel.period_us + 1) * channel.period_us
    samples_us = samples_us[samples_us < n_seconds * _SECOND_US]
    held = np.minimum(np.arange(len(samples_us)), channel.sinr_db.shape[1] - 1)
    second = samples_us // _SECOND_US
    counts = np.bincount(second, minlength=n_seconds)
    if (counts == 0).any():  # samples longer than a second: take the one in force
        held = np.minimum(
            np.arange(n_seconds) * _SECOND_US // channel.period_us, channel.sinr_db.shape[1] - 1
        )
        return channel.sinr_db[:, held].astype(np.float64)
    return np.array(
        [
            np.bincount(second, weights=row[held], minlength=n_seconds) / counts
            for row in channel.sinr_db
        ]
    )


def capacity_mbps(model: CellModel, run: CellRun, channel: SinrTrace) -> NDArray[np.float64]:
    """Uplink rate left for a background upload of each UE, if it were alone.

    PRBs of the second's UL slots that the foreground left, times the bits per PRB of a block over
    the whole carrier at the highest MCS that the UE's mean SINR of that second supports. Errors
    of its blocks (a few per cent at most at that MCS) and the effect of a controller's PRB cap on
    it are left out.

    Args:
        model: the cell.
        run: a run of the cell; the foreground.
        channel: SINR of its UEs.

    Returns:
        float64[n_ue, n_seconds], Mbit/s.
    """
    n_seconds = len(run.seconds)
    config = model.config
    starts = [config.ul_slots_in(k * _SECOND_US) for k in range(n_seconds)]
    ul_slots = np.diff(starts, append=run.ul_slots)
    used = run.seconds[:, SECOND_COLUMNS.index("used_prb")]
    free_prb = ul_slots * config.n_prb - used
    required = model.link_rules.required_snr_db[: model.link_rules.max_mcs + 1]
    sinr_db = _sinr_by_second(channel, n_seconds)
    mcs = np.maximum(np.searchsorted(required, sinr_db, side="right") - 1, 0)
    bits_per_prb = 8.0 * model.blocks.tbs_bytes[mcs, config.n_prb] / config.n_prb
    # below the lowest MCS nothing gets through
    bits_per_prb = np.where(sinr_db < required[0], 0.0, bits_per_prb)
    length_us = np.minimum(run.duration_us - np.arange(n_seconds) * _SECOND_US, _SECOND_US)
    return np.asarray(bits_per_prb * free_prb / length_us)


def served_mbps(run: CellRun) -> NDArray[np.float64]:
    """Delivered foreground rate of each UE, float64[n_ue, n_seconds], by time of delivery."""
    n_ue, n_seconds = len(run.ledger.offered), len(run.seconds)
    done = run.packet_delay_us >= 0
    second = (run.packet_time_us[done] + run.packet_delay_us[done]) // _SECOND_US
    second = np.minimum(second.astype(np.int64), n_seconds - 1)
    flat = np.bincount(
        run.packet_ue[done] * n_seconds + second,
        weights=run.packet_bytes[done],
        minlength=n_ue * n_seconds,
    )
    return np.asarray(8.0 * flat.reshape(n_ue, n_seconds) / _SECOND_US)
