"""Slot timing and TDD patterns of an NR carrier (3GPP TS 38.211 clause 4, 38.213 clause 11.1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ranloom.errors import InputError

SYMBOLS_PER_SLOT = 14
SUBCARRIERS_PER_PRB = 12
MAX_PRB = 275

_SCS_KHZ = (15, 30, 60, 120, 240)


def numerology(scs_khz: int) -> int:
    """Numerology index mu with ``scs_khz = 15 * 2**mu`` (38.211 table 4.2-1).

    Raises:
        InputError: the subcarrier spacing is none of 38.211.
    """
    if scs_khz not in _SCS_KHZ:
        raise InputError("scs_khz", scs_khz, f"allowed: one of {_SCS_KHZ}")
    return _SCS_KHZ.index(scs_khz)


def slot_us(scs_khz: int) -> float:
    """Slot duration in microseconds: 1000 us at 15 kHz, halved per doubling of the spacing."""
    return 1000.0 / float(1 << numerology(scs_khz))


@dataclass(frozen=True)
class TddPattern:
    """A repeating downlink/uplink pattern, one letter a slot: ``DDDDDDDSUU``.

    ``D`` is a downlink, ``U`` an uplink and ``S`` a special slot. A special slot carries no
    full-slot PUSCH here: its few uplink symbols hold SRS and PUCCH.

    Args:
        text: the letters.

    Attributes:
        period_slots: slots in one period.
        ul_slots: indices of the uplink slots in one period, ascending.

    Raises:
        InputError: empty, another letter, or no uplink slot.
    """

    text: str
    period_slots: int = field(init=False)
    ul_slots: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.text or set(self.text) - set("DSU") or "U" not in self.text:
            raise InputError(
                "tdd_pattern", self.text, "allowed: letters D, S and U with at least one U"
            )
        object.__setattr__(self, "period_slots", len(self.text))
        object.__setattr__(
            self, "ul_slots", tuple(i for i, letter in enumerate(self.text) if letter == "U")
        )

    def is_ul(self, slot: int) -> bool:
        """Whether absolute slot ``slot`` is an uplink slot."""
        return self.text[slot % self.period_slots] == "U"
