"""Transport block size determination (3GPP TS 38.214 clause 5.1.3.2; PUSCH: clause 6.1.4.2)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.nr.mcs import mcs_table
from ranloom.nr.numerology import MAX_PRB, SUBCARRIERS_PER_PRB, SYMBOLS_PER_SLOT

MAX_RE_PER_PRB = 156
MAX_LAYERS = 4


@dataclass(frozen=True)
class Allocation:
    """Shape of a PUSCH allocation: all of its transport block size but MCS and PRBs.

    Args:
        table: MCS table (1 to 3).
        n_layers: spatial layers (1 to 4).
        n_symbols: OFDM symbols (1 to 14).
        n_dmrs_per_prb: DMRS resource elements per PRB, with the CDM groups without data.
        n_oh: configured overhead ``xOverhead`` (0, 6, 12 or 18).
    """

    table: int
    n_layers: int
    n_symbols: int
    n_dmrs_per_prb: int
    n_oh: int

    @property
    def keywords(self) -> dict[str, int]:
        """Keyword arguments of :func:`tbs_table` and its like."""
        return asdict(self)

    def resource_elements(self, n_prb: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Resource elements for data on one layer, of the shape of ``n_prb``."""
        return resource_elements(
            n_prb,
            n_symbols=self.n_symbols,
            n_dmrs_per_prb=self.n_dmrs_per_prb,
            n_oh=self.n_oh,
        )

    def describe(self) -> str:
        """One line that tells two allocations apart."""
        return (
            f"MCS table {self.table}, {self.n_layers} layer(s), {self.n_symbols} symbols, "
            f"{self.n_dmrs_per_prb} DMRS REs, overhead {self.n_oh}"
        )


# 38.214 table 5.1.3.2-1: sizes up to 3824 bits
SMALL_TBS_BITS = np.array(
    [
        *range(24, 193, 8),
        *range(208, 385, 16),
        *range(408, 577, 24),
        *range(608, 769, 32),
        *(808, 848, 888, 928, 984, 1032, 1064, 1128),
        *range(1160, 1353, 32),
        *range(1416, 1929, 64),
        *range(2024, 2281, 64),
        *range(2408, 2857, 64),
        *(2976, 3104, 3240, 3368, 3496, 3624, 3752, 3824),
    ],
    dtype=np.int64,
)  # fmt: skip


def resource_elements(
    n_prb: NDArray[np.int64] | int, *, n_symbols: int, n_dmrs_per_prb: int, n_oh: int
) -> NDArray[np.int64]:
    """Resource elements for data: at most 156 per PRB (38.214 clause 5.1.3.2, step 1).

    Args:
        n_prb: PRBs of the allocation, any shape.
        n_symbols: OFDM symbols of the allocation (1 to 14).
        n_dmrs_per_prb: DMRS resource elements per PRB, with the CDM groups without data.
        n_oh: configured overhead ``xOverhead`` (0, 6, 12 or 18).

    Returns:
        int64 array of the shape of ``n_prb``.

    Raises:
        InputError: nothing is left for data, or a value is out of range.
    """
    if not 1 <= n_symbols <= SYMBOLS_PER_SLOT:
        raise InputError("n_symbols", n_symbols, f"allowed: 1 to {SYMBOLS_PER_SLOT}")
    if n_oh not in (0, 6, 12, 18):
        raise InputError("n_oh", n_oh, "allowed: 0, 6, 12 or 18 (xOverhead)")
    per_prb = SUBCARRIERS_PER_PRB * n_symbols - n_dmrs_per_prb - n_oh
    if n_dmrs_per_prb < 0 or per_prb < 1:
        raise InputError(
            "n_dmrs_per_prb",
            n_dmrs_per_prb,
            f"allowed: 0 to {SUBCARRIERS_PER_PRB * n_symbols - n_oh - 1} at {n_symbols} symbols",
        )
    return np.asarray(n_prb, dtype=np.int64) * min(MAX_RE_PER_PRB, per_prb)


def _floor_log2(values: NDArray[np.int64]) -> NDArray[np.int64]:
    # frexp is exact for integers below 2**53
    return np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1


