"""The packet side: which demands fit into the granted packet rate by their deadlines.

On one bottleneck a set of demands can be carried if and only if the preemptive
earliest-deadline-first (EDF) demand bound holds: for every interval ``[a, d]`` the work of
the demands that are released at or after ``a`` and due at or before ``d`` is at most
``d - a`` (Dertouzos 1974; Baruah, Rosier, Howell 1990). Work is transmission time on the
bottleneck in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ranloom.transport.demands import BoolArray, FloatArray, IntArray


def work_ns(size_bytes: IntArray, rate_gbps: float) -> IntArray:
    """Transmission time at a rate, in ns, rounded up (1 Gb/s is 1 bit/ns)."""
    work: IntArray = np.ceil(size_bytes * (8.0 / rate_gbps)).astype(np.int64)
    return work


@njit(cache=True)
def _push(heap: IntArray, size: int, rank: int) -> int:
    child = size
    heap[child] = rank
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= heap[child]:
            break
        heap[parent], heap[child] = heap[child], heap[parent]
        child = parent
    return size + 1


@njit(cache=True)
def _pop(heap: IntArray, size: int) -> int:
    size -= 1
    heap[0] = heap[size]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[parent] <= heap[child]:
            break
        heap[parent], heap[child] = heap[child], heap[parent]
        parent = child
    return size


@njit(cache=True)
def _edf(
    release: IntArray,
    deadline: IntArray,
    work: IntArray,
    rank: IntArray,
    row_of: IntArray,
    alive: BoolArray,
    finish: IntArray,
    seg_row: IntArray,
    seg_start: IntArray,
    seg_end: IntArray,
) -> tuple[int, bool]:
    """Preemptive EDF on one server. Returns (segments written, all deadlines met)."""
    n = len(release)
    heap = np.empty(n, dtype=np.int64)
    left = work.copy()
    size = 0
    upcoming = 0
    now = np.int64(0)
    segments = 0
    record = len(seg_row) > 0
    while True:
        while upcoming < n and not alive[upcoming]:
            upcoming += 1
        if size == 0:
            if upcoming == n:
                return segments, True
            now = max(now, release[upcoming])
        while upcoming < n and release[upcoming] <= now:
            if alive[upcoming]:
                size = _push(heap, size, rank[upcoming])
            upcoming += 1
        row = row_of[heap[0]]
        until = now + left[row]
        ahead = upcoming
        while ahead < n and not alive[ahead]:
            ahead += 1
        if ahead < n and release[ahead] < until:
            until = release[ahead]
        if record:
            if segments and seg_row[segments - 1] == row and seg_end[segments - 1] == now:
                seg_end[segments - 1] = until
            else:
                seg_row[segments] = row
                seg_start[segments] = now
                seg_end[segments] = until
                segments += 1
        left[row] -= until - now
        now = until
        if left[row] == 0:
            size = _pop(heap, size)
            finish[row] = now
            if now > deadline[row]:
                return segments, False


@dataclass(frozen=True)
class Segments:
    """Rates over time: row ``row[k]`` sends at ``gbps[k]`` during ``[start_ns[k], end_ns[k]]``."""

    row: IntArray
    start_ns: IntArray
    end_ns: IntArray
    gbps: FloatArray


@dataclass(frozen=True)
class Server:
    """Demands on one bottleneck, sorted by release, ready for repeated EDF tests.

    Args:
        rows: [n] demand row of each entry.
        release_ns: [n] releases, ascending.
        deadline_ns: [n] deadlines.
        work: [n] transmission time in ns.
        rank: [n] position of the entry in deadline order.
        row_of: [n] entry at each such position.
        gbps: rate of the bottleneck.
    """

    rows: IntArray
    release_ns: IntArray
    deadline_ns: IntArray
    work: IntArray
    rank: IntArray
    row_of: IntArray
    gbps: float

    @staticmethod
    def of(
        rows: IntArray,
        size_bytes: IntArray,
        release_ns: IntArray,
        deadline_ns: IntArray,
        gbps: float,
    ) -> Server:
        """Server for these rows; the columns cover all demands."""
        rows = rows[np.argsort(release_ns[rows], kind="stable")]
        deadline = deadline_ns[rows]
        row_of = np.argsort(deadline, kind="stable")
        rank = np.empty(len(rows), dtype=np.int64)
        rank[row_of] = np.arange(len(rows))
        work = work_ns(size_bytes[rows], gbps)
        return Server(rows, release_ns[rows], deadline, work, rank, row_of, gbps)

    def fits(self, alive: BoolArray) -> bool:
        """Whether EDF carries these entries by their deadlines (exact)."""
        empty = np.empty(0, dtype=np.int64)
        finish = np.empty(len(self.rows), dtype=np.int64)
        _, met = _edf(
            self.release_ns,
            self.deadline_ns,
            self.work,
            self.rank,
            self.row_of,
            alive,
            finish,
            empty,
            empty,
            empty,
        )
        return bool(met)

    def schedule(self, alive: BoolArray) -> tuple[IntArray, Segments]:
        """EDF schedule of these entries, which must fit.

        Returns:
            [n] finish times in ns (0 for entries that are not alive), and the segments with
            demand rows.
        """
        n = len(self.rows)
        finish = np.zeros(n, dtype=np.int64)
        row, start, end = (np.empty(2 * n + 1, dtype=np.int64) for _ in range(3))
        count, met = _edf(
            self.release_ns,
            self.deadline_ns,
            self.work,
            self.rank,
            self.row_of,
            alive,
            finish,
            row,
            start,
            end,
        )
        assert met, "only sets that fit are scheduled"
        gbps = np.full(count, self.gbps)
        return finish, Segments(self.rows[row[:count]], start[:count], end[:count], gbps)
