"""Doubling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ranloom import constants

if TYPE_CHECKING:
    from ranloom import unused  # noqa: F401


def double(value: float) -> float:
    """Twice the value."""
    return constants.TWO * value
