"""HARQ processes: none is lost, none is used twice, retransmissions keep their order."""

from __future__ import annotations

import numpy as np

from ranloom.mac.harq import (
    decode_queue,
    harq_state,
    pop_retransmission,
    queue_retransmission,
    release_process,
    start_decode,
    take_process,
)


def test_processes_come_back() -> None:
    harq = harq_state(2, 16)
    rng = np.random.default_rng(3)
    held: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(2000):
        ue = int(rng.integers(2))
        if harq.n_free[ue] and rng.random() < 0.5:
            process = int(take_process(ue, harq))
            assert process not in held[ue]
            held[ue].append(process)
        elif held[ue]:
            release_process(ue, held[ue].pop(int(rng.integers(len(held[ue])))), harq)
        assert harq.n_free[ue] == 16 - len(held[ue])


def test_retransmissions_are_first_in_first_out() -> None:
    harq = harq_state(1, 4)
    for start in range(3):  # also where the ring wraps
        for process in (2, 0, 3):
            queue_retransmission(0, process, harq)
        assert harq.n_retx[0] == 3, start
        assert [int(pop_retransmission(0, harq)) for _ in range(3)] == [2, 0, 3]
    assert harq.n_retx[0] == 0


def test_the_decode_queue_holds_every_process() -> None:
    queue = decode_queue(3, 16)
    assert len(queue.ue) >= 3 * 16
    for k in range(100):
        start_decode(k % 3, k % 16, True, 20.0, 500 * k, k == 0, queue)
    assert queue.head.tolist() == [0, 100]
    assert queue.slot_end_us[99 & (len(queue.ue) - 1)] == 500 * 99
