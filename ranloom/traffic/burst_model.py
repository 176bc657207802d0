"""Packets as bursts: a small statistical model, fitted to a trace and sampled from.

Packets less than ``BURST_GAP_US`` apart form a burst. Bursts fall into three classes by their bytes
(``CLASS_EDGES_BYTES``), and the class of the next burst depends on that of the last (a Markov
chain). Idle times, burst sizes, packet sizes and the times between the packets of a burst are each
drawn from a table of quantiles. Expectations equal the means of the trace: the tables are rescaled
to their means, and the last burst of the trace counts as followed by its first. What is lost is
memory beyond one burst: sessions of minutes, and the growth of an upload's rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ranloom.traffic.arrivals import MAX_PACKET_BYTES, Arrivals

BURST_GAP_US = 100_000
CLASS_EDGES_BYTES = (1_500, 15_000)  # one packet; about what one UL slot of 106 PRB carries
N_CLASSES = len(CLASS_EDGES_BYTES) + 1
LEVELS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
_BURN_IN_CYCLES = 20  # bursts generated before time zero, so that the start is not special


@dataclass(frozen=True)
class Quantiles:
    """A positive distribution: values at ``LEVELS``, straight in log scale between them.

    Args:
        values: [16] quantiles, ascending, above 0.
        mean: mean of the data; samples are rescaled to it.
    """

    values: tuple[float, ...]
    mean: float

    @classmethod
    def of(cls, data: ArrayLike) -> Quantiles:
        """Quantiles of data; values below 1 (simultaneous packets) count as 1."""
        positive = np.maximum(np.asarray(data, float), 1.0)
        return cls(tuple(np.quantile(positive, LEVELS).tolist()), float(positive.mean()))

    @property
    def _interpolated_mean(self) -> float:
        """Mean of the interpolation: a log-straight segment from a to b averages (b-a)/ln(b/a)."""
        low, high = np.array(self.values[:-1]), np.array(self.values[1:])
        ratio = np.log(high / low)
        segment = np.where(ratio > 1e-9, (high - low) / np.where(ratio > 1e-9, ratio, 1.0), low)
        return float(np.diff(LEVELS) @ segment)

    def sample(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """[count] independent draws."""
        return self.at(rng.random(count))

    def at(self, level: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at some levels in 0..1, rescaled so that they average to ``mean``."""
        values = np.exp(np.interp(level, LEVELS, np.log(self.values)))
        return np.asarray(values * (self.mean / self._interpolated_mean))


@dataclass(frozen=True)
class BurstClass:
    """Bursts of one size class.

    Args:
        burst_bytes: size of a burst.
        burst_packets: number of its packets; large bursts are those of many packets.
        packet_bytes: size of a packet in it.
        packet_gap_us: time between its packets.
    """

    burst_bytes: Quantiles
    burst_packets: Quantiles
    packet_bytes: Quantiles
    packet_gap_us: Quantiles


@dataclass(frozen=True)
class BurstModel:
    """Uplink of one UE.

    Args:
        mean_kbps: mean rate of the trace.
        bursts_per_s: bursts by the time of the trace.
        idle_us: time from the last packet of a burst to the first of the next.
        next_class: [3][3] probability of the next burst's class (column) after each (row).
        classes: [3] burst classes; ``None`` for one that the trace does not have.
    """

    mean_kbps: float
    bursts_per_s: float
    idle_us: Quantiles
    next_class: tuple[tuple[float, ...], ...]
    classes: tuple[BurstClass | None, ...]

    def class_shares(self) -> NDArray[np.float64]:
        """[3] stationary share of each class among the bursts."""
        chain = np.array(self.next_class)
        present = [c for c in range(N_CLASSES) if self.classes[c] is not None]
        inner = chain[np.ix_(present, present)]
        balance = np.vstack([inner.T - np.eye(len(present)), np.ones(len(present))])
        solution = np.linalg.lstsq(balance, np.append(np.zeros(len(present)), 1.0), rcond=None)[0]
        shares = np.zeros(N_CLASSES)
        shares[present] = np.clip(solution, 0.0, None) / np.clip(solution, 0.0, None).sum()
        return shares

    def sample(self, duration_us: int, rng: np.random.Generator) -> Arrivals:
        """One UE's packets over a window, in the stationary state from its start."""
        chain = np.cumsum(self.next_class, axis=1)
        cycle_us = 1e6 / self.bursts_per_s
        now_us = -_BURN_IN_CYCLES * cycle_us
        kind = int(rng.choice(N_CLASSES, p=self.class_shares()))
        times: list[NDArray[np.float64]] = [np.empty(0)]
        sizes: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        while now_us < duration_us:
            now_us += max(self.idle_us.sample(rng, 1)[0], BURST_GAP_US)
            burst = self.classes[kind]
            assert burst is not None, "the chain never enters an absent class"
            packets = _fill(burst, rng)
            gaps_us = np.minimum(burst.packet_gap_us.sample(rng, packets.size - 1), BURST_GAP_US)
            times.append(now_us + np.concatenate([[0.0], np.cumsum(gaps_us)]))
            sizes.append(packets)
            now_us = times[-1][-1]
            kind = min(int(np.searchsorted(chain[kind], rng.random(), side="right")), N_CLASSES - 1)
        time_us, size_bytes = np.floor(np.concatenate(times)), np.concatenate(sizes)
        inside = (time_us >= 0) & (time_us < duration_us)
        return Arrivals(
            time_us[inside].astype(np.int64),
            np.zeros(int(inside.sum()), np.int16),
            size_bytes[inside].astype(np.int32),
            n_ue=1,
            duration_us=duration_us,
        )