def tbs_from_info(
    info_x2048: NDArray[np.int64], code_rate_x2048: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Transport block size from the unquantised number of information bits.

    Integer arithmetic throughout: ``N_info`` comes in units of 1/2048 bit.

    Args:
        info_x2048: ``2048 * N_info``, any shape; 0 gives size 0.
        code_rate_x2048: target code rate in units of 1/2048, broadcastable.

    Returns:
        int64 array: TBS in bits (38.214 clause 5.1.3.2, steps 2 to 4).
    """
    info, rate = np.broadcast_arrays(info_x2048, code_rate_x2048)
    one = 2048

    # step 3: N_info <= 3824, quantised down, then up to the next size of the table
    safe = np.maximum(info, 1)
    step = np.int64(1) << np.maximum(3, _floor_log2(safe) - 11 - 6)
    quantised = np.maximum(24, step * (info // (step * one)))
    at = np.minimum(np.searchsorted(SMALL_TBS_BITS, quantised), len(SMALL_TBS_BITS) - 1)
    small = SMALL_TBS_BITS[at]

    # step 4: N_info > 3824, rounded to the nearest (ties up), then whole bytes per code block
    rest = np.maximum(info - 24 * one, one)
    step = np.int64(1) << np.maximum(0, _floor_log2(rest) - 11 - 5)
    with_crc = np.maximum(3840, step * ((2 * rest + step * one) // (2 * step * one))) + 24
    block = np.where(4 * rate <= one, 3816, np.where(with_crc - 24 > 8424, 8424, with_crc))
    n_blocks = -(-with_crc // block)
    large = 8 * n_blocks * -(-with_crc // (8 * n_blocks)) - 24

    return np.where(info <= 0, 0, np.where(info <= 3824 * one, small, large))


def tbs_table(
    max_prb: int,
    *,
    table: int = 1,
    n_layers: int = 1,
    n_symbols: int = SYMBOLS_PER_SLOT,
    n_dmrs_per_prb: int = SUBCARRIERS_PER_PRB,
    n_oh: int = 0,
) -> NDArray[np.int32]:
    """Transport block sizes of every MCS and allocation width.

    The published lookup table of WEAVER fits the defaults: 14 symbols of which one holds DMRS,
    one layer, MCS table 1.

    Args:
        max_prb: widest allocation.
        table: MCS table (1 to 3).
        n_layers: spatial layers (1 to 4).
        n_symbols: OFDM symbols of the allocation.
        n_dmrs_per_prb: DMRS resource elements per PRB.
        n_oh: configured overhead.

    Returns:
        int32[n_mcs, max_prb + 1], bits; column 0 is 0.

    Raises:
        InputError: a value is out of range.
    """
    if not 1 <= max_prb <= MAX_PRB:
        raise InputError("max_prb", max_prb, f"allowed: 1 to {MAX_PRB}")
    if not 1 <= n_layers <= MAX_LAYERS:
        raise InputError("n_layers", n_layers, f"allowed: 1 to {MAX_LAYERS}")
    mcs = mcs_table(table)
    n_re = resource_elements(
        np.arange(max_prb + 1), n_symbols=n_symbols, n_dmrs_per_prb=n_dmrs_per_prb, n_oh=n_oh
    )
    bits_x2048 = mcs.code_rate_x2048 * mcs.modulation_order * n_layers
    info_x2048 = bits_x2048[:, None] * n_re[None, :]
    return tbs_from_info(info_x2048, mcs.code_rate_x2048[:, None]).astype(np.int32)


def transport_block_bits(
    n_prb: int,
    mcs: int,
    *,
    table: int = 1,
    n_layers: int = 1,
    n_symbols: int = SYMBOLS_PER_SLOT,
    n_dmrs_per_prb: int = SUBCARRIERS_PER_PRB,
    n_oh: int = 0,
) -> int:
    """Transport block size of one allocation, in bits; arguments as for :func:`tbs_table`.

    Raises:
        InputError: a value is out of range.
    """
    if not 0 <= n_prb <= MAX_PRB:
        raise InputError("n_prb", n_prb, f"allowed: 0 to {MAX_PRB}")
    n_mcs = mcs_table(table).n_mcs
    if not 0 <= mcs < n_mcs:
        raise InputError("mcs", mcs, f"allowed: 0 to {n_mcs - 1} (MCS table {table})")
    sizes = tbs_table(
        max(n_prb, 1),
        table=table,
        n_layers=n_layers,
        n_symbols=n_symbols,
        n_dmrs_per_prb=n_dmrs_per_prb,
        n_oh=n_oh,
    )
    return int(sizes[mcs, n_prb])
