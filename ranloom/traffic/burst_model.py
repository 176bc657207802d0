"""Packets as bursts of trains: a small statistical model, fitted to a trace and sampled from.

Packets at most ``BURST_GAP_US`` apart form a burst; inside it, packets at most ``TRAIN_GAP_US``
apart form a train, which reaches the buffer nearly at once. Bursts fall into three classes by their
bytes (``CLASS_EDGES_BYTES``), and the class of the next burst depends on that of the last (a Markov
chain). All sizes and gaps are drawn from tables of quantiles. Expectations equal the means of the
trace: the tables are rescaled to their means, and the last burst of the trace counts as followed by
its first. What is lost is memory beyond one burst, such as sessions of minutes, and the likeness of
the trains inside one: bursts of a class differ less in their sums than those of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ranloom.traffic.arrivals import MAX_PACKET_BYTES, Arrivals

BURST_GAP_US = 100_000
TRAIN_GAP_US = 1_000  # two slots
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

    @cached_property
    def _log_values(self) -> NDArray[np.float64]:
        return np.log(self.values)

    @cached_property
    def _scale(self) -> float:
        """Mean of the data over that of the interpolation.

        A log-straight segment from a to b averages (b - a) / ln(b / a).
        """
        low, high = np.array(self.values[:-1]), np.array(self.values[1:])
        ratio = np.diff(self._log_values)
        segment = np.where(ratio > 1e-9, (high - low) / np.where(ratio > 1e-9, ratio, 1.0), low)
        return self.mean / float(np.diff(LEVELS) @ segment)

    def sample(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """[count] independent draws."""
        return self.at(rng.random(count))

    def at(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at some levels in 0..1, rescaled so that they average to ``mean``."""
        return np.asarray(np.exp(np.interp(level, LEVELS, self._log_values)) * self._scale)

    def counts(self, level: NDArray[np.float64]) -> NDArray[np.int64]:
        """Values at some levels as whole numbers from 1 on."""
        return np.maximum(1, np.rint(self.at(level))).astype(np.int64)


class Burst(NamedTuple):
    """Drawn values of one burst; sizes follow for all bursts at once.

    Attributes:
        since_us: [n] times of its packets since the first.
        train_bytes: [k] size of each train.
        train_packets: [k] packets of each train, n in all.
        size_level: [n] where in their distribution the sizes of the packets lie, 0 to 1.
    """

    since_us: NDArray[np.float64]
    train_bytes: NDArray[np.int64]
    train_packets: NDArray[np.int64]
    size_level: NDArray[np.float64]


@dataclass(frozen=True)
class BurstClass:
    """Bursts of one size class.

    Args:
        burst_trains: number of trains of a burst.
        train_gap_us: time from the last packet of a train to the first of the next.
        train_bytes: size of a train.
        train_packets: number of its packets; large trains are those of many packets.
        packet_bytes: size of a packet.
        packet_gap_us: mean time between the packets of a train, 0 if all trains are one packet.
    """

    burst_trains: Quantiles
    train_gap_us: Quantiles
    train_bytes: Quantiles
    train_packets: Quantiles
    packet_bytes: Quantiles
    packet_gap_us: float

    @property
    def burst_bytes(self) -> float:
        """Mean size of a burst."""
        return self.burst_trains.mean * self.train_bytes.mean

    def sample(self, rng: np.random.Generator) -> Burst:
        """Draw one burst."""
        level = rng.random(int(self.burst_trains.counts(rng.random(1))[0]))
        train_bytes, packets = self.train_bytes.counts(level), self.train_packets.counts(level)
        # A train a little above what its packets hold is cut rather than given one packet more.
        packets = np.maximum(
            packets, np.ceil(train_bytes / MAX_PACKET_BYTES - 0.1).astype(np.int64)
        )
        packets = np.minimum(packets, train_bytes)
        train_bytes = np.minimum(train_bytes, packets * MAX_PACKET_BYTES)
        size_level = rng.random(int(packets.sum()))
        gaps_us = np.full(size_level.size, self.packet_gap_us)
        between = self.train_gap_us.sample(rng, level.size)
        # not np.clip, which takes several times as long on a few values
        between = np.minimum(np.maximum(between, TRAIN_GAP_US), BURST_GAP_US)
        gaps_us[np.cumsum(packets) - packets] = between
        return Burst(np.cumsum(gaps_us) - gaps_us[0], train_bytes, packets, size_level)


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
        times: list[NDArray[np.float64]] = []
        bursts: list[Burst] = []
        kinds: list[int] = []
        while now_us < duration_us:
            now_us += max(self.idle_us.sample(rng, 1)[0], BURST_GAP_US)
            own = self.classes[kind]
            assert own is not None, "the chain never enters an absent class"
            bursts.append(own.sample(rng))
            kinds.append(kind)
            times.append(now_us + bursts[-1].since_us)
            now_us = times[-1][-1]
            kind = min(int(np.searchsorted(chain[kind], rng.random(), side="right")), N_CLASSES - 1)
        time_us, size_bytes = np.floor(np.concatenate(times)), self.sizes(bursts, kinds)
        inside = (time_us >= 0) & (time_us < duration_us)
        return Arrivals(
            time_us[inside].astype(np.int64),
            np.zeros(int(inside.sum()), np.int16),
            size_bytes[inside].astype(np.int32),
            n_ue=1,
            duration_us=duration_us,
        )

    def sizes(self, bursts: list[Burst], kinds: list[int]) -> NDArray[np.int64]:
        """Bytes of every packet of some bursts, each of a class."""
        level = np.concatenate([burst.size_level for burst in bursts])
        kind = np.repeat(kinds, [burst.size_level.size for burst in bursts])
        shape = np.empty(level.size)
        for c, own in enumerate(self.classes):
            if own is not None:
                shape[kind == c] = own.packet_bytes.at(level[kind == c])
        return _share_out(
            np.concatenate([burst.train_bytes for burst in bursts]),
            np.concatenate([burst.train_packets for burst in bursts]),
            shape,
        )


