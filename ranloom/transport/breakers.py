"""Deliberately broken calendars: each breaker adds one fault that a validator must find.

A breaker changes a sound calendar in one respect and as little as it can, so that what is
tested is whether the validator looks at that respect at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from ranloom.transport.calendar import PATH_SEPARATOR, AssignmentRow, Calendar, WindowRow
from ranloom.transport.demands import Demands
from ranloom.transport.network import TransportSettings
from ranloom.transport.topology import Topology

#: A stretch below this could be lost in the rounding of the rows.
_TELLING_GBIT = 1e-4


class Breaker:
    """What breakers know: the demands, the topology, the settings and a random stream."""

    def __init__(
        self,
        demands: Demands,
        topology: Topology,
        settings: TransportSettings,
        rng: np.random.Generator,
    ) -> None:
        rows = zip(
            demands.ids.tolist(),
            demands.release_ns.tolist(),
            demands.deadline_ns.tolist(),
            strict=True,
        )
        self.times = {demand: (release / 1e9, due / 1e9) for demand, release, due in rows}
        self.topology = topology
        self.settings = settings
        self.rng = rng

    def broken(self, calendar: Calendar) -> dict[str, Calendar]:
        """One broken calendar for each breaker that finds something to break."""
        found = {name: breaker(self, calendar) for name, breaker in BREAKERS.items()}
        return {name: broken for name, broken in found.items() if broken is not None}

    def pick(self, count: int) -> int:
        """A random index."""
        return int(self.rng.integers(count))


def _with_window(calendar: Calendar, index: int, window: WindowRow) -> Calendar:
    windows = [*calendar.windows[:index], window, *calendar.windows[index + 1 :]]
    return replace(calendar, windows=tuple(windows))


def _with_row(calendar: Calendar, index: int, row: AssignmentRow) -> Calendar:
    rows = [*calendar.assignments[:index], row, *calendar.assignments[index + 1 :]]
    return replace(calendar, assignments=tuple(rows))


def _any_window(tools: Breaker, calendar: Calendar) -> tuple[int, WindowRow] | None:
    if not calendar.windows:
        return None
    index = tools.pick(len(calendar.windows))
    return index, calendar.windows[index]


def _riders(calendar: Calendar, window: WindowRow) -> list[int]:
    rows = enumerate(calendar.assignments)
    return [index for index, row in rows if row.window_id == window.window_id]


def _copies(tools: Breaker, calendar: Calendar, window: WindowRow, shift_s: float) -> Calendar:
    """As many empty copies of a window as its source has ports, on channels of their own."""
    from_hub = window.source == tools.topology.hub
    ports = tools.settings.hub_ports if from_hub else tools.settings.site_ports
    first = 1 + max(w.window_id for w in calendar.windows)
    nodes = window.path.split(PATH_SEPARATOR)
    channels = min(tools.topology.graph.edges[hop]["wavelengths"] for hop in pairwise(nodes))
    copies = [
        replace(
            window,
            window_id=first + k,
            wavelength=(window.wavelength + 1 + k) % channels,
            start_s=window.start_s + shift_s,
            end_s=window.end_s + shift_s,
            bytes=0,
        )
        for k in range(ports)
    ]
    return replace(calendar, windows=(*calendar.windows, *copies))


def _port(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """More windows at a site at once than it has ports."""
    found = _any_window(tools, calendar)
    return found and _copies(tools, calendar, found[1], 0.0)


def _hub_port(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """More windows at the hub at once than it has ports, each from a site of its own."""
    found = _any_window(tools, calendar)
    if found is None or found[1].destination != tools.topology.hub:
        return None
    _, window = found
    graph = tools.topology.graph
    first = 1 + max(w.window_id for w in calendar.windows)
    sites = list(graph.neighbors(window.destination))
    copies = [
        replace(
            window,
            window_id=first + k,
            source=sites[k % len(sites)],
            path=PATH_SEPARATOR.join((sites[k % len(sites)], window.destination)),
            wavelength=k // len(sites),
            bytes=0,
        )
        for k in range(tools.settings.hub_ports)
    ]
    return replace(calendar, windows=(*calendar.windows, *copies))


def _guard(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """Ports used again half a guard time after a window."""
    found = _any_window(tools, calendar)
    if found is None or tools.settings.guard_s < 1e-7:
        return None
    _, window = found
    shift = window.end_s - window.start_s + tools.settings.guard_s / 2
    return _copies(tools, calendar, window, shift)


def _channel_clash(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """Two windows that are lit at the same time on a shared fibre get one channel."""
    hops = [set(pairwise(w.path.split(PATH_SEPARATOR))) for w in calendar.windows]
    clashes = []
    for one, other in combinations(range(len(hops)), 2):
        first, second = calendar.windows[one], calendar.windows[other]
        together = min(first.end_s, second.end_s) - max(first.start_s, second.start_s)
        if together > 1e-7 and hops[one] & hops[other]:
            clashes.append((other, first.wavelength))
    if not clashes:
        return None
    index, channel = clashes[tools.pick(len(clashes))]
    return _with_window(calendar, index, replace(calendar.windows[index], wavelength=channel))


def _no_channel(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A channel that a fibre of the path does not carry."""
    found = _any_window(tools, calendar)
    if found is None:
        return None
    index, window = found
    nodes = window.path.split(PATH_SEPARATOR)
    channels = [tools.topology.graph.edges[hop]["wavelengths"] for hop in pairwise(nodes)]
    return _with_window(calendar, index, replace(window, wavelength=min(channels)))


