"""Which windows relieve a bottleneck: covering overloaded intervals with candidate windows.

A candidate (:mod:`ranloom.transport.points`) takes all demands that can ride in it off the
packet layer. :func:`relieve` picks candidates greedily until the demand bound holds;
:func:`lessen` then looks for fewer by iterated greedy search: a few are taken out at random
and the gap is closed anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ranloom.transport.demands import BoolArray, IntArray
from ranloom.transport.packet import Server
from ranloom.transport.points import Points

_NONE = -1
#: Rounds without gain that end the search, times the square of one more than the candidates:
#: about as often as three of few can be exchanged.
_STALE = 200


@dataclass(frozen=True)
class Cover:
    """A bottleneck's demands with their candidates.

    Args:
        server: the bottleneck; its entries are sorted by release.
        dues: deadlines of its entries, ascending.
        first: [entries + 1] where each entry's candidates begin in ``point``.
        point: candidates, entry by entry, as positions in ``ids``.
        ids: candidates of the bottleneck.
    """

    server: Server
    dues: IntArray
    first: IntArray
    point: IntArray
    ids: IntArray

    @staticmethod
    def of(server: Server, points: Points) -> Cover:
        """Cover for a server whose rows are demand rows of the points."""
        low, high = points.first[server.rows], points.first[server.rows + 1]
        count = high - low
        first = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        at = np.arange(first[-1]) - np.repeat(first[:-1] - low, count)
        ids, point = np.unique(points.of_row[at], return_inverse=True)
        return Cover(server, np.unique(server.deadline_ns), first, point.astype(np.int64), ids)


@njit(cache=True)
def _worst_interval(
    release: IntArray, deadline: IntArray, work: IntArray, alive: BoolArray, due: int
) -> tuple[int, int]:
    """Interval that ends at ``due`` with the largest overload: (overload, its first entry).

    Entries are sorted by release; the interval starts at the release of that entry.
    """
    total = 0
    worst = 0
    start = _NONE
    for row in range(len(release) - 1, -1, -1):
        if not alive[row] or deadline[row] > due:
            continue
        total += work[row]
        over = total - (due - release[row])
        if over > worst:
            worst = over
            start = row
    return worst, start


@njit(cache=True)
def _shed_one(
    deadline: IntArray,
    work: IntArray,
    alive: BoolArray,
    sheddable: BoolArray,
    start: int,
    due: int,
    over: int,
) -> int:
    """The least entry that ends the overload alone, else the largest one; -1 if none may go."""
    pick = _NONE
    for row in range(start, len(work)):
        if not (alive[row] and deadline[row] <= due and sheddable[row]):
            continue
        if pick == _NONE:
            pick = row
        elif work[row] >= over:
            if work[pick] < over or work[row] < work[pick]:
                pick = row
        elif work[row] > work[pick]:
            pick = row
    return pick


@njit(cache=True)
def _noise(state: IntArray) -> float:
    """Pseudo-random number in [0, 1): a 31-bit multiplicative generator."""
    state[0] = (state[0] * 48271) % 2147483647
    return float(state[0]) / 2147483647.0


@njit(cache=True)
def _best_point(
    deadline: IntArray,
    work: IntArray,
    alive: BoolArray,
    first: IntArray,
    point: IntArray,
    may_go: BoolArray,
    load: IntArray,
    start: int,
    due: int,
    noise: float,
    random: IntArray,
) -> int:
    """Candidate with the most work inside the interval; ``noise`` blurs the comparison."""
    best = _NONE
    for row in range(start, len(work)):
        if alive[row] and deadline[row] <= due:
            for e in range(first[row], first[row + 1]):
                if may_go[point[e]]:
                    load[point[e]] += work[row]
    best_score = 0.0
    for row in range(start, len(work)):
        for e in range(first[row], first[row + 1]):
            p = point[e]
            if load[p] > 0:
                score = float(load[p])
                if noise > 0.0:
                    score *= 1.0 - noise * _noise(random)
                if score > best_score:
                    best, best_score = p, score
                load[p] = 0
    return best


@njit(cache=True)
def _take(
    alive: BoolArray, first: IntArray, point: IntArray, chosen: int, covered: IntArray
) -> None:
    """Count a candidate in and take what it carries off the packet layer."""
    for row in range(len(alive)):
        for e in range(first[row], first[row + 1]):
            if point[e] == chosen:
                covered[row] += 1
                alive[row] = False


@njit(cache=True)
def _relieve(
    release: IntArray,
    deadline: IntArray,
    work: IntArray,
    alive: BoolArray,
    first: IntArray,
    point: IntArray,
    may_go: BoolArray,
    sheddable: BoolArray,
    dues: IntArray,
    gone: BoolArray,
) -> bool:
    """See :func:`relieve`; clears ``alive``, marks ``gone``; False where nothing may go."""
    load = np.zeros(len(may_go), dtype=np.int64)
    covered = np.zeros(len(alive), dtype=np.int64)
    random = np.ones(1, dtype=np.int64)
    for due in dues:
        while True:
            over, start = _worst_interval(release, deadline, work, alive, due)
            if over <= 0:
                break
            best = _best_point(
                deadline, work, alive, first, point, may_go, load, start, due, 0.0, random
            )
            if best != _NONE:
                gone[best] = True
                _take(alive, first, point, best, covered)
                continue
            pick = _shed_one(deadline, work, alive, sheddable, start, due, over)
            if pick == _NONE:
                return False
            alive[pick] = False
    return True


def relieve(
    cover: Cover, alive: BoolArray, may_go: BoolArray, sheddable: BoolArray
) -> tuple[BoolArray, bool]:
    """Take demands off one bottleneck until the rest meets the demand bound.

    In order of deadlines, the worst overloaded interval first loses the candidate window that
    carries the most work inside it, and when none may go any more, single demands: the least
    one that ends the overload, else the largest.

    Args:
        cover: the bottleneck.
        alive: [entries] entries on the packet layer; cleared where they leave.
        may_go: [points] candidates that may be lit.
        sheddable: [entries] entries that may be shed alone.

    Returns:
        [points] candidates that were chosen, and whether the rest fits.
    """
    server = cover.server
    local = np.zeros(len(cover.ids), dtype=np.bool_)
    fits = _relieve(
        server.release_ns,
        server.deadline_ns,
        server.work,
        alive,
        cover.first,
        cover.point,
        may_go[cover.ids],
        sheddable,
        cover.dues,
        local,
    )
    gone = np.zeros(len(may_go), dtype=np.bool_)
    gone[cover.ids[local]] = True
    return gone, bool(fits)


@njit(cache=True)
def _overloaded(
    release: IntArray, deadline: IntArray, work: IntArray, alive: BoolArray, dues: IntArray
) -> bool:
    worst = 0
    for due in dues:
        worst = max(worst, _worst_interval(release, deadline, work, alive, due)[0])
        if worst > 0:
            break
    return worst > 0


@njit(cache=True)
def _best_fit(
    deadline: IntArray,
    work: IntArray,
    may_leave: BoolArray,
    start: int,
    due: int,
    over: int,
) -> int:
    """The largest entry of the interval up to the overload, else the least above; -1: none."""
    below, above = _NONE, _NONE
    for row in range(start, len(work)):
        if not may_leave[row] or deadline[row] > due:
            continue
        if work[row] <= over:
            if below == _NONE or work[row] > work[below]:
                below = row
        elif above == _NONE or work[row] < work[above]:
            above = row
    return below if below != _NONE else above


@njit(cache=True)
def _swap_in(
    release: IntArray,
    deadline: IntArray,
    work: IntArray,
    alive: BoolArray,
    waiting: BoolArray,
    dues: IntArray,
) -> None:
    """See :func:`swap_in`; changes ``alive`` in place."""
    order = np.argsort(-work)
    improved = True
    while improved:
        improved = False
        for coming in order:
            if alive[coming] or not waiting[coming]:
                continue
            trial = alive.copy()
            trial[coming] = True
            may_leave = alive & waiting
            left = np.int64(0)
            fits = True
            for due in dues:
                while fits:
                    over, start = _worst_interval(release, deadline, work, trial, due)
                    if over <= 0:
                        break
                    out = _best_fit(deadline, work, may_leave, start, due, over)
                    if out == _NONE:
                        fits = False
                        break
                    trial[out] = False
                    may_leave[out] = False
                    left += work[out]
                    fits = left < work[coming]
            if not fits:
                continue
            for back in order:
                if not trial[back] and waiting[back]:
                    trial[back] = True
                    if _overloaded(release, deadline, work, trial, dues):
                        trial[back] = False
            alive[:] = trial
            improved = True


def swap_in(cover: Cover, alive: BoolArray, waiting: BoolArray) -> BoolArray:
    """Take entries in, and others out for them, as long as more work is served.

    Args:
        cover: the bottleneck.
        alive: [entries] entries that meet the demand bound.
        waiting: [entries] entries that may come in or go out.

    Returns:
        [entries] entries that meet it, with at least as much work.
    """
    served = alive.copy()
    server = cover.server
    _swap_in(server.release_ns, server.deadline_ns, server.work, served, waiting, cover.dues)
    return served


@njit(cache=True)
def _lessen(
    release: IntArray,
    deadline: IntArray,
    work: IntArray,
    base: BoolArray,
    first: IntArray,
    point: IntArray,
    may_go: BoolArray,
    dues: IntArray,
    chosen: BoolArray,
    iterations: int,
    seed: int,
) -> None:
    """See :func:`lessen`; works on ``chosen`` in place."""
    n = len(release)
    random = np.array([seed], dtype=np.int64)
    load = np.zeros(len(may_go), dtype=np.int64)
    best = chosen.copy()
    best_count = 0
    for p in range(len(chosen)):
        best_count += chosen[p]
    best_work = np.int64(2**62)
    gained = 0
    for turn in range(iterations + 1):
        if turn - gained > _STALE * (1 + best_count) ** 2:
            break
        trial = best.copy()
        count = best_count
        if turn:
            # Take up to three out, and close the gap with blurred priorities.
            for _ in range(1 + int(3.0 * _noise(random))):
                if count == 0:
                    break
                skip = int(count * _noise(random))
                for p in range(len(trial)):
                    if trial[p]:
                        if skip == 0:
                            trial[p] = False
                            count -= 1
                            break
                        skip -= 1
        alive = base.copy()
        covered = np.zeros(n, dtype=np.int64)
        for row in range(n):
            for e in range(first[row], first[row + 1]):
                if trial[point[e]]:
                    covered[row] += 1
                    alive[row] = False
        fits = True
        for due in dues:
            while True:
                over, start = _worst_interval(release, deadline, work, alive, due)
                if over <= 0:
                    break
                p = _best_point(
                    deadline, work, alive, first, point, may_go, load, start, due, 0.5, random
                )
                if p == _NONE or count >= best_count + 1:
                    fits = False
                    break
                trial[p] = True
                count += 1
                _take(alive, first, point, p, covered)
            if not fits:
                break
        if not fits:
            continue
        # What later choices made superfluous goes again, the last first.
        for p in range(len(trial) - 1, -1, -1):
            if not trial[p]:
                continue
            for row in range(n):
                for e in range(first[row], first[row + 1]):
                    if point[e] == p:
                        covered[row] -= 1
                        alive[row] = base[row] and covered[row] == 0
            if _overloaded(release, deadline, work, alive, dues):
                _take(alive, first, point, p, covered)
            else:
                trial[p] = False
                count -= 1
        riding = np.int64(0)
        for row in range(n):
            if base[row] and covered[row] > 0:
                riding += work[row]
        if count < best_count or (count == best_count and riding <= best_work):
            if count < best_count or riding < best_work:
                gained = turn
            best, best_count, best_work = trial, count, riding
    chosen[:] = best


def lessen(
    cover: Cover, base: BoolArray, may_go: BoolArray, chosen: BoolArray, iterations: int
) -> BoolArray:
    """Fewer candidate windows that relieve a bottleneck as well.

    Args:
        cover: the bottleneck.
        base: [entries] entries that are to be served; those that no window carries must fit
            into packets.
        may_go: [points] candidates that may be lit.
        chosen: [points] candidates that suffice.
        iterations: rounds of the search.

    Returns:
        [points] candidates, at most as many; less ridden work among equal numbers.
    """
    local = chosen[cover.ids]
    server = cover.server
    _lessen(
        server.release_ns,
        server.deadline_ns,
        server.work,
        base,
        cover.first,
        cover.point,
        may_go[cover.ids],
        cover.dues,
        local,
        iterations,
        20_011,
    )
    found = np.zeros_like(chosen)
    found[cover.ids[local]] = True
    return found
