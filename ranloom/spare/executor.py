"""A product computed tile by tile, that can stop after any tile and go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ranloom.errors import InputError
from ranloom.spare.admission import Headroom, admit
from ranloom.spare.gemm import Gemm, Tiling

TilePredictor = Callable[[int], float]  # SMs to microseconds


class TiledProduct:
    """``C = A B`` in tiles; finished tiles are kept through pause and migration.

    Args:
        a: [m, k].
        b: [k, n], of the type and on the device of ``a``.
        tiling: extent of a tile.

    Raises:
        InputError: shapes do not fit.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, tiling: Tiling) -> None:
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            shapes = f"{tuple(a.shape)} {tuple(b.shape)}"
            raise InputError("tiled product: shapes", shapes, "allowed: [m, k] [k, n]")
        self._a, self._b = a, b
        self._c = a.new_zeros(a.shape[0], b.shape[1])
        self._tiles = list(tiling.tiles(Gemm(a.shape[0], b.shape[1], a.shape[1])))
        self.done = 0

    @property
    def finished(self) -> bool:
        """Whether every tile is done."""
        return self.done == len(self._tiles)

    def run_slot(self, headroom: Headroom, predict_us: TilePredictor) -> float:
        """Run the tiles that the rest of a slot admits, on predicted time; return that time."""
        used_us = 0.0
        while not self.finished:
            _, rows, columns, reduction = self._tiles[self.done]
            a, b = self._a[rows, reduction], self._b[reduction, columns]
            tile = self._c[rows, columns]
            moved_bytes = (a.numel() + b.numel() + tile.numel()) * tile.element_size()
            tile_us = predict_us(headroom.sm)
            left = Headroom(
                headroom.until_slot_end_us - used_us, headroom.bytes_per_us, headroom.sm
            )
            if not admit(tile_us, moved_bytes, left):
                break
            tile += a @ b
            used_us += tile_us
            self.done += 1
        return used_us

    def migrate(self, device: torch.device) -> None:
        """Move operands and what is finished to another device; no tile is computed again."""
        self._a, self._b, self._c = (t.to(device) for t in (self._a, self._b, self._c))

    def result(self) -> torch.Tensor:
        """The product, [m, n].

        Raises:
            InputError: tiles are missing.
        """
        if not self.finished:
            raise InputError("tiled product", f"{self.done} tiles", f"needed: {len(self._tiles)}")
        return self._c
