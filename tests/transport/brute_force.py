"""Optimal plans of tiny instances by enumeration, written from the problem statement."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from ranloom.transport.demands import Demands
from ranloom.transport.network import TransportSettings


def optimum(made: Demands, chosen: TransportSettings, gbps: float) -> tuple[int, int, int]:
    """Least (missed bytes, windows, light in ns) on a star with one destination.

    Args:
        made: at most about four demands.
        chosen: settings; channels must not be fewer than hub ports.
        gbps: granted packet rate of every arm (each arm is a bottleneck of its own).
    """
    n = len(made)
    best = (int(made.bytes.sum()) + 1, 0, 0)
    for modes in product(range(-2, n), repeat=n):  # -2 missed, -1 packet, k window k
        used = sorted({m for m in modes if m >= 0})
        if used != list(range(len(used))):
            continue
        riders = [[i for i in range(n) if modes[i] == k] for k in used]
        if any(len({made.source[i] for i in group}) > 1 for group in riders):
            continue
        missed = sum(int(made.bytes[i]) for i in range(n) if modes[i] == -2)
        windows = [_window(made, chosen, group) for group in riders]
        value = (missed, len(windows), sum(w[0] for w in windows))
        if value >= best:
            continue
        packets = [i for i in range(n) if modes[i] == -1]
        if _packets_fit(made, packets, gbps) and _placeable(windows, chosen):
            best = value
    return best


def _window(made: Demands, chosen: TransportSettings, group: list[int]):
    send = {i: int(np.ceil(made.bytes[i] * 8 / chosen.circuit_gbps)) for i in group}
    length = chosen.setup_ns + sum(send.values())
    ready = max(
        int(made.release_ns[j])
        + sum(send[k] for k in group if made.release_ns[k] >= made.release_ns[j])
        for j in group
    )
    due = min(int(made.deadline_ns[i]) for i in group)
    return length, max(0, ready - length), due, made.source[group[0]]


def _placeable(windows: list, chosen: TransportSettings) -> bool:
    """Whether some order, each window as early as it can on some hub port, meets all limits."""
    for order in permutations(windows):
        for ports in product(range(chosen.hub_ports), repeat=len(order)):
            if _fits(order, ports, chosen):
                return True
    return not windows


def _fits(order, ports, chosen: TransportSettings) -> bool:
    port_free = [0] * chosen.hub_ports
    site_free: dict[str, list[int]] = {}
    for (length, first, due, site), port in zip(order, ports, strict=True):
        mine = site_free.setdefault(site, [0] * chosen.site_ports)
        earliest = int(np.argmin(mine))
        start = max(first, port_free[port], mine[earliest])
        if start + length > due:
            return False
        port_free[port] = mine[earliest] = start + length + chosen.guard_ns
    return True


def _packets_fit(made: Demands, rows: list[int], gbps: float) -> bool:
    for site in {made.source[i] for i in rows}:
        mine = [i for i in rows if made.source[i] == site]
        for a in {int(made.release_ns[i]) for i in mine}:
            for d in {int(made.deadline_ns[i]) for i in mine}:
                inside = [i for i in mine if made.release_ns[i] >= a and made.deadline_ns[i] <= d]
                work = sum(int(np.ceil(made.bytes[i] * 8 / gbps)) for i in inside)
                if d > a and work > d - a:
                    return False
    return True
