# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""RLC between the packet queue of a UE and its transport blocks (3GPP TS 38.322).

The accepted packets of a UE form one byte stream. A transport block takes the next bytes of it;
a packet is delivered when all of its bytes have arrived, lost when some of them are gone (UM) or
have been repeated too often (AM). Headers are not modelled: a block of N bytes carries N bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.kernel import kernel

DELAY_PENDING, DELAY_LOST, DELAY_DROPPED = -1, -2, -3

AM_RANGES = 64  # byte ranges that may wait for an AM retransmission, per UE


class Packets(NamedTuple):
    """Packets of a run and what became of them.

    Attributes:
        time_us: int64[n], arrival, ascending.
        ue: int64[n].
        size_bytes: int64[n].
        delay_us: float64[n], delay of delivered packets, else one of ``DELAY_*``.
        next: int64[1], first packet that has not arrived yet.
        base: int64[n_ue + 1], start of each UE's part of the three arrays below.
        accepted: int64[n], packet numbers in order of acceptance.
        end_byte: int64[n], end of each accepted packet in its UE's stream.
        arrived_bytes: int64[n], bytes received so far.
        missing_bytes: int64[n], bytes known to be gone.
    """

    time_us: NDArray[np.int64]
    ue: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    delay_us: NDArray[np.float64]
    next: NDArray[np.int64]
    base: NDArray[np.int64]
    accepted: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    arrived_bytes: NDArray[np.int64]
    missing_bytes: NDArray[np.int64]


class RlcState(NamedTuple):
    """Stream positions and byte ledger, int64[n_ue] unless said otherwise.

    Attributes:
        n_accepted: packets accepted.
        end_byte: length of the stream.
        sent_byte: first byte never sent.
        sent_packet: index of the accepted packet that holds it.
        offered: bytes that arrived.
        dropped: bytes refused at the buffer limit.
        delivered: bytes of delivered packets.
        lost: bytes of lost packets.
        again_first: start of the ring of ranges to repeat (AM).
        n_again: its length.
        n_ready: how many of these the sender knows of.
        again_bytes: bytes in these.
        again_start: [n_ue, AM_RANGES] first byte.
        again_length: [n_ue, AM_RANGES] bytes.
        again_packet: [n_ue, AM_RANGES] packet index of the first byte.
        again_ready_us: [n_ue, AM_RANGES] when the sender knows.
        again_count: [n_ue, AM_RANGES] how often the range was repeated before.
    """

    n_accepted: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    sent_byte: NDArray[np.int64]
    sent_packet: NDArray[np.int64]
    offered: NDArray[np.int64]
    dropped: NDArray[np.int64]
    delivered: NDArray[np.int64]
    lost: NDArray[np.int64]
    again_first: NDArray[np.int64]
    n_again: NDArray[np.int64]
    n_ready: NDArray[np.int64]
    again_bytes: NDArray[np.int64]
    again_start: NDArray[np.int64]
    again_length: NDArray[np.int64]
    again_packet: NDArray[np.int64]
    again_ready_us: NDArray[np.int64]
    again_count: NDArray[np.int64]


def packets(time_us: NDArray[np.int64], ue: NDArray, size_bytes: NDArray, n_ue: int) -> Packets:
    """Packets of a run, none of them arrived yet."""
    n = len(time_us)
    counts = np.bincount(ue, minlength=n_ue)
    base = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Packets(
        time_us=np.array(time_us, np.int64),
        ue=np.array(ue, np.int64),
        size_bytes=np.array(size_bytes, np.int64),
        delay_us=np.full(n, float(DELAY_PENDING)),
        next=np.zeros(1, np.int64),
        base=base,
        accepted=np.zeros(n, np.int64),
        end_byte=np.zeros(n, np.int64),
        arrived_bytes=np.zeros(n, np.int64),
        missing_bytes=np.zeros(n, np.int64),
    )


def rlc_state(n_ue: int) -> RlcState:
    """Empty streams."""
    return RlcState(
        *(np.zeros(n_ue, np.int64) for _ in range(12)),
        *(np.zeros((n_ue, AM_RANGES), np.int64) for _ in range(5)),
    )


@kernel
def buffered_bytes(ue, rlc):
    """Bytes that a UE has to send: never sent, or to be repeated."""
    return rlc.end_byte[ue] - rlc.sent_byte[ue] + rlc.again_bytes[ue]


@kernel
def admit_next(packet, limit_bytes, rlc):
    """Put the next packet into its UE's stream, or drop it at the buffer limit.

    Returns:
        Its UE, and whether the buffer was empty before and is not now.
    """
    p = packet.next[0]
    packet.next[0] = p + 1
    u = packet.ue[p]
    size = packet.size_bytes[p]
    rlc.offered[u] += size
    before = buffered_bytes(u, rlc)
    if limit_bytes > 0 and before + size > limit_bytes:
        rlc.dropped[u] += size
        packet.delay_us[p] = DELAY_DROPPED
        return u, False
    at = packet.base[u] + rlc.n_accepted[u]
    rlc.n_accepted[u] += 1
    rlc.end_byte[u] += size
    packet.accepted[at] = p
    packet.end_byte[at] = rlc.end_byte[u]
    return u, before == 0


