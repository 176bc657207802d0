"""Local search: moves that lower a plan's objective.

Ruin and recreate (Schrimpf et al., J. Comput. Phys. 159, 2000): some or all windows near a missed
demand are taken out, and the room is used anew by whichever candidate serves most where it has a
place, or where the others can make way for it (:mod:`ranloom.transport.insertion`), with blurred
priorities; what is no better is taken back. When that finds nothing any more, detours over
somewhat worse plans are allowed, shorter and shorter ones (record-to-record travel, Dueck,
J. Comput. Phys. 104, 1993).
Randomness is a fixed pseudo-random sequence and the limit counts tried moves, so the same input
gives the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ranloom.transport.demands import BoolArray, FloatArray, IntArray
from ranloom.transport.insertion import insertions
from ranloom.transport.plan import MISSED, PACKET, WINDOW
from ranloom.transport.state import PlanState

#: Windows up to which all of them may make way for one more.
_MOST_PUSHED = 80
#: Demands of a part up to which packets and riders are exchanged: the work grows as their cube.
_MOST_EXCHANGED = 300
#: Candidates, the most useful first, for which room is looked for at a time.
_LOOKED = 256
#: The same where others may make way.
_PUSHED = 12
#: Windows in a row that may turn out to serve nothing more after a shake.
_PATIENCE = 4
#: Shakes in a row without a new best plan that end the search.
_STALE = 1000
#: Missed bytes that a detour may leave at first, as a share above those of the best plan.
_DETOUR = 0.1

_Bytes = IntArray | FloatArray


class _Search:
    """A state, moves left to try, and a pseudo-random stream."""

    def __init__(self, state: PlanState, moves: int) -> None:
        self.state = state
        self.moves = moves
        self.rng = np.random.default_rng(7)
        points = state.points
        self.row_of_entry = np.repeat(np.arange(len(state.mode)), np.diff(points.first))

    def spend(self) -> bool:
        """Take one move; False when none is left."""
        self.moves -= 1
        return self.moves >= 0

    def missed(self) -> IntArray:
        """Missed demands that something could carry, the largest first."""
        state = self.state
        rows = np.flatnonzero((state.mode == MISSED) & (state.can_ride | state.can_packet))
        return rows[np.argsort(-state.demands.bytes[rows], kind="stable")]


def improve(state: PlanState, effort: int) -> None:
    """Lower the objective of a feasible state until nothing helps or ``effort`` moves are tried."""
    search = _Search(state, effort)
    _serve(search, 0.0, len(state.points))
    _put_out(search)
    for detour in (0.0, _DETOUR, 0.0):
        _wander(search, detour)
        _put_out(search)
    unload(state)
    for part in range(len(state.side.parts)):
        _accept(search, partial(_exchange, state, part))


def _wander(search: _Search, detour: float) -> None:
    """Shake until nothing helps, and go back to the best plan on the way.

    Args:
        search: the search.
        detour: missed bytes that a shake may leave above those of the best plan, as a share;
            it falls to 0 as the moves are used up.
    """
    state, moves = search.state, search.moves
    best, at, stale = state.objective, state.checkpoint(), 0
    while state.placed and len(search.missed()) and search.moves > 0 and stale < _STALE:
        before, back = state.objective, state.checkpoint()
        most = best[0] * (1.0 + detour * search.moves / moves)
        _shake(search)
        stale += 1
        if state.objective < best:
            best, at, stale = state.objective, state.checkpoint(), 0
        elif state.objective > before and (not detour or state.objective[0] > most):
            state.rollback(back)
    if state.objective > best:
        state.rollback(at)


def _accept(search: _Search, move: Callable[[], None]) -> bool:
    """Try a compound move; keep it where the objective is no worse."""
    state = search.state
    before = state.objective
    back = state.checkpoint()
    move()
    if state.objective > before:
        state.rollback(back)
    return state.objective < before


def _gains(search: _Search, noise: float) -> FloatArray:
    """Bytes that each candidate window would serve: its missed riders, and others by packets."""
    state, points = search.state, search.state.points
    size = state.demands.bytes.astype(np.float64)
    missed = np.where(state.mode == MISSED, size, 0.0)[search.row_of_entry]
    packet = np.where(state.mode == PACKET, size, 0.0)[search.row_of_entry]
    n = len(points)
    own = np.bincount(points.of_row, weights=missed, minlength=n)
    freed = np.bincount(points.of_row, weights=packet, minlength=n)
    gains = _served(state, np.arange(n), own, freed)
    return gains * (1.0 - noise * search.rng.random(n)) if noise else gains


def _served(state: PlanState, asked: IntArray, missed: _Bytes, packet: _Bytes) -> FloatArray:
    """Bytes served when windows of some candidates take missed bytes and others off packets.

    Riders that leave packets make room for at most what else is missed in their part.
    """
    lost = np.bincount(
        state.side.part_of,
        weights=np.where(state.mode == MISSED, state.demands.bytes, 0),
        minlength=len(state.side.parts),
    )
    points = state.points
    rest = lost[state.side.part_of[points.rows[points.first_row[asked]]]] - missed
    return np.asarray(missed + np.minimum(packet, np.maximum(rest, 0.0)), dtype=np.float64)


def _serve(search: _Search, noise: float, patience: int) -> None:
    """Light windows for missed demands, each time the one that serves most.

    Where there is room for none, others make way.

    Args:
        search: the search.
        noise: how much the gains are blurred, 0 to 1.
        patience: how many windows in a row may turn out to serve nothing more.
    """
    state = search.state
    failed = np.zeros((2, len(state.points)), dtype=np.bool_)
    lit = True
    while lit and search.moves > 0 and len(search.missed()):
        lit = _light(search, noise, patience, failed[0], push=False) or (
            len(state.placed) <= _MOST_PUSHED
            and _light(search, noise, patience, failed[1], push=True)
        )


def _light(search: _Search, noise: float, patience: int, failed: BoolArray, *, push: bool) -> bool:
    """Light the candidate that serves most; marks those that ``failed``."""
    state, points = search.state, search.state.points
    while True:
        gains = np.where(failed, 0.0, _gains(search, noise if push else 0.0))
        most = min(_PUSHED if push else _LOOKED, int((gains > 0.0).sum()))
        asked = np.argsort(-gains, kind="stable")[:most]
        found = insertions(state, asked, push=push)
        served = _served(state, asked, found.missed, found.packet)
        served *= 1.0 - noise * search.rng.random(len(asked))
        for best in np.argsort(-served, kind="stable")[: int((served > 0.0).sum())]:
            if patience == 0 or not search.spend():
                return False
            riders = points.riders(int(asked[best]))
            riders = riders[state.mode[riders] != WINDOW][: found.count[best]]
            if _accept(search, partial(_carry, state, riders, push)):
                return True
            patience -= 1
        failed[asked] = True
        if push or len(asked) == 0:
            return False


def _carry(state: PlanState, riders: IntArray, push: bool) -> None:
    """Light a window for riders; what they leave of the packets is used anew."""
    if (state.push_in(riders) if push else state.open(riders)) is None:
        return
    for part in np.unique(state.side.part_of[riders]):
        state.repack(int(part))


def _shake(search: _Search) -> None:
    """Take out windows that are lit while a missed demand waits, and use the room anew."""
    state = search.state
    search.spend()
    missed = search.missed()
    row = int(missed[int(search.rng.integers(len(missed)))])
    release, due = int(state.demands.release_ns[row]), int(state.demands.deadline_ns[row])
    slack = state.rules.setup_ns
    near = [
        window
        for window, (job, seat) in state.placed.items()
        if seat.start_ns < due and seat.start_ns + job.length_ns > release - slack
    ]
    count = int(max(1, len(near)) ** search.rng.random())
    parts = set()
    for position in search.rng.permutation(len(near))[:count]:
        riders = state.close(near[int(position)])
        parts |= {int(p) for p in np.unique(state.side.part_of[riders])}
    for part in sorted(parts):
        state.repack(part)
    if len(search.missed()):
        _absorb(search)
        _serve(search, 0.5, _PATIENCE)


def _absorb(search: _Search) -> None:
    """Let packet rows of parts that miss something ride in windows that pass anyway."""
    state = search.state
    short = np.zeros(len(state.side.parts), dtype=np.bool_)
    short[state.side.part_of[search.missed()]] = True
    idle = np.flatnonzero((state.mode != WINDOW) & state.can_ride & short[state.side.part_of])
    joined = set()
    for row in idle:
        for window in state.windows_of(int(state.pair_of[row])):
            job, seat = state.placed[window]
            end = seat.start_ns + job.length_ns
            release, due = state.demands.release_ns[row], state.demands.deadline_ns[row]
            if release < end <= due and state.join(window, np.array([row])):
                joined.add(int(state.side.part_of[row]))
                break
    for part in sorted(joined):
        state.repack(part)


def _put_out(search: _Search) -> None:
    """Put windows out, the smallest first, where what they carry fits elsewhere."""
    state = search.state
    for window in sorted(state.placed, key=lambda w: (state.placed[w][0].bytes, w)):
        job, _ = state.placed[window]
        movable = state.can_packet[job.rows].all() or len(state.windows_of(job.pair)) > 1
        if not movable:
            continue
        if not search.spend():
            return
        if state.fits_with(job.rows):
            state.close(window)
            state.to_packet(job.rows)
        elif len(state.windows_of(job.pair)) > 1 or len(search.missed()):
            _accept(search, partial(_dissolve, state, window))


def _dissolve(state: PlanState, window: int) -> None:
    """Let a window's riders ride in another one of their pair, or compete for packets."""
    pair = state.placed[window][0].pair
    riders = state.close(window)
    for other in state.windows_of(pair):
        if state.join(other, riders):
            return
    for part in np.unique(state.side.part_of[riders]):
        state.repack(int(part))
    left = riders[state.mode[riders] == MISSED]
    if len(left):
        any(state.join(other, left) for other in state.windows_of(pair))


