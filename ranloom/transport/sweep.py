"""Where windows pay and where not: set-up, granted packet rate, jobs, LoRA rank, gNBs.

Theory beside simulation: a transfer of B bytes whose set-up is exposed arrives earlier by
circuit than by packet if ``B > B* = Ts / (1/Rp - 1/Rc)`` (rates in bytes/s). The simulated
break-even is found by bisection on B with the planner's window on one side and the fluid
packet simulation on the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ranloom.transport.baselines import (
    AGGREGATE_ALWAYS_WINDOW,
    AGGREGATE_PACKET,
    AGGREGATE_SELECTIVE,
    aggregate_plan,
)
from ranloom.transport.demands import NS_PER_S, Demands
from ranloom.transport.fluid import no_streams, simulate
from ranloom.transport.measures import PortPower, measures
from ranloom.transport.network import Network, TransportSettings, build_network
from ranloom.transport.plan import WINDOW, Plan, no_segments
from ranloom.transport.topology import Topology

#: Largest transfer that bisection looks at.
_MOST_BYTES = 10**14


@dataclass(frozen=True)
class SweepRow:
    """One point of the sweep; field names are the columns of ``sweep.parquet``.

    Args:
        setup_s: set-up time of a window.
        packet_share: share of each packet link granted to learning traffic.
        jobs: concurrent jobs: copies of the demands.
        rank_factor: rank of the adapters over that of the demands: payloads grow with it.
        gnbs: gNBs that send.
        packet_gbps: granted rate on the narrowest packet route.
        offered_bytes: payload of all demands.
        median_bytes: median payload.
        packet_missed_pct: missed bytes with packets only.
        window_missed_pct: missed bytes with windows only.
        selective_missed_pct: missed bytes of the selective plan.
        selective_window_pct: share of its bytes that ride in windows.
        selective_setups: its windows.
        selective_circuit_s: light that it holds.
        packet_mean_s: mean time from release to arrival with packets only (arrived ones).
        window_mean_s: the same with windows only.
        packet_energy_kj: energy with packets only.
        window_energy_kj: energy with windows only.
        break_even_bytes: B* by theory; null where packets are at least as fast as circuits.
        break_even_simulated_bytes: the same from simulation.
        break_even_error_pct: deviation of simulation from theory.
        pays: ``deadline`` where the selective plan misses less than packets alone,
            ``speed`` where it does not but the median transfer is above break-even,
            ``no`` where windows gain nothing.
    """

    setup_s: float
    packet_share: float
    jobs: int
    rank_factor: float
    gnbs: int
    packet_gbps: float
    offered_bytes: int
    median_bytes: float
    packet_missed_pct: float
    window_missed_pct: float
    selective_missed_pct: float
    selective_window_pct: float
    selective_setups: int
    selective_circuit_s: float
    packet_mean_s: float | None
    window_mean_s: float | None
    packet_energy_kj: float
    window_energy_kj: float
    break_even_bytes: float | None
    break_even_simulated_bytes: float | None
    break_even_error_pct: float | None
    pays: str


def break_even_bytes(setup_s: float, packet_gbps: float, circuit_gbps: float) -> float | None:
    """Size from which an exposed set-up pays; None where packets are as fast as light."""
    if packet_gbps >= circuit_gbps:
        return None
    return setup_s / (8.0 / packet_gbps - 8.0 / circuit_gbps) * 1e9


def concurrent(demands: Demands, jobs: int) -> Demands:
    """The demands of ``jobs`` equal jobs at the same time."""
    copies = [
        replace(demands, ids=np.array([f"{job}/{i}" for i in demands.ids], dtype=object))
        for job in range(jobs)
    ]
    return Demands.joined(copies)


@dataclass(frozen=True)
class Axes:
    """Values to sweep.

    Args:
        setup_s: set-up times.
        packet_share: granted shares of packet links.
        jobs: numbers of concurrent jobs.
        rank_factor: LoRA ranks over that of the demands.
        gnbs: numbers of gNBs that send; those with more than the demands have are left out.
    """

    setup_s: tuple[float, ...]
    packet_share: tuple[float, ...]
    jobs: tuple[int, ...]
    rank_factor: tuple[float, ...]
    gnbs: tuple[int, ...]


@dataclass(frozen=True)
class _Load:
    """Demands of some jobs, rank and number of gNBs."""

    jobs: int
    rank_factor: float
    gnbs: int
    demands: Demands


def scaled(demands: Demands, rank_factor: float) -> Demands:
    """The demands of adapters of another rank: LoRA factors grow in proportion."""
    size = np.maximum(1, np.round(demands.bytes * rank_factor)).astype(np.int64)
    return replace(demands, bytes=size)


def from_gnbs(demands: Demands, count: int) -> Demands:
    """The demands of ``count`` of the gNBs, evenly drawn in the order of their names."""
    names = sorted(set(demands.source.tolist()))
    chosen = [names[k * len(names) // count] for k in range(count)]
    return demands.take(np.isin(demands.source.astype(str), chosen))


def sweep(
    demands: Demands,
    topology: Topology,
    settings: TransportSettings,
    axes: Axes,
    *,
    power: PortPower,
    effort: int,
) -> list[SweepRow]:
    """All combinations of set-up, share and jobs; set-up, rank and gNBs at the given share.

    Args:
        demands: demands of one job.
        topology: the topology.
        settings: everything that is not swept.
        axes: what is swept.
        power: energy model.
        effort: moves of local search in each plan.
    """
    sites = len(set(demands.source.tolist()))
    concurrently = [_Load(n, 1.0, sites, concurrent(demands, n)) for n in axes.jobs]
    larger = [
        _Load(1, rank, count, scaled(from_gnbs(demands, count), rank))
        for rank in axes.rank_factor
        for count in axes.gnbs
        if count <= sites and (rank, count) != (1.0, sites)
    ]
    rows = []
    for share in axes.packet_share:
        rows += _at_share(concurrently, share, topology, settings, axes.setup_s, power, effort)
    share = settings.packet_share
    return rows + _at_share(larger, share, topology, settings, axes.setup_s, power, effort)


def _at_share(
    loads: Sequence[_Load],
    share: float,
    topology: Topology,
    settings: TransportSettings,
    setup_s: Sequence[float],
    power: PortPower,
    effort: int,
) -> list[SweepRow]:
    rows = []
    by_packet: dict[int, Plan] = {}
    pairs = [pair for load in loads for pair in load.demands.pairs()]
    for setup in setup_s if loads else ():
        chosen = replace(settings, setup_s=setup, packet_share=share)
        network = build_network(topology, pairs, chosen)
        slowest = network.pairs[_narrowest(network)]
        simulated = simulated_break_even(build_network(topology, [slowest], chosen))
        for number, load in enumerate(loads):
            # Packets know no set-up: one plan serves all set-up times.
            if number not in by_packet:
                by_packet[number] = aggregate_plan(
                    AGGREGATE_PACKET, load.demands, network, effort=effort
                )
            plans = [by_packet[number]] + [
                aggregate_plan(name, load.demands, network, effort=effort)
                for name in (AGGREGATE_ALWAYS_WINDOW, AGGREGATE_SELECTIVE)
            ]
            rows.append(_row(load, network, plans, simulated, power))
    return rows


def _row(
    load: _Load, network: Network, plans: list[Plan], simulated: float | None, power: PortPower
) -> SweepRow:
    settings = network.settings
    packet, window, selective = plans
    numbers = [measures(plan, network, power) for plan in plans]
    rate_gbps = _narrowest_gbps(network)
    theory = break_even_bytes(settings.setup_s, rate_gbps, settings.circuit_gbps)
    size = selective.demands.bytes
    riding = int(size[selective.mode == WINDOW].sum())
    median = float(np.median(size))
    error = None
    if theory is not None and simulated is not None and theory > 0:
        # The simulated size is whole: the first number of bytes above break-even.
        error = 100.0 * abs(simulated - (math.floor(theory) + 1)) / theory
    pays = "no"
    if selective.missed_bytes < packet.missed_bytes:
        pays = "deadline"
    elif theory is not None and median > theory:
        pays = "speed"
    return SweepRow(
        setup_s=settings.setup_s,
        packet_share=settings.packet_share,
        jobs=load.jobs,
        rank_factor=load.rank_factor,
        gnbs=load.gnbs,
        packet_gbps=rate_gbps,
        offered_bytes=int(size.sum()),
        median_bytes=median,
        packet_missed_pct=float(numbers[0]["missed_pct"]),
        window_missed_pct=float(numbers[1]["missed_pct"]),
        selective_missed_pct=float(numbers[2]["missed_pct"]),
        selective_window_pct=100.0 * riding / int(size.sum()),
        selective_setups=selective.setups,
        selective_circuit_s=float(numbers[2]["circuit_seconds"]),
        packet_mean_s=_mean_s(packet),
        window_mean_s=_mean_s(window),
        packet_energy_kj=float(numbers[0]["energy_kj"]),
        window_energy_kj=float(numbers[1]["energy_kj"]),
        break_even_bytes=theory,
        break_even_simulated_bytes=simulated,
        break_even_error_pct=error,
        pays=pays,
    )


def _mean_s(plan: Plan) -> float | None:
    there = plan.finish_ns >= 0
    if not there.any():
        return None
    waits = plan.finish_ns[there] - plan.demands.release_ns[there]
    return float(waits.mean()) / NS_PER_S


def _narrowest(network: Network) -> int:
    rates = [network.route_rate_gbps(pair) for pair in range(len(network.pairs))]
    return int(np.argmin(rates))


def _narrowest_gbps(network: Network) -> float:
    return network.route_rate_gbps(_narrowest(network))


def simulated_break_even(network: Network) -> float | None:
    """Size at which one transfer, alone and known at its release, arrives at the same time.

    Returns:
        Bytes, by bisection to one byte or a millionth; None where packets always win.
    """
    pair = _narrowest(network)
    low, high = 0, 1
    while not _circuit_wins(network, pair, high):
        low, high = high, 8 * high
        if high > _MOST_BYTES:
            return None
    while high - low > max(1, high // 1_000_000):
        middle = (low + high) // 2
        low, high = (low, middle) if _circuit_wins(network, pair, middle) else (middle, high)
    return float(high)


def _circuit_wins(network: Network, pair: int, size: int) -> bool:
    source, destination = network.pairs[pair]
    alone = Demands(
        ids=np.array(["alone"], dtype=object),
        source=np.array([source], dtype=object),
        destination=np.array([destination], dtype=object),
        bytes=np.array([size], dtype=np.int64),
        release_ns=np.zeros(1, dtype=np.int64),
        deadline_ns=np.full(1, 2**61, dtype=np.int64),
    )
    circuit = aggregate_plan(AGGREGATE_ALWAYS_WINDOW, alone, network, effort=0)
    packet = simulate(
        network.granted_gbps,
        network.routes,
        flow_route=np.array([pair], dtype=np.int64),
        flow_bytes=alone.bytes,
        flow_release_ns=alone.release_ns,
        reserved=no_segments(),
        reserved_route=np.empty(0, dtype=np.int64),
        streams=no_streams(),
        buffer_s=0.0,
        flow_cap_gbps=np.inf,
        bin_s=1e9,
    )
    return bool(circuit.finish_ns[0] / NS_PER_S < packet.finish_s[0])
