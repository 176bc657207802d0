"""A product computed tile by tile, that can stop after any tile and go on elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ranloom.errors import InputError
from ranloom.spare.gemm import Gemm, Tiling


@dataclass(frozen=True)
class Block:
    """Tiles that form one rectangle of the output over one range of the reduction."""

    rows: slice
    columns: slice
    reduction: slice


class TiledProduct:
    """``C = A B`` in tiles; finished tiles are kept through pause and migration.

    Args:
        a: [m, k].
        b: [k, n], of the type and on the device of ``a``.
        tiling: extent of a tile.
        c: [m, n], what is finished of a product that goes on, or a buffer for the result.
        done: finished tiles in it.
        operands: numbers of A, B and C in a device's pool of matrices, where it has one.

    Raises:
        InputError: shapes do not fit, or more tiles are done than there are.
    """

    def __init__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        tiling: Tiling,
        *,
        c: torch.Tensor | None = None,
        done: int = 0,
        operands: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            shapes = f"{tuple(a.shape)} {tuple(b.shape)}"
            raise InputError("tiled product: shapes", shapes, "allowed: [m, k] [k, n]")
        if c is not None and c.shape != (a.shape[0], b.shape[1]):
            raise InputError("tiled product: result", tuple(c.shape), "allowed: [m, n]")
        self.a, self.b = a, b
        self.c = a.new_empty(a.shape[0], b.shape[1]) if c is None else c
        self.gemm = Gemm(a.shape[0], b.shape[1], a.shape[1])
        self.tiling = tiling
        self.total = tiling.count(self.gemm)
        if not 0 <= done <= self.total:
            raise InputError("tiled product: done", done, f"allowed: 0 to {self.total} tiles")
        self.done = done
        self.operands = operands

    @property
    def finished(self) -> bool:
        """Whether every tile is done."""
        return self.done == self.total

    @property
    def starts_over(self) -> bool:
        """Whether the next tile begins a pass over all outputs, or there is none."""
        return self.done % (self._grid[0] * self._grid[1]) == 0

    @property
    def concurrent(self) -> int:
        """Tiles left that add to different outputs, so that they may run at once."""
        outputs = self._grid[0] * self._grid[1]
        return min(self.total - self.done, outputs - self.done % outputs)

    @property
    def _grid(self) -> tuple[int, int]:
        return (
            math.ceil(self.gemm.m / self.tiling.tile_m),
            math.ceil(self.gemm.n / self.tiling.tile_n),
        )

    def tiles(self, count: int) -> Iterator[Block]:
        """The next tiles in their order, one by one.

        Args:
            count: how many; at most those that are left.
        """
        for at in range(self.done, self.done + count):
            yield self._block(at, 1, 1)

    def blocks(self, tiles: int) -> Iterator[Block]:
        """The next tiles, in their order, as few rectangles.

        Args:
            tiles: how many; at most those that are left.
        """
        _, columns = self._grid
        outputs = self._grid[0] * columns
        at, end = self.done, self.done + tiles
        while at < end:
            place = at % outputs
            column = place % columns
            left = min(end - at, outputs - place)
            # Whole rows of tiles together, else what is left of one row.
            whole = column == 0 and left >= columns
            rows = left // columns if whole else 1
            wide = columns if whole else min(left, columns - column)
            yield self._block(at, rows, wide)
            at += rows * wide

    def _block(self, at: int, rows: int, columns: int) -> Block:
        """The rectangle of so many rows and columns of tiles from tile ``at`` on."""
        reduction, place = divmod(at, self._grid[0] * self._grid[1])
        row, column = divmod(place, self._grid[1])
        return Block(
            _extent(row, rows, self.tiling.tile_m, self.gemm.m),
            _extent(column, columns, self.tiling.tile_n, self.gemm.n),
            _extent(reduction, 1, self.tiling.tile_k, self.gemm.k),
        )

    def compute(self, tiles: int) -> None:
        """Run the next tiles; on a GPU they are queued on the current stream.

        Nothing is allocated: results go straight into ``c`` (App. C.1).
        """
        for block in self.blocks(tiles):
            a, b = self.a[block.rows, block.reduction], self.b[block.reduction, block.columns]
            first = block.reduction.start == 0  # what is in the buffer does not count
            self.c[block.rows, block.columns].addmm_(a, b, beta=0 if first else 1)
        self.done += tiles

    def migrate(self, device: torch.device) -> None:
        """Move operands and what is finished to another device; no tile is computed again."""
        self.a, self.b, self.c = (t.to(device) for t in (self.a, self.b, self.c))

    def result(self) -> torch.Tensor:
        """The product, [m, n].

        Raises:
            InputError: tiles are missing.
        """
        if not self.finished:
            raise InputError("tiled product", f"{self.done} tiles", f"needed: {self.total}")
        return self.c


def _extent(first: int, count: int, size: int, end: int) -> slice:
    return slice(first * size, min((first + count) * size, end))
