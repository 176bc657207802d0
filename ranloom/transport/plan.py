"""A plan: how each demand travels, which windows are lit, at what rates packets are sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ranloom.transport.demands import Demands, IntArray
from ranloom.transport.packet import Segments

PACKET, WINDOW, MISSED = 0, 1, 2
MODES = ("packet", "window", "missed")


@dataclass(frozen=True)
class Window:
    """A lit circuit.

    Args:
        path: node names from source to destination.
        wavelength: channel on the whole path.
        start_ns: start of the set-up.
        end_ns: end; ports and channels stay blocked for the guard time after it.
        setup_ns: time from the start until it carries data.
        bytes: payload of its riders.
    """

    path: tuple[str, ...]
    wavelength: int
    start_ns: int
    end_ns: int
    setup_ns: int
    bytes: int

    @property
    def source(self) -> str:
        """Sending node."""
        return self.path[0]

    @property
    def destination(self) -> str:
        """Receiving node."""
        return self.path[-1]


@dataclass(frozen=True)
class Plan:
    """What is to happen to n demands.

    Args:
        strategy: name of the strategy that made it.
        demands: the demands it was made for.
        mode: [n] ``PACKET``, ``WINDOW`` or ``MISSED``. Missed is also a demand that travels
            but arrives after its deadline.
        window_of: [n] index of the window that carries it, -1 for none.
        finish_ns: [n] arrival of the last byte, -1 where it is not sent.
        windows: the windows by start time.
        segments: packet rates over time; empty for strategies that do not shape.
    """

    strategy: str
    demands: Demands
    mode: npt.NDArray[np.int8]
    window_of: IntArray
    finish_ns: IntArray
    windows: tuple[Window, ...]
    segments: Segments

    @property
    def missed_bytes(self) -> int:
        """Payload that is not there by its deadline."""
        return int(self.demands.bytes[self.mode == MISSED].sum())

    @property
    def setups(self) -> int:
        """Number of windows."""
        return len(self.windows)

    @property
    def circuit_ns(self) -> int:
        """Time over all windows for which light is held, guard not counted."""
        return sum(window.end_ns - window.start_ns for window in self.windows)

    @property
    def objective(self) -> tuple[int, int, int]:
        """Missed bytes, set-ups, circuit time: compared in that order."""
        return self.missed_bytes, self.setups, self.circuit_ns


def no_segments() -> Segments:
    """Segments of a plan that shapes no packets."""
    none = np.empty(0, dtype=np.int64)
    return Segments(none, none, none, np.empty(0))
