# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""HARQ processes of all UEs, and the queue of blocks that are being decoded.

A transport block is a byte range of its UE's stream (two ranges where RLC AM repeats one).
Feedback is handled in the order of transmission, when its decode has ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.kernel import kernel

NO_REPORT = -1


class HarqState(NamedTuple):
    """Arrays over [n_ue, n_processes] unless said otherwise.

    Attributes:
        tbs_bytes: size of the block of a process.
        n_prb: its allocation.
        mcs: its MCS.
        rounds: transmissions so far.
        report_bytes: buffer status that the block carries, or ``NO_REPORT``.
        start: [n_ue, n_processes, 2] first byte of each range in the UE's stream.
        length: [n_ue, n_processes, 2] bytes of each range, 0 for none.
        packet: [n_ue, n_processes, 2] index of the packet that holds ``start``.
        repeats: how often RLC AM has repeated the second range before.
        snr_sum: float64, sum of linear SNRs of the failed rounds.
        log2_sum: float64, sum of log2(1 + SNR) of the failed rounds.
        free: stack of free process numbers.
        n_free: [n_ue] height of that stack.
        retx: ring of processes that wait for a retransmission.
        retx_first: [n_ue] start of that ring.
        n_retx: [n_ue] length of that ring.
    """

    tbs_bytes: NDArray[np.int64]
    n_prb: NDArray[np.int64]
    mcs: NDArray[np.int64]
    rounds: NDArray[np.int64]
    report_bytes: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    packet: NDArray[np.int64]
    repeats: NDArray[np.int64]
    snr_sum: NDArray[np.float64]
    log2_sum: NDArray[np.float64]
    free: NDArray[np.int64]
    n_free: NDArray[np.int64]
    retx: NDArray[np.int64]
    retx_first: NDArray[np.int64]
    n_retx: NDArray[np.int64]


class DecodeQueue(NamedTuple):
    """Blocks on their way through the decoder: a ring in order of transmission.

    Attributes:
        head: int64[2], number of blocks taken out and put in since the start.
        ue: UE of each block.
        process: its HARQ process.
        ok: 1 if it will be decoded.
        snr_db: SNR of this transmission.
        slot_end_us: end of its UL slot.
        done_us: float64, when its decode ends.
        decode_us: float64, duration of the decode, waiting excluded.
        leads: 1 for the first block of a slot, which stands for the decode.
    """

    head: NDArray[np.int64]
    ue: NDArray[np.int64]
    process: NDArray[np.int64]
    ok: NDArray[np.int64]
    snr_db: NDArray[np.float64]
    slot_end_us: NDArray[np.int64]
    done_us: NDArray[np.float64]
    decode_us: NDArray[np.float64]
    leads: NDArray[np.int64]


def harq_state(n_ue: int, n_processes: int) -> HarqState:
    """All processes free."""
    shape = (n_ue, n_processes)
    ranges = (n_ue, n_processes, 2)
    return HarqState(
        tbs_bytes=np.zeros(shape, np.int64),
        n_prb=np.zeros(shape, np.int64),
        mcs=np.zeros(shape, np.int64),
        rounds=np.zeros(shape, np.int64),
        report_bytes=np.full(shape, NO_REPORT, np.int64),
        start=np.zeros(ranges, np.int64),
        length=np.zeros(ranges, np.int64),
        packet=np.zeros(ranges, np.int64),
        repeats=np.zeros(shape, np.int64),
        snr_sum=np.zeros(shape),
        log2_sum=np.zeros(shape),
        free=np.tile(np.arange(n_processes - 1, -1, -1, dtype=np.int64), (n_ue, 1)),
        n_free=np.full(n_ue, n_processes, np.int64),
        retx=np.zeros(shape, np.int64),
        retx_first=np.zeros(n_ue, np.int64),
        n_retx=np.zeros(n_ue, np.int64),
    )


def decode_queue(n_ue: int, n_processes: int) -> DecodeQueue:
    """Empty queue with room for every process of every UE."""
    room = 1 << (n_ue * n_processes).bit_length()
    return DecodeQueue(
        head=np.zeros(2, np.int64),
        ue=np.zeros(room, np.int64),
        process=np.zeros(room, np.int64),
        ok=np.zeros(room, np.int64),
        snr_db=np.zeros(room),
        slot_end_us=np.zeros(room, np.int64),
        done_us=np.zeros(room),
        decode_us=np.zeros(room),
        leads=np.zeros(room, np.int64),
    )


@kernel
def take_process(ue, harq):
    """Take a free process of a UE; the caller checked that there is one."""
    harq.n_free[ue] -= 1
    return harq.free[ue, harq.n_free[ue]]


@kernel
def release_process(ue, process, harq):
    """Give a process back after success or after the last round."""
    harq.free[ue, harq.n_free[ue]] = process
    harq.n_free[ue] += 1


@kernel
def queue_retransmission(ue, process, harq):
    """Put a failed block at the end of its UE's retransmissions."""
    room = harq.retx.shape[1]
    harq.retx[ue, (harq.retx_first[ue] + harq.n_retx[ue]) % room] = process
    harq.n_retx[ue] += 1


@kernel
def pop_retransmission(ue, harq):
    """Oldest block of a UE that waits for a retransmission."""
    process = harq.retx[ue, harq.retx_first[ue]]
    harq.retx_first[ue] = (harq.retx_first[ue] + 1) % harq.retx.shape[1]
    harq.n_retx[ue] -= 1
    return process


@kernel
def start_decode(ue, process, ok, snr_db, slot_end_us, leads, queue):
    """Append a received block; its times are set once the whole slot is known."""
    at = queue.head[1] & (queue.ue.shape[0] - 1)
    queue.ue[at] = ue
    queue.process[at] = process
    queue.ok[at] = ok
    queue.snr_db[at] = snr_db
    queue.slot_end_us[at] = slot_end_us
    queue.leads[at] = leads
    queue.head[1] += 1
