"""Cyclic redundancy checks of NR channel coding (3GPP TS 38.212 clause 5.1)."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError

# name: (degree, generator without its leading term, highest power first)
_GENERATORS: dict[str, tuple[int, int]] = {
    "24A": (24, 0x864CFB),
    "24B": (24, 0x800063),
    "24C": (24, 0xB2B117),
    "16": (16, 0x1021),
    "11": (11, 0x621),
    "6": (6, 0x21),
}


def crc_length(name: str) -> int:
    """Parity bits of a CRC.

    Raises:
        InputError: there is no such CRC.
    """
    if name not in _GENERATORS:
        raise InputError("crc", name, f"allowed: {', '.join(_GENERATORS)}")
    return _GENERATORS[name][0]


def crc_bits(bits: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Parity bits of bit sequences.

    Args:
        bits: uint8[..., n], zeros and ones, first bit first.
        name: ``24A``, ``24B``, ``24C``, ``16``, ``11`` or ``6``.

    Returns:
        uint8[..., length].

    Raises:
        InputError: there is no such CRC.
    """
    length = crc_length(name)
    rows = np.ascontiguousarray(bits, dtype=np.uint8).reshape(-1, bits.shape[-1])
    registers = _registers(rows, length, _GENERATORS[name][1])
    parity = ((registers[:, None] >> np.arange(length - 1, -1, -1)) & 1).astype(np.uint8)
    return np.reshape(parity, (*bits.shape[:-1], length))


def attach_crc(bits: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Bit sequences with their parity bits behind, uint8[..., n + length]."""
    return np.concatenate([bits, crc_bits(bits, name)], axis=-1)


def crc_holds(bits: NDArray[np.uint8], name: str) -> NDArray[np.bool_]:
    """Whether sequences with attached parity bits divide without remainder, bool[...]."""
    return np.asarray(~crc_bits(bits, name).any(axis=-1))


@njit(cache=True)
def _registers(
    rows: NDArray[np.uint8], length: int, generator: int
) -> NDArray[np.int64]:  # fmt: skip
    mask = (1 << length) - 1
    out = np.zeros(rows.shape[0], np.int64)
    for i in range(rows.shape[0]):
        register = 0
        for bit in rows[i]:
            feedback = (register >> (length - 1)) ^ bit
            register = (register << 1) & mask
            if feedback & 1:
                register ^= generator
        out[i] = register
    return out
