"""Block error rate of PUSCH transport blocks, and what HARQ combining gains.

A code block of K bits fails with probability ``Q((snr - snr50) / sigma)``: a Gaussian waterfall
in dB, whose two numbers depend on MCS and K. A transport block fails when any of its code blocks
does. The shipped curves are fitted by :mod:`ranloom.nr.bler_fit`; any table of the same columns
takes their place.

Kernels are fed from arrays over (MCS, PRB), see :func:`transport_block_curves`.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.nr.mcs import mcs_table
from ranloom.nr.numerology import SUBCARRIERS_PER_PRB, SYMBOLS_PER_SLOT
from ranloom.nr.segmentation import segment_arrays
from ranloom.nr.tbs import tbs_table

COLUMNS = ("mcs", "code_block_bits", "snr50_db", "sigma_db", "origin")
_NEEDED = COLUMNS[:-1]


@dataclass(frozen=True, eq=False)
class BlerCurves:
    """Waterfall curves of one MCS table.

    Attributes:
        code_block_bits: float64[n_cbs], ascending code block sizes.
        snr50_db: float64[n_mcs, n_cbs], SNR at which half of the code blocks fail.
        slope_db: float64[n_mcs, n_cbs], standard deviation of the Gaussian waterfall.
    """

    code_block_bits: NDArray[np.float64]
    snr50_db: NDArray[np.float64]
    slope_db: NDArray[np.float64]

    def at(
        self, mcs: NDArray[np.int64], code_block_bits: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Curves at any code block size: linear in log K, held constant outside the axis.

        Args:
            mcs: MCS indices, any shape.
            code_block_bits: code block sizes, of the same shape.

        Returns:
            ``snr50_db`` and ``slope_db`` of that shape.
        """
        axis = np.log(self.code_block_bits)
        wanted = np.clip(np.log(np.maximum(code_block_bits, 1)), axis[0], axis[-1])
        upper = np.clip(np.searchsorted(axis, wanted), 1, len(axis) - 1)
        share = (wanted - axis[upper - 1]) / (axis[upper] - axis[upper - 1])
        snr50, slope = (
            values[mcs, upper - 1] * (1 - share) + values[mcs, upper] * share
            for values in (self.snr50_db, np.log(self.slope_db))
        )
        return snr50, np.exp(slope)


def bler_curves(path: Path, table: int = 1) -> BlerCurves:
    """Read the waterfall curves of an MCS table.

    Args:
        path: CSV with the columns of ``COLUMNS``, the last of which may be missing: one row per
            MCS and code block size, the same sizes for every MCS.
        table: MCS table, for the number of MCS indices that must be there.

    Raises:
        InputError: a column, a row or a number is missing or unusable.
    """
    n_mcs = mcs_table(table).n_mcs
    if not path.is_file():
        raise InputError(str(path), "no such file", "allowed: a CSV of BLER curves")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(str(path), "binary data", "allowed: a CSV of BLER curves") from None
    found: dict[tuple[int, int], tuple[float, float]] = {}
    reader = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(str(path), missing, f"needed columns: {', '.join(_NEEDED)}")
    for number, row in enumerate(reader, start=1):
        where = f"{path} (data row {number})"
        try:
            key = int(row["mcs"]), int(row["code_block_bits"])
            curve = float(row["snr50_db"]), float(row["sigma_db"])
        except (TypeError, ValueError):
            raise InputError(where, list(row.values()), "allowed: numbers") from None
        if not (0 <= key[0] < n_mcs and key[1] > 0):
            raise InputError(where, key, f"allowed: mcs 0 to {n_mcs - 1}, size above 0")
        if not (math.isfinite(curve[0]) and 0.0 < curve[1] < math.inf):
            raise InputError(where, curve, "allowed: finite SNR, sigma above 0")
        if key in found:
            raise InputError(where, key, "allowed: each MCS and code block size once")
        found[key] = curve
    sizes = sorted({size for _, size in found})
    lacking = [(m, size) for m in range(n_mcs) for size in sizes if (m, size) not in found]
    if len(sizes) < 2 or lacking:
        raise InputError(
            str(path), lacking[:3] or sizes, f"needed: MCS 0 to {n_mcs - 1} at every size (>= 2)"
        )
    values = np.array([[found[m, size] for size in sizes] for m in range(n_mcs)])
    return BlerCurves(
        np.array(sizes, dtype=np.float64), values[:, :, 0].copy(), values[:, :, 1].copy()
    )


