# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The slot loop of one uplink cell.

Each UL slot runs in this order: feedback that has arrived by the time of the grant decision
(slot - K2), ageing of the throughput averages, retransmissions, candidates, the controller's
decision, then transmission and decoding at the slot itself. Decisions see nothing that happens
after their own time. Stretches in which nothing can happen are skipped.

All state lives in arrays, so that a run can be cut anywhere and continued.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.bsr import reported_bytes
from ranloom.mac.controllers.dispatch import Controllers, decide, is_settled, skip_empty_slots
from ranloom.mac.draws import STREAM_BLOCK_ERROR, uniform
from ranloom.mac.harq import (
    NO_REPORT,
    DecodeQueue,
    HarqState,
    pop_retransmission,
    queue_retransmission,
    release_process,
    start_decode,
    take_process,
)
from ranloom.mac.kernel import kernel
from ranloom.mac.link_adaptation import LinkRules, LinkState, measured, select_mcs
from ranloom.mac.plant import Plant, PlantState, decode_latency_us, schedule_decode
from ranloom.mac.proportional_fair import (
    MAX_THROUGHPUT_WEIGHT,
    Grants,
    SchedulerRules,
    SlotRequest,
    add_backlogged,
    add_retransmission,
    add_signalling,
    clear_request,
)
from ranloom.mac.rlc import (
    Packets,
    RlcState,
    admit_next,
    buffered_bytes,
    deliver_block,
    fill_block,
    give_up_block,
    release_ranges,
)
from ranloom.mac.sm_tables import SmTables, lut_sm
from ranloom.nr.bler import block_error_rate, combined_snr_db

NEVER = 1 << 60
PADDING_REPORT_BYTES = 2  # a short BSR fits into this much padding (38.321 clause 5.4.5)
LONG_DECODE_US = 1000.0
THROUGHPUT_MEMORY = 0.99
CERTAIN_SIGMAS = 7.0  # a block this far above its waterfall does not fail

COUNTERS = np.dtype(
    [
        ("scheduled_slots", np.int64),  # UL slots with at least one transport block
        ("initial_blocks", np.int64),
        ("first_errors", np.int64),  # first transmissions that could not be decoded
        ("retransmissions", np.int64),
        ("failed_blocks", np.int64),  # given up after the last round
        ("overdue_blocks", np.int64),  # HARQ feedback after the grace window
        ("decodes", np.int64),
        ("long_decodes", np.int64),  # longer than 1 ms
        ("signalling_grants", np.int64),
        ("granted_bytes", np.int64),
        ("padding_bytes", np.int64),
    ]
)
# one row per change of the reservation
CHANGE_COLUMNS = ("ul_index", "sm", "reason", "passes", "lut_mcs", "lut_prb")
# one row per traced UL slot
TRACE_COLUMNS = (
    "demand_sm",
    "demand_per_block_sm",
    "reserved_sm",
    "n_prb",
    "mcs_prb",
    "work",
    "backlog_bytes",
)
SECOND_COLUMNS = ("used_prb", "work", "demand_peak_sm", "decodes")


class CellRules(NamedTuple):
    """Constants of a cell; see :class:`~ranloom.mac.config.CellConfig`."""

    slot_us: int
    period_slots: int
    ul_offsets: NDArray[np.int64]
    k2_slots: int
    harq_rounds: int
    am_status_us: int
    am_max_retx: int
    report_period_us: int
    report_again_us: int
    sr_period_slots: int
    inactivity_slots: int
    buffer_limit_bytes: int
    bsr_levels: NDArray[np.int64]
    power_limit_rb: NDArray[np.int64]
    initial_mcs: int
    seed: int


class BlockTables(NamedTuple):
    """Facts about a transport block by (MCS, PRB).

    Attributes:
        tbs_bytes: int64[n_mcs, n_prb + 1].
        work: int64[n_mcs, n_prb + 1], code blocks x lifting size.
        n_code_blocks: int64[n_mcs, n_prb + 1].
        snr50_db: float64[n_mcs, n_prb + 1].
        slope_db: float64[n_mcs, n_prb + 1].
        redundancy_share: float64[n_mcs].
        weight_bytes: float64[n_mcs], block of one PRB and 10 symbols: numerator of the
            proportional-fair weight.
    """

    tbs_bytes: NDArray[np.int64]
    work: NDArray[np.int64]
    n_code_blocks: NDArray[np.int64]
    snr50_db: NDArray[np.float64]
    slope_db: NDArray[np.float64]
    redundancy_share: NDArray[np.float64]
    weight_bytes: NDArray[np.float64]


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


