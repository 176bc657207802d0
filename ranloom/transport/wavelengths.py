"""Wavelength assignment.

Windows of one destination whose paths, once they share a fibre, share every fibre up to the
end form an interval graph on the last one. Interval graphs are perfect: as long as no link
carries more windows at a time than it has channels, colouring by start time never needs
more. There the channel is chosen after scheduling. Any other network needs the channel
while scheduling (see :class:`~ranloom.transport.windows.Occupancy`).
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from ranloom.transport.demands import IntArray
from ranloom.transport.network import Network


def counting_suffices(network: Network) -> bool:
    """Whether counting windows per link is enough to know that channels can be assigned.

    True where every link of a candidate path has the same number of channels and each link
    has at most one successor over all paths (the paths form an in-tree per last link).
    """
    successor: dict[int, int | None] = {}
    channels = set()
    for paths in network.paths:
        for path in paths:
            channels |= {int(network.wavelengths[link]) for link in path.links}
            for link, following in zip(path.links, (*path.links[1:], None), strict=True):
                if successor.setdefault(link, following) != following:
                    return False
    return len(channels) <= 1


def colour_intervals(last_link: IntArray, start_ns: IntArray, free_ns: IntArray) -> IntArray:
    """Channels for windows that conflict only if they share the last link and overlap.

    Args:
        last_link: [n] last link of each window's path.
        start_ns: [n] start of use.
        free_ns: [n] end of use, guard included.

    Returns:
        [n] channel, the lowest that is free at the start.
    """
    channel = np.empty(len(start_ns), dtype=np.int64)
    busy: dict[int, list[tuple[int, int]]] = {}
    idle: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for row in np.lexsort((free_ns, start_ns)):
        link = int(last_link[row])
        running, spare = busy.setdefault(link, []), idle.setdefault(link, [])
        while running and running[0][0] <= start_ns[row]:
            heappush(spare, heappop(running)[1])
        if spare:
            colour = heappop(spare)
        else:
            colour = used.get(link, 0)
            used[link] = colour + 1
        channel[row] = colour
        heappush(running, (int(free_ns[row]), colour))
    return channel
