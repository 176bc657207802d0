"""A persistent kernel that takes tiles from a queue (WEAVER App. E).

One thread block an SM of its partition. The host writes descriptors into mapped memory and then
moves the tail; blocks claim tickets and poll the tail, so that no tile costs a launch. Only
admitted tiles are in the queue: to pause is to add none. A block that polls holds its SM, therefore
the kernel of a partition runs only while that partition is bound, and leaves once its queue is
drained.

Tiles in the queue run in any order and at once, so the executor adds no tile that depends on one
in flight. The arithmetic is plain FP32, without tensor cores: the variant shows the mechanism, not
its peak rate. One source in ``numba.cuda``: it compiles for a GPU, and runs without one on numba's
simulator. **Not yet run on a GPU.**
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config, cuda, int32

from ranloom.errors import InputError
from ranloom.spare.tiled_product import TiledProduct

THREADS = 128
# Fields of a descriptor: numbers of A, B and C, then begin and end of rows, columns, reduction.
FIELDS = 9
TAIL, STOP = 0, 1  # written by the host
HEAD, FINISHED = 0, 1  # written by the device


@cuda.jit
def _serve(a: Any, b: Any, c: Any, queue: Any, control: Any, counters: Any) -> None:
    """Claim and compute tiles until the queue is drained and STOP is set."""
    thread = cuda.threadIdx.x
    claimed = cuda.shared.array(1, int32)
    while True:
        if thread == 0:
            ticket = cuda.atomic.add(counters, HEAD, 1)
            # Adding zero is a read that no cache answers.
            while ticket >= cuda.atomic.add(control, TAIL, 0):
                if cuda.atomic.add(control, STOP, 0) != 0:
                    # The tail does not move any more once STOP is set.
                    if ticket >= cuda.atomic.add(control, TAIL, 0):
                        ticket = -1
                    break
            claimed[0] = ticket
        cuda.syncthreads()
        ticket = claimed[0]
        if ticket < 0:
            return
        task = ticket % queue.shape[0]
        mine_a, mine_b, mine_c = queue[task, 0], queue[task, 1], queue[task, 2]
        row, rows = queue[task, 3], queue[task, 4] - queue[task, 3]
        column, columns = queue[task, 5], queue[task, 6] - queue[task, 5]
        first, last = queue[task, 7], queue[task, 8]
        for place in range(thread, rows * columns, cuda.blockDim.x):
            i, j = row + place // columns, column + place % columns
            total = a[mine_a, i, first] * b[mine_b, first, j]
            for k in range(first + 1, last):
                total += a[mine_a, i, k] * b[mine_b, k, j]
            if first > 0:
                total += c[mine_c, i, j]
            c[mine_c, i, j] = total
        cuda.threadfence()
        cuda.syncthreads()
        if thread == 0:
            cuda.atomic.add(counters, FINISHED, 1)


class TicketEvent:
    """Passed once so many tiles are finished."""

    def __init__(self, lane: PersistentLane, tickets: int) -> None:
        self._lane, self._tickets = lane, tickets

    def query(self) -> bool:
        """Whether the device has finished them."""
        return self._lane.finished >= self._tickets


class PersistentLane:
    """The persistent kernel of one partition, and its queue.

    Args:
        blocks: SMs of the partition.
        a: matrices A, float32[any, m, k] on the device.
        b: matrices B, float32[any, k, n].
        c: matrices C, float32[any, m, n]; may be ``a``, for chains.
        capacity: descriptors that the queue holds.
        stream: of the partition's green context; 0 for the default one.

    Raises:
        InputError: shapes do not fit, or a queue without room.
    """

    in_order = False

    def __init__(self, blocks: int, a: Any, b: Any, c: Any, capacity: int, stream: Any = 0) -> None:
        if a.shape[2] != b.shape[1] or c.shape[1:] != (a.shape[1], b.shape[2]):
            shapes = f"{a.shape} {b.shape} {c.shape}"
            raise InputError(
                "persistent kernel: shapes", shapes, "allowed: [x, m, k] [y, k, n] [z, m, n]"
            )
        if blocks < 1 or capacity < 1:
            raise InputError("persistent kernel: room", (blocks, capacity), "allowed: from 1 on")
        self._blocks, self._stream = blocks, stream
        self._operands = (a, b, c)
        self._queue = cuda.mapped_array((capacity, FIELDS), dtype=np.int32)
        self._control = cuda.mapped_array(2, dtype=np.int32)
        self._counters = cuda.mapped_array(2, dtype=np.int32)
        self._control[TAIL], self._control[STOP] = 0, 1

    @property
    def finished(self) -> int:
        """Tiles finished since :meth:`start`."""
        return int(self._counters[FINISHED])

    @property
    def room(self) -> int:
        """Descriptors that may be written without overwriting one that is not finished."""
        return int(self._queue.shape[0] - (self._control[TAIL] - self._counters[FINISHED]))

    def start(self, after: list[Any]) -> None:
        """Launch the kernel once these events have passed."""
        while not all(event.query() for event in after):
            pass
        self._control[TAIL], self._control[STOP] = 0, 0
        self._counters[HEAD], self._counters[FINISHED] = 0, 0
        if not config.ENABLE_CUDASIM:
            self._launch()

    def launch(self, product: TiledProduct, tiles: int) -> TicketEvent:
        """Write descriptors, then move the tail.

        Raises:
            InputError: the product's matrices are not here or have another shape, or the queue
                has no room.
        """
        gemm, numbers = product.gemm, product.operands
        held = tuple(matrices.shape[0] for matrices in self._operands)
        if not all(0 <= number < count for number, count in zip(numbers, held, strict=True)):
            raise InputError("persistent kernel: matrices", numbers, f"allowed: below {held}")
        a, b, _ = self._operands
        if (gemm.m, gemm.k, gemm.n) != (*a.shape[1:], b.shape[2]):
            raise InputError("persistent kernel: product", gemm, "allowed: the operands' shape")
        if tiles > self.room:
            raise InputError("persistent kernel: tiles", tiles, f"room: {self.room}")
        tail = int(self._control[TAIL])
        for block in product.tiles(tiles):
            self._queue[tail % self._queue.shape[0]] = (
                *numbers,
                block.rows.start, block.rows.stop,
                block.columns.start, block.columns.stop,
                block.reduction.start, block.reduction.stop,
            )  # fmt: skip
            tail += 1
        self._control[TAIL] = tail
        product.done += tiles
        return TicketEvent(self, tail)

    def stop(self) -> None:
        """Let the kernel leave once the queue is drained."""
        self._control[STOP] = 1
        if config.ENABLE_CUDASIM:  # where a launch returns at the end of the kernel, not before
            self._launch()

    def _launch(self) -> None:
        _serve[self._blocks, THREADS, self._stream](
            *self._operands, self._queue, self._control, self._counters
        )
