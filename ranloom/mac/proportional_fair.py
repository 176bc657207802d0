# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Proportional-fair allocation of one UL slot, after OpenAirInterface's order of decisions.

The candidates of a slot are collected once into a :class:`SlotRequest`, in the order in which
they are served: first UEs that only asked for a grant (scheduling request or inactivity), then
UEs with backlog by descending weight. Allocating under a PRB cap is then cheap, so that a
controller can do it several times in one slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.kernel import kernel
from ranloom.mac.sm_tables import lut_sm

REQUEST_HEAD = np.dtype(
    [
        ("n_signalling", np.int64),  # candidates without backlog; they come first
        ("n_candidates", np.int64),
        ("backlog_bytes", np.int64),  # sum over all candidates
        ("max_backlog_bytes", np.int64),
        ("retx_blocks", np.int64),  # retransmissions already placed in this slot
        ("retx_prb", np.int64),
        ("retx_mcs_prb", np.int64),  # sum of MCS x PRB of these
        ("retx_sm", np.int64),  # SMs that these alone need, 0 without any
        ("retx_sm_per_block", np.int64),  # the same as a sum over blocks
    ]
)
GRANT_HEAD = np.dtype(
    [
        ("n_prb", np.int64),  # PRBs of the slot, retransmissions included
        ("mcs_prb", np.int64),  # sum of MCS x PRB, retransmissions included
        ("held_back", np.int64),  # candidates that got less than they need for lack of PRBs
    ]
)
MAX_THROUGHPUT_WEIGHT = 1.0  # bytes: keeps the weight of a UE that never sent finite


class SchedulerRules(NamedTuple):
    """Constants of the allocation.

    Attributes:
        n_prb: carrier width.
        min_rb: smallest grant.
        max_blocks: most UEs in one slot.
        shared: 0 for ``greedy_first``, 1 for ``shared``.
    """

    n_prb: int
    min_rb: int
    max_blocks: int
    shared: int


class SlotRequest(NamedTuple):
    """Who wants to be served in a slot; arrays over candidates in service order.

    Attributes:
        head: one record of ``REQUEST_HEAD``.
        ue: int64[n_ue], UE index.
        backlog_bytes: int64[n_ue], reported buffer minus what is already scheduled.
        mcs: int64[n_ue].
        weight: float64[n_ue], proportional-fair weight.
        need_rb: int64[n_ue], PRBs that carry the backlog, at most what its power allows.
    """

    head: NDArray
    ue: NDArray[np.int64]
    backlog_bytes: NDArray[np.int64]
    mcs: NDArray[np.int64]
    weight: NDArray[np.float64]
    need_rb: NDArray[np.int64]


class Grants(NamedTuple):
    """New transmissions of a slot: PRBs of each candidate (0: none) and totals."""

    head: NDArray
    rb: NDArray[np.int64]


def slot_request(n_ue: int) -> SlotRequest:
    """An empty request for up to ``n_ue`` candidates."""
    ue, backlog, mcs, need = (np.zeros(n_ue, np.int64) for _ in range(4))
    return SlotRequest(np.zeros(1, REQUEST_HEAD), ue, backlog, mcs, np.zeros(n_ue), need)


def slot_grants(n_ue: int) -> Grants:
    """Room for the grants of up to ``n_ue`` candidates."""
    return Grants(np.zeros(1, GRANT_HEAD), np.zeros(n_ue, np.int64))


@kernel
def clear_request(request):
    """Start a new slot: no candidates, no retransmissions."""
    head = request.head[0]
    head.n_signalling = 0
    head.n_candidates = 0
    head.backlog_bytes = 0
    head.max_backlog_bytes = 0
    head.retx_blocks = 0
    head.retx_prb = 0
    head.retx_mcs_prb = 0
    head.retx_sm = 0
    head.retx_sm_per_block = 0


@kernel
def add_retransmission(request, n_prb, mcs, tables):
    """Place a retransmission; all have to be placed before the allocation."""
    head = request.head[0]
    head.retx_blocks += 1
    head.retx_prb += n_prb
    head.retx_mcs_prb += n_prb * mcs
    head.retx_sm = lut_sm(head.retx_mcs_prb / head.retx_prb, head.retx_prb, tables)
    head.retx_sm_per_block += tables.min_sm[mcs, n_prb]


