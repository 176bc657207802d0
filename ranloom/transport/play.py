"""Play a plan in the fluid simulation beside background traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import NS_PER_S, FloatArray, IntArray
from ranloom.transport.fluid import FluidResult, simulate
from ranloom.transport.network import Network
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan, no_segments
from ranloom.transport.streams import Streams, poisson_streams


@dataclass(frozen=True)
class Background:
    """Other traffic of the packet layer.

    Args:
        load: mean share of the busiest link of each route that it offers.
        stream_mbps: rate of one stream.
        mean_stream_s: mean duration of a stream.
        buffer_ms: longest queueing time; beyond it traffic is lost.
        flow_mbps: highest rate of one transfer that is not shaped (a UE's flow).
        bin_ms: width of the time bins in which burstiness is measured.
    """

    load: float
    stream_mbps: float
    mean_stream_s: float
    buffer_ms: float
    flow_mbps: float
    bin_ms: float

    def __post_init__(self) -> None:
        if not 0 <= self.load <= 1:
            raise InputError("background.load", self.load, "0 to 1")
        for name in ("stream_mbps", "mean_stream_s", "buffer_ms", "flow_mbps", "bin_ms"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"background.{name}", getattr(self, name), "greater than 0")


def background_streams(
    network: Network, background: Background, horizon_s: float, rng: np.random.Generator
) -> Streams:
    """Streams on every route of a network, the same whichever strategy is played.

    Routes that share a link share its background load evenly; a route offers what its
    busiest link allows.
    """
    users = np.zeros(len(network.links))
    for route in network.routes:
        users[list(route)] += 1.0
    shares = [
        background.load * min(network.packet_gbps[link] / users[link] for link in route)
        for route in network.routes
    ]
    return poisson_streams(
        np.array(shares),
        stream_gbps=background.stream_mbps / 1e3,
        mean_s=background.mean_stream_s,
        horizon_s=horizon_s,
        rng=rng,
    )


@dataclass(frozen=True)
class Played:
    """A plan after the simulation.

    Args:
        plan: the plan with simulated finish times and modes.
        fluid: what the packet layer saw.
    """

    plan: Plan
    fluid: FluidResult

    def numbers(self) -> dict[str, float | int]:
        """Simulated headline numbers of the plan and of the background beside it."""
        return {
            "simulated_missed_bytes": self.plan.missed_bytes,
            "simulated_last_finish_s": float(self.plan.finish_ns.max(initial=0)) / NS_PER_S,
            "background_delay_p99_ms": self.fluid.background_delay_p99_ms,
            "background_loss_pct": self.fluid.background_loss_pct,
            "peak_gbps": self.fluid.peak_gbps,
            "burstiness": self.fluid.burstiness,
        }


def play(
    plan: Plan, network: Network, streams: Streams, background: Background, *, shaped: bool
) -> Played:
    """Simulate a plan.

    Args:
        plan: the plan.
        network: its network.
        streams: background traffic.
        background: its parameters.
        shaped: whether packets keep to the plan's rates, which are then reserved for them;
            else each transfer is an elastic flow that shares all links with the background.
    """
    pair_of = network.pair_of(plan.demands)
    flows = np.flatnonzero((plan.window_of < 0) & (plan.finish_ns >= 0) & (not shaped))
    fluid = simulate(
        network.packet_gbps,
        network.routes,
        flow_route=pair_of[flows],
        flow_bytes=plan.demands.bytes[flows],
        flow_release_ns=plan.demands.release_ns[flows],
        reserved=plan.segments if shaped else no_segments(),
        reserved_route=pair_of[plan.segments.row] if shaped else np.empty(0, dtype=np.int64),
        streams=streams,
        buffer_s=background.buffer_ms / 1e3,
        flow_cap_gbps=background.flow_mbps / 1e3,
        bin_s=background.bin_ms / 1e3,
    )
    finish = plan.finish_ns.copy()
    finish[flows] = _ns(fluid.finish_s)
    if shaped:
        rows = np.flatnonzero((plan.window_of < 0) & (plan.finish_ns >= 0))
        finish[rows] = _sent_by_ns(plan, rows)
    late = (finish < 0) | (finish > plan.demands.deadline_ns)
    mode = np.where(late, MISSED, np.where(plan.window_of >= 0, WINDOW, PACKET)).astype(np.int8)
    return Played(replace(plan, mode=mode, finish_ns=finish), fluid)


def _ns(seconds: FloatArray) -> IntArray:
    finite = np.where(np.isfinite(seconds), seconds * NS_PER_S, -1.0)
    ns: IntArray = np.ceil(finite).astype(np.int64)
    return ns


def _sent_by_ns(plan: Plan, rows: IntArray) -> IntArray:
    """When reserved rates have carried each payload."""
    segments = plan.segments
    finish = np.full(len(rows), -1, dtype=np.int64)
    for position, row in enumerate(rows):
        mine = np.flatnonzero(segments.row == row)
        left = float(plan.demands.bytes[row]) * 8.0
        for k in mine[np.argsort(segments.start_ns[mine], kind="stable")]:
            could = float(segments.end_ns[k] - segments.start_ns[k]) * segments.gbps[k]
            if could >= left - 1e-3:
                finish[position] = int(
                    np.ceil(segments.start_ns[k] + max(left, 0.0) / segments.gbps[k])
                )
                break
            left -= could
    return finish
