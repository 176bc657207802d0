"""What a strategy costs: energy from a per-port model, use of held circuits, headline numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import NS_PER_S
from ranloom.transport.network import Network
from ranloom.transport.plan import Plan


@dataclass(frozen=True)
class PortPower:
    """Power of ports while they work for learning traffic.

    Args:
        transponder_w: one end of a lit circuit, with its slot.
        packet_port_w: one packet port at full rate; its share for a transfer is the time
            that the transfer's bits take at the port's rate.
    """

    transponder_w: float
    packet_port_w: float

    def __post_init__(self) -> None:
        for name in ("transponder_w", "packet_port_w"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(name, getattr(self, name), "at least 0 W")


def circuit_energy_j(plan: Plan, power: PortPower) -> float:
    """Energy of lit circuits: two transponders for as long as light is held."""
    return 2.0 * power.transponder_w * plan.circuit_ns / NS_PER_S


def packet_energy_j(plan: Plan, network: Network, power: PortPower) -> float:
    """Energy of packets: on each hop both ports, for the time that the bits take there."""
    by_packet = (plan.window_of < 0) & (plan.finish_ns >= 0)
    pair_of = network.pair_of(plan.demands)
    gbit = np.bincount(
        pair_of[by_packet],
        weights=plan.demands.bytes[by_packet] * 8e-9,
        minlength=len(network.pairs),
    )
    seconds_per_gbit = np.array(
        [sum(1.0 / network.packet_gbps[link] for link in route) for route in network.routes]
    )
    return float(2.0 * power.packet_port_w * (gbit * seconds_per_gbit).sum())


def utilisation_pct(plan: Plan, circuit_gbps: float) -> float:
    """Share of the held circuits' capacity that carried data; 0 where none was held."""
    held_gbit = circuit_gbps * plan.circuit_ns / NS_PER_S
    carried_gbit = sum(window.bytes for window in plan.windows) * 8e-9
    return 100.0 * carried_gbit / held_gbit if held_gbit else 0.0


def measures(plan: Plan, network: Network, power: PortPower) -> Mapping[str, float | int]:
    """Headline numbers of a plan.

    Returns:
        ``missed_bytes``, ``missed_pct`` of the offered bytes, ``setups``,
        ``circuit_seconds``, ``last_finish_s`` of what is sent, ``utilisation_pct`` of held
        circuits, ``energy_kj``, ``flows``, ``offered_bytes``.
    """
    offered = int(plan.demands.bytes.sum())
    energy = circuit_energy_j(plan, power) + packet_energy_j(plan, network, power)
    return {
        "missed_bytes": plan.missed_bytes,
        "missed_pct": 100.0 * plan.missed_bytes / offered if offered else 0.0,
        "setups": plan.setups,
        "circuit_seconds": plan.circuit_ns / NS_PER_S,
        "last_finish_s": float(plan.finish_ns.max(initial=0)) / NS_PER_S,
        "utilisation_pct": utilisation_pct(plan, network.settings.circuit_gbps),
        "energy_kj": energy / 1e3,
        "flows": len(plan.demands),
        "offered_bytes": offered,
    }
