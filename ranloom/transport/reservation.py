"""Use of the optical layer by others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ranloom.transport.plan import Window


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

    @staticmethod
    def of_window(window: Window, guard_ns: int) -> Reservation:
        """What a window of ours takes, guard time included."""
        return Reservation(
            nodes=(window.source, window.destination),
            links=tuple(pairwise(window.path)),
            wavelength=window.wavelength,
            start_ns=window.start_ns,
            end_ns=window.end_ns + guard_ns,
        )