def _exchange(state: PlanState, number: int) -> None:
    """Let other rows of a part ride so that packets carry more of it: less light.

    What leaves the packets has to find room in windows that are lit; if not, it is missed, and
    the caller takes the move back.
    """
    part = state.side.parts[number]
    if len(part.covers) > 1 or len(part.rows) > _MOST_EXCHANGED:
        return
    riding = np.zeros(len(state.mode), dtype=np.bool_)
    riding[part.rows] = (state.mode[part.rows] == WINDOW) & state.can_packet[part.rows]
    if not riding.any():
        return
    lit = {state.placed[int(window)][0].pair for window in np.unique(state.window_of[riding])}
    packet = state.mode == PACKET
    may_ride = np.zeros_like(packet)
    may_ride[part.rows] = state.can_ride[part.rows] & np.isin(state.pair_of[part.rows], list(lit))
    before = packet.copy()
    state.side.swap_in(number, packet, riding | (packet & may_ride))
    for window in np.unique(state.window_of[packet & ~before]):
        state.leave(int(window), np.flatnonzero(packet & (state.window_of == window)))
    state.to_packet(np.flatnonzero(packet & ~before))
    for row in np.flatnonzero(before & ~packet):
        state.mode[row] = MISSED
        alone = np.array([row])
        any(state.join(window, alone) for window in state.windows_of(int(state.pair_of[row])))


def unload(state: PlanState) -> None:
    """Move riders back to packets where they fit: shorter windows, less light."""
    for number, part in enumerate(state.side.parts):
        riders = np.zeros(len(state.mode), dtype=np.bool_)
        riders[part.rows] = (state.mode[part.rows] == WINDOW) & state.can_packet[part.rows]
        if not riders.any():
            continue
        packet = (state.mode == PACKET) | riders
        nothing = np.zeros(len(state.points), dtype=np.bool_)
        state.side.relieve(number, packet, nothing, riders, state.points)
        if not state.side.fits(number, packet):
            continue  # over several bottlenecks a rider that is let in can make others late
        back = part.rows[riders[part.rows] & packet[part.rows]]
        for window in np.unique(state.window_of[back]):
            leaving = back[state.window_of[back] == window]
            state.leave(int(window), leaving)
            state.to_packet(leaving)
