"""Strategies: how a round's traffic travels, from independent flows to selective windows.

All return a :class:`~ranloom.transport.plan.Plan`, so that one validator, one set of metrics
and one simulation serve them all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ranloom.transport.demands import NS_PER_S, BoolArray, Demands, IntArray
from ranloom.transport.fluid import simulate
from ranloom.transport.network import Network
from ranloom.transport.occupancy import Occupancy, Seat
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan, Window, no_segments
from ranloom.transport.planner import plan_transfers
from ranloom.transport.reservation import Reservation
from ranloom.transport.streams import no_streams
from ranloom.transport.wavelengths import colour_intervals
from ranloom.transport.windows import Job, WindowRules

PER_UE_PACKET = "per_ue_packet"
PER_UE_STATIC_CIRCUITS = "per_ue_static_circuits"
AGGREGATE_PACKET = "aggregate_packet"
AGGREGATE_ALWAYS_WINDOW = "aggregate_always_window"
AGGREGATE_SELECTIVE = "aggregate_selective"

#: In the order of the report; the first two take per-UE demands, the others aggregates.
PER_UE_STRATEGIES = (PER_UE_PACKET, PER_UE_STATIC_CIRCUITS)
AGGREGATE_STRATEGIES = (AGGREGATE_PACKET, AGGREGATE_ALWAYS_WINDOW, AGGREGATE_SELECTIVE)
STRATEGIES = PER_UE_STRATEGIES + AGGREGATE_STRATEGIES

_NEVER = np.iinfo(np.int64).max


def aggregate_plan(
    strategy: str,
    demands: Demands,
    network: Network,
    *,
    effort: int,
    now_ns: int = 0,
    reservations: tuple[Reservation, ...] = (),
) -> Plan:
    """Plan of one of the aggregate strategies.

    Args:
        strategy: a member of ``AGGREGATE_STRATEGIES``.
        demands: aggregates with the releases to plan on.
        network: their network.
        effort: moves of local search.
        now_ns: no window starts earlier.
        reservations: optical use by others.
    """
    return plan_transfers(
        demands,
        network,
        strategy=strategy,
        packet=strategy != AGGREGATE_ALWAYS_WINDOW,
        windows=strategy != AGGREGATE_PACKET,
        effort=effort,
        now_ns=now_ns,
        reservations=reservations,
    )


def per_ue_packet(demands: Demands, network: Network) -> Plan:
    """Every update is a flow of its own; flows share the granted packet rate max-min fairly."""
    pair_of = network.pair_of(demands)
    finish = _fair_share(demands, network, pair_of, np.ones(len(demands), dtype=np.bool_))
    return Plan(
        strategy=PER_UE_PACKET,
        demands=demands,
        mode=_modes(demands, finish, PACKET),
        window_of=np.full(len(demands), -1, dtype=np.int64),
        finish_ns=finish,
        windows=(),
        segments=no_segments(),
    )


def per_ue_static_circuits(
    demands: Demands, network: Network, reservations: tuple[Reservation, ...] = ()
) -> Plan:
    """Every site gets a circuit for the whole time; its flows use it in order of release.

    Sites with most bytes come first; those for which ports or channels run out send packets.
    A circuit is set up before its first flow is released, if the clock allows, and is held
    until its last deadline, or until its last flow has arrived.

    Args:
        demands: one a UE and round, with the releases that occur.
        network: their network.
        reservations: optical use by others.
    """
    pair_of = network.pair_of(demands)
    rules = WindowRules(demands, network, 0)
    size = np.bincount(pair_of, weights=demands.bytes, minlength=len(network.pairs))
    occupancy = Occupancy(network, np.ones(len(network.pairs), dtype=np.int64), reservations)
    held: list[tuple[Job, Seat]] = []
    for pair in np.argsort(-size, kind="stable"):
        rows = np.flatnonzero(pair_of == pair)
        if len(rows) == 0:
            continue
        job = _held(rules, int(pair), rows)
        seat = occupancy.seat(job)
        if seat is not None:
            held.append((job, seat))
    held.sort(key=lambda item: (item[1].start_ns, item[0].pair))

    window_of = np.full(len(demands), -1, dtype=np.int64)
    finish = np.full(len(demands), -1, dtype=np.int64)
    windows = []
    paths = [network.paths[job.pair][seat.path] for job, seat in held]
    channels = np.array([seat.channel for _, seat in held], dtype=np.int64)
    if not occupancy.explicit:
        start = np.array([seat.start_ns for _, seat in held], dtype=np.int64)
        free = start + np.array([job.length_ns for job, _ in held], dtype=np.int64)
        last = np.array([path.links[-1] for path in paths], dtype=np.int64)
        channels = colour_intervals(last, start, free + network.settings.guard_ns)
    for index, (job, seat) in enumerate(held):
        window_of[job.rows] = index
        finish[job.rows] = rules.rider_finish_ns(job, seat.start_ns)
        windows.append(
            Window(
                path=paths[index].nodes,
                wavelength=int(channels[index]),
                start_ns=seat.start_ns,
                end_ns=seat.start_ns + job.length_ns,
                setup_ns=rules.setup_ns,
                bytes=job.bytes,
            )
        )
    rest = window_of < 0
    finish[rest] = _fair_share(demands, network, pair_of, rest)[rest]
    mode = np.where(rest, _modes(demands, finish, PACKET), _modes(demands, finish, WINDOW))
    return Plan(
        strategy=PER_UE_STATIC_CIRCUITS,
        demands=demands,
        mode=mode.astype(np.int8),
        window_of=window_of,
        finish_ns=finish,
        windows=tuple(windows),
        segments=no_segments(),
    )


def _held(rules: WindowRules, pair: int, rows: IntArray) -> Job:
    """A circuit for these rows from before the first release to the last deadline or arrival."""
    job = rules.job(pair, rows)
    first = int(rules.demands.release_ns[rows].min())
    start = max(rules.now_ns, first - rules.setup_ns)
    last = int(rules.rider_finish_ns(job, start)[-1])
    end = max(last, int(rules.demands.deadline_ns[rows].max()))
    return Job(pair, job.rows, end - start, start, start, job.bytes)


def _modes(demands: Demands, finish_ns: IntArray, on_time: int) -> npt.NDArray[np.int8]:
    late = finish_ns > demands.deadline_ns
    mode: npt.NDArray[np.int8] = np.where(late, MISSED, on_time).astype(np.int8)
    return mode


def _fair_share(
    demands: Demands, network: Network, pair_of: IntArray, flows: BoolArray
) -> IntArray:
    """[n] finish in ns of the flows in the granted packet rate; -1 for other rows."""
    finish = np.full(len(demands), -1, dtype=np.int64)
    if not flows.any():
        return finish
    result = simulate(
        network.granted_gbps,
        network.routes,
        flow_route=pair_of[flows],
        flow_bytes=demands.bytes[flows],
        flow_release_ns=demands.release_ns[flows],
        reserved=no_segments(),
        reserved_route=np.empty(0, dtype=np.int64),
        streams=no_streams(),
        buffer_s=0.0,
        flow_cap_gbps=np.inf,
        bin_s=1.0,
    )
    finish[flows] = np.ceil(np.minimum(result.finish_s * NS_PER_S, _NEVER // 2)).astype(np.int64)
    return finish