@kernel
def fewest_rb(size_bytes, mcs, low, high, tbs_bytes):
    """Fewest PRBs whose transport block holds ``size_bytes``; ``high`` if none does.

    Args:
        size_bytes: bytes to carry.
        mcs: MCS index.
        low: smallest answer.
        high: largest answer.
        tbs_bytes: int64[n_mcs, n_prb + 1].
    """
    row = tbs_bytes[mcs]
    if high <= low or row[high] <= size_bytes:
        return high
    while low < high:
        middle = (low + high) >> 1
        if row[middle] >= size_bytes:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _insert(request, last, first, ue, backlog_bytes, mcs, weight, need_rb):
    """Put a candidate at position ``first``; those from there to ``last`` move up by one."""
    for i in range(last, first, -1):
        request.ue[i] = request.ue[i - 1]
        request.backlog_bytes[i] = request.backlog_bytes[i - 1]
        request.mcs[i] = request.mcs[i - 1]
        request.weight[i] = request.weight[i - 1]
        request.need_rb[i] = request.need_rb[i - 1]
    request.ue[first] = ue
    request.backlog_bytes[first] = backlog_bytes
    request.mcs[first] = mcs
    request.weight[first] = weight
    request.need_rb[first] = need_rb
    request.head[0].n_candidates += 1


@kernel
def add_signalling(request, ue, mcs, rules):
    """Add a UE without known backlog: it gets the smallest grant, before all with backlog."""
    head = request.head[0]
    _insert(request, head.n_candidates, head.n_signalling, ue, 0, mcs, 0.0, rules.min_rb)
    head.n_signalling += 1


@kernel
def add_backlogged(request, ue, backlog_bytes, mcs, weight, limit_rb, rules, tbs_bytes):
    """Add a UE with backlog by descending weight (ties keep the order of adding).

    Args:
        request: the slot's candidates.
        ue: UE index.
        backlog_bytes: reported buffer minus what is already scheduled, above 0.
        mcs: MCS of its next block.
        weight: proportional-fair weight.
        limit_rb: widest grant (power headroom, carrier).
        rules: constants of the allocation.
        tbs_bytes: int64[n_mcs, n_prb + 1].
    """
    head = request.head[0]
    at = head.n_candidates
    while at > head.n_signalling and request.weight[at - 1] < weight:
        at -= 1
    need = fewest_rb(backlog_bytes, mcs, rules.min_rb, limit_rb, tbs_bytes)
    _insert(request, head.n_candidates, at, ue, backlog_bytes, mcs, weight, need)
    head.backlog_bytes += backlog_bytes
    head.max_backlog_bytes = max(head.max_backlog_bytes, backlog_bytes)


@kernel
def allocate(request, cap_prb, rules, grants):
    """Grant PRBs to the candidates of a slot under a cap.

    Retransmissions were placed before and count against the cap, but are not limited by it.

    Args:
        request: the candidates.
        cap_prb: most PRBs of the slot, retransmissions included.
        rules: constants of the allocation.
        grants: written.
    """
    head = request.head[0]
    n = head.n_candidates
    free = min(cap_prb, rules.n_prb) - head.retx_prb
    blocks = rules.max_blocks - head.retx_blocks
    total = head.retx_prb
    mcs_prb = head.retx_mcs_prb
    held_back = 0
    share = rules.n_prb
    if rules.shared == 1 and n > head.n_signalling:
        waiting = min(n - head.n_signalling, max(blocks - head.n_signalling, 1))
        share = max(rules.min_rb, (free - head.n_signalling * rules.min_rb) // waiting)
    for i in range(n):
        rb = 0
        if blocks > 0:
            if free >= rules.min_rb:
                rb = min(request.need_rb[i], free, share)
                blocks -= 1
                free -= rb
                total += rb
                mcs_prb += rb * request.mcs[i]
            if rb < request.need_rb[i]:
                held_back += 1
        grants.rb[i] = rb
    if rules.shared == 1 and free > 0 and held_back > 0:
        # what the first round left goes to who still needs it, in the same order
        for i in range(head.n_signalling, n):
            extra = min(request.need_rb[i] - grants.rb[i], free)
            if grants.rb[i] > 0 and extra > 0:
                grants.rb[i] += extra
                free -= extra
                total += extra
                mcs_prb += extra * request.mcs[i]
                if grants.rb[i] == request.need_rb[i]:
                    held_back -= 1
    out = grants.head[0]
    out.n_prb = total
    out.mcs_prb = mcs_prb
    out.held_back = held_back
