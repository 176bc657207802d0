"""Levels of buffer status reports against values entered from 38.321."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.mac.bsr import bsr_levels, reported_bytes

SHORT, LONG = bsr_levels("short"), bsr_levels("long")


@pytest.mark.parametrize(
    ("buffer_bytes", "short", "long"),
    [
        (0, 0, 0),
        (1, 10, 10),
        (10, 10, 10),
        (11, 14, 11),
        (300, 384, 318),
        (1446, 1446, 1532),
        (55474, 55474, 58784),
        (55475, 77284, 58784),
        (150000, 150000, 150992),
        (150001, 300000, 150992),
        (81338368, 300000, 81338368),
        (81338369, 300000, 162676736),
    ],
)
def test_values_of_the_tables(buffer_bytes: int, short: int, long: int) -> None:
    assert reported_bytes(buffer_bytes, SHORT) == short
    assert reported_bytes(buffer_bytes, LONG) == long


def test_indices() -> None:
    # 38.321: index 31 of the short and 254 of the long table are open, 255 is reserved
    assert len(SHORT) == 32
    assert len(LONG) == 255
    assert SHORT[19] == 3909
    assert (LONG[176], LONG[208]) == (641449, 4799451)
    assert LONG[253] == 81338368


@given(st.integers(0, 81338368))
def test_a_report_is_the_next_level(buffer_bytes: int) -> None:
    level = reported_bytes(buffer_bytes, LONG)
    assert level >= buffer_bytes
    below = LONG[np.searchsorted(LONG, level) - 1] if level else -1
    assert below < buffer_bytes


def test_unknown_format() -> None:
    with pytest.raises(InputError, match="bsr_format: 'medium' is not usable; allowed: short"):
        bsr_levels("medium")
