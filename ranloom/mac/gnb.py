# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The gNB's side of a slot before the grants: feedback, retransmissions, who wants to be served."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.harq import (
    NO_REPORT,
    pop_retransmission,
    queue_retransmission,
    release_process,
)
from ranloom.mac.kernel import kernel
from ranloom.mac.link_adaptation import measured, select_mcs
from ranloom.mac.proportional_fair import (
    MAX_THROUGHPUT_WEIGHT,
    add_backlogged,
    add_retransmission,
    add_signalling,
)
from ranloom.mac.recorder import LONG_DECODE_US, record_feedback
from ranloom.mac.rlc import deliver_block, give_up_block

NEVER = 1 << 60


class GnbState(NamedTuple):
    """What the gNB and the UEs know of each UE, int64[n_ue] unless said otherwise.

    Attributes:
        estimate: reported buffer in bytes.
        scheduled: bytes granted and not yet decoded.
        throughput: float64, moving average of bytes per UL slot.
        granted: bytes granted in the slot before.
        last_grant_slot: slot of the last grant.
        request_slot: slot from which a scheduling request is known, or ``NEVER``.
        report_due: 1 while the UE wants to report its buffer.
        last_report_us: when it last did.
    """

    estimate: NDArray[np.int64]
    scheduled: NDArray[np.int64]
    throughput: NDArray[np.float64]
    granted: NDArray[np.int64]
    last_grant_slot: NDArray[np.int64]
    request_slot: NDArray[np.int64]
    report_due: NDArray[np.int64]
    last_report_us: NDArray[np.int64]


def gnb_state(n_ue: int) -> GnbState:
    """Nothing reported, nothing granted."""
    return GnbState(
        estimate=np.zeros(n_ue, np.int64),
        scheduled=np.zeros(n_ue, np.int64),
        throughput=np.zeros(n_ue),
        granted=np.zeros(n_ue, np.int64),
        last_grant_slot=np.zeros(n_ue, np.int64),
        request_slot=np.full(n_ue, NEVER, np.int64),
        report_due=np.zeros(n_ue, np.int64),
        last_report_us=np.zeros(n_ue, np.int64),
    )


@kernel
def handle_feedback(
    now_us, rules, link_rules, plant, gnb, link, harq, queue, packet, rlc, recorder
):
    """Handle the feedback of all blocks whose decode has ended by ``now_us``."""
    mask = queue.ue.shape[0] - 1
    count = recorder.counters[0]
    while queue.head[0] < queue.head[1]:
        at = queue.head[0] & mask
        done = queue.done_us[at]
        if done > now_us:
            break
        queue.head[0] += 1
        u = queue.ue[at]
        process = queue.process[at]
        ok = queue.ok[at] == 1
        if queue.leads[at] == 1:
            count.decodes += 1
            if queue.decode_us[at] > LONG_DECODE_US:
                count.long_decodes += 1
        overdue = done - queue.slot_end_us[at] > plant.grace_us
        if overdue:
            count.overdue_blocks += 1
        is_first = harq.rounds[u, process] == 1
        if is_first and not ok:
            count.first_errors += 1
        measured(u, queue.snr_db[at], ok, is_first, link_rules, link)
        carried = 0
        report = NO_REPORT
        mcs, n_prb = harq.mcs[u, process], harq.n_prb[u, process]
        if ok:
            carried = deliver_block(u, process, done, packet, rlc, harq)
            gnb.scheduled[u] -= harq.tbs_bytes[u, process]
            gnb.estimate[u] = max(0, gnb.estimate[u] - carried)
            report = harq.report_bytes[u, process]
            if report != NO_REPORT:
                gnb.estimate[u] = report
            release_process(u, process, harq)
        elif harq.rounds[u, process] >= rules.harq_rounds:
            count.failed_blocks += 1
            gnb.scheduled[u] -= harq.tbs_bytes[u, process]
            give_up_block(
                u, process, done, rules.am_status_us, rules.am_max_retx, packet, rlc, harq
            )
            release_process(u, process, harq)
        else:
            snr = 10.0 ** (0.1 * queue.snr_db[at])
            if harq.rounds[u, process] == 1:
                harq.snr_sum[u, process] = 0.0
                harq.log2_sum[u, process] = 0.0
            harq.snr_sum[u, process] += snr
            harq.log2_sum[u, process] += math.log2(1.0 + snr)
            queue_retransmission(u, process, harq)
        record_feedback(
            done, overdue, ok, queue.snr_db[at], mcs, n_prb, carried, report, u, recorder
        )


@kernel
def place_retransmissions(request, scheduler, tables, gnb, harq, chosen):
    """Oldest failed block of each UE in list order, as long as it fits; others wait."""
    free = scheduler.n_prb
    for u in range(gnb.estimate.shape[0]):
        chosen[u] = -1
        if harq.n_retx[u] > 0 and request.head[0].retx_blocks < scheduler.max_blocks:
            n_prb = harq.n_prb[u, harq.retx[u, harq.retx_first[u]]]
            if n_prb <= free:
                process = pop_retransmission(u, harq)
                chosen[u] = process
                free -= n_prb
                add_retransmission(request, n_prb, harq.mcs[u, process], tables)


@kernel
def collect_candidates(
    slot, rules, scheduler, link_rules, blocks, gnb, link, harq, chosen, request
):
    """UEs that want a new transport block, as known when the slot is decided."""
    decision_slot = slot - rules.k2_slots
    for u in range(gnb.estimate.shape[0]):
        if chosen[u] >= 0 or harq.n_free[u] == 0:
            continue
        backlog = gnb.estimate[u] - gnb.scheduled[u]
        if backlog > 0:
            mcs = select_mcs(u, decision_slot * rules.slot_us, link_rules, link)
            weight = blocks.weight_bytes[mcs] / max(gnb.throughput[u], MAX_THROUGHPUT_WEIGHT)
            limit = rules.power_limit_rb[u]
            add_backlogged(request, u, backlog, mcs, weight, limit, scheduler, blocks.tbs_bytes)
        elif gnb.request_slot[u] <= decision_slot or (
            rules.inactivity_slots > 0
            and decision_slot - gnb.last_grant_slot[u] >= rules.inactivity_slots
        ):
            mcs = select_mcs(u, decision_slot * rules.slot_us, link_rules, link)
            add_signalling(request, u, min(rules.initial_mcs, mcs), scheduler)
