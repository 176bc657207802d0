"""Reduction of a step on the fast path: sums up a tree, totals down, tied weights exchanged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit


class SyncPlane(NamedTuple):
    """Links that carry sums, and the circuits beside them.

    Args:
        gbps: [S, S].
        latency_s: [S, S].
        free_s: until when each link is busy [S, S]; changes.
        hub_s: coordinator to site, one way [S].
        windows: source, destination, start, end and rate of each circuit [W, 5].
        shape: children of a node in the tree, parts in which sums stream [2].
    """

    gbps: np.ndarray
    latency_s: np.ndarray
    free_s: np.ndarray
    hub_s: np.ndarray
    windows: np.ndarray
    shape: np.ndarray


@njit(cache=True)
def _carried_s(plane: SyncPlane, source: int, target: int, gbit: float, start_s: float) -> float:
    """When a transfer that starts now has left; circuits add their rate while they carry light."""
    windows = plane.windows
    now_s = start_s
    while True:
        rate = plane.gbps[source, target]
        edge_s = np.inf
        for w in range(len(windows)):
            if int(windows[w, 0]) == source and int(windows[w, 1]) == target:
                if windows[w, 2] <= now_s < windows[w, 3]:
                    rate += windows[w, 4]
                if windows[w, 2] > now_s:
                    edge_s = min(edge_s, windows[w, 2])
                if windows[w, 3] > now_s:
                    edge_s = min(edge_s, windows[w, 3])
        if not np.isfinite(edge_s) or rate * (edge_s - now_s) >= gbit:
            return now_s + gbit / rate
        gbit -= rate * (edge_s - now_s)
        now_s = edge_s


@njit(cache=True)
def send(
    plane: SyncPlane, source: int, target: int, gbit: float, now_s: float, since_s: float
) -> float:
    """Arrival of a sum that is complete now and streams since then; as ``Network.send``."""
    start_s = max(since_s, plane.free_s[source, target])
    end_s = _carried_s(plane, source, target, gbit, start_s)
    if since_s < now_s:
        part = gbit / plane.shape[1]
        end_s = max(end_s, _carried_s(plane, source, target, part, now_s))
    plane.free_s[source, target] = end_s
    return end_s + plane.latency_s[source, target]


@njit(cache=True)
def reduce_step(
    plane: SyncPlane,
    pools: np.ndarray,
    contributes: np.ndarray,
    gradient_gbit: np.ndarray,
    tied_gbit: float,
    sealed_s: float,
) -> float:
    """When the coordinator knows that every holder of every stage keeps its total.

    Args:
        plane: links.
        pools: sites of each stage, -1 for none [P, D].
        contributes: whether a site holds a gradient of the step [S].
        gradient_gbit: of each stage [P].
        tied_gbit: that the first and the last root exchange, 0 for none.
        sealed_s: when the coordinator asks for sums.
    """
    stages, places = pools.shape
    fanout = int(plane.shape[0])
    roots = np.full(stages, -1)
    asked_s = np.zeros(stages)
    ready_s = np.zeros(stages)
    parts = np.zeros(places, dtype=np.int64)
    for stage in range(stages):
        count = 0
        for place in range(places):
            site = pools[stage, place]
            if site >= 0 and contributes[site]:
                parts[count] = site
                count += 1
        arrived_s = np.zeros(count)
        for index in range(count):
            arrived_s[index] = sealed_s + plane.hub_s[parts[index]]
        for index in range(count - 1, 0, -1):
            parent = (index - 1) // fanout
            site = parts[index]
            since_s = sealed_s + plane.hub_s[site]
            there_s = send(
                plane, site, parts[parent], gradient_gbit[stage], arrived_s[index], since_s
            )
            arrived_s[parent] = max(arrived_s[parent], there_s)
        roots[stage] = parts[0]
        asked_s[stage] = sealed_s + plane.hub_s[parts[0]]
        ready_s[stage] = arrived_s[0]
    if tied_gbit > 0.0 and stages > 1:
        first, last = roots[0], roots[stages - 1]
        at_last_s = send(plane, first, last, tied_gbit, ready_s[0], ready_s[0])
        at_first_s = send(plane, last, first, tied_gbit, ready_s[stages - 1], ready_s[stages - 1])
        ready_s[0] = max(ready_s[0], at_first_s)
        ready_s[stages - 1] = max(ready_s[stages - 1], at_last_s)
    known_s = sealed_s
    for stage in range(stages):
        root = roots[stage]
        known_s = max(known_s, ready_s[stage] + plane.hub_s[root])
        for place in range(places):
            site = pools[stage, place]
            if site >= 0 and site != root:
                held_s = send(
                    plane, root, site, gradient_gbit[stage], ready_s[stage], asked_s[stage]
                )
                known_s = max(known_s, held_s + plane.hub_s[site])
    return known_s