@dataclass(frozen=True, eq=False)
class TransportBlockCurves:
    """What :func:`block_error_rate` needs for every allocation, as arrays for kernels.

    Attributes:
        snr50_db: float64[n_mcs, max_prb + 1].
        slope_db: float64[n_mcs, max_prb + 1].
        n_code_blocks: int32[n_mcs, max_prb + 1].
        redundancy_share: float64[n_mcs], share of a first retransmission that carries new
            parity bits, see :func:`combined_snr_db`.
    """

    snr50_db: NDArray[np.float64]
    slope_db: NDArray[np.float64]
    n_code_blocks: NDArray[np.int32]
    redundancy_share: NDArray[np.float64]


def transport_block_curves(
    curves: BlerCurves,
    max_prb: int,
    *,
    table: int = 1,
    n_layers: int = 1,
    n_symbols: int = SYMBOLS_PER_SLOT,
    n_dmrs_per_prb: int = SUBCARRIERS_PER_PRB,
    n_oh: int = 0,
) -> TransportBlockCurves:
    """Curves of every MCS and allocation width; arguments as for ``tbs_table``."""
    mcs = mcs_table(table)
    sizes = tbs_table(
        max_prb,
        table=table,
        n_layers=n_layers,
        n_symbols=n_symbols,
        n_dmrs_per_prb=n_dmrs_per_prb,
        n_oh=n_oh,
    )
    blocks = segment_arrays(sizes.astype(np.int64), mcs.code_rate_x2048[:, None])
    rows = np.broadcast_to(np.arange(mcs.n_mcs)[:, None], sizes.shape)
    snr50, slope = curves.at(rows, blocks.payload_bits)
    return TransportBlockCurves(
        snr50, slope, blocks.n_code_blocks.astype(np.int32), redundancy_share(mcs.code_rate)
    )


def redundancy_share(code_rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of a first retransmission that is new parity rather than repetition.

    A first transmission at rate R sends 1/R of the information bits. The mother code of base
    graph 1 holds 3 times the information bits (38.212 clause 5.4.2), so ``3 R - 1`` of the
    second transmission is new, between none and all of it.
    """
    return np.clip(3.0 * code_rate - 1.0, 0.0, 1.0)


@njit(cache=True)
def block_error_rate(snr_db: float, snr50_db: float, slope_db: float, n_code_blocks: int) -> float:
    """Error rate of one transport block.

    Args:
        snr_db: SNR after combining.
        snr50_db: SNR at which half of its code blocks fail.
        slope_db: standard deviation of the waterfall.
        n_code_blocks: code blocks of the transport block; 0 never fails.

    Returns:
        ``1 - (1 - BLER of a code block) ** n_code_blocks``.
    """
    code_block = 0.5 * math.erfc((snr_db - snr50_db) / (math.sqrt(2.0) * slope_db))
    # log1p keeps small rates exact; a rate of 1 would be log(0)
    if code_block >= 1.0:
        return 1.0 if n_code_blocks > 0 else 0.0
    return -math.expm1(n_code_blocks * math.log1p(-code_block))


@njit(cache=True)
def combined_snr_db(snr_sum: float, log2_sum: float, redundancy_share: float) -> float:
    """Effective SNR of a block after several transmissions of it.

    Repeated bits add their SNR (chase combining); new parity bits add mutual information, which
    is never less. The two are mixed by the share of new parity.

    Args:
        snr_sum: sum of the linear SNRs of all transmissions so far.
        log2_sum: sum of ``log2(1 + snr)`` of all transmissions so far.
        redundancy_share: from :func:`redundancy_share`.

    Returns:
        SNR in dB of a single transmission that is as good.
    """
    information = (1.0 - redundancy_share) * math.log2(1.0 + snr_sum) + redundancy_share * log2_sum
    return 10.0 * math.log10(max(2.0**information - 1.0, 1e-30))