def runs(time_us: NDArray[np.int64], gap_us: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last packet of every run of packets at most ``gap_us`` apart."""
    breaks = np.flatnonzero(np.diff(time_us) > gap_us)
    return np.append(0, breaks + 1), np.append(breaks, time_us.size - 1)


def fit(arrivals: Arrivals) -> BurstModel:
    """Model of one UE's arrivals (packets at most 1,500 bytes)."""
    time_us, size = arrivals.time_us, arrivals.size_bytes.astype(np.int64)
    first, last = runs(time_us, BURST_GAP_US)
    kind = np.digitize(np.add.reduceat(size, first), CLASS_EDGES_BYTES)
    around_us = time_us[0] + arrivals.duration_us - time_us[-1]
    idle_us = np.append(time_us[first[1:]] - time_us[last[:-1]], around_us)
    counts = np.zeros((N_CLASSES, N_CLASSES))
    np.add.at(counts, (kind, np.roll(kind, -1)), 1.0)
    totals = counts.sum(axis=1, keepdims=True)
    chain = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    bursts = [(time_us[a : b + 1], size[a : b + 1]) for a, b in zip(first, last, strict=True)]
    return BurstModel(
        mean_kbps=8e3 * arrivals.total_bytes / arrivals.duration_us,
        bursts_per_s=1e6 * first.size / arrivals.duration_us,
        idle_us=Quantiles.of(np.maximum(idle_us, BURST_GAP_US)),
        next_class=tuple(tuple(row) for row in chain.tolist()),
        classes=tuple(
            _fit_class([burst for burst, k in zip(bursts, kind, strict=True) if k == c])
            for c in range(N_CLASSES)
        ),
    )


def _fit_class(
    bursts: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> BurstClass | None:
    """Tables of some bursts, each its packets' times and sizes; ``None`` for no burst."""
    if not bursts:
        return None
    bounds = [runs(time_us, TRAIN_GAP_US) for time_us, _ in bursts]
    between = [t[a[1:]] - t[b[:-1]] for (t, _), (a, b) in zip(bursts, bounds, strict=True)]
    within = [t[b] - t[a] for (t, _), (a, b) in zip(bursts, bounds, strict=True)]
    packets = np.concatenate([b - a + 1 for a, b in bounds])
    train_gap_us = np.concatenate(between)
    inner_gaps = int(packets.sum() - packets.size)
    return BurstClass(
        burst_trains=Quantiles.of([a.size for a, _ in bounds]),
        train_gap_us=Quantiles.of(train_gap_us if train_gap_us.size else [TRAIN_GAP_US]),
        train_bytes=Quantiles.of(
            np.concatenate(
                [np.add.reduceat(s, a) for (_, s), (a, _) in zip(bursts, bounds, strict=True)]
            )
        ),
        train_packets=Quantiles.of(packets),
        packet_bytes=Quantiles.of(np.concatenate([size for _, size in bursts])),
        packet_gap_us=float(np.concatenate(within).sum() / max(1, inner_gaps)),
    )


def _share_out(
    totals: NDArray[np.int64], counts: NDArray[np.int64], shape: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Split each total of bytes into packets in proportion to ``shape``, as far as a packet holds.

    Args:
        totals: [k] bytes; ``counts <= totals <= 1500 * counts``.
        counts: [k] packets of each.
        shape: [sum of counts] positive, the packets of the first total first.

    Returns:
        [sum of counts] bytes of each packet, 1 to 1,500.
    """
    group, first = np.repeat(np.arange(totals.size), counts), np.cumsum(counts) - counts
    for _ in range(3):  # again where the limit took some away
        shape = shape * (totals / np.add.reduceat(shape, first))[group]
        shape = np.clip(shape, 1.0, MAX_PACKET_BYTES)
    parts = np.rint(shape).astype(np.int64)
    left = (totals - np.add.reduceat(parts, first))[group]
    room = np.where(left > 0, MAX_PACKET_BYTES - parts, parts - 1)
    before = np.cumsum(room) - room
    taken = np.clip(np.abs(left) - (before - before[first][group]), 0, room)
    return np.asarray(parts + np.sign(left) * taken)
