"""A product may stop after any tile and go on elsewhere; no tile is lost or computed twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.spare.gemm import Tiling
from ranloom.spare.tiled_product import TiledProduct

extent = st.integers(1, 14)


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(m * 31 + n * 7 + k)
    return (
        torch.randn(m, k, dtype=torch.float64, generator=g),
        torch.randn(k, n, dtype=torch.float64, generator=g),
    )


@settings(max_examples=60, deadline=None)
@given(extent, extent, extent, extent, extent, extent, st.lists(st.integers(0, 9), max_size=8))
def test_pauses_and_migrations_change_nothing(
    m: int, n: int, k: int, tm: int, tn: int, tk: int, pieces: list[int]
) -> None:
    a, b = operands(m, n, k)
    tiling = Tiling(tm, tn, tk)
    # A buffer that held something else before, NaN for one.
    product = TiledProduct(a, b, tiling, c=torch.full((m, n), torch.nan, dtype=torch.float64))
    total = product.total
    for piece in [*pieces, total]:
        product.compute(min(piece, total - product.done))
        product.migrate(torch.device("cpu"))
        # As a copy that another process took over: what is done is not done again.
        product = TiledProduct(a, b, tiling, c=product.c.clone(), done=product.done)
    assert product.finished
    torch.testing.assert_close(product.result(), a @ b, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(extent, extent, extent, extent, extent, extent, st.data())
def test_blocks_hold_just_the_next_tiles(
    m: int, n: int, k: int, tm: int, tn: int, tk: int, data: st.DataObject
) -> None:
    a, b = operands(m, n, k)
    product = TiledProduct(a, b, Tiling(tm, tn, tk))
    product.done = data.draw(st.integers(0, product.total - 1))
    count = data.draw(st.integers(0, product.total - product.done))
    touched = {"blocks": torch.zeros(m, n, k), "tiles": torch.zeros(m, n, k)}
    for name in touched:
        for block in getattr(product, name)(count):
            touched[name][block.rows, block.columns, block.reduction] += 1
    assert torch.equal(touched["blocks"], touched["tiles"])
    assert touched["tiles"].max() <= 1
    assert len(list(product.tiles(count))) == count
    assert len(list(product.blocks(min(count, product.concurrent)))) <= 3
    # So many tiles add to different outputs, one more does not.
    outputs = [(t.rows.start, t.columns.start) for t in product.tiles(product.concurrent)]
    assert len(set(outputs)) == len(outputs)
    assert product.starts_over == (next(product.tiles(1)).rows.start == 0 == outputs[0][1])


def test_resuming_really_skips_what_is_done() -> None:
    a, b = operands(4, 4, 4)
    half = torch.full((4, 4), 100.0, dtype=torch.float64)
    product = TiledProduct(a, b, Tiling(2, 4, 4), c=half, done=1)
    product.compute(1)
    assert torch.equal(product.result()[:2], half[:2])
    torch.testing.assert_close(product.result()[2:], (a @ b)[2:])


def test_unfinished_and_misfit_are_named() -> None:
    a, b = torch.zeros(2, 1), torch.zeros(1, 2)
    with pytest.raises(InputError, match="tiled product: shapes"):
        TiledProduct(a, a, Tiling(1, 1, 1))
    with pytest.raises(InputError, match="tiled product: result"):
        TiledProduct(a, b, Tiling(1, 1, 1), c=a)
    with pytest.raises(InputError, match="0 to 4 tiles"):
        TiledProduct(a, b, Tiling(1, 1, 1), done=5)
    with pytest.raises(InputError, match="needed: 4"):
        TiledProduct(a, b, Tiling(1, 1, 1)).result()
