"""Packets through transport blocks: segmentation, reordering, loss, repetition, limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.mac.harq import HarqState, harq_state, release_process, take_process
from ranloom.mac.ledger import byte_ledger
from ranloom.mac.rlc import (
    DELAY_DROPPED,
    DELAY_LOST,
    DELAY_PENDING,
    Packets,
    RlcState,
    admit_all,
    buffered_bytes,
    deliver_block,
    fill_block,
    give_up_block,
    packets,
    release_ranges,
    rlc_state,
)

UM, AM_20MS = -1, 20_000


def stream(*sizes: int, limit: int = 0) -> tuple[Packets, RlcState, HarqState]:
    """One UE whose packets arrived at 0, 10, 20, ... us."""
    n = len(sizes)
    packet = packets(10 * np.arange(n), np.zeros(n, int), np.array(sizes), 1)
    rlc, harq = rlc_state(1), harq_state(1, 16)
    admit_all(packet, limit, rlc)
    return packet, rlc, harq


def send(size: int, packet: Packets, rlc: RlcState, harq: HarqState) -> tuple[int, int]:
    process = int(take_process(0, harq))
    harq.tbs_bytes[0, process] = size
    return process, int(fill_block(0, process, packet, rlc, harq))


def deliver(process: int, at_us: float, packet: Packets, rlc: RlcState, harq: HarqState) -> int:
    carried = int(deliver_block(0, process, at_us, packet, rlc, harq))
    release_process(0, process, harq)
    return carried


def test_a_packet_arrives_with_its_last_segment() -> None:
    state = stream(100, 200, 50)
    blocks = [send(size, *state) for size in (120, 120, 120)]
    assert [padding for _, padding in blocks] == [0, 0, 10]
    order = (1, 2, 0)  # the first block needs a retransmission
    for at, which in zip((1000.0, 1100.0, 2000.0), order, strict=True):
        deliver(blocks[which][0], at, *state)
    packet, rlc, harq = state
    # packet 0 lies in block 0; packet 1 in all three; packet 2 in the last
    assert packet.delay_us.tolist() == [2000.0, 2000.0 - 10, 1100.0 - 20]
    assert rlc.delivered[0] == 350
    assert byte_ledger(packet, rlc, harq).error_bytes == 0


def test_um_loses_every_packet_that_misses_a_byte() -> None:
    packet, rlc, harq = stream(100, 200, 50)
    blocks = [send(120, packet, rlc, harq)[0] for _ in range(3)]
    give_up_block(0, blocks[1], 1000.0, UM, 8, packet, rlc, harq)
    release_process(0, blocks[1], harq)
    assert byte_ledger(packet, rlc, harq).error_bytes == 0
    deliver(blocks[0], 1500.0, packet, rlc, harq)
    deliver(blocks[2], 1600.0, packet, rlc, harq)
    assert packet.delay_us.tolist() == [1500.0, DELAY_LOST, 1600.0 - 20]
    ledger = byte_ledger(packet, rlc, harq)
    assert (ledger.delivered[0], ledger.lost[0], ledger.in_flight[0]) == (150, 200, 0)


def test_am_repeats_the_range_once_it_knows() -> None:
    packet, rlc, harq = stream(100, 200)
    first, _ = send(150, packet, rlc, harq)
    give_up_block(0, first, 1000.0, AM_20MS, 8, packet, rlc, harq)
    release_process(0, first, harq)
    assert not release_ranges(0, 1000.0 + AM_20MS - 1, rlc)
    assert buffered_bytes(0, rlc) == 150
    assert byte_ledger(packet, rlc, harq).queued[0] == 300
    assert release_ranges(0, 1000.0 + AM_20MS, rlc)
    assert buffered_bytes(0, rlc) == 300
    again, padding = send(90, packet, rlc, harq)  # a part of the range
    rest, _ = send(400, packet, rlc, harq)  # the rest of it, and the new bytes
    assert padding == 0
    deliver(rest, 30_000.0, packet, rlc, harq)
    deliver(again, 31_000.0, packet, rlc, harq)
    assert packet.delay_us.tolist() == [31_000.0, 30_000.0 - 10]
    assert byte_ledger(packet, rlc, harq).error_bytes == 0


def test_am_gives_up_after_its_repetitions() -> None:
    packet, rlc, harq = stream(100)
    for attempt in range(3):
        process, _ = send(100, packet, rlc, harq)
        give_up_block(0, process, 1000.0, AM_20MS, 2, packet, rlc, harq)
        release_process(0, process, harq)
        release_ranges(0, 1e9, rlc)
        assert packet.delay_us[0] == (DELAY_PENDING if attempt < 2 else DELAY_LOST)
    assert rlc.lost[0] == 100


def test_the_buffer_limit_drops_whole_packets() -> None:
    packet, rlc, harq = stream(600, 300, 200, 100, limit=1000)
    assert (packet.delay_us == DELAY_DROPPED).tolist() == [False, False, True, False]
    ledger = byte_ledger(packet, rlc, harq)
    assert (ledger.offered[0], ledger.dropped[0], ledger.queued[0]) == (1200, 200, 1000)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=30),
    choices=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4000)), max_size=80),
    status_us=st.sampled_from([UM, 0, AM_20MS]),
)
def test_no_byte_is_lost_or_doubled(
    sizes: list[int], choices: list[tuple[int, int]], status_us: int
) -> None:
    packet, rlc, harq = stream(*sizes, limit=20_000)
    flying: list[int] = []
    now = 0.0
    for action, size in choices:
        now += 1000.0
        release_ranges(0, now, rlc)
        if action <= 2 and harq.n_free[0]:
            flying.append(send(size, packet, rlc, harq)[0])
        elif flying:
            process = flying.pop(size % len(flying))
            if action == 5:
                give_up_block(0, process, now, status_us, 3, packet, rlc, harq)
                release_process(0, process, harq)
            else:
                deliver(process, now, packet, rlc, harq)
        ledger = byte_ledger(packet, rlc, harq)
        assert ledger.error_bytes == 0
        assert min(ledger.queued[0], ledger.in_flight[0]) >= 0
    done = packet.delay_us >= 0
    assert rlc.delivered[0] == packet.size_bytes[done].sum()


@pytest.mark.parametrize("room", [1, 64, 333])
def test_blocks_carry_the_stream_in_order(room: int) -> None:
    packet, rlc, harq = stream(*([97] * 20))
    total = 0
    while buffered_bytes(0, rlc) > 0:
        process, padding = send(room, packet, rlc, harq)
        assert harq.start[0, process, 0] == total
        total += deliver(process, 5000.0, packet, rlc, harq)
        assert padding == 0 or buffered_bytes(0, rlc) == 0
    assert total == 97 * 20
    assert (packet.delay_us >= 0).all()
