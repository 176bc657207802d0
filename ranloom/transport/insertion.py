"""Where one more window finds room, for many candidates at once.

A candidate's riders get in by release for as long as some place is left: without its latest
riders a window can be earlier, so if it has no place with some of them, it has none with more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from ranloom.transport.demands import BoolArray, IntArray
from ranloom.transport.occupancy import job_columns
from ranloom.transport.plan import MISSED, WINDOW
from ranloom.transport.seating import Space, Steps, Ways, push_in, seat_in
from ranloom.transport.state import PlanState


@njit(cache=True)
def _insertions(
    space: Space,
    scratch: Space,
    empty: Steps,
    ways: Ways,
    jobs: IntArray,
    begun: IntArray,
    push: bool,
    n_nodes: int,
    grid: int,
    guard: int,
    setup: int,
    now: int,
    asked: IntArray,
    pair: IntArray,
    first_row: IntArray,
    rows: IntArray,
    full: BoolArray,
    mode: npt.NDArray[np.int8],
    release: IntArray,
    deadline: IntArray,
    transmit: IntArray,
    size: IntArray,
    count: IntArray,
    missed: IntArray,
    packet: IntArray,
) -> None:
    """See :func:`insertions`; writes the last three."""
    extra = len(begun)
    seats = np.empty((3, extra + 1), dtype=np.int64)
    for position, point in enumerate(asked):
        if full[pair[point]]:
            continue
        end, length, due = now, setup, np.int64(2**62)
        riders = 0
        waiting, sent = 0, 0
        for k in range(first_row[point], first_row[point + 1]):
            row = rows[k]
            if mode[row] == WINDOW:
                continue
            end = max(end, release[row]) + transmit[row]
            length += transmit[row]
            due = min(due, deadline[row])
            first = max(now, end - length)
            if first > due - length:
                break
            path, _, _ = seat_in(
                space, ways, pair[point], first, due - length, length + guard, n_nodes, grid
            )
            if path < 0 and push:
                jobs[0, extra], jobs[1, extra], jobs[2, extra] = pair[point], first, due - length
                jobs[3, extra] = length
                if push_in(scratch, empty, ways, jobs, begun, guard, n_nodes, grid, seats):
                    path = seats[0, extra]
            if path < 0:
                break
            riders += 1
            if mode[row] == MISSED:
                waiting += size[row]
            else:
                sent += size[row]
            count[position], missed[position], packet[position] = riders, waiting, sent


@dataclass(frozen=True)
class Insertions:
    """What each candidate asked for could carry in a window of its own.

    Args:
        count: [asked] how many of its idle riders, by release; 0 where it has no place.
        missed: [asked] bytes of those that are missed.
        packet: [asked] bytes of those that travel as packets.
    """

    count: IntArray
    missed: IntArray
    packet: IntArray


def insertions(state: PlanState, asked: IntArray, *, push: bool) -> Insertions:
    """Find how many of each candidate's idle riders have a place.

    Args:
        state: the plan.
        asked: candidates.
        push: whether windows that are there may make way.
    """
    space, ways, n_nodes, grid, guard = state.occupancy.tables
    points, demands, rules = state.points, state.demands, state.rules
    count, missed, packet = (np.zeros(len(asked), dtype=np.int64) for _ in range(3))
    sequence = state.sequence() if push else []
    jobs = np.zeros((4, len(sequence) + 1), dtype=np.int64)
    jobs[:, :-1] = job_columns([job for job, _ in sequence])
    _insertions(
        space,
        Space(*(array.copy() for array in space)) if push else space,
        state.occupancy.empty,
        ways,
        jobs,
        np.array([seat.start_ns for _, seat in sequence], dtype=np.int64),
        push,
        n_nodes,
        grid,
        guard,
        rules.setup_ns,
        rules.now_ns,
        asked,
        points.pair,
        points.first_row,
        points.rows,
        state.full,
        state.mode,
        demands.release_ns,
        demands.deadline_ns,
        rules.transmit_ns,
        demands.bytes,
        count,
        missed,
        packet,
    )
    return Insertions(count, missed, packet)
