"""QAM mapping and soft demapping (3GPP TS 38.211 clause 5.1)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError

_ORDERS = (2, 4, 6, 8)


@cache
def axis_levels(modulation_order: int) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Amplitudes of one axis and the bits that select them.

    Even bits of a symbol choose the real part, odd bits the imaginary part, by the same Gray code.

    Returns:
        float64[m] amplitudes at unit mean symbol energy, and uint8[m, modulation_order / 2] bits.

    Raises:
        InputError: neither QPSK nor 16, 64 or 256QAM.
    """
    if modulation_order not in _ORDERS:
        raise InputError("modulation_order", modulation_order, "allowed: 2, 4, 6, 8")
    n_bits = modulation_order // 2
    codes = np.arange(2**n_bits)
    bits = ((codes[:, None] >> np.arange(n_bits - 1, -1, -1)) & 1).astype(np.uint8)
    signs = 1.0 - 2.0 * bits
    amplitude = np.ones(len(codes))
    # 38.211: sign(b0) (4 - sign(b2) (2 - sign(b4))), from the inside out
    for bit in range(n_bits - 1, 0, -1):
        amplitude = 2.0 ** (n_bits - bit) - signs[:, bit] * amplitude
    amplitude = signs[:, 0] * amplitude
    return amplitude / np.sqrt(2.0 * np.mean(amplitude**2)), bits


def modulate(bits: NDArray[np.uint8], modulation_order: int) -> NDArray[np.complex128]:
    """Symbols of unit mean energy, complex128[..., n / modulation_order]."""
    amplitudes, _ = axis_levels(modulation_order)
    groups = bits.reshape(*bits.shape[:-1], -1, modulation_order)
    weights = 1 << np.arange(modulation_order // 2 - 1, -1, -1)
    real, imaginary = (amplitudes[groups[..., axis::2] @ weights] for axis in (0, 1))
    return np.asarray(real + 1j * imaginary)


def demodulate(
    symbols: NDArray[np.complex128], modulation_order: int, noise_power: float
) -> NDArray[np.float64]:
    """Max-log bit metrics in white Gaussian noise, positive for a zero bit.

    Args:
        symbols: complex128[..., n].
        modulation_order: bits per symbol.
        noise_power: of the complex noise.

    Returns:
        float64[..., n * modulation_order].
    """
    amplitudes, bits = axis_levels(modulation_order)
    llr = np.empty((*symbols.shape, modulation_order))
    for axis, part in enumerate((symbols.real, symbols.imag)):
        distance = (part[..., None] - amplitudes) ** 2 / noise_power
        for bit in range(bits.shape[1]):
            one = bits[:, bit] == 1
            llr[..., 2 * bit + axis] = distance[..., one].min(-1) - distance[..., ~one].min(-1)
    return llr.reshape(*symbols.shape[:-1], -1)