class Recorder(NamedTuple):
    """What a run leaves behind.

    Attributes:
        counters: one record of ``COUNTERS``.
        passes: int64[n], scheduled slots by number of allocation passes.
        changes: float64[n, 6], rows of ``CHANGE_COLUMNS``.
        n_changes: int64[1].
        reserved_sm: int64[1], reservation in force.
        seconds: int64[n_seconds, 4], sums (peak) of ``SECOND_COLUMNS`` over the UL slots of a
            second.
        trace_from: first UL slot of the trace.
        trace: int64[n, 7], rows of ``TRACE_COLUMNS``.
    """

    counters: NDArray
    passes: NDArray[np.int64]
    changes: NDArray[np.float64]
    n_changes: NDArray[np.int64]
    reserved_sm: NDArray[np.int64]
    seconds: NDArray[np.int64]
    trace_from: int
    trace: NDArray[np.int64]


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
def slot_of(ul_index, rules):
    """Absolute slot of an uplink slot number."""
    n = rules.ul_offsets.shape[0]
    return (ul_index // n) * rules.period_slots + rules.ul_offsets[ul_index % n]


@kernel
def ul_index_from(slot, rules):
    """First uplink slot number whose slot is ``slot`` or later."""
    n = rules.ul_offsets.shape[0]
    period = slot // rules.period_slots
    rest = slot - period * rules.period_slots
    at = 0
    while at < n and rules.ul_offsets[at] < rest:
        at += 1
    return period * n + at


@kernel
def _collect(now_us, rules, link_rules, plant, gnb, link, harq, queue, packet, rlc, recorder):
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
        if done - queue.slot_end_us[at] > plant.grace_us:
            count.overdue_blocks += 1
        is_first = harq.rounds[u, process] == 1
        if is_first and not ok:
            count.first_errors += 1
        measured(u, queue.snr_db[at], ok, is_first, link_rules, link)
        if ok:
            carried = deliver_block(u, process, done, packet, rlc, harq)
            gnb.scheduled[u] -= harq.tbs_bytes[u, process]
            gnb.estimate[u] = max(0, gnb.estimate[u] - carried)
            if harq.report_bytes[u, process] != NO_REPORT:
                gnb.estimate[u] = harq.report_bytes[u, process]
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


@kernel
def _place_retransmissions(request, scheduler, tables, gnb, harq, chosen):
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
def _collect_candidates(
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


@kernel
def _is_received(u, process, snr_db, ul_index, seed, blocks, harq):
    """Draw whether this transmission of a block can be decoded."""
    mcs = harq.mcs[u, process]
    n_prb = harq.n_prb[u, process]
    effective_db = snr_db
    if harq.rounds[u, process] > 1:
        snr = 10.0 ** (0.1 * snr_db)
        effective_db = combined_snr_db(
            harq.snr_sum[u, process] + snr,
            harq.log2_sum[u, process] + math.log2(1.0 + snr),
            blocks.redundancy_share[mcs],
        )
    snr50 = blocks.snr50_db[mcs, n_prb]
    slope = blocks.slope_db[mcs, n_prb]
    if effective_db > snr50 + CERTAIN_SIGMAS * slope:
        return True
    rate = block_error_rate(effective_db, snr50, slope, blocks.n_code_blocks[mcs, n_prb])
    return uniform(seed, STREAM_BLOCK_ERROR, u, ul_index) >= rate


@kernel
def _send_new_block(
    u, mcs, n_prb, slot, start_us, rules, blocks, gnb, link, harq, packet, rlc, recorder
):
    """Grant a new block and let its UE fill it. Returns the HARQ process."""
    process = take_process(u, harq)
    tbs = blocks.tbs_bytes[mcs, n_prb]
    harq.tbs_bytes[u, process] = tbs
    harq.n_prb[u, process] = n_prb
    harq.mcs[u, process] = mcs
    harq.rounds[u, process] = 1
    gnb.scheduled[u] += tbs
    gnb.granted[u] += tbs
    gnb.last_grant_slot[u] = slot
    gnb.request_slot[u] = NEVER
    link.first_blocks[u] += 1
    padding = fill_block(u, process, packet, rlc, harq)
    report = NO_REPORT
    if (
        gnb.report_due[u] == 1
        or padding >= PADDING_REPORT_BYTES
        or start_us - gnb.last_report_us[u] >= rules.report_period_us
    ):
        report = reported_bytes(buffered_bytes(u, rlc), rules.bsr_levels)
        gnb.report_due[u] = 0
        gnb.last_report_us[u] = start_us
    harq.report_bytes[u, process] = report
    count = recorder.counters[0]
    count.initial_blocks += 1
    count.granted_bytes += tbs
    count.padding_bytes += padding
    return process


@kernel
def _record(ul_index, start_us, busy, work, tables, request, grants, decision, recorder):
    """Note a change of the reservation and what the slot used."""
    answer = decision[0]
    if answer.sm != recorder.reserved_sm[0]:
        recorder.reserved_sm[0] = answer.sm
        row = recorder.changes[recorder.n_changes[0]]
        recorder.n_changes[0] += 1
        row[0] = ul_index
        row[1] = answer.sm
        row[2] = answer.reason
        row[3] = answer.passes
        row[4] = answer.lut_mcs
        row[5] = answer.lut_prb
    out = grants.head[0]
    demand = tables.sm_min
    if out.n_prb > 0:
        demand = lut_sm(out.mcs_prb / out.n_prb, out.n_prb, tables)
    if busy:
        recorder.counters[0].scheduled_slots += 1
        recorder.passes[min(answer.passes, recorder.passes.shape[0] - 1)] += 1
        second = recorder.seconds[start_us // 1_000_000]
        second[0] += out.n_prb
        second[1] += work
        second[2] = max(second[2], demand)
        second[3] += 1
    at = ul_index - recorder.trace_from
    if 0 <= at < recorder.trace.shape[0]:
        per_block = request.head[0].retx_sm_per_block
        for i in range(request.head[0].n_candidates):
            if grants.rb[i] > 0:
                per_block += tables.min_sm[request.mcs[i], grants.rb[i]]
        row_of_slot = recorder.trace[at]
        row_of_slot[0] = demand
        row_of_slot[1] = max(tables.sm_min, min(per_block, tables.sm_max))
        row_of_slot[2] = answer.sm
        row_of_slot[3] = out.n_prb
        row_of_slot[4] = out.mcs_prb
        row_of_slot[5] = work
        row_of_slot[6] = request.head[0].backlog_bytes


@kernel
def _next_event(ul_index, rules, gnb, harq, queue, packet, rlc):
    """First UL slot after ``ul_index`` in which something can happen."""
    soonest = ul_index + 1
    if queue.head[0] < queue.head[1]:
        return soonest
    event_slot = NEVER
    for u in range(gnb.estimate.shape[0]):
        if (
            harq.n_retx[u] > 0
            or gnb.report_due[u] == 1
            or gnb.request_slot[u] != NEVER
            or gnb.estimate[u] > gnb.scheduled[u]
            or rlc.n_again[u] > 0
            or buffered_bytes(u, rlc) > 0
        ):
            return soonest
        if rules.inactivity_slots > 0:
            due = gnb.last_grant_slot[u] + rules.inactivity_slots + rules.k2_slots
            event_slot = min(event_slot, due)
    if packet.next[0] < packet.time_us.shape[0]:
        arrival_us = packet.time_us[packet.next[0]]
        event_slot = min(event_slot, (arrival_us + rules.slot_us - 1) // rules.slot_us)
    if event_slot == NEVER:
        return NEVER
    return max(soonest, ul_index_from(event_slot, rules))


@kernel
def run_cell(
    ul_from,
    ul_to,
    rules: CellRules,
    scheduler: SchedulerRules,
    link_rules: LinkRules,
    plant: Plant,
    tables: SmTables,
    blocks: BlockTables,
    sinr_db,
    sinr_period_us,
    controllers: Controllers,
    gnb: GnbState,
    link: LinkState,
    harq: HarqState,
    queue: DecodeQueue,
    packet: Packets,
    rlc: RlcState,
    plant_memory: PlantState,
    request: SlotRequest,
    grants: Grants,
    decision,
    chosen,
    recorder: Recorder,
):
    """Run the UL slots ``ul_from <= j < ul_to``, or fewer if the change log fills up.

    Returns:
        First UL slot that was not run.
    """
    n_ue = gnb.estimate.shape[0]
    n_samples = sinr_db.shape[1]
    n_packets = packet.time_us.shape[0]
    j = ul_from
    while j < ul_to and recorder.n_changes[0] < recorder.changes.shape[0]:
        slot = slot_of(j, rules)
        start_us = slot * rules.slot_us
        end_us = start_us + rules.slot_us
        _collect(
            start_us - rules.k2_slots * rules.slot_us,
            rules,
            link_rules,
            plant,
            gnb,
            link,
            harq,
            queue,
            packet,
            rlc,
            recorder,
        )
        for u in range(n_ue):
            gnb.throughput[u] = (
                THROUGHPUT_MEMORY * gnb.throughput[u] + (1.0 - THROUGHPUT_MEMORY) * gnb.granted[u]
            )
            gnb.granted[u] = 0
        clear_request(request)
        _place_retransmissions(request, scheduler, tables, gnb, harq, chosen)
        _collect_candidates(
            slot, rules, scheduler, link_rules, blocks, gnb, link, harq, chosen, request
        )
        decide(controllers, j, request, scheduler, tables, blocks.tbs_bytes, grants, decision)

        while packet.next[0] < n_packets and packet.time_us[packet.next[0]] <= start_us:
            u, was_empty = admit_next(packet, rules.buffer_limit_bytes, rlc)
            if was_empty:
                gnb.report_due[u] = 1
        sample = min(start_us // sinr_period_us, n_samples - 1)
        sent = 0
        work = 0
        for u in range(n_ue):
            process = chosen[u]
            if process >= 0:
                harq.rounds[u, process] += 1
                gnb.granted[u] += harq.tbs_bytes[u, process]
                gnb.last_grant_slot[u] = slot
                if harq.rounds[u, process] == 2:
                    link.second_blocks[u] += 1
                recorder.counters[0].retransmissions += 1
                ok = _is_received(u, process, sinr_db[u, sample], j, rules.seed, blocks, harq)
                start_decode(u, process, ok, sinr_db[u, sample], end_us, sent == 0, queue)
                work += blocks.work[harq.mcs[u, process], harq.n_prb[u, process]]
                sent += 1
        for i in range(request.head[0].n_candidates):
            n_prb = grants.rb[i]
            if n_prb > 0:
                u = request.ue[i]
                mcs = request.mcs[i]
                if i < request.head[0].n_signalling:
                    recorder.counters[0].signalling_grants += 1
                process = _send_new_block(
                    u, mcs, n_prb, slot, start_us, rules, blocks, gnb, link, harq, packet, rlc,
                    recorder,
                )  # fmt: skip
                ok = _is_received(u, process, sinr_db[u, sample], j, rules.seed, blocks, harq)
                start_decode(u, process, ok, sinr_db[u, sample], end_us, sent == 0, queue)
                work += blocks.work[mcs, n_prb]
                sent += 1
        if sent > 0:
            latency = decode_latency_us(work, decision[0].sm, rules.seed, j, plant)
            schedule_decode(latency, end_us, sent, plant, plant_memory, queue)

        # scheduling requests of UEs that could not report in this slot
        is_sr_occasion = (slot - rules.ul_offsets[0]) % rules.sr_period_slots == 0
        for u in range(n_ue):
            if rlc.n_again[u] > 0 and release_ranges(u, start_us, rlc):
                gnb.report_due[u] = 1
            if gnb.report_due[u] == 0:
                # retxBSR-Timer restarts with each grant (38.321 clause 5.4.5)
                silent_us = start_us - gnb.last_grant_slot[u] * rules.slot_us
                if silent_us >= rules.report_again_us and buffered_bytes(u, rlc) > 0:
                    gnb.report_due[u] = 1
            elif is_sr_occasion and gnb.request_slot[u] == NEVER:
                gnb.request_slot[u] = slot + 1

        _record(j, start_us, sent > 0, work, tables, request, grants, decision, recorder)
        following = j + 1
        if sent == 0 and is_settled(controllers, tables):
            following = min(_next_event(j, rules, gnb, harq, queue, packet, rlc), ul_to)
            skipped = following - j - 1
            if skipped > 0:
                skip_empty_slots(controllers, skipped, tables)
                for u in range(n_ue):
                    gnb.throughput[u] *= THROUGHPUT_MEMORY**skipped
                first = max(j + 1, recorder.trace_from)
                last = min(following, recorder.trace_from + recorder.trace.shape[0])
                for k in range(first, last):
                    recorder.trace[k - recorder.trace_from, 0] = tables.sm_min
                    recorder.trace[k - recorder.trace_from, 1] = tables.sm_min
                    recorder.trace[k - recorder.trace_from, 2] = decision[0].sm
        j = following
    return j
