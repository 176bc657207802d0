"""The smoothed report against a plain average over slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.spare.capacity import CapacityReport, CapacityWindow


def test_by_hand() -> None:
    window = CapacityWindow("site-1", 10)
    window.add(0, 40)
    assert window.report(5) == CapacityReport("site-1", 5, 5, 40.0, 40, 0)
    window.add(6, 24)
    window.add(12, 24)  # no change
    assert window.report(14) == CapacityReport("site-1", 14, 10, (2 * 40 + 8 * 24) / 10, 24, 1)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=20),
    st.integers(1, 12),
)
def test_equals_the_average_over_slots(steps: list[tuple[int, int]], slots: int) -> None:
    window = CapacityWindow("s", slots)
    by_slot: list[int] = []
    at, last = 0, 0
    for step, sm in steps:
        by_slot += [last] * step
        at, last = at + step, sm
        window.add(at, sm)
        seen = np.array([*by_slot, sm][-slots:])
        if at > steps[0][0]:
            seen = np.array([*by_slot[steps[0][0] :], sm][-slots:])
        else:
            seen = np.array([sm])
        found = window.report(at + 1)
        assert found.slots == seen.size
        assert found.mean_sm == pytest.approx(seen.mean())
        assert found.least_sm == seen.min()
        assert found.changes == np.count_nonzero(np.diff(seen))


def test_bad_use_is_named() -> None:
    with pytest.raises(InputError, match="slots: 0"):
        CapacityWindow("s", 0)
    window = CapacityWindow("s", 4)
    with pytest.raises(InputError, match="needed: a budget"):
        window.report(3)
    window.add(3, 8)
    with pytest.raises(InputError, match="from slot 3 on"):
        window.add(2, 8)
    with pytest.raises(InputError, match="sm: -1"):
        window.add(4, -1)
    with pytest.raises(InputError, match="needed: a budget"):
        window.report(3)
