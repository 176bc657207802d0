"""A plan in the form in which it is written, imported and checked: plain rows in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ranloom.transport.demands import NS_PER_S
from ranloom.transport.plan import MISSED, MODES, Plan

PATH_SEPARATOR = "|"


@dataclass(frozen=True)
class WindowRow:
    """One window.

    Args:
        window_id: unique in the calendar.
        source: sending node.
        destination: receiving node.
        path: node names joined by ``|``.
        wavelength: channel on the whole path.
        start_s: start of the set-up.
        end_s: end of light, guard time not included.
        setup_s: from the start until data can be sent.
        bytes: payload of all riders.
    """

    window_id: int
    source: str
    destination: str
    path: str
    wavelength: int
    start_s: float
    end_s: float
    setup_s: float
    bytes: int


@dataclass(frozen=True)
class AssignmentRow:
    """How one demand travels.

    Args:
        demand_id: the demand.
        mode: ``packet``, ``window`` or ``missed``. A missed demand with a finish time is
            sent, in a window if it has one, but arrives after its deadline.
        window_id: its window, or None.
        finish_s: arrival of its last byte, or None where it is not sent.
        bytes: its payload.
        missed_bytes: payload that is not there by the deadline: none or all of it.
    """

    demand_id: int | str
    mode: str
    window_id: int | None
    finish_s: float | None
    bytes: int
    missed_bytes: int


@dataclass(frozen=True)
class RateRow:
    """A stretch of constant packet rate that the source's shaper gives a demand."""

    demand_id: int | str
    start_s: float
    end_s: float
    gbps: float


@dataclass(frozen=True)
class Calendar:
    """Everything that a strategy decided.

    Args:
        windows: the windows.
        assignments: one row a demand.
        rates: packet rates; None for a strategy that does not shape its packets.
    """

    windows: tuple[WindowRow, ...]
    assignments: tuple[AssignmentRow, ...]
    rates: tuple[RateRow, ...] | None


def calendar_of(plan: Plan, *, shaped: bool) -> Calendar:
    """Rows of a plan.

    Args:
        plan: the plan.
        shaped: whether its packets keep to planned rates.
    """
    ids = plan.demands.ids.tolist()
    windows = tuple(
        WindowRow(
            window_id=index,
            source=window.source,
            destination=window.destination,
            path=PATH_SEPARATOR.join(window.path),
            wavelength=window.wavelength,
            start_s=window.start_ns / NS_PER_S,
            end_s=window.end_ns / NS_PER_S,
            setup_s=window.setup_ns / NS_PER_S,
            bytes=window.bytes,
        )
        for index, window in enumerate(plan.windows)
    )
    columns = zip(
        ids,
        plan.mode.tolist(),
        plan.window_of.tolist(),
        plan.finish_ns.tolist(),
        plan.demands.bytes.tolist(),
        strict=True,
    )
    assignments = tuple(
        AssignmentRow(
            demand_id=demand_id,
            mode=MODES[mode],
            window_id=None if window < 0 else window,
            finish_s=None if finish < 0 else finish / NS_PER_S,
            bytes=size,
            missed_bytes=size if mode == MISSED else 0,
        )
        for demand_id, mode, window, finish, size in columns
    )
    if not shaped:
        return Calendar(windows, assignments, None)
    segments = plan.segments
    stretches = zip(
        segments.row.tolist(),
        segments.start_ns.tolist(),
        segments.end_ns.tolist(),
        segments.gbps.tolist(),
        strict=True,
    )
    rates = tuple(
        RateRow(ids[row], start / NS_PER_S, end / NS_PER_S, gbps)
        for row, start, end, gbps in stretches
    )
    return Calendar(windows, assignments, rates)
