"""Circuit windows: which demands can share one, how long it lasts, where it fits.

A window occupies its path, one channel and one optical port at each end from its start to
its end plus the guard time. It begins with the set-up; then it carries its riders at the
circuit rate. Light never waits for data: a window of set-up ``T`` and riders ``S`` lasts
``T + sum(b_k / R)`` and is started so late that every rider is there when its turn comes.
It can therefore end no earlier than, for each rider j, ``r_j + sum(b_k / R : r_k >= r_j)``,
and it must end by the earliest deadline of its riders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ranloom.transport.demands import Demands, IntArray
from ranloom.transport.network import Network
from ranloom.transport.packet import work_ns

#: Windows that are remembered: local search asks for the same ones again and again.
_MOST_JOBS = 20_000


@dataclass(frozen=True)
class Job:
    """A window that is still to be placed.

    Args:
        pair: index of its node pair.
        rows: demand rows that ride in it, by release.
        length_ns: set-up and transmission.
        first_start_ns: earliest start.
        last_start_ns: latest start; before the earliest one if the riders cannot share.
        bytes: payload of the riders.
    """

    pair: int
    rows: IntArray
    length_ns: int
    first_start_ns: int
    last_start_ns: int
    bytes: int

    @property
    def feasible(self) -> bool:
        """Whether some start is early and late enough for all riders."""
        return self.first_start_ns <= self.last_start_ns


class WindowRules:
    """Window arithmetic of one set of demands on one network.

    Args:
        demands: the demands.
        network: the network.
        now_ns: no window starts earlier.
    """

    def __init__(self, demands: Demands, network: Network, now_ns: int) -> None:
        self.demands = demands
        self.now_ns = now_ns
        self.setup_ns = network.settings.setup_ns
        self.transmit_ns = work_ns(demands.bytes, network.settings.circuit_gbps)
        self._jobs: dict[bytes, Job] = {}

    def job(self, pair: int, rows: IntArray) -> Job:
        """The window that carries these rows of a pair."""
        key = rows.tobytes()
        found = self._jobs.get(key)
        if found is None:
            if len(self._jobs) >= _MOST_JOBS:
                self._jobs.clear()
            found = self._jobs[key] = self._job(pair, rows)
        return found

    def _job(self, pair: int, rows: IntArray) -> Job:
        release = self.demands.release_ns[rows]
        order = np.argsort(release, kind="stable")
        rows, release = rows[order], release[order]
        transmit = self.transmit_ns[rows]
        sending = int(transmit.sum())
        behind = np.cumsum(transmit[::-1])[::-1]
        earliest_end = int((release + behind).max())
        length = self.setup_ns + sending
        return Job(
            pair=pair,
            rows=rows,
            length_ns=length,
            first_start_ns=max(self.now_ns, earliest_end - length),
            last_start_ns=int(self.demands.deadline_ns[rows].min()) - length,
            bytes=int(self.demands.bytes[rows].sum()),
        )

    def rider_finish_ns(self, job: Job, start_ns: int) -> IntArray:
        """When each rider of a placed window has arrived, in the order of ``job.rows``."""
        clock = start_ns + self.setup_ns
        finish = np.empty(len(job.rows), dtype=np.int64)
        for position, row in enumerate(job.rows):
            clock = max(clock, int(self.demands.release_ns[row])) + int(self.transmit_ns[row])
            finish[position] = clock
        return finish

    def clusters(self, pair_of: IntArray) -> tuple[IntArray, int]:
        """Split the demands of each pair into the fewest sets that can share a window.

        Each set is opened by the earliest deadline that is left and takes every later one
        that is complete in time: interval stabbing, optimal when transmission is short
        against the time between release and deadline.

        Returns:
            [n] set of each row (-1: no window can carry it in time), and the number of sets.
        """
        cluster, count = _clusters(
            np.lexsort((self.demands.release_ns, self.demands.deadline_ns, pair_of)),
            pair_of,
            self.demands.release_ns,
            self.demands.deadline_ns,
            self.transmit_ns,
            self.setup_ns,
            self.now_ns,
        )
        return cluster, int(count)


def served(
    rows: IntArray, ready_ns: int, end_ns: int, demands: Demands, circuit_gbps: float
) -> tuple[IntArray, IntArray]:
    """Riders that a window of fixed length serves in time, in the order of their releases.

    Args:
        rows: demands that want to ride.
        ready_ns: light is there and free.
        end_ns: end of the window.
        demands: with the releases that occur or are expected.
        circuit_gbps: rate of light.

    Returns:
        Rows that arrive before the window and their deadline end, and when; the others would
        be too late and are left out.
    """
    rows = rows[np.argsort(demands.release_ns[rows], kind="stable")]
    transmit = work_ns(demands.bytes[rows], circuit_gbps)
    stays, finish, clock = [], [], ready_ns
    for row, sending in zip(rows.tolist(), transmit.tolist(), strict=True):
        end = max(clock, int(demands.release_ns[row])) + sending
        if end <= min(end_ns, int(demands.deadline_ns[row])):
            clock = end
            stays.append(row)
            finish.append(end)
    return np.array(stays, dtype=np.int64), np.array(finish, dtype=np.int64)


@njit(cache=True)
def _earliest_end(
    members: IntArray, count: int, release: IntArray, transmit: IntArray, ready: int
) -> int:
    """Earliest end of a window whose light is there at ``ready``: serve in release order."""
    taken = np.sort(release[members[:count]])
    order = np.argsort(release[members[:count]])
    clock = ready
    for k in range(count):
        clock = max(clock, taken[k]) + transmit[members[order[k]]]
    return clock


@njit(cache=True)
def _clusters(
    order: IntArray,
    pair_of: IntArray,
    release: IntArray,
    deadline: IntArray,
    transmit: IntArray,
    setup: int,
    now: int,
) -> tuple[IntArray, int]:
    n = len(order)
    cluster = np.full(n, -1, dtype=np.int64)
    members = np.empty(n, dtype=np.int64)
    count = 0
    for first in range(n):
        seed = order[first]
        ready = now + setup
        alone = max(ready, release[seed]) + transmit[seed]
        if cluster[seed] >= 0 or alone > deadline[seed]:
            continue
        due = deadline[seed]
        size = 1
        members[0] = seed
        sending = transmit[seed]
        latest = max(ready, release[seed])
        for later in range(first + 1, n):
            row = order[later]
            if pair_of[row] != pair_of[seed]:
                break
            if cluster[row] >= 0 or release[row] + transmit[row] > due:
                continue
            members[size] = row
            end = max(latest, release[row]) + sending + transmit[row]
            if end > due:
                end = _earliest_end(members, size + 1, release, transmit, ready)
            if end <= due:
                size += 1
                sending += transmit[row]
                latest = max(latest, release[row])
        for k in range(size):
            cluster[members[k]] = count
        count += 1
    return cluster, count


def orders(jobs: list[Job]) -> list[IntArray]:
    """Orders in which a list schedule tries the jobs: six priority rules, without repeats."""
    last = np.array([job.last_start_ns for job in jobs], dtype=np.int64)
    first = np.array([job.first_start_ns for job in jobs], dtype=np.int64)
    length = np.array([job.length_ns for job in jobs], dtype=np.int64)
    size = np.array([job.bytes for job in jobs], dtype=np.int64)
    keys = (
        (first, last + length),  # earliest due
        (first, last),  # latest start
        (last, first),  # earliest ready
        (last, last - first),  # least slack
        (last, -size),  # most bytes
        (last, length),  # shortest
    )
    found: dict[bytes, IntArray] = {}
    for key in keys:
        order = np.lexsort(key).astype(np.int64)
        found.setdefault(order.tobytes(), order)
    return list(found.values())
