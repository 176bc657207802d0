"""Links as serial servers on virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ranloom.training.links import Links


class Plane(IntEnum):
    """What a transfer carries; each plane of a link has its own bandwidth and queue."""

    ACTIVATION = 0
    SYNC = 1


@dataclass(frozen=True, slots=True)
class CircuitWindow:
    """A planned optical circuit that adds bandwidth between two sites for some time.

    Args:
        source: sending site.
        destination: receiving site.
        start_s: from when.
        end_s: until when.
        gbps: bandwidth added.
    """

    source: int
    destination: int
    start_s: float
    end_s: float
    gbps: float


class Network:
    """Transfers between sites: first come, first served on each ordered pair and plane.

    Args:
        activation: links as the activation plane sees them.
        sync: links as the synchronisation plane sees them (sums, totals, layer copies).
        windows: circuits that add to the synchronisation plane.
        chunks: parts in which sums stream through the nodes of a reduction tree.
    """

    def __init__(
        self,
        activation: Links,
        sync: Links,
        windows: Sequence[CircuitWindow] = (),
        chunks: int = 1,
    ) -> None:
        self._chunks = chunks
        self._links = (activation, sync)
        self._free_s: tuple[np.ndarray, np.ndarray] = (
            np.zeros_like(activation.latency_s),
            np.zeros_like(sync.latency_s),
        )
        self._windows: dict[tuple[int, int], list[CircuitWindow]] = {}
        for window in sorted(windows, key=lambda w: (w.start_s, w.end_s)):
            pair = (window.source, window.destination)
            self._windows.setdefault(pair, []).append(window)
        self.bytes_sent = [0.0, 0.0]

    def message_s(self, source: int, destination: int) -> float:
        """Delay of a small message between sites."""
        return float(self._links[0].latency_s[source, destination])

    def coordinator_s(self, site: int) -> float:
        """Delay of a small message between the coordinator and a site."""
        return float(self._links[0].coordinator_latency_s[site])

    def send(
        self,
        source: int,
        destination: int,
        size_bytes: float,
        plane: Plane,
        now_s: float,
        streams_since_s: float | None = None,
    ) -> float:
        """Queue a transfer; when it has arrived.

        Args:
            source: sending site.
            destination: receiving site.
            size_bytes: size.
            plane: what it carries.
            now_s: when the last byte is there to be sent.
            streams_since_s: when the first chunk was there, if it streams.
        """
        if source == destination:
            return now_s
        links, free_s = self._links[plane], self._free_s[plane]
        first_s = now_s if streams_since_s is None else min(streams_since_s, now_s)
        start_s = max(first_s, float(free_s[source, destination]))
        end_s = self._end_s(source, destination, size_bytes, plane, start_s)
        if streams_since_s is not None:
            last = size_bytes / self._chunks
            end_s = max(end_s, self._end_s(source, destination, last, plane, now_s))
        free_s[source, destination] = end_s
        self.bytes_sent[plane] += size_bytes
        return end_s + float(links.latency_s[source, destination])

    def _end_s(
        self, source: int, destination: int, size_bytes: float, plane: Plane, start_s: float
    ) -> float:
        gbps = float(self._links[plane].bandwidth_gbps[source, destination])
        left_gbit = size_bytes * 8e-9
        now_s = start_s
        windows = self._windows.get((source, destination), []) if plane == Plane.SYNC else []
        edges = sorted({e for w in windows for e in (w.start_s, w.end_s) if e > start_s})
        for edge_s in edges:
            rate = gbps + sum(w.gbps for w in windows if w.start_s <= now_s < w.end_s)
            carried = rate * (edge_s - now_s)
            if carried >= left_gbit:
                return now_s + left_gbit / rate
            left_gbit -= carried
            now_s = edge_s
        return now_s + left_gbit / gbps
