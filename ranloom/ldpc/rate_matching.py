"""Rate matching of LDPC code blocks and its inverse (3GPP TS 38.212 clause 5.4.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import PUNCTURED_COLUMNS, BaseGraph

# 38.212 table 5.4.2.1-2: start of each redundancy version, in columns of the whole buffer
_RV_START_COLUMNS = {1: (0, 17, 33, 56), 2: (0, 13, 25, 43)}
REDUNDANCY_VERSIONS = (0, 2, 3, 1)  # order in which transmissions use them


def block_lengths(
    coded_bits: int, n_code_blocks: int, modulation_order: int, n_layers: int = 1
) -> NDArray[np.int64]:
    """Rate-matched length E_r of each code block (clause 5.4.2.1).

    Args:
        coded_bits: G, all bits of the transport block.
        n_code_blocks: C.
        modulation_order: bits per symbol.
        n_layers: layers of the transport block.

    Returns:
        int64[n_code_blocks], which sum to G.

    Raises:
        InputError: G is no whole number of symbols on all layers, or leaves a block empty.
    """
    unit = modulation_order * n_layers
    symbols, rest = divmod(coded_bits, unit)
    if rest or symbols < n_code_blocks:
        raise InputError(
            "coded_bits",
            coded_bits,
            f"allowed: multiples of {unit}, at least {n_code_blocks * unit}",
        )
    short, longer = divmod(symbols, n_code_blocks)
    lengths = np.full(n_code_blocks, short, dtype=np.int64)
    lengths[n_code_blocks - longer :] += 1
    return lengths * unit


def selected_positions(
    graph: BaseGraph,
    lifting_size: int,
    payload_bits: int,
    sent_bits: int,
    modulation_order: int,
    redundancy_version: int,
    reference_bits: int | None = None,
) -> NDArray[np.int64]:
    """Position in the code word of every sent bit, in the order of transmission.

    Bit selection from the circular buffer, skipping filler bits, then the row-column
    interleaver. Sending is indexing with the result, receiving is adding at it.

    Args:
        graph: base graph.
        lifting_size: Z.
        payload_bits: K', bits of the block before filler bits.
        sent_bits: E, a multiple of the modulation order.
        modulation_order: bits per symbol.
        redundancy_version: 0 to 3.
        reference_bits: buffer limit N_ref; None for the whole buffer.

    Returns:
        int64[sent_bits], positions in the word of ``n_columns * Z`` bits.

    Raises:
        InputError: a value is out of range.
    """
    if redundancy_version not in (0, 1, 2, 3):
        raise InputError("redundancy_version", redundancy_version, "allowed: 0 to 3")
    if sent_bits < 1 or sent_bits % modulation_order:
        raise InputError("sent_bits", sent_bits, f"allowed: multiples of {modulation_order}")
    punctured = PUNCTURED_COLUMNS * lifting_size
    whole_columns = graph.n_columns - PUNCTURED_COLUMNS
    whole = whole_columns * lifting_size
    buffer = whole if reference_bits is None else min(whole, reference_bits)
    start = _RV_START_COLUMNS[graph.index][redundancy_version] * buffer // whole * lifting_size

    position = np.arange(buffer)
    filler_from = payload_bits - punctured
    filler_to = graph.information_columns * lifting_size - punctured
    sendable = position[(position < filler_from) | (position >= filler_to)]
    first = int(np.searchsorted(sendable, start))
    selected = sendable[(first + np.arange(sent_bits)) % len(sendable)]
    return np.asarray(selected.reshape(modulation_order, -1).T.ravel() + punctured)


def recover(
    llr: NDArray[np.float64],
    positions: NDArray[np.int64],
    graph: BaseGraph,
    lifting_size: int,
    payload_bits: int,
    filler_llr: float,
) -> NDArray[np.float64]:
    """Decoder input of one code block: received values added up, filler bits known.

    Args:
        llr: float64[E], log-likelihood ratios, positive for a zero bit.
        positions: of :func:`selected_positions`.
        graph: base graph.
        lifting_size: Z.
        payload_bits: K'.
        filler_llr: value for the filler bits, which are zeros.

    Returns:
        float64[n_columns * Z]; punctured and unsent bits are 0.
    """
    word = np.zeros(graph.n_columns * lifting_size)
    np.add.at(word, positions, llr)
    word[payload_bits : graph.information_columns * lifting_size] = filler_llr
    return word
