"""Tiles cover a product exactly; waves take the time of the slower resource."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.gpu.card import load_card
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.workload import gemm_chain, transformer_step

extent = st.integers(1, 23)


@settings(max_examples=60, deadline=None)
@given(extent, extent, extent, st.integers(1, 3), extent, extent, extent)
def test_union_of_tiles_is_the_product(
    m: int, n: int, k: int, batch: int, tm: int, tn: int, tk: int
) -> None:
    gemm, tiling = Gemm(m, n, k, batch), Tiling(tm, tn, tk)
    generator = torch.Generator().manual_seed(m * 31 + n * 7 + k)
    a = torch.randn(batch, m, k, dtype=torch.float64, generator=generator)
    b = torch.randn(batch, k, n, dtype=torch.float64, generator=generator)
    c = torch.zeros(batch, m, n, dtype=torch.float64)
    touched = torch.zeros(batch, m, n, k, dtype=torch.int64)
    tiles = list(tiling.tiles(gemm))
    for i, rows, columns, reduction in tiles:
        c[i, rows, columns] += a[i, rows, reduction] @ b[i, reduction, columns]
        touched[i, rows, columns, reduction] += 1
    assert len(tiles) == tiling.count(gemm)
    assert (touched == 1).all()
    torch.testing.assert_close(c, torch.matmul(a, b), rtol=0, atol=1e-12)


def test_published_chain_is_2_75_tflop() -> None:
    chain = gemm_chain("c", length=64, m=20480, n=1024, k=1024, restart="unit")
    assert chain.flops == 64 * 2 * 20480 * 1024**2
    assert chain.flops == pytest.approx(2.75e12, rel=1e-3)


def test_step_flops_are_three_forwards() -> None:
    """6 FLOPs a parameter and token, plus attention: hand count for one layer."""
    step = transformer_step(
        "s",
        layers=1,
        hidden=64,
        heads=4,
        ffn=256,
        vocabulary=1000,
        batch=2,
        sequence=32,
        restart="tile",
    )
    tokens = 2 * 32
    dense = 3 * 64 * 64 + 64 * 64 + 2 * 64 * 256 + 64 * 1000
    attention = 2 * 2 * 32 * 32 * 64 * 2  # scores and values, two operations, batch 2
    assert step.flops == 3 * (2 * tokens * dense + attention)
    assert step.tokens == tokens


def test_wave_time_by_hand(root: Path) -> None:
    card = load_card(root / "data/cards/dgx_spark.yaml")
    gemm, tiling = Gemm(1024, 1024, 1024), Tiling(128, 128, 1024)
    free = TileModel(card, 0.5, 1e6, 2, 1.0)  # memory out of the way
    assert free.wave_us(gemm, tiling, 8) == pytest.approx(
        1.0 + 2 * 128 * 128 * 1024 / (125e6 / 48 * 0.5)
    )
    bound = TileModel(card, 1e6, 1.0, 2, 0.0)  # arithmetic out of the way
    # 16 SMs: a block of 4 x 4 tiles reads least; each row and column is read once.
    bytes_moved = 2 * (4 * 128 * 1024 + 4 * 128 * 1024 + 16 * 128 * 128)
    assert bound.wave_us(gemm, tiling, 16) == pytest.approx(bytes_moved / 273e3)
    # Batches of one row and one column of tiles share nothing.
    alone = Gemm(128, 128, 1024, batch=16)
    bytes_alone = 2 * (16 * 128 * 1024 * 2 + 16 * 128 * 128)
    assert bound.wave_us(alone, tiling, 16) == pytest.approx(bytes_alone / 273e3)
