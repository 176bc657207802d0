"""Wire formats of an update: what a UE sends and what a gNB ships onwards.

======== ===================================================================================
``fp64`` little-endian IEEE 754 binary64
``fp32`` binary32
``fp16`` binary16 of ``x * 2**-exponent``; the exponent travels in the header and moves the
         largest value just under 2**15, so that small updates do not fall into subnormals
``int8`` symmetric: per block of 1024 values one binary32 scale, all scales first, then values
``fix64`` two's complement 64-bit fixed point of ``n_k * x``, already weighted by the sender;
         sums are modulo 2**64, so pairwise additive masks cancel (secure aggregation,
         Bonawitz et al., CCS 2017)
======== ===================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError

WIRE_DTYPES = ("fp64", "fp32", "fp16", "int8", "fix64")
INT8_BLOCK = 1024
_BYTES_PER_VALUE: Mapping[str, int] = {"fp64": 8, "fp32": 4, "fp16": 2, "int8": 1, "fix64": 8}
_SCALE_BYTES = 4
_FP16_TOP_EXPONENT = 15

# binary16 has 65,536 values: looking one up is faster than converting it without F16C
HALF_TO_SINGLE: NDArray[np.float32] = (
    np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
)


@dataclass(frozen=True)
class Payload:
    """An encoded vector.

    Args:
        dtype: one of :data:`WIRE_DTYPES`.
        elements: number of values.
        data: the bytes on the wire; their number is :func:`payload_bytes`.
        exponent: ``fp16``: values are ``data * 2**exponent``. ``fix64``: fraction bits of the
            fixed point. Else 0.
    """

    dtype: str
    elements: int
    data: bytes | bytearray | memoryview
    exponent: int = 0

    def values(self) -> NDArray:
        """The stored values without scale, no copy (``fp16`` as its bit patterns, uint16)."""
        kinds = {"fp64": "<f8", "fp32": "<f4", "fp16": "<u2", "int8": "i1", "fix64": "<i8"}
        offset = _SCALE_BYTES * _blocks(self.elements) if self.dtype == "int8" else 0
        return np.frombuffer(self.data, kinds[self.dtype], self.elements, offset)

    def scales(self) -> NDArray[np.float32]:
        """Block scales of an ``int8`` payload (no copy)."""
        return np.frombuffer(self.data, "<f4", _blocks(self.elements))


def _blocks(elements: int) -> int:
    return -(-elements // INT8_BLOCK)


def payload_bytes(dtype: str, elements: int) -> int:
    """Bytes on the wire of a vector.

    Raises:
        InputError: unknown dtype.
    """
    if dtype not in _BYTES_PER_VALUE:
        raise InputError("dtype", dtype, f"allowed: {', '.join(WIRE_DTYPES)}")
    scales = _SCALE_BYTES * _blocks(elements) if dtype == "int8" else 0
    return _BYTES_PER_VALUE[dtype] * elements + scales


def encode(values: NDArray[np.floating], dtype: str, *, fraction_bits: int = 0) -> Payload:
    """Encode a vector for the wire, rounding to nearest.

    Args:
        values: shape (n,), finite. For ``fix64``: already weighted.
        dtype: one of :data:`WIRE_DTYPES`.
        fraction_bits: for ``fix64``: binary digits after the point.

    Raises:
        InputError: unknown dtype, NaN or infinity, or a value too large for the format.
    """
    total_bytes = payload_bytes(dtype, values.size)
    x = np.asarray(values, dtype=np.float64)
    peak = float(np.max(np.abs(x), initial=0.0))
    if not math.isfinite(peak):
        raise InputError("update", peak, "allowed: finite values")
    if dtype == "fp64":
        return Payload(dtype, x.size, x.astype("<f8").tobytes())
    if dtype == "fp32":
        if peak > float(np.finfo(np.float32).max):
            raise InputError("update", peak, "allowed: the range of binary32")
        return Payload(dtype, x.size, x.astype("<f4").tobytes())
    if dtype == "fp16":
        # 2**15 times (1 - 2**-12) still rounds below the largest binary16
        exponent = math.frexp(peak)[1] - _FP16_TOP_EXPONENT if peak > 0.0 else 0
        return Payload(dtype, x.size, np.ldexp(x, -exponent).astype("<f2").tobytes(), exponent)
    if dtype == "fix64":
        if math.ldexp(peak, fraction_bits) >= 2.0**62:
            raise InputError("update", peak, f"allowed: below 2**{62 - fraction_bits}")
        fixed = np.rint(np.ldexp(x, fraction_bits)).astype("<i8")
        return Payload(dtype, x.size, fixed.tobytes(), fraction_bits)
    padded = np.zeros(_blocks(x.size) * INT8_BLOCK)
    padded[: x.size] = x
    blocks = padded.reshape(-1, INT8_BLOCK)
    scales = (np.max(np.abs(blocks), axis=1) / 127.0).astype("<f4")
    steps = np.where(scales > 0.0, scales.astype(np.float64), 1.0)
    quantised = np.clip(np.rint(blocks / steps[:, None]), -127, 127).astype(np.int8)
    data = scales.tobytes() + quantised.reshape(-1)[: x.size].tobytes()
    assert len(data) == total_bytes
    return Payload(dtype, x.size, data)


def decode(payload: Payload) -> NDArray[np.float64]:
    """Values of a payload in float64, shape (elements,)."""
    stored = payload.values()
    values: NDArray[np.float64] = stored.astype(np.float64)
    if payload.dtype == "fp16":
        values = np.ldexp(HALF_TO_SINGLE[stored].astype(np.float64), payload.exponent)
    elif payload.dtype == "fix64":
        values = np.ldexp(values, -payload.exponent)
    elif payload.dtype == "int8":
        values *= np.repeat(payload.scales(), INT8_BLOCK)[: payload.elements]
    return values


@njit(cache=True)
def _largest_magnitude_16(bits: NDArray[np.uint16]) -> np.uint16:
    top = np.uint16(0)
    for i in range(bits.size):
        top = max(top, np.uint16(bits[i] & np.uint16(0x7FFF)))
    return top


@njit(cache=True)
def _largest_magnitude_32(bits: NDArray[np.uint32]) -> np.uint32:
    top = np.uint32(0)
    for i in range(bits.size):
        top = max(top, bits[i] & np.uint32(0x7FFFFFFF))
    return top


@njit(cache=True)
def _largest_magnitude_64(bits: NDArray[np.uint64]) -> np.uint64:
    top = np.uint64(0)
    for i in range(bits.size):
        top = max(top, bits[i] & np.uint64(0x7FFFFFFFFFFFFFFF))
    return top


def peak_magnitude(payload: Payload) -> float:
    """Largest magnitude in the payload; infinity or NaN when any value is not finite.

    Without the sign bit, IEEE 754 numbers order like their bit patterns, and infinities and NaNs
    come last: one integer maximum finds both the peak and a bad value. For ``int8`` it is
    an upper bound (128 times the largest scale), for ``fix64`` it is 0: masked values look random.
    """
    stored = payload.values()
    if payload.dtype == "fp32":
        return float(np.uint32(_largest_magnitude_32(stored.view(np.uint32))).view(np.float32))
    if payload.dtype == "fp64":
        return float(np.uint64(_largest_magnitude_64(stored.view(np.uint64))).view(np.float64))
    if payload.dtype == "fp16":
        half = np.uint16(_largest_magnitude_16(stored)).view(np.float16)
        try:
            return math.ldexp(float(half), payload.exponent)
        except OverflowError:
            return math.inf
    if payload.dtype == "fix64":
        return 0.0
    scales = payload.scales()
    if scales.size and float(scales.min()) < 0.0:
        return math.nan
    return 128.0 * float(np.uint32(_largest_magnitude_32(scales.view(np.uint32))).view(np.float32))


def encoding_error(values: NDArray[np.floating], dtype: str, *, fraction_bits: int = 0) -> float:
    """RMS error of sending ``values`` in a wire format, relative to their own RMS (0 for zeros)."""
    x = np.asarray(values, dtype=np.float64)
    rms = float(np.sqrt(np.mean(x * x)))
    if rms == 0.0:
        return 0.0
    off = decode(encode(x, dtype, fraction_bits=fraction_bits)) - x
    return float(np.sqrt(np.mean(off * off))) / rms
