"""From transport block to coded bits and back (3GPP TS 38.212 clause 6.2: uplink shared channel).

CRC, segmentation, encoding, rate matching, concatenation; and the receiver with soft combining
of retransmissions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import BaseGraph, base_graph
from ranloom.ldpc.crc import attach_crc, crc_holds
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.encoder import encode
from ranloom.ldpc.rate_matching import block_lengths, recover, selected_positions
from ranloom.nr.segmentation import Segmentation, segment


@dataclass(frozen=True)
class TransportBlockFormat:
    """What sender and receiver agree on.

    Args:
        tbs_bits: transport block size A.
        code_rate: target code rate of the MCS.
        modulation_order: bits per symbol.
        coded_bits: G, bits on the channel.
        n_layers: spatial layers.
    """

    tbs_bits: int
    code_rate: float
    modulation_order: int
    coded_bits: int
    n_layers: int = 1

    @cached_property
    def segmentation(self) -> Segmentation:
        """Code blocks."""
        return segment(self.tbs_bits, self.code_rate)

    @property
    def graph(self) -> BaseGraph:
        """Base graph."""
        return base_graph(self.segmentation.base_graph)

    @cached_property
    def block_lengths(self) -> NDArray[np.int64]:
        """Bits on the channel of each code block."""
        return block_lengths(
            self.coded_bits, self.segmentation.n_code_blocks, self.modulation_order, self.n_layers
        )

    @property
    def rows_needed(self) -> int:
        """Base-graph rows that a decoder needs for a first transmission."""
        blocks, sent = self.segmentation, int(self.block_lengths.max())
        return int(self.graph.rows_needed(sent, blocks.filler_bits, blocks.lifting_size))

    def positions(self, sent_bits: int, redundancy_version: int) -> NDArray[np.int64]:
        """Code-word positions of the sent bits of one code block."""
        blocks = self.segmentation
        return selected_positions(
            self.graph,
            blocks.lifting_size,
            blocks.payload_bits,
            sent_bits,
            self.modulation_order,
            redundancy_version,
        )


def encode_transport_block(
    bits: NDArray[np.uint8], form: TransportBlockFormat, redundancy_version: int = 0
) -> NDArray[np.uint8]:
    """Coded bits of one transmission.

    Args:
        bits: uint8[A], the transport block.
        form: its format.
        redundancy_version: 0 to 3.

    Returns:
        uint8[G].

    Raises:
        InputError: the number of bits does not fit the format.
    """
    if bits.shape != (form.tbs_bits,):
        raise InputError("bits", bits.shape, f"needed: ({form.tbs_bits},)")
    blocks = form.segmentation
    with_crc = attach_crc(bits, "24A" if blocks.tb_crc_bits == 24 else "16")
    payload = with_crc.reshape(blocks.n_code_blocks, -1)
    if blocks.cb_crc_bits:
        payload = attach_crc(payload, "24B")
    information = np.pad(payload, ((0, 0), (0, blocks.filler_bits)))
    words = encode(information, form.graph, blocks.lifting_size)
    return np.concatenate(
        [
            word[form.positions(int(sent), redundancy_version)]
            for word, sent in zip(words, form.block_lengths, strict=True)
        ]
    )


class Receiver:
    """Soft buffer of one transport block: adds up transmissions and decodes.

    Args:
        form: format of the block, the same for all transmissions.
        settings: decoder settings.
    """

    def __init__(self, form: TransportBlockFormat, settings: DecoderSettings) -> None:
        self._form = form
        self._settings = settings
        blocks, graph = form.segmentation, form.graph
        self._buffer = np.zeros((blocks.n_code_blocks, graph.n_columns * blocks.lifting_size))
        self._all_rows = False

    def add(self, llr: NDArray[np.float64], redundancy_version: int = 0) -> None:
        """Add a transmission.

        Args:
            llr: float64[G], log-likelihood ratios, positive for a zero bit.
            redundancy_version: 0 to 3.

        Raises:
            InputError: the number of values does not fit the format.
        """
        form = self._form
        if llr.shape != (form.coded_bits,):
            raise InputError("llr", llr.shape, f"needed: ({form.coded_bits},)")
        blocks = form.segmentation
        ends = np.cumsum(form.block_lengths)
        for row, part in zip(self._buffer, np.split(llr, ends[:-1]), strict=True):
            row += recover(
                part,
                form.positions(len(part), redundancy_version),
                form.graph,
                blocks.lifting_size,
                blocks.payload_bits,
                filler_llr=np.inf,
            )
        # later versions send parity columns that a first transmission leaves out
        self._all_rows |= redundancy_version != 0

    def quantised(self) -> NDArray[np.int16]:
        """Decoder input: int16[n_code_blocks, n_columns * Z]."""
        return self._settings.quantise(self._buffer)

    def decode(self) -> tuple[NDArray[np.uint8], bool, NDArray[np.int64]]:
        """Decode what has been received so far.

        Returns:
            The transport block (uint8[A]), whether its CRC holds, and the iterations of each
            code block.
        """
        form, blocks = self._form, self._form.segmentation
        rows = form.graph.n_rows if self._all_rows else form.rows_needed
        found = decode(self.quantised(), form.graph, blocks.lifting_size, self._settings, rows)
        payload = found.words[:, : blocks.payload_bits]
        if blocks.cb_crc_bits:
            payload = payload[:, : -blocks.cb_crc_bits]
        with_crc = payload.ravel()
        holds = crc_holds(with_crc, "24A" if blocks.tb_crc_bits == 24 else "16")
        return with_crc[: form.tbs_bits], bool(holds), found.iterations
