"""Candidate windows as points in time.

A window that carries a set of demands can be named by the earliest deadline among them: it
ends by then, so each of its riders is complete before and due at or after that point. The
candidates of a node pair are therefore its demands' deadlines, and a demand can ride in those
that lie between the end of its own transmission and its own deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.transport.demands import BoolArray, IntArray
from ranloom.transport.windows import WindowRules

#: Most candidates of one demand, the latest ones; bounds memory for pairs with many demands.
_MOST_PER_ROW = 32


@dataclass(frozen=True)
class Points:
    """Candidates of all pairs, by pair and time.

    Args:
        pair: [points] node pair.
        due_ns: [points] the point.
        first: [n + 1] where each demand's candidates begin in ``of_row``; they are adjacent.
        of_row: candidates, demand by demand.
        first_row: [points + 1] where each candidate's demands begin in ``rows``.
        rows: demands that can ride, candidate by candidate, by release.
    """

    pair: IntArray
    due_ns: IntArray
    first: IntArray
    of_row: IntArray
    first_row: IntArray
    rows: IntArray

    def __len__(self) -> int:
        return len(self.pair)

    def riders(self, point: int) -> IntArray:
        """Demands that can ride in a candidate."""
        return self.rows[self.first_row[point] : self.first_row[point + 1]]


def no_points(n: int) -> Points:
    """No candidates for n demands."""
    none = np.empty(0, dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    return Points(none, none, np.zeros(n + 1, dtype=np.int64), none, zero, none)


def points_of(rules: WindowRules, pair_of: IntArray, may_ride: BoolArray | None = None) -> Points:
    """Candidates of the demands of a set of rules.

    Args:
        rules: window arithmetic.
        pair_of: [n] pair of each demand.
        may_ride: [n] demands that may ride; None: all.
    """
    demands = rules.demands
    dues = np.unique(demands.deadline_ns)
    due_rank = np.searchsorted(dues, demands.deadline_ns)
    ready = np.maximum(demands.release_ns, rules.now_ns + rules.setup_ns) + rules.transmit_ns
    ready_rank = np.searchsorted(dues, ready)
    in_time = ready <= demands.deadline_ns
    if may_ride is not None:
        in_time &= may_ride
    key = np.unique((pair_of * len(dues) + due_rank)[in_time])
    high = np.searchsorted(key, pair_of * len(dues) + due_rank, side="right")
    low = np.searchsorted(key, pair_of * len(dues) + ready_rank)
    low = np.maximum(low, high - _MOST_PER_ROW)
    count = np.where(in_time, np.maximum(high - low, 0), 0)
    first = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    rows = np.repeat(np.arange(len(demands)), count)
    of_row = np.arange(first[-1]) - np.repeat(first[:-1] - low, count)
    order = np.lexsort((demands.release_ns[rows], of_row))
    sizes = np.bincount(of_row, minlength=len(key))
    return Points(
        pair=key // max(1, len(dues)),
        due_ns=dues[key % max(1, len(dues))],
        first=first,
        of_row=of_row.astype(np.int64),
        first_row=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        rows=rows[order].astype(np.int64),
    )
