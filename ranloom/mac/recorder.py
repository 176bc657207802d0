# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""What a run of a cell leaves behind, and how the slot loop writes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.kernel import kernel
from ranloom.mac.sm_tables import lut_sm

LONG_DECODE_US = 1000.0

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
# one row per second of the cell, and per second of a UE (by the time of the feedback)
SECOND_COLUMNS = ("used_prb", "work", "demand_peak_sm", "decodes")
UE_SECOND_COLUMNS = (
    "decoded_blocks",
    "failed_blocks",  # transmissions that could not be decoded, of any round
    "overdue_blocks",
    "mcs",  # sum over both kinds of blocks
    "snr_centi_db",  # the same
    "prb",  # the same
    "bytes",  # carried by decoded blocks
    "report_bytes",  # last buffer status
)


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
        ue_seconds: int64[n_seconds, n_ue, 8], columns ``UE_SECOND_COLUMNS``.
        trace_from: first UL slot of the trace.
        trace: int64[n, 7], rows of ``TRACE_COLUMNS``.
    """

    counters: NDArray
    passes: NDArray[np.int64]
    changes: NDArray[np.float64]
    n_changes: NDArray[np.int64]
    reserved_sm: NDArray[np.int64]
    seconds: NDArray[np.int64]
    ue_seconds: NDArray[np.int64]
    trace_from: int
    trace: NDArray[np.int64]


@kernel
def record_slot(ul_index, start_us, busy, work, tables, request, grants, decision, recorder):
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
def record_feedback(done_us, overdue, ok, snr_db, mcs, n_prb, carried, report_bytes, ue, recorder):
    """Note the outcome of a block in the second of its feedback."""
    at = min(np.int64(done_us) // 1_000_000, recorder.ue_seconds.shape[0] - 1)
    row = recorder.ue_seconds[at, ue]
    if ok:
        row[0] += 1
    else:
        row[1] += 1
    if overdue:
        row[2] += 1
    row[3] += mcs
    row[4] += np.int64(100.0 * snr_db)
    row[5] += n_prb
    row[6] += carried
    if report_bytes >= 0:
        row[7] = report_bytes


@kernel
def record_skipped(first, last, sm, tables, recorder):
    """Trace the empty UL slots ``first <= j < last`` that the loop passes over."""
    first = max(first, recorder.trace_from)
    last = min(last, recorder.trace_from + recorder.trace.shape[0])
    for j in range(first, last):
        row = recorder.trace[j - recorder.trace_from]
        row[0] = tables.sm_min
        row[1] = tables.sm_min
        row[2] = sm