@kernel
def admit_all(packet, limit_bytes, rlc):
    """Put every packet that has not arrived yet into its UE's stream."""
    while packet.next[0] < packet.time_us.shape[0]:
        admit_next(packet, limit_bytes, rlc)


@kernel
def _fill_from_stream(ue, process, slot, room, packet, rlc, harq):
    start = rlc.sent_byte[ue]
    take = min(room, rlc.end_byte[ue] - start)
    harq.start[ue, process, slot] = start
    harq.length[ue, process, slot] = take
    harq.packet[ue, process, slot] = rlc.sent_packet[ue]
    end = start + take
    rlc.sent_byte[ue] = end
    at = packet.base[ue] + rlc.sent_packet[ue]
    last = packet.base[ue] + rlc.n_accepted[ue]
    while at < last and packet.end_byte[at] <= end:
        at += 1
    rlc.sent_packet[ue] = at - packet.base[ue]
    return take


@kernel
def _fill_again(ue, process, room, packet, rlc, harq):
    first = rlc.again_first[ue]
    take = min(room, rlc.again_length[ue, first])
    harq.start[ue, process, 1] = rlc.again_start[ue, first]
    harq.length[ue, process, 1] = take
    harq.packet[ue, process, 1] = rlc.again_packet[ue, first]
    harq.repeats[ue, process] = rlc.again_count[ue, first]
    rlc.again_bytes[ue] -= take
    rlc.again_start[ue, first] += take
    rlc.again_length[ue, first] -= take
    if rlc.again_length[ue, first] == 0:
        rlc.again_first[ue] = (first + 1) % AM_RANGES
        rlc.n_again[ue] -= 1
        rlc.n_ready[ue] -= 1
    else:
        at = packet.base[ue] + rlc.again_packet[ue, first]
        while packet.end_byte[at] <= rlc.again_start[ue, first]:
            at += 1
        rlc.again_packet[ue, first] = at - packet.base[ue]
    return take


@kernel
def fill_block(ue, process, packet, rlc, harq):
    """Fill a new transport block: a range to repeat first, then new bytes.

    Returns:
        Bytes of padding.
    """
    room = harq.tbs_bytes[ue, process]
    if rlc.n_ready[ue] > 0:
        room -= _fill_again(ue, process, room, packet, rlc, harq)
    else:
        harq.length[ue, process, 1] = 0
    return room - _fill_from_stream(ue, process, 0, room, packet, rlc, harq)


@kernel
def _settle(ue, start, length, first_packet, done_us, ok, packet, rlc):
    """Book a byte range as arrived or as gone; resolve the packets that it completes."""
    position = start
    end = start + length
    at = packet.base[ue] + first_packet
    while position < end:
        upto = min(end, packet.end_byte[at])
        if ok:
            packet.arrived_bytes[at] += upto - position
        else:
            packet.missing_bytes[at] += upto - position
        p = packet.accepted[at]
        size = packet.size_bytes[p]
        if packet.arrived_bytes[at] + packet.missing_bytes[at] == size:
            if packet.missing_bytes[at] == 0:
                rlc.delivered[ue] += size
                packet.delay_us[p] = done_us - packet.time_us[p]
            else:
                rlc.lost[ue] += size
                packet.delay_us[p] = DELAY_LOST
        position = upto
        at += 1


@kernel
def deliver_block(ue, process, done_us, packet, rlc, harq):
    """A block was decoded. Returns the bytes that it carried."""
    total = 0
    for part in range(2):
        length = harq.length[ue, process, part]
        if length > 0:
            start = harq.start[ue, process, part]
            first = harq.packet[ue, process, part]
            _settle(ue, start, length, first, done_us, True, packet, rlc)
            total += length
    return total


@kernel
def give_up_block(ue, process, done_us, am_status_us, am_max_retx, packet, rlc, harq):
    """A block failed in its last round: its bytes are gone (UM) or wait to be repeated (AM).

    ``am_status_us`` below 0 means UM; in AM a range is lost after ``am_max_retx`` repetitions.
    """
    for part in range(2):
        length = harq.length[ue, process, part]
        if length == 0:
            continue
        start = harq.start[ue, process, part]
        first = harq.packet[ue, process, part]
        repeats = harq.repeats[ue, process] if part == 1 else 0
        if am_status_us < 0 or repeats >= am_max_retx or rlc.n_again[ue] == AM_RANGES:
            _settle(ue, start, length, first, done_us, False, packet, rlc)
            continue
        slot = (rlc.again_first[ue] + rlc.n_again[ue]) % AM_RANGES
        rlc.again_start[ue, slot] = start
        rlc.again_length[ue, slot] = length
        rlc.again_packet[ue, slot] = first
        rlc.again_ready_us[ue, slot] = np.int64(done_us) + am_status_us
        rlc.again_count[ue, slot] = repeats + 1
        rlc.n_again[ue] += 1


@kernel
def release_ranges(ue, now_us, rlc):
    """Tell an AM sender of lost ranges once its status report is there.

    Returns:
        Whether there is more to send than before.
    """
    grown = False
    while rlc.n_ready[ue] < rlc.n_again[ue]:
        slot = (rlc.again_first[ue] + rlc.n_ready[ue]) % AM_RANGES
        if rlc.again_ready_us[ue, slot] > now_us:
            break
        rlc.n_ready[ue] += 1
        rlc.again_bytes[ue] += rlc.again_length[ue, slot]
        grown = True
    return grown