def _gap_in_path(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A path from which a node in the middle is missing."""
    longer = [
        (index, window)
        for index, window in enumerate(calendar.windows)
        if len(nodes := window.path.split(PATH_SEPARATOR)) > 2
        and not tools.topology.graph.has_edge(nodes[0], nodes[2])
    ]
    if not longer:
        return None
    index, window = longer[tools.pick(len(longer))]
    nodes = window.path.split(PATH_SEPARATOR)
    path = PATH_SEPARATOR.join([nodes[0], *nodes[2:]])
    return _with_window(calendar, index, replace(window, path=path))


def _wrong_end(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A path that stops one node early."""
    found = _any_window(tools, calendar)
    if found is None:
        return None
    index, window = found
    path = PATH_SEPARATOR.join(window.path.split(PATH_SEPARATOR)[:-1])
    return _with_window(calendar, index, replace(window, path=path))


def _no_setup(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A window that claims to carry data at once."""
    found = _any_window(tools, calendar)
    if found is None or tools.settings.setup_s < 1e-6:
        return None
    index, window = found
    return _with_window(calendar, index, replace(window, setup_s=tools.settings.setup_s / 2))


def _too_short(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """Light that goes out in the middle of a transmission."""
    found = _any_window(tools, calendar)
    if found is None or found[1].bytes == 0:
        return None
    index, window = found
    rows = _riders(calendar, window)
    finishes = [calendar.assignments[row].finish_s for row in rows]
    last = max(finish for finish in finishes if finish is not None)
    sending = window.bytes * 8e-9 / tools.settings.circuit_gbps
    if sending < 1e-6:
        return None
    end = last - sending / 2
    broken = _with_window(calendar, index, replace(window, end_s=end))
    for row in rows:
        finish = calendar.assignments[row].finish_s
        if finish is not None and finish > end:
            broken = _with_row(broken, row, replace(calendar.assignments[row], finish_s=end))
    return broken


def _late(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A demand in time that arrives a second behind its deadline, light kept on for it."""
    rows = [
        (index, row)
        for index, row in enumerate(calendar.assignments)
        if row.mode != "missed" and row.finish_s is not None
    ]
    if not rows:
        return None
    index, row = rows[tools.pick(len(rows))]
    finish = tools.times[row.demand_id][1] + 1.0
    broken = _with_row(calendar, index, replace(row, finish_s=finish))
    for position, window in enumerate(calendar.windows):
        if window.window_id == row.window_id:
            end = max(window.end_s, finish)
            broken = _with_window(broken, position, replace(window, end_s=end))
    return broken


def _before_release(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A demand that arrives when it is released."""
    rows = [(i, row) for i, row in enumerate(calendar.assignments) if row.finish_s is not None]
    if not rows:
        return None
    index, row = rows[tools.pick(len(rows))]
    return _with_row(calendar, index, replace(row, finish_s=tools.times[row.demand_id][0]))


def _window_bytes(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A window that claims one byte more than its riders have."""
    found = _any_window(tools, calendar)
    if found is None:
        return None
    index, window = found
    return _with_window(calendar, index, replace(window, bytes=window.bytes + 1))


def _demand_bytes(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A demand of which a byte is left out."""
    index = tools.pick(len(calendar.assignments))
    row = calendar.assignments[index]
    missed = row.missed_bytes - 1 if row.mode == "missed" else 0
    return _with_row(calendar, index, replace(row, bytes=row.bytes - 1, missed_bytes=missed))


def _hidden_miss(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A missed demand whose bytes are not counted."""
    rows = [(i, row) for i, row in enumerate(calendar.assignments) if row.mode == "missed"]
    if not rows:
        return None
    index, row = rows[tools.pick(len(rows))]
    return _with_row(calendar, index, replace(row, missed_bytes=0))


def _left_out(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A demand that is not assigned at all."""
    index = tools.pick(len(calendar.assignments))
    rows = [*calendar.assignments[:index], *calendar.assignments[index + 1 :]]
    return replace(calendar, assignments=tuple(rows))


def _twice(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A demand that is assigned twice."""
    row = calendar.assignments[tools.pick(len(calendar.assignments))]
    return replace(calendar, assignments=(*calendar.assignments, row))


def _no_such_window(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A rider of a window that is not in the calendar."""
    rows = [(i, row) for i, row in enumerate(calendar.assignments) if row.window_id is not None]
    if not rows:
        return None
    index, row = rows[tools.pick(len(rows))]
    unknown = 1 + max(w.window_id for w in calendar.windows)
    return _with_row(calendar, index, replace(row, window_id=unknown))


def _rate_lost(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A stretch of packet rate that is missing."""
    rates = calendar.rates or ()
    telling = [i for i, r in enumerate(rates) if (r.end_s - r.start_s) * r.gbps > _TELLING_GBIT]
    if not telling:
        return None
    index = telling[tools.pick(len(telling))]
    return replace(calendar, rates=(*rates[:index], *rates[index + 1 :]))


def _too_fast(tools: Breaker, calendar: Calendar) -> Calendar | None:
    """A stretch sent in less time at more than any packet link can carry."""
    if not calendar.rates:
        return None
    index = tools.pick(len(calendar.rates))
    rate = calendar.rates[index]
    fastest = max(gbps for _, _, gbps in tools.topology.graph.edges(data="packet_gbps"))
    length = (rate.end_s - rate.start_s) * rate.gbps / (2.0 * fastest)
    faster = replace(rate, gbps=2.0 * fastest, end_s=rate.start_s + length)
    rates = [*calendar.rates[:index], faster, *calendar.rates[index + 1 :]]
    return replace(calendar, rates=tuple(rates))


#: Every breaker by name.
BREAKERS: dict[str, Callable[[Breaker, Calendar], Calendar | None]] = {
    "port": _port,
    "hub_port": _hub_port,
    "guard": _guard,
    "channel_clash": _channel_clash,
    "no_channel": _no_channel,
    "gap_in_path": _gap_in_path,
    "wrong_end": _wrong_end,
    "no_setup": _no_setup,
    "too_short": _too_short,
    "late": _late,
    "before_release": _before_release,
    "window_bytes": _window_bytes,
    "demand_bytes": _demand_bytes,
    "hidden_miss": _hidden_miss,
    "left_out": _left_out,
    "twice": _twice,
    "no_such_window": _no_such_window,
    "rate_lost": _rate_lost,
    "too_fast": _too_fast,
}
