# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""MCS selection: outer-loop link adaptation, and OpenAirInterface's rule from error counts.

``olla``: the SINR measured with the last block of a UE plus an offset that falls by a step per
first-transmission error and rises so that errors settle at the target.
``oai_bler``: every 10 frames one MCS up or down from a smoothed ratio of second to first
transmissions; needs traffic to climb, falls back towards MCS 9 without.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ranloom.mac.kernel import kernel
from ranloom.nr.bler import TransportBlockCurves

OAI_WINDOW_US = 100_000  # 10 frames
OAI_RESTING_MCS = 9
OAI_LOWEST_MCS = 6
OAI_FEW_BLOCKS = 3


class LinkRules(NamedTuple):
    """Constants of link adaptation.

    Attributes:
        outer_loop: 1 for ``olla``, 0 for ``oai_bler``.
        max_mcs: highest MCS in use.
        step_down_db: offset change per error.
        step_up_db: offset change per success.
        required_snr_db: float64[n_mcs], ascending, SNR that an MCS asks for.
    """

    outer_loop: int
    max_mcs: int
    step_down_db: float
    step_up_db: float
    required_snr_db: NDArray[np.float64]


class LinkState(NamedTuple):
    """Link adaptation of each UE, arrays over [n_ue].

    Attributes:
        mcs: current MCS.
        sinr_db: float64, last measured SINR, NaN before the first.
        offset_db: float64, offset of the outer loop.
        bler: float64, smoothed error ratio (``oai_bler``).
        first_blocks: first transmissions in the current window.
        second_blocks: second transmissions in the current window.
        window_us: start of the current window.
    """

    mcs: NDArray[np.int64]
    sinr_db: NDArray[np.float64]
    offset_db: NDArray[np.float64]
    bler: NDArray[np.float64]
    first_blocks: NDArray[np.int64]
    second_blocks: NDArray[np.int64]
    window_us: NDArray[np.int64]


def link_state(n_ue: int, initial_mcs: int) -> LinkState:
    """No UE measured yet."""
    return LinkState(
        np.full(n_ue, initial_mcs, np.int64),
        np.full(n_ue, np.nan),
        np.zeros(n_ue),
        np.zeros(n_ue),
        np.zeros(n_ue, np.int64),
        np.zeros(n_ue, np.int64),
        np.zeros(n_ue, np.int64),
    )


def required_snr_db(
    curves: TransportBlockCurves, n_prb: int, bler_target: float
) -> NDArray[np.float64]:
    """SNR at which a block over ``n_prb`` PRBs fails with ``bler_target``, ascending over MCS.

    An MCS that would ask for less than a lower one takes that one's value, so that a search
    finds the highest MCS that fits.
    """
    n_blocks = np.maximum(curves.n_code_blocks[:, n_prb], 1)
    per_block = -np.expm1(np.log1p(-bler_target) / n_blocks)
    needed = curves.snr50_db[:, n_prb] - curves.slope_db[:, n_prb] * ndtri(per_block)
    return np.maximum.accumulate(needed)


@kernel
def measured(ue, sinr_db, ok, first_round, rules, link):
    """Book the outcome of a block."""
    link.sinr_db[ue] = sinr_db
    if first_round:
        link.offset_db[ue] += rules.step_up_db if ok else -rules.step_down_db


@kernel
def _oai_windows(ue, now_us, rules, link):
    windows = (now_us - link.window_us[ue]) // OAI_WINDOW_US
    link.window_us[ue] += windows * OAI_WINDOW_US
    first = link.first_blocks[ue]
    if first > 0:
        link.bler[ue] = 0.9 * link.bler[ue] + 0.1 * link.second_blocks[ue] / first
    mcs = link.mcs[ue]
    if link.bler[ue] < 0.05 and first > OAI_FEW_BLOCKS:
        mcs += 1
    elif (link.bler[ue] > 0.15 and mcs > OAI_LOWEST_MCS) or (
        first <= OAI_FEW_BLOCKS and mcs > OAI_RESTING_MCS
    ):
        mcs -= 1
    link.first_blocks[ue] = 0
    link.second_blocks[ue] = 0
    # the windows after it were empty: each takes one step towards the resting MCS
    rest = windows - 1
    if link.bler[ue] > 0.15:
        mcs = max(mcs - rest, min(mcs, OAI_LOWEST_MCS))
    else:
        mcs = max(mcs - rest, min(mcs, OAI_RESTING_MCS))
    link.mcs[ue] = min(max(mcs, 0), rules.max_mcs)


@kernel
def select_mcs(ue, now_us, rules, link):
    """MCS of a UE's next block."""
    if rules.outer_loop == 0:
        if now_us - link.window_us[ue] >= OAI_WINDOW_US:
            _oai_windows(ue, now_us, rules, link)
        return link.mcs[ue]
    usable = link.sinr_db[ue] + link.offset_db[ue]
    mcs = link.mcs[ue]
    if usable == usable:  # measured
        while mcs < rules.max_mcs and rules.required_snr_db[mcs + 1] <= usable:
            mcs += 1
        while mcs > 0 and rules.required_snr_db[mcs] > usable:
            mcs -= 1
        link.mcs[ue] = mcs
    return mcs
