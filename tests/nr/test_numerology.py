"""TDD pattern and slot timing against 38.211."""

import pytest

from ranloom.errors import InputError
from ranloom.nr.numerology import TddPattern, slot_us


@pytest.mark.parametrize(("scs_khz", "expected"), [(15, 1000), (30, 500), (60, 250), (120, 125)])
def test_slot_duration(scs_khz, expected):
    assert slot_us(scs_khz) == expected


def test_unknown_spacing_is_refused():
    with pytest.raises(InputError, match="scs_khz: 45 "):
        slot_us(45)


def test_pattern_of_the_testbed():
    pattern = TddPattern("DDDDDDDSUU")
    assert pattern.period_slots == 10
    assert pattern.ul_slots == (8, 9)
    assert [s for s in range(30) if pattern.is_ul(s)] == [8, 9, 18, 19, 28, 29]


@pytest.mark.parametrize("text", ["", "DDDD", "DDXU", "ddsuu", "D U"])
def test_bad_pattern_is_refused(text):
    with pytest.raises(InputError, match="tdd_pattern"):
        TddPattern(text)
