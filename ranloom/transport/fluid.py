"""Fluid simulation of the packet layer: max-min fair, event by event.

Traffic on each packet route is of three kinds:

* shaped transfers, whose rate is reserved (a plan's packet rates),
* elastic transfers, which send as fast as max-min fair sharing lets them,
* background streams that come and go by themselves and offer a constant rate each. Where
  fair sharing gives them less, the rest waits in a queue of its route, which asks for an
  unlimited share until it is empty; what would wait longer than the buffer time is lost.

Between two events all rates are constant, so queues are piecewise linear and finish times
exact. Delay is the time in the queue, weighted by offered background volume. Propagation
and per-packet effects are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ranloom.transport.demands import NS_PER_S, FloatArray, IntArray
from ranloom.transport.max_min import max_min_share
from ranloom.transport.packet import Segments
from ranloom.transport.streams import Streams

#: Delay histogram: bins per decade from 1 us on; bin 0 holds what does not wait.
_BINS_PER_DECADE = 50
_DECADES = 8
_FIRST_DELAY_S = 1e-6
_N_BINS = 1 + _BINS_PER_DECADE * _DECADES
#: Most time bins for burstiness; what is sent behind them does not count there.
_MOST_BINS = 2_000_000
#: Two instants so close are one.
_INSTANT_S = 1e-9

_STREAM_START, _STREAM_END, _RELEASE, _RESERVE = range(4)


@njit(cache=True)
def _bin_of(delay_s: float) -> int:
    if delay_s < _FIRST_DELAY_S:
        return 0
    position = 1 + int(np.log10(delay_s / _FIRST_DELAY_S) * _BINS_PER_DECADE)
    return min(position, _N_BINS - 1)


@njit(cache=True)
def _spread(histogram: FloatArray, before_s: float, after_s: float, weight: float) -> None:
    """Add a weight spread evenly over the delays between two values."""
    low, high = min(before_s, after_s), max(before_s, after_s)
    first, last = _bin_of(low), _bin_of(high)
    if first == last or high - low <= 1e-12:
        histogram[first] += weight
        return
    edge = low
    for position in range(first, last + 1):
        upper = high
        if position < last:
            upper = _FIRST_DELAY_S * 10.0 ** (position / _BINS_PER_DECADE)
        histogram[position] += weight * (upper - edge) / (high - low)
        edge = upper


@njit(cache=True)
def _sift(heap: FloatArray, flow: IntArray, base: int, size: int, target: float, who: int) -> None:
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[base + parent] <= target:
            break
        heap[base + child] = heap[base + parent]
        flow[base + child] = flow[base + parent]
        child = parent
    heap[base + child] = target
    flow[base + child] = who


@njit(cache=True)
def _drop_first(heap: FloatArray, flow: IntArray, base: int, size: int) -> None:
    """Remove the least entry of a heap of ``size`` entries."""
    last = size - 1
    target, who = heap[base + last], flow[base + last]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= last:
            break
        if child + 1 < last and heap[base + child + 1] < heap[base + child]:
            child += 1
        if heap[base + child] >= target:
            break
        heap[base + parent] = heap[base + child]
        flow[base + parent] = flow[base + child]
        parent = child
    heap[base + parent] = target
    flow[base + parent] = who


@njit(cache=True)
def _play(
    capacity: FloatArray,
    first: IntArray,
    links: IntArray,
    event_s: FloatArray,
    event_kind: IntArray,
    event_route: IntArray,
    event_value: FloatArray,
    flow_gbit: FloatArray,
    heap_base: IntArray,
    stream_gbps: float,
    buffer_s: float,
    flow_cap_gbps: float,
    bin_s: float,
    finish_s: FloatArray,
    histogram: FloatArray,
    sent: FloatArray,
    totals: FloatArray,
) -> None:
    """Run; ``sent`` is learning traffic per time bin, ``totals`` offered, lost, peak, sent."""
    routes = len(first) - 1
    count = np.zeros(2 * routes)
    cap = np.full(2 * routes, flow_cap_gbps)
    cap[:routes] = stream_gbps
    rate = np.zeros(2 * routes)
    queue = np.zeros(routes)
    served = np.zeros(routes)
    reserved = np.zeros(len(capacity))
    shaped = np.zeros(routes)
    free = capacity.copy()
    heap = np.empty(len(flow_gbit))
    heap_flow = np.empty(len(flow_gbit), dtype=np.int64)
    waiting = np.zeros(routes, dtype=np.int64)
    streams = np.zeros(routes)
    now = 0.0
    event = 0
    while True:
        running = 0
        for r in range(routes):
            running += waiting[r]
            # A backlog asks for all it can get; streams that have left may leave one behind.
            cap[r] = np.inf if queue[r] > 0.0 else stream_gbps
            count[r] = streams[r] if queue[r] <= 0.0 else max(streams[r], 1.0)
            count[routes + r] = waiting[r]
        if event == len(event_s) and running == 0:
            return
        max_min_share(free, first, links, count, cap, rate)
        until = event_s[event] if event < len(event_s) else np.inf
        total = 0.0
        for r in range(routes):
            total += shaped[r] + waiting[r] * rate[routes + r]
            if waiting[r] and rate[routes + r] > 0.0:
                until = min(until, now + (heap[heap_base[r]] - served[r]) / rate[routes + r])
            drain = count[r] * rate[r] - streams[r] * stream_gbps
            if queue[r] > 0.0 and drain > 0.0:
                until = min(until, now + queue[r] / drain)
        if until == np.inf:
            return
        until = max(until, now)
        step = until - now
        totals[2] = max(totals[2], total)
        totals[3] += total * step
        if total > 0.0 and step > 0.0:
            position = int(now / bin_s)
            edge = now
            while edge < until and position < len(sent):
                upper = min(until, (position + 1) * bin_s)
                sent[position] += total * (upper - edge)
                edge = upper
                position += 1
        for r in range(routes):
            served[r] += rate[routes + r] * step
            offered = streams[r] * stream_gbps
            out = count[r] * rate[r]
            if offered == 0.0 and queue[r] <= 0.0:
                continue
            before = queue[r]
            after = before + (offered - out) * step
            limit = max(before, buffer_s * offered)
            if after > limit:
                totals[1] += after - limit
                after = limit
            if after <= _INSTANT_S * max(out - offered, 0.0):
                after = 0.0
            queue[r] = after
            totals[0] += offered * step
            if offered > 0.0 and step > 0.0:
                speed = max(out, 1e-9)
                _spread(histogram, before / speed, after / speed, offered * step)
        now = until
        for r in range(routes):
            instant = _INSTANT_S * rate[routes + r]
            while waiting[r] and heap[heap_base[r]] - served[r] <= instant:
                finish_s[heap_flow[heap_base[r]]] = now
                _drop_first(heap, heap_flow, heap_base[r], waiting[r])
                waiting[r] -= 1
        while event < len(event_s) and event_s[event] <= now:
            r = event_route[event]
            kind = event_kind[event]
            if kind == _STREAM_START:
                streams[r] += 1.0
            elif kind == _STREAM_END:
                streams[r] -= 1.0
            elif kind == _RELEASE:
                who = int(event_value[event])
                _sift(heap, heap_flow, heap_base[r], waiting[r], served[r] + flow_gbit[who], who)
                waiting[r] += 1
            else:
                shaped[r] += event_value[event]
                for e in range(first[r], first[r + 1]):
                    reserved[links[e]] += event_value[event]
                    free[links[e]] = max(capacity[links[e]] - max(reserved[links[e]], 0.0), 0.0)
            event += 1


@dataclass(frozen=True)
class FluidResult:
    """What the simulation saw.

    Args:
        finish_s: [flows] arrival of each elastic transfer's last bit; inf if starved.
        background_delay_p99_ms: 99 % of the background volume waited at most so long.
        background_loss_pct: share of the background volume that was lost.
        peak_gbps: highest learning rate on the packet layer, over all routes.
        burstiness: coefficient of variation of the learning rate in time bins, from the
            first bin that carries any to the last.
        bin_s: width of those bins.
        learning_gbit: learning volume carried.
    """

    finish_s: FloatArray
    background_delay_p99_ms: float
    background_loss_pct: float
    peak_gbps: float
    burstiness: float
    bin_s: float
    learning_gbit: float


def simulate(
    capacity_gbps: FloatArray,
    routes: tuple[tuple[int, ...], ...],
    *,
    flow_route: IntArray,
    flow_bytes: IntArray,
    flow_release_ns: IntArray,
    reserved: Segments,
    reserved_route: IntArray,
    streams: Streams,
    buffer_s: float,
    flow_cap_gbps: float,
    bin_s: float,
) -> FluidResult:
    """Play elastic transfers, reserved rates and background streams.

    Args:
        capacity_gbps: [links] rate of each link.
        routes: links of each route.
        flow_route: [flows] route of each elastic transfer.
        flow_bytes: [flows] payload.
        flow_release_ns: [flows] release.
        reserved: shaped packet rates.
        reserved_route: [segments] route of each.
        streams: background.
        buffer_s: longest queueing time; above it background is lost.
        flow_cap_gbps: highest rate of one elastic transfer.
        bin_s: width of the time bins for burstiness.
    """
    used = sorted({link for route in routes for link in route})
    position = {link: index for index, link in enumerate(used)}
    first = np.cumsum([0, *(len(route) for route in routes)]).astype(np.int64)
    links = np.array([position[link] for route in routes for link in route], dtype=np.int64)
    n_flows, n_streams, n_steps = len(flow_bytes), len(streams.route), len(reserved.row)
    sizes = (n_streams, n_streams, n_flows, n_steps, n_steps)
    # At one instant ends come before starts: a rate is handed over, not doubled.
    ranks = np.repeat([2, 0, 3, 1, 4], sizes)
    kinds = (_STREAM_START, _STREAM_END, _RELEASE, _RESERVE, _RESERVE)
    event_s = np.concatenate(
        [
            streams.start_s,
            streams.end_s,
            flow_release_ns / NS_PER_S,
            reserved.end_ns / NS_PER_S,
            reserved.start_ns / NS_PER_S,
        ]
    )
    event_route = np.concatenate(
        [streams.route, streams.route, flow_route, reserved_route, reserved_route]
    ).astype(np.int64)
    event_value = np.concatenate(
        [
            np.zeros(2 * n_streams),
            np.arange(n_flows, dtype=np.float64),
            -reserved.gbps,
            reserved.gbps,
        ]
    )
    order = np.lexsort((ranks, event_s))
    gbit = flow_bytes * 8e-9
    slowest_s = float(gbit.sum()) / float(capacity_gbps[used].min())
    bins = int((float(event_s.max(initial=0.0)) + slowest_s) / bin_s) + 2
    per_route = np.bincount(flow_route, minlength=len(routes))
    finish_s = np.full(n_flows, np.inf)
    histogram = np.zeros(_N_BINS)
    sent = np.zeros(min(bins, _MOST_BINS))
    totals = np.zeros(4)
    _play(
        capacity_gbps[used],
        first,
        links,
        event_s[order],
        np.repeat(kinds, sizes)[order],
        event_route[order],
        event_value[order],
        gbit,
        np.concatenate(([0], np.cumsum(per_route)[:-1])).astype(np.int64),
        streams.gbps,
        buffer_s,
        flow_cap_gbps,
        bin_s,
        finish_s,
        histogram,
        sent,
        totals,
    )
    busy = np.flatnonzero(sent > 0.0)
    inside = sent[busy[0] : busy[-1] + 1] if len(busy) else np.zeros(1)
    mean = float(inside.mean())
    return FluidResult(
        finish_s=finish_s,
        background_delay_p99_ms=1e3 * _quantile_s(histogram, 0.99),
        background_loss_pct=100.0 * float(totals[1] / totals[0]) if totals[0] else 0.0,
        peak_gbps=float(totals[2]),
        burstiness=float(inside.std() / mean) if mean else 0.0,
        bin_s=bin_s,
        learning_gbit=float(totals[3]),
    )


def _quantile_s(histogram: FloatArray, share: float) -> float:
    """Quantile of the delay histogram, interpolated inside its (logarithmic) bin."""
    total = float(histogram.sum())
    if total == 0.0:
        return 0.0
    reached = np.cumsum(histogram) / total
    position = int(np.searchsorted(reached, share))
    if position == 0:
        return 0.0
    below = float(reached[position - 1])
    part = (share - below) / max(float(reached[position]) - below, 1e-300)
    return float(_FIRST_DELAY_S * 10.0 ** ((position - 1 + part) / _BINS_PER_DECADE))
