"""Base graph choice and code block segmentation (3GPP TS 38.212 clauses 5.2.2 and 7.2.2).

The uplink shared channel follows the same rules (clause 6.2.2 and 6.2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.nr.mcs import mcs_table
from ranloom.nr.numerology import SUBCARRIERS_PER_PRB, SYMBOLS_PER_SLOT
from ranloom.nr.tbs import tbs_table

# 38.212 table 5.3.2-1: lifting sizes a * 2**j <= 384, by set index
LIFTING_SETS: tuple[tuple[int, ...], ...] = tuple(
    tuple(a << j for j in range(8) if a << j <= 384) for a in (2, 3, 5, 7, 9, 11, 13, 15)
)
LIFTING_SIZES = np.array(sorted(z for sizes in LIFTING_SETS for z in sizes), dtype=np.int64)

MAX_CODE_BLOCK_BITS = {1: 8448, 2: 3840}
INFORMATION_COLUMNS = {1: 22, 2: 10}


@dataclass(frozen=True)
class Segmentation:
    """How one transport block is cut into code blocks.

    Args:
        base_graph: LDPC base graph, 1 or 2.
        n_code_blocks: number of code blocks C.
        lifting_size: lifting size Z_c.
        code_block_bits: K = 22 or 10 columns x Z_c, filler bits included.
        payload_bits: K', bits of a block with its CRC, without filler bits.
        tb_crc_bits: CRC of the transport block (16 or 24).
        cb_crc_bits: CRC of a code block (0 or 24).
    """

    base_graph: int
    n_code_blocks: int
    lifting_size: int
    code_block_bits: int
    payload_bits: int
    tb_crc_bits: int
    cb_crc_bits: int

    @property
    def filler_bits(self) -> int:
        """Filler bits per code block, K - K'."""
        return self.code_block_bits - self.payload_bits

    @property
    def work(self) -> int:
        """Decoder work W: code blocks x lifting size."""
        return self.n_code_blocks * self.lifting_size


@dataclass(frozen=True, eq=False)
class SegmentationArrays:
    """:class:`Segmentation` of many transport blocks, int64 arrays of one shape."""

    base_graph: NDArray[np.int64]
    n_code_blocks: NDArray[np.int64]
    lifting_size: NDArray[np.int64]
    code_block_bits: NDArray[np.int64]
    payload_bits: NDArray[np.int64]
    tb_crc_bits: NDArray[np.int64]
    cb_crc_bits: NDArray[np.int64]


def segment_arrays(
    tbs_bits: NDArray[np.int64], code_rate_x2048: NDArray[np.int64]
) -> SegmentationArrays:
    """Segmentation of transport blocks of any shape.

    Args:
        tbs_bits: transport block sizes A in bits; 0 gives no code block.
        code_rate_x2048: target code rates in units of 1/2048, broadcastable.

    Returns:
        Arrays of the common shape.
    """
    size, rate = np.broadcast_arrays(np.asarray(tbs_bits, dtype=np.int64), code_rate_x2048)
    is_bg2 = (
        (size <= 292) | ((size <= 3824) & (rate * 100 <= 67 * 2048)) | (4 * rate <= 2048)
    )  # R <= 0.67, R <= 0.25
    tb_crc = np.where(size > 3824, 24, 16)
    with_crc = size + tb_crc
    max_bits = np.where(is_bg2, MAX_CODE_BLOCK_BITS[2], MAX_CODE_BLOCK_BITS[1])
    single = with_crc <= max_bits
    cb_crc = np.where(single, 0, 24)
    n_blocks = np.where(single, 1, -(-with_crc // (max_bits - cb_crc)))
    all_bits = with_crc + n_blocks * cb_crc  # a multiple of the blocks for sizes of 38.214
    payload = all_bits // n_blocks

    # columns that carry information when Z_c is chosen (38.212 clause 5.2.2)
    by_size = np.select([with_crc > 640, with_crc > 560, with_crc > 192], [10, 9, 8], 6)
    columns = np.where(is_bg2, by_size, INFORMATION_COLUMNS[1])
    lifting = LIFTING_SIZES[np.searchsorted(LIFTING_SIZES, -(-all_bits // (n_blocks * columns)))]
    total = np.where(is_bg2, INFORMATION_COLUMNS[2], INFORMATION_COLUMNS[1]) * lifting

    empty = size <= 0
    return SegmentationArrays(
        base_graph=np.where(is_bg2, 2, 1),
        n_code_blocks=np.where(empty, 0, n_blocks),
        lifting_size=lifting,
        code_block_bits=total,
        payload_bits=payload,
        tb_crc_bits=tb_crc,
        cb_crc_bits=cb_crc,
    )


def segment(tbs_bits: int, code_rate: float) -> Segmentation:
    """Segmentation of one transport block.

    Args:
        tbs_bits: transport block size A in bits, at least 1.
        code_rate: target code rate of the MCS, in (0, 1).

    Raises:
        InputError: a value is out of range.
    """
    if tbs_bits < 1:
        raise InputError("tbs_bits", tbs_bits, "allowed: at least 1")
    if not 0.0 < code_rate < 1.0:
        raise InputError("code_rate", code_rate, "allowed: between 0 and 1")
    arrays = segment_arrays(np.array(tbs_bits), np.array(round(code_rate * 2048)))
    return Segmentation(
        base_graph=int(arrays.base_graph),
        n_code_blocks=int(arrays.n_code_blocks),
        lifting_size=int(arrays.lifting_size),
        code_block_bits=int(arrays.code_block_bits),
        payload_bits=int(arrays.payload_bits),
        tb_crc_bits=int(arrays.tb_crc_bits),
        cb_crc_bits=int(arrays.cb_crc_bits),
    )


def work_table(
    max_prb: int,
    *,
    table: int = 1,
    n_layers: int = 1,
    n_symbols: int = SYMBOLS_PER_SLOT,
    n_dmrs_per_prb: int = SUBCARRIERS_PER_PRB,
    n_oh: int = 0,
) -> NDArray[np.int32]:
    """Decoder work W = code blocks x lifting size of every MCS and allocation width.

    W is not monotone: a wider or faster allocation may switch to base graph 1, whose blocks are
    larger. Arguments as for :func:`ranloom.nr.tbs.tbs_table`.

    Returns:
        int32[n_mcs, max_prb + 1]; column 0 is 0.
    """
    sizes = tbs_table(
        max_prb,
        table=table,
        n_layers=n_layers,
        n_symbols=n_symbols,
        n_dmrs_per_prb=n_dmrs_per_prb,
        n_oh=n_oh,
    )
    rate = mcs_table(table).code_rate_x2048
    arrays = segment_arrays(sizes.astype(np.int64), rate[:, None])
    return (arrays.n_code_blocks * arrays.lifting_size).astype(np.int32)
