"""Use of the optical layer by others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reservation:
    """Use of the optical layer by others, which windows must respect.

    Args:
        nodes: both ends, whose ports it takes; empty where only links are used.
        links: directed links as (from, to) node names.
        wavelength: its channel.
        start_ns: begin of use.
        end_ns: end of use, guard time included.
    """

    nodes: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    wavelength: int
    start_ns: int
    end_ns: int
