"""What a plan becomes when releases differ from their forecast.

Windows stay where they are planned. A rider that is complete too late to arrive before its
window ends falls back to packets. Packet rates follow earliest deadline first among the
transfers that are there; whoever is late, fell back or was planned as missed is admitted at
its release if that harms no admitted transfer and none that is still expected. Nothing looks
ahead of the clock: decisions use releases that have occurred and forecasts of the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ranloom.transport.demands import BoolArray, Demands, IntArray
from ranloom.transport.network import Network
from ranloom.transport.packet_side import PacketSide
from ranloom.transport.plan import MISSED, PACKET, WINDOW, Plan
from ranloom.transport.points import no_points
from ranloom.transport.windows import served


def execute(plan: Plan, realised: Demands, network: Network, *, packet: bool = True) -> Plan:
    """Carry a plan out.

    Args:
        plan: plan of shaped transfers, made for forecast releases.
        realised: the same demands with the releases that occur.
        network: the network of the plan.
        packet: whether demands may travel as packets.

    Returns:
        The same windows with the riders that made it, the finish times that come about, and
        ``MISSED`` for demands that do not arrive by their deadline.
    """
    finish, window_of = _ride(plan, realised, network)
    riding = window_of >= 0
    sent = np.zeros(len(realised), dtype=np.bool_)
    if packet:
        sent = _admit(plan, realised, network, riding)
    side = PacketSide(realised, network, network.pair_of(realised), no_points(len(realised)))
    by_packet, segments = side.schedule(sent)
    finish = np.where(sent, by_packet, finish)
    in_time = sent & (finish <= realised.deadline_ns)
    mode = np.where(riding, WINDOW, np.where(in_time, PACKET, MISSED)).astype(np.int8)
    windows = tuple(
        replace(window, bytes=int(realised.bytes[window_of == index].sum()))
        for index, window in enumerate(plan.windows)
    )
    return Plan(plan.strategy, realised, mode, window_of, finish, windows, segments)


def _ride(plan: Plan, realised: Demands, network: Network) -> tuple[IntArray, IntArray]:
    """Finish times and windows of riders that arrive before their window and deadline end."""
    finish = np.full(len(realised), -1, dtype=np.int64)
    window_of = np.full(len(realised), -1, dtype=np.int64)
    for index, window in enumerate(plan.windows):
        riders = np.flatnonzero(plan.window_of == index)
        ready_ns = window.start_ns + window.setup_ns
        rows, ends = served(
            riders, ready_ns, window.end_ns, realised, network.settings.circuit_gbps
        )
        finish[rows], window_of[rows] = ends, index
    return finish, window_of


def _admit(plan: Plan, realised: Demands, network: Network, riding: BoolArray) -> BoolArray:
    """[n] rows that travel as packets, admitted one by one at their release."""
    planned = plan.mode == PACKET
    expected_ns = plan.demands.release_ns
    actual_ns = realised.release_ns
    admitted = np.zeros(len(realised), dtype=np.bool_)
    arrived = np.zeros(len(realised), dtype=np.bool_)
    pair_of = network.pair_of(realised)
    for row in np.argsort(actual_ns, kind="stable"):
        arrived[row] = True
        if riding[row]:
            continue
        if planned[row] and actual_ns[row] <= expected_ns[row]:
            admitted[row] = True
            continue
        # Transfers that are overdue are still expected, from now on.
        now = int(actual_ns[row])
        outlook = np.where(arrived, actual_ns, np.maximum(expected_ns, now + 1))
        others = admitted | (planned & ~arrived & (outlook < realised.deadline_ns))
        trial = others.copy()
        trial[row] = True
        side = PacketSide(realised.released(outlook), network, pair_of, no_points(len(outlook)))
        admitted[row] = side.fits(int(side.part_of[row]), trial)
    return admitted
