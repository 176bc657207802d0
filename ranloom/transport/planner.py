"""The planner: packet or window for every demand, in the order missed bytes, set-ups, light.

A list heuristic builds a plan: demands that can share a window form clusters; the packet
layer keeps what meets its demand bound and gives up whole clusters, those with the most
work in the worst overload first; their windows are placed by several priority rules, of
which the one that carries most bytes wins. Local search then rescues missed demands, puts
out windows and moves riders back to packets (:mod:`ranloom.transport.local_search`).
"""

from __future__ import annotations

import numpy as np

from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.local_search import improve
from ranloom.transport.network import Network
from ranloom.transport.occupancy import Seat
from ranloom.transport.plan import PACKET, Plan
from ranloom.transport.reservation import Reservation
from ranloom.transport.state import PlanState
from ranloom.transport.windows import Job, orders

#: How often clusters that found no place are left to the packet layer and others chosen.
_ROUNDS = 6


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
        construct(state)
        improve(state, effort)
    return state.finished(strategy)


def construct(state: PlanState) -> None:
    """Fill an empty state by the list heuristic."""
    cluster = state.cluster
    members = _members(cluster, state.n_clusters)
    banned = np.zeros(state.n_clusters + 1, dtype=np.bool_)
    jobs: list[Job] = []
    seats: list[Seat | None] = []
    for _ in range(_ROUNDS):
        packet, left = _relieved(state, cluster, ~banned)
        left[cluster[~state.can_packet & (cluster >= 0)]] = True
        left &= ~banned
        chosen = np.flatnonzero(left[: state.n_clusters])
        jobs = [state.job_of(members[k]) for k in chosen]
        seats = _best_list_schedule(state, jobs)
        unseated = [k for k, seat in zip(chosen, seats, strict=True) if seat is None]
        if not unseated:
            break
        banned[unseated] = True
    for job, seat in zip(jobs, seats, strict=True):
        if seat is not None:
            state.open_seated(job, seat)
    # Rows whose window found no place compete for the packet layer with all others.
    packet = state.can_packet & (state.window_of < 0)
    nobody = np.zeros(state.n_clusters + 1, dtype=np.bool_)
    for part in range(len(state.side.parts)):
        state.side.relieve(part, packet, cluster, nobody, np.ones(len(packet), dtype=np.bool_))
    state.mode[packet] = PACKET


def _relieved(
    state: PlanState, cluster: IntArray, may_go: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Packet rows that fit, and clusters that had to leave for it."""
    packet = state.can_packet.copy()
    stay = may_go.copy()
    everyone = np.ones(len(packet), dtype=np.bool_)
    for part in range(len(state.side.parts)):
        state.side.relieve(part, packet, cluster, stay, everyone)
    return packet, may_go & ~stay


def _members(cluster: IntArray, count: int) -> list[IntArray]:
    rows = np.flatnonzero(cluster >= 0)
    order = rows[np.argsort(cluster[rows], kind="stable")]
    sizes = np.bincount(cluster[rows], minlength=count)
    return np.split(order, np.cumsum(sizes)[:-1]) if count else []


def _best_list_schedule(state: PlanState, jobs: list[Job]) -> list[Seat | None]:
    """Seats of the order that leaves the fewest bytes without a place; those are taken."""
    best: list[Seat | None] = [None] * len(jobs)
    best_key = (sum(job.bytes for job in jobs) + 1, 0)
    for order in orders(jobs):
        state.occupancy.clear()
        seats = state.occupancy.seat_all(jobs, order)
        key = (
            sum(job.bytes for job, seat in zip(jobs, seats, strict=True) if seat is None),
            sum(
                seat.start_ns + job.length_ns for job, seat in zip(jobs, seats, strict=True) if seat
            ),
        )
        if key < best_key:
            best, best_key = seats, key
        if key[0] == 0:
            break
    state.occupancy.clear()
    for job, seat in zip(jobs, best, strict=True):
        if seat is not None:
            state.occupancy.take(job, seat)
    return best
