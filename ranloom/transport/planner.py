"""The planner: packet or window for every demand, in the order missed bytes, set-ups, light.

A list heuristic builds a plan. Overloaded stretches of each packet bottleneck are relieved by
as few candidate windows as it finds (:mod:`ranloom.transport.cover`); these are placed by
several priority rules, of which the one that carries most bytes wins; where some find no
place, others are tried in their stead. Local search then serves what is missed, puts windows
out and moves riders back to packets (:mod:`ranloom.transport.local_search`).
"""

from __future__ import annotations

import numpy as np

from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.local_search import improve
from ranloom.transport.network import Network
from ranloom.transport.occupancy import Seat
from ranloom.transport.plan import Plan
from ranloom.transport.reservation import Reservation
from ranloom.transport.state import PlanState
from ranloom.transport.windows import Job, orders

#: How often candidates that found no place are left to the packet layer and others chosen.
_ROUNDS = 4
#: Work of the search for fewer windows, in demands looked at, per unit of effort.
_LOOKS = 10_000


def plan_transfers(
    demands: Demands,
    network: Network,
    *,
    strategy: str,
    packet: bool = True,
    windows: bool = True,
    effort: int = 2_000,
    now_ns: int = 0,
    reservations: tuple[Reservation, ...] = (),
) -> Plan:
    """Plan transfers.

    Args:
        demands: the demands with the releases to plan on.
        network: a network built for their pairs.
        strategy: name given to the plan.
        packet: whether demands may travel as packets.
        windows: whether windows may be lit.
        effort: moves that local search may try; its only limit, so results are repeatable.
        now_ns: no window starts earlier.
        reservations: optical use by others.

    Raises:
        InputError: a demand whose pair the network does not know.
    """
    state = PlanState(
        demands,
        network,
        now_ns=now_ns,
        packet=packet,
        windows=windows,
        reservations=reservations,
    )
    if len(demands):
        construct(state, effort)
        improve(state, effort)
    return state.finished(strategy)


def construct(state: PlanState, effort: int) -> None:
    """Fill an empty state by the list heuristic."""
    may_go = np.ones(len(state.points), dtype=np.bool_)
    jobs: list[Job] = []
    seats: list[Seat | None] = []
    for turn in range(_ROUNDS):
        chosen = _chosen(state, may_go, effort if turn == 0 else 0)
        jobs, of_point = _jobs(state, chosen)
        seats = _best_list_schedule(state, jobs)
        unseated = [k for k, seat in enumerate(seats) if seat is None]
        if not unseated:
            break
        may_go[[of_point[k] for k in unseated]] = False
    for job, seat in zip(jobs, seats, strict=True):
        if seat is not None:
            state.open_at(job, seat)
    for part in range(len(state.side.parts)):
        state.repack(part)


def _chosen(state: PlanState, may_go: BoolArray, effort: int) -> BoolArray:
    """Candidate windows that carry what packets cannot, as few as found."""
    if not state.can_packet.any():
        return _stabbing(state, may_go)
    chosen = np.zeros(len(state.points), dtype=np.bool_)
    packet = state.can_packet | state.can_ride
    everyone = np.ones(len(packet), dtype=np.bool_)
    for number, part in enumerate(state.side.parts):
        base = packet.copy()
        picked = state.side.relieve(number, packet, may_go, everyone, state.points)
        if effort and picked.any():
            # Demands that were shed are no reason for a window.
            base[part.rows] &= packet[part.rows] | _covered(state, picked)[part.rows]
            looks = effort * _LOOKS * len(part.rows) // len(packet)
            entries = len(part.rows) * len(part.covers[0].dues)
            iterations = looks // (entries * (2 + int(picked.sum())))
            picked = state.side.lessen(number, base, may_go, picked, iterations=iterations)
        chosen |= picked
    return chosen


def _stabbing(state: PlanState, may_go: BoolArray) -> BoolArray:
    """Fewest candidates that carry every demand that can ride: interval stabbing per pair."""
    points = state.points
    chosen = np.zeros(len(points), dtype=np.bool_)
    rows = np.flatnonzero(state.can_ride)
    due = state.demands.deadline_ns
    for row in rows[np.lexsort((due[rows], state.pair_of[rows]))]:
        mine = points.of_row[points.first[row] : points.first[row + 1]]
        mine = mine[may_go[mine]]
        if len(mine) and not chosen[mine].any():
            chosen[mine[-1]] = True
    return chosen


def _covered(state: PlanState, chosen: BoolArray) -> BoolArray:
    """[n] rows that can ride in one of the chosen candidates."""
    covered = np.zeros(len(state.mode), dtype=np.bool_)
    for point in np.flatnonzero(chosen):
        covered[state.points.riders(int(point))] = True
    return covered


def _jobs(state: PlanState, chosen: BoolArray) -> tuple[list[Job], list[int]]:
    """Windows of the chosen candidates; each demand rides in the last one that it can."""
    jobs, of_point = [], []
    free = np.ones(len(state.mode), dtype=np.bool_)
    for point in np.flatnonzero(chosen)[::-1]:
        rows = state.points.riders(int(point))
        rows = rows[free[rows]]
        job = shrunk(state, rows)
        if job is not None:
            free[job.rows] = False
            jobs.append(job)
            of_point.append(int(point))
    return jobs, of_point


def shrunk(state: PlanState, rows: IntArray) -> Job | None:
    """The window of these rows, without the latest ones where it would end too late."""
    rows = rows[np.argsort(state.demands.release_ns[rows], kind="stable")]
    while len(rows):
        job = state.job_of(rows)
        if job.feasible:
            return job
        rows = rows[:-1]
    return None


def _best_list_schedule(state: PlanState, jobs: list[Job]) -> list[Seat | None]:
    """Seats of the order that leaves the fewest bytes without a place; nothing is taken."""
    best: list[Seat | None] = [None] * len(jobs)
    best_key = (sum(job.bytes for job in jobs) + 1, 0)
    for order in orders(jobs):
        state.occupancy.clear()
        seats = state.occupancy.seat_all(jobs, order)
        both = list(zip(jobs, seats, strict=True))
        key = (
            sum(job.bytes for job, seat in both if seat is None),
            sum(seat.start_ns + job.length_ns for job, seat in both if seat is not None),
        )
        if key < best_key:
            best, best_key = seats, key
        if key[0] == 0:
            break
    state.occupancy.clear()
    return best