def burst_bounds(time_us: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last packet of every burst of one UE."""
    breaks = np.flatnonzero(np.diff(time_us) > BURST_GAP_US)
    return np.append(0, breaks + 1), np.append(breaks, time_us.size - 1)


def fit(arrivals: Arrivals) -> BurstModel:
    """Model of one UE's arrivals (packets at most 1,500 bytes)."""
    time_us, size = arrivals.time_us, arrivals.size_bytes.astype(np.int64)
    first, last = burst_bounds(time_us)
    burst_bytes = np.add.reduceat(size, first)
    around_us = time_us[0] + arrivals.duration_us - time_us[-1]
    idle_us = np.append(time_us[first[1:]] - time_us[last[:-1]], around_us)
    kind = np.digitize(burst_bytes, CLASS_EDGES_BYTES)
    counts = np.zeros((N_CLASSES, N_CLASSES))
    np.add.at(counts, (kind, np.roll(kind, -1)), 1.0)
    of_packet = np.repeat(kind, last - first + 1)
    gap_us = np.diff(time_us)
    inside_burst = np.ones(gap_us.size, bool)
    inside_burst[last[:-1]] = False
    classes: list[BurstClass | None] = []
    for c in range(N_CLASSES):
        gaps = gap_us[inside_burst & (of_packet[:-1] == c)]
        if not np.any(kind == c):
            classes.append(None)
            continue
        classes.append(
            BurstClass(
                Quantiles.of(burst_bytes[kind == c]),
                Quantiles.of((last - first + 1)[kind == c]),
                Quantiles.of(size[of_packet == c]),
                Quantiles.of(gaps if gaps.size else [1.0]),
            )
        )
    totals = counts.sum(axis=1, keepdims=True)
    chain = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return BurstModel(
        mean_kbps=8e3 * arrivals.total_bytes / arrivals.duration_us,
        bursts_per_s=1e6 * first.size / arrivals.duration_us,
        idle_us=Quantiles.of(np.maximum(idle_us, BURST_GAP_US)),
        next_class=tuple(tuple(row) for row in chain.tolist()),
        classes=tuple(classes),
    )


def _fill(burst: BurstClass, rng: np.random.Generator) -> NDArray[np.int64]:
    """Packet sizes of one drawn burst.

    One level decides its bytes and its number of packets, which grow together; the packet sizes are
    drawn and then brought to the burst's sum.
    """
    level = rng.random()
    total = max(1, round(float(burst.burst_bytes.at(level))))
    count = max(round(float(burst.burst_packets.at(level))), -(-total // MAX_PACKET_BYTES))
    shape = burst.packet_bytes.sample(rng, max(1, min(count, total)))
    for _ in range(3):  # in proportion, again where the packet limit took some away
        shape = np.clip(shape * (total / shape.sum()), 1.0, MAX_PACKET_BYTES)
    sizes = np.rint(shape).astype(np.int64)
    left = total - int(sizes.sum())  # the rest goes to, or comes from, the first packets with room
    room = MAX_PACKET_BYTES - sizes if left > 0 else sizes - 1
    share = np.clip(abs(left) - (np.cumsum(room) - room), 0, room)
    return np.asarray(sizes + np.sign(left) * share)
