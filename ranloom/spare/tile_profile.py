"""Profile of tiles: (product, SM budget) to predicted time and traffic of a wave (App. C.1).

Made before anything runs, from the model of ``gemm`` or from measurements on a GPU, so that
admission is a lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.spare.gemm import Gemm, TileModel, Tiling


@dataclass(frozen=True)
class TileProfile:
    """Predictions by product and SM budget.

    Args:
        tiling: extent of a tile.
        gemms: products, K of them.
        levels: SM budgets, int64[L], ascending from above 0.
        wave_us: time of a wave of full tiles, float64[K, L].
        wave_bytes: what it reads and writes, float64[K, L].

    Raises:
        InputError: shapes that do not fit, levels that do not ascend, or a time of 0 or less.
    """

    tiling: Tiling
    gemms: tuple[Gemm, ...]
    levels: NDArray[np.int64]
    wave_us: NDArray[np.float64]
    wave_bytes: NDArray[np.float64]

    def __post_init__(self) -> None:
        shape = (len(self.gemms), self.levels.size)
        if self.wave_us.shape != shape or self.wave_bytes.shape != shape:
            shapes = f"{self.wave_us.shape} {self.wave_bytes.shape}"
            raise InputError("tile profile: shapes", shapes, f"allowed: {shape}")
        if np.any(np.diff(self.levels, prepend=0) <= 0):
            raise InputError(
                "tile profile: SM budgets", self.levels.tolist(), "allowed: ascending from 1"
            )
        if not np.all(np.isfinite(self.wave_us) & (self.wave_us > 0.0)):
            raise InputError("tile profile: times", self.wave_us.min(), "allowed: above 0 us")

    def wave(self, gemm: Gemm, sm: int) -> tuple[float, float]:
        """Predicted time in us and bytes of a wave of this product on ``sm`` SMs.

        Raises:
            InputError: the product or the budget was not profiled.
        """
        if gemm not in self.gemms:
            raise InputError("tile profile: product", gemm, "allowed: a profiled product")
        column = int(np.searchsorted(self.levels, sm))
        if column == self.levels.size or self.levels[column] != sm:
            known = ", ".join(str(level) for level in self.levels)
            raise InputError("tile profile: SM budget", sm, f"profiled: {known}")
        row = self.gemms.index(gemm)
        return float(self.wave_us[row, column]), float(self.wave_bytes[row, column])

    def check_slot(self, slot_us: float) -> None:
        """Refuse tiles that do not fit in a slot.

        Raises:
            InputError: on some budget a wave takes longer than a slot.
        """
        longest_us = float(self.wave_us.max(initial=0.0))
        if longest_us > slot_us:
            raise InputError(
                "tiling",
                f"{self.tiling.tile_m}x{self.tiling.tile_n}x{self.tiling.tile_k}",
                f"a wave takes {longest_us:.0f} us, a slot {slot_us:.0f} us",
            )


def modelled_profile(
    gemms: Sequence[Gemm], levels: NDArray[np.int64], model: TileModel, tiling: Tiling
) -> TileProfile:
    """Profile from the model of a device.

    Args:
        gemms: products; repeated ones count once.
        levels: SM budgets above 0, ascending.
        model: times and traffic of waves.
        tiling: extent of a tile.
    """
    kinds = tuple(dict.fromkeys(gemms))
    shape = (len(kinds), levels.size)
    wave_us = [[model.wave_us(g, tiling, int(sm)) for sm in levels] for g in kinds]
    wave_bytes = [[model.wave_bytes(g, tiling, int(sm)) for sm in levels] for g in kinds]
    return TileProfile(
        tiling,
        kinds,
        np.asarray(levels, dtype=np.int64),
        np.array(wave_us, dtype=np.float64).reshape(shape),
        np.array(wave_bytes, dtype=np.float64).reshape(shape),
    )
