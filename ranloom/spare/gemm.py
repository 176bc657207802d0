"""Matrix products, their tiles, and how long a wave of tiles takes on some SMs.

A persistent kernel runs one tile on each of its SMs at a time: a *wave*. A tile covers
``tile_m x tile_n`` of the output and ``tile_k`` of the reduction, so that one tile fits in
a RAN slot whatever the product (WEAVER section 6.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ranloom.errors import InputError
from ranloom.gpu.card import Card


def _check_positive(where: str, extents: tuple[int, ...]) -> None:
    if min(extents) < 1:
        raise InputError(where, "x".join(map(str, extents)), "allowed: extents of 1 or more")


@dataclass(frozen=True)
class Gemm:
    """``C[m, n] = A[m, k] B[k, n]``, ``batch`` times.

    Args:
        m: rows of the output.
        n: columns of the output.
        k: reduction.
        batch: independent products of this shape.

    Raises:
        InputError: a dimension below 1.
    """

    m: int
    n: int
    k: int
    batch: int = 1

    def __post_init__(self) -> None:
        _check_positive("product", (self.m, self.n, self.k, self.batch))

    @property
    def flops(self) -> float:
        """Floating-point operations; a multiply-add counts as two."""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class Tiling:
    """Largest extent of a tile in each dimension; edge tiles are smaller.

    Raises:
        InputError: an extent below 1.
    """

    tile_m: int
    tile_n: int
    tile_k: int

    def __post_init__(self) -> None:
        _check_positive("tiling", (self.tile_m, self.tile_n, self.tile_k))

    def full_tile(self, gemm: Gemm) -> tuple[int, int, int]:
        """Rows, columns and reduction of a tile of a product that is no edge tile."""
        return min(self.tile_m, gemm.m), min(self.tile_n, gemm.n), min(self.tile_k, gemm.k)

    def count(self, gemm: Gemm) -> int:
        """Number of tiles of a product."""
        return (
            gemm.batch
            * math.ceil(gemm.m / self.tile_m)
            * math.ceil(gemm.n / self.tile_n)
            * math.ceil(gemm.k / self.tile_k)
        )

    def tiles(self, gemm: Gemm) -> Iterator[tuple[int, slice, slice, slice]]:
        """Tiles as (batch index, rows, columns, reduction range); their sum is the product.

        The reduction advances last, so that tiles which run at once add to different outputs.
        """
        for r in range(0, gemm.k, self.tile_k):
            for b in range(gemm.batch):
                for i in range(0, gemm.m, self.tile_m):
                    for j in range(0, gemm.n, self.tile_n):
                        yield (
                            b,
                            slice(i, min(i + self.tile_m, gemm.m)),
                            slice(j, min(j + self.tile_n, gemm.n)),
                            slice(r, min(r + self.tile_k, gemm.k)),
                        )


@dataclass(frozen=True)
class TileModel:
    """Time of a wave: the slower of arithmetic and memory traffic, plus its dispatch.

    Args:
        card: device.
        tile_efficiency: share of the tensor peak that one SM reaches inside a tile.
        bandwidth_share: share of the memory bandwidth left to training.
        element_bytes: bytes of a matrix element.
        dispatch_us: time between two waves (queue poll of the persistent kernel).

    Raises:
        InputError: a share that is not above 0, or a negative time.
    """

    card: Card
    tile_efficiency: float
    bandwidth_share: float
    element_bytes: int
    dispatch_us: float

    def __post_init__(self) -> None:
        for name in ("tile_efficiency", "bandwidth_share"):
            if not getattr(self, name) > 0.0:
                raise InputError(f"tile model: {name}", getattr(self, name), "allowed: above 0")
        if not self.dispatch_us >= 0.0:
            raise InputError("tile model: dispatch_us", self.dispatch_us, "allowed: 0 or more")

    @property
    def flops_per_sm_us(self) -> float:
        """Operations that one SM finishes in a microsecond inside a tile."""
        peak = self.card.fp16_tensor_tflops * 1e6 / self.card.sm_count
        return peak * self.tile_efficiency

    @property
    def bytes_per_us(self) -> float:
        """Memory bandwidth left to training."""
        return self.card.memory_bandwidth_gb_per_s * 1e3 * self.bandwidth_share

    def wave_us(self, gemm: Gemm, tiling: Tiling, sm: int) -> float:
        """Time of one wave of full tiles of a product on ``sm`` SMs."""
        m, n, k = tiling.full_tile(gemm)
        compute_us = 2.0 * m * n * k / self.flops_per_sm_us
        memory_us = self.wave_bytes(gemm, tiling, sm) / self.bytes_per_us
        return max(compute_us, memory_us) + self.dispatch_us

    def wave_bytes(self, gemm: Gemm, tiling: Tiling, sm: int) -> float:
        """What one wave of full tiles reads and writes.

        Tiles of a wave that share rows or columns read them once (they meet in L2); a wave
        covers the block of tiles that reads least, as kernels with swizzled tile order do.
        """
        m, n, k = tiling.full_tile(gemm)
        row_tiles = math.ceil(gemm.m / tiling.tile_m)
        operands = min(
            rows * m * k + columns * n * k * math.ceil(rows / row_tiles)
            for columns in range(1, min(sm, math.ceil(gemm.n / tiling.tile_n)) + 1)
            for rows in [math.ceil(sm / columns)]
        )
        return float((operands + sm * m * n) * self.element_bytes)
