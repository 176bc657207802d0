"""Tiles are admitted by the slot's end and bandwidth; a paused product loses none of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.spare.admission import Headroom, admit
from ranloom.spare.executor import TiledProduct
from ranloom.spare.gemm import Tiling


def test_admission_by_hand() -> None:
    assert admit(100.0, 1000.0, Headroom(100.0, 10.0, 8))
    assert not admit(100.1, 1000.0, Headroom(100.0, 10.0, 8))  # would end after the slot
    assert not admit(100.0, 1001.0, Headroom(100.0, 10.0, 8))  # would take the RAN's bandwidth
    assert not admit(1.0, 1.0, Headroom(100.0, 10.0, 0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 30), st.integers(1, 9))
def test_pauses_and_migrations_change_nothing(budgets: list[int], m: int, tile: int) -> None:
    g = torch.Generator().manual_seed(m)
    a = torch.randn(m, 17, dtype=torch.float64, generator=g)
    b = torch.randn(17, 13, dtype=torch.float64, generator=g)
    product = TiledProduct(a, b, Tiling(tile, tile, 5))
    total = -(-m // tile) * -(-13 // tile) * 4
    runs = 0
    for sm in [*budgets, *([1] * total)]:
        before = product.done
        used_us = product.run_slot(Headroom(500.0, 1e9, sm), lambda sm: 240.0 / max(sm, 1))
        # 240 us on one SM: two tiles a slot; nothing on none.
        assert product.done - before == min(2 * sm if sm < 3 else 6, total - before)
        assert used_us <= 500.0
        runs += product.done - before
        product.migrate(torch.device("cpu"))
    assert product.finished
    assert runs == total
    torch.testing.assert_close(product.result(), a @ b, rtol=0, atol=1e-12)


def test_unfinished_and_misfit_are_named() -> None:
    with pytest.raises(InputError, match="tiled product: shapes"):
        TiledProduct(torch.zeros(2, 3), torch.zeros(2, 3), Tiling(1, 1, 1))
    with pytest.raises(InputError, match="needed: 4"):
        TiledProduct(torch.zeros(2, 1), torch.zeros(1, 2), Tiling(1, 1, 1)).result()
