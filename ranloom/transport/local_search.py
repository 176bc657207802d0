"""Local search: moves that lower the plan's objective, tried in a fixed order.

No randomness and no clock: the number of tried moves is the limit.
"""

from __future__ import annotations

import numpy as np

from ranloom.transport.demands import IntArray
from ranloom.transport.plan import MISSED, PACKET, WINDOW
from ranloom.transport.state import PlanState


class _Budget:
    """Moves left to try."""

    def __init__(self, moves: int) -> None:
        self.moves = moves

    def spend(self) -> bool:
        """Take one move; False when none is left."""
        self.moves -= 1
        return self.moves >= 0


def improve(state: PlanState, effort: int) -> None:
    """Lower the objective of a feasible state until nothing helps or ``effort`` moves are tried."""
    budget = _Budget(effort)
    while True:
        before = state.objective
        rescue(state, budget)
        put_out(state, budget)
        if state.objective >= before or budget.moves <= 0:
            break
    unload(state)


def _row(row: int) -> IntArray:
    return np.array([row], dtype=np.int64)


def _by_size(state: PlanState, rows: IntArray) -> IntArray:
    """Rows with the largest payload first."""
    return rows[np.argsort(-state.demands.bytes[rows], kind="stable")]


def rescue(state: PlanState, budget: _Budget) -> None:
    """Find a place for missed demands, the largest first."""
    for row in _by_size(state, np.flatnonzero(state.mode == MISSED)):
        if not budget.spend():
            return
        _place(state, int(row)) or _make_room(state, int(row), budget)


def _place(state: PlanState, row: int) -> bool:
    """Send a missed row as a packet, in a window that is there, or in a new one."""
    rows = _row(row)
    if state.fits_with(add=rows):
        state.to_packet(rows)
        return True
    if state.cluster[row] < 0:
        return False
    for window in list(state.windows_of_pair[state.pair_of[row]]):
        if state.join(window, rows):
            return True
    return state.open(rows) is not None


def _make_room(state: PlanState, row: int, budget: _Budget) -> bool:
    """Take the place of packet rows that can ride in windows, or of smaller ones."""
    if not state.can_packet[row]:
        return False
    part = state.side.part_of[row]
    rivals = np.flatnonzero((state.mode == PACKET) & (state.side.part_of == part))
    for rival in _by_size(state, rivals):
        if state.cluster[rival] < 0 and state.demands.bytes[rival] >= state.demands.bytes[row]:
            continue
        if not budget.spend():
            return False
        out = _row(int(rival))
        if not state.fits_with(add=_row(row), remove=out):
            continue
        joined = any(
            state.join(window, out) for window in list(state.windows_of_pair[state.pair_of[rival]])
        )
        if joined or state.demands.bytes[rival] < state.demands.bytes[row]:
            if not joined:
                state.drop(out)
            state.to_packet(_row(row))
            return True
    return False


def put_out(state: PlanState, budget: _Budget) -> None:
    """Dissolve windows, the smallest first, whose riders fit elsewhere without a set-up."""
    by_bytes = sorted(state.placed, key=lambda window: (state.placed[window][0].bytes, window))
    for window in by_bytes:
        if not budget.spend():
            return
        job, _ = state.placed[window]
        if state.fits_with(add=job.rows):
            state.close(window)
            state.to_packet(job.rows)
        else:
            _merge(state, window)


def _merge(state: PlanState, window: int) -> bool:
    """Let all riders of a window ride in another one of the same pair."""
    job, seat = state.placed[window]
    others = [w for w in state.windows_of_pair[job.pair] if w != window]
    if not others:
        return False
    state.close(window)
    for other in others:
        if state.join(other, job.rows):
            return True
    state.reopen(job, seat)
    return False


def unload(state: PlanState) -> None:
    """Move riders back to packets where they fit: shorter windows, less light."""
    riders = state.mode == WINDOW
    nobody = np.zeros(state.n_clusters + 1, dtype=np.bool_)
    for part in range(len(state.side.parts)):
        packet = state.packet_mask | (riders & state.can_packet)
        if not (riders[state.side.parts[part].rows]).any():
            continue
        state.side.relieve(part, packet, state.cluster, nobody, riders)
        rows = state.side.parts[part].rows
        back = rows[riders[rows] & packet[rows]]
        for window in np.unique(state.window_of[back]):
            leaving = back[state.window_of[back] == window]
            state.leave(int(window), leaving)
            state.to_packet(leaving)
