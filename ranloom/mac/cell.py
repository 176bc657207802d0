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
from ranloom.mac.gnb import (
    NEVER,
    GnbState,
    collect_candidates,
    handle_feedback,
    place_retransmissions,
)
from ranloom.mac.harq import NO_REPORT, DecodeQueue, HarqState, start_decode, take_process
from ranloom.mac.kernel import kernel
from ranloom.mac.link_adaptation import LinkRules, LinkState
from ranloom.mac.plant import Plant, PlantState, decode_latency_us, schedule_decode
from ranloom.mac.proportional_fair import Grants, SchedulerRules, SlotRequest, clear_request
from ranloom.mac.recorder import Recorder, record_skipped, record_slot
from ranloom.mac.rlc import (
    Packets,
    RlcState,
    admit_next,
    buffered_bytes,
    fill_block,
    release_ranges,
)
from ranloom.mac.sm_tables import SmTables
from ranloom.nr.bler import block_error_rate, combined_snr_db

PADDING_REPORT_BYTES = 2  # a short BSR fits into this much padding (38.321 clause 5.4.5)
THROUGHPUT_MEMORY = 0.99
CERTAIN_SIGMAS = 7.0  # a block this far above its waterfall does not fail


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
        handle_feedback(
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
        place_retransmissions(request, scheduler, tables, gnb, harq, chosen)
        collect_candidates(
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

        record_slot(j, start_us, sent > 0, work, tables, request, grants, decision, recorder)
        following = j + 1
        if sent == 0 and is_settled(controllers, tables):
            following = min(_next_event(j, rules, gnb, harq, queue, packet, rlc), ul_to)
            skipped = following - j - 1
            if skipped > 0:
                skip_empty_slots(controllers, skipped, tables)
                for u in range(n_ue):
                    gnb.throughput[u] *= THROUGHPUT_MEMORY**skipped
                record_skipped(j + 1, following, decision[0].sm, tables, recorder)
        j = following
    return j
