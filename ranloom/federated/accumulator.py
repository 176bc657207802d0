"""Streaming weighted sums: one pass over an update, one vector of state however many come.

Arithmetics:

* ``float64``: relative error of about 1e-16 per addition, order matters in the last bit.
* ``fixed64``: each contribution ``rint(w * x * 2**fraction_bits)`` is an integer, so sums are
  bit-identical in any order and any grouping.
* ``float32``: half the memory traffic, relative error of about 1e-7.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.federated.payload import HALF_TO_SINGLE, INT8_BLOCK, Payload

ARITHMETICS = ("float64", "fixed64", "float32")
_DTYPES = {"float64": np.float64, "fixed64": np.int64, "float32": np.float32}
_FIXED_LIMIT = 2.0**62


@njit(cache=True)
def _add_scaled(total: NDArray, x: NDArray, weight: float) -> None:
    for i in range(x.size):
        total[i] += weight * x[i]


@njit(cache=True)
def _add_fixed(total: NDArray, x: NDArray, weight: float) -> None:
    for i in range(x.size):
        total[i] += np.int64(np.rint(weight * np.float64(x[i])))


@njit(cache=True)
def _add_scaled_half(total: NDArray, bits: NDArray, table: NDArray, weight: float) -> None:
    for i in range(bits.size):
        total[i] += weight * table[bits[i]]


@njit(cache=True)
def _add_fixed_half(total: NDArray, bits: NDArray, table: NDArray, weight: float) -> None:
    for i in range(bits.size):
        total[i] += np.int64(np.rint(weight * np.float64(table[bits[i]])))


@njit(cache=True)
def _add_scaled_blocks(
    total: NDArray, x: NDArray, scales: NDArray, weight: float, block: int
) -> None:
    for b in range(scales.size):
        factor = weight * scales[b]
        for i in range(b * block, min((b + 1) * block, x.size)):
            total[i] += factor * x[i]


@njit(cache=True)
def _add_fixed_blocks(
    total: NDArray, x: NDArray, scales: NDArray, weight: float, block: int
) -> None:
    for b in range(scales.size):
        factor = weight * np.float64(scales[b])
        for i in range(b * block, min((b + 1) * block, x.size)):
            total[i] += np.int64(np.rint(factor * x[i]))


class Accumulator:
    """A running weighted sum of updates of one layout.

    Args:
        elements: length of the vectors.
        arithmetic: one of :data:`ARITHMETICS`.
        fraction_bits: ``fixed64``: binary digits after the point.

    Raises:
        InputError: an argument out of range.
    """

    def __init__(self, elements: int, arithmetic: str, fraction_bits: int = 40) -> None:
        if elements < 1:
            raise InputError("elements", elements, "allowed: at least 1")
        if arithmetic not in ARITHMETICS:
            raise InputError("arithmetic", arithmetic, f"allowed: {', '.join(ARITHMETICS)}")
        if not 0 <= fraction_bits <= 52:
            raise InputError("fraction_bits", fraction_bits, "allowed: 0 to 52")
        self.arithmetic = arithmetic
        self.fraction_bits = fraction_bits if arithmetic == "fixed64" else 0
        self.total: NDArray = np.zeros(elements, dtype=_DTYPES[arithmetic])
        self.magnitude_bound = 0.0

    @property
    def elements(self) -> int:
        """Length of the vectors."""
        return int(self.total.size)

    def fits(self, weight: float, peak: float) -> bool:
        """Whether a contribution with this weight and largest magnitude cannot overflow."""
        if self.arithmetic == "float32":
            return self.magnitude_bound + weight * peak < float(np.finfo(np.float32).max)
        if self.arithmetic == "float64":
            return math.isfinite(self.magnitude_bound + weight * peak)
        grown = self.magnitude_bound + weight * peak
        return math.ldexp(grown, self.fraction_bits) < _FIXED_LIMIT

    def add(self, payload: Payload, weight: float, peak: float) -> None:
        """Add ``weight * payload``.

        Args:
            payload: as many elements as the sum.
            weight: factor; 1 for a ``fix64`` payload, which its sender has weighted.
            peak: an upper bound of the magnitudes in the payload.

        Raises:
            InputError: lengths differ, the sum could overflow, or a ``fix64`` payload meets
                other arithmetic or another number of fraction bits.
        """
        if payload.elements != self.elements:
            raise InputError("update", payload.elements, f"allowed: {self.elements} values")
        if not self.fits(weight, peak):
            raise InputError("update", peak, f"allowed: a magnitude that {self.arithmetic} holds")
        stored = payload.values()
        if payload.dtype == "fix64":
            if self.arithmetic != "fixed64" or payload.exponent != self.fraction_bits:
                raise InputError(
                    "update.dtype",
                    f"fix64 with {payload.exponent} fraction bits",
                    f"allowed: the arithmetic {self.arithmetic} and {self.fraction_bits} bits",
                )
            np.add(self.total, stored, out=self.total)  # wraps modulo 2**64
        elif self.arithmetic == "fixed64":
            factor = np.float64(math.ldexp(weight, self.fraction_bits))
            if payload.dtype == "fp16":
                scaled = np.float64(math.ldexp(factor, payload.exponent))
                _add_fixed_half(self.total, stored, HALF_TO_SINGLE, scaled)
            elif payload.dtype == "int8":
                _add_fixed_blocks(self.total, stored, payload.scales(), factor, INT8_BLOCK)
            else:
                _add_fixed(self.total, stored, factor)
        else:
            kind = self.total.dtype.type
            if payload.dtype == "fp16":
                scaled = kind(math.ldexp(weight, payload.exponent))
                _add_scaled_half(self.total, stored, HALF_TO_SINGLE, scaled)
            elif payload.dtype == "int8":
                _add_scaled_blocks(
                    self.total, stored, payload.scales().astype(kind), kind(weight), INT8_BLOCK
                )
            else:
                _add_scaled(self.total, stored, kind(weight))
        self.magnitude_bound += weight * peak

    def merge(self, other: Accumulator) -> None:
        """Add another sum of the same arithmetic.

        Raises:
            InputError: another length, arithmetic or number of fraction bits, or overflow.
        """
        mine = (self.elements, self.arithmetic, self.fraction_bits)
        theirs = (other.elements, other.arithmetic, other.fraction_bits)
        if theirs != mine:
            raise InputError("aggregate", theirs, f"allowed: {mine}")
        if not self.fits(1.0, other.magnitude_bound):
            raise InputError(
                "aggregate", other.magnitude_bound, f"allowed: what {self.arithmetic} holds"
            )
        np.add(self.total, other.total, out=self.total)
        self.magnitude_bound += other.magnitude_bound

    def sums(self) -> NDArray[np.float64]:
        """The weighted sums in float64, shape (elements,)."""
        return self.average(1.0)

    def average(self, weight: float) -> NDArray[np.float64]:
        """The sums divided by a weight, in float64, shape (elements,)."""
        # scaling the divisor by a power of two is exact, and one pass over memory is enough
        divisor = math.ldexp(weight, self.fraction_bits)
        result: NDArray[np.float64] = np.divide(self.total, divisor, dtype=np.float64)
        return result
