"""Min-sum decoders for CUDA, bit-exact with those of ``decoder``: layered and flooding.

Layered: one launch a decode. One thread block per code block runs all iterations, one thread per
lifted check, a barrier between rows. Flooding: two launches an iteration, over all code blocks at
once: a thread block per row of the base graph and code block, then one per column and code block.

One source in ``numba.cuda``: it compiles for a GPU, and runs without one on numba's simulator
(``NUMBA_ENABLE_CUDASIM=1`` before the first import of numba).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from ranloom.ldpc.base_graph import BaseGraph
from ranloom.ldpc.decoder import Decoded, DecoderSettings, check_input

THREADS = 384  # the largest lifting size: one thread per lifted check or variable


@cuda.jit(device=True)
def _place(column: int, lift: int, shift: int, z: int) -> int:
    """Where a lifted check reads a column: a remainder without the division."""
    turned = lift + shift
    return column * z + (turned - z if turned >= z else turned)


@cuda.jit(device=True)
def _update_check(
    app: Any, messages: Any, columns: Any, shifts: Any, first: Any, last: Any, lift: Any, z: Any,
    limit: Any, offset: Any, shift: Any, layered: Any,
) -> None:  # fmt: skip
    """New messages of one lifted check; a layered decoder also moves its variables."""
    smallest, second, negative = limit, limit, 0
    for edge in range(first, last):
        place = _place(columns[edge], lift, shifts[edge], z)
        value = max(min(int(app[place]) - int(messages[edge, lift]), limit), -limit)
        negative ^= value < 0
        magnitude = abs(value)
        if magnitude < smallest:
            smallest, second = magnitude, smallest
        elif magnitude < second:
            second = magnitude
    for edge in range(first, last):
        place = _place(columns[edge], lift, shifts[edge], z)
        old = int(messages[edge, lift])
        value = max(min(int(app[place]) - old, limit), -limit)
        magnitude = second if abs(value) == smallest else smallest
        magnitude = max(magnitude - (magnitude >> shift) - offset, 0)
        message = -magnitude if negative ^ (value < 0) else magnitude
        messages[edge, lift] = message
        if layered:
            app[place] += message - old


@cuda.jit(device=True)
def _check_fails(
    app: Any, columns: Any, shifts: Any, first: Any, last: Any, lift: Any, z: Any
) -> int:
    """Whether the signs of the values violate one lifted check."""
    negative = 0
    for edge in range(first, last):
        negative ^= app[_place(columns[edge], lift, shifts[edge], z)] < 0
    return negative


@cuda.jit
def _layered_kernel(
    app: Any, messages: Any, columns: Any, shifts: Any, row_starts: Any, z: Any, limit: Any,
    offset: Any, shift: Any, iterations: Any, early_stop: Any, unsatisfied: Any,
) -> None:  # fmt: skip
    """All iterations of one code block; ``unsatisfied`` says before which a check failed."""
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    n_rows = len(row_starts) - 1
    for iteration in range(iterations + 1):
        if early_stop or iteration == iterations:
            fails = 0
            for row in range(n_rows):
                for lift in range(thread, z, cuda.blockDim.x):
                    fails |= _check_fails(
                        app[block], columns, shifts, row_starts[row], row_starts[row + 1], lift, z
                    )
            if not cuda.syncthreads_or(fails):
                return
        if thread == 0:
            unsatisfied[iteration, block] = 1
        if iteration == iterations:
            return
        for row in range(n_rows):
            for lift in range(thread, z, cuda.blockDim.x):
                _update_check(
                    app[block], messages[block], columns, shifts, row_starts[row],
                    row_starts[row + 1], lift, z, limit, offset, shift, True,
                )  # fmt: skip
            cuda.syncthreads()


@cuda.jit
def _parity_kernel(
    app: Any, columns: Any, shifts: Any, row_starts: Any, z: Any, iteration: Any, unsatisfied: Any
) -> None:
    row, block = cuda.blockIdx.x, cuda.blockIdx.y
    for lift in range(cuda.threadIdx.x, z, cuda.blockDim.x):
        if _check_fails(app[block], columns, shifts, row_starts[row], row_starts[row + 1], lift, z):
            unsatisfied[iteration, block] = 1


@cuda.jit
def _check_kernel(
    app: Any, messages: Any, columns: Any, shifts: Any, row_starts: Any, z: Any,
    limit: Any, offset: Any, shift: Any, iteration: Any, early_stop: Any, unsatisfied: Any,
) -> None:  # fmt: skip
    row, block = cuda.blockIdx.x, cuda.blockIdx.y
    if early_stop and not unsatisfied[iteration, block]:
        return
    for lift in range(cuda.threadIdx.x, z, cuda.blockDim.x):
        _update_check(
            app[block], messages[block], columns, shifts, row_starts[row], row_starts[row + 1],
            lift, z, limit, offset, shift, False,
        )  # fmt: skip


@cuda.jit
def _variable_kernel(
    channel: Any, messages: Any, app: Any, by_column: Any, column_starts: Any, shifts: Any, z: Any,
    iteration: Any, early_stop: Any, unsatisfied: Any,
) -> None:  # fmt: skip
    column, block = cuda.blockIdx.x, cuda.blockIdx.y
    if early_stop and not unsatisfied[iteration, block]:
        return
    for lift in range(cuda.threadIdx.x, z, cuda.blockDim.x):
        place = column * z + lift
        total = int(channel[block, place])
        for i in range(column_starts[column], column_starts[column + 1]):
            edge = by_column[i]
            check = lift - shifts[edge]
            total += int(messages[block, edge, check + z if check < 0 else check])
        app[block, place] = total


class CudaDecoder:
    """Decoder of one code on the current device: tables and buffers stay there between calls.

    Args:
        graph: base graph.
        lifting_size: Z.
        n_blocks: code blocks decoded at once.
        settings: how.
        n_rows: rows of the base graph to use.
    """

    def __init__(
        self,
        graph: BaseGraph,
        lifting_size: int,
        n_blocks: int,
        settings: DecoderSettings,
        n_rows: int,
    ) -> None:
        self._graph, self._z, self._settings = graph, lifting_size, settings
        self._n_rows, self._n_blocks = n_rows, n_blocks
        n_edges = int(graph.row_starts[n_rows])
        columns = graph.columns[:n_edges]
        order = np.argsort(columns, kind="stable")
        starts = np.searchsorted(columns[order], np.arange(graph.n_columns + 1))
        self._columns = cuda.to_device(columns.astype(np.int32))
        self._shifts = cuda.to_device(graph.shifts(lifting_size)[:n_edges].astype(np.int32))
        self._row_starts = cuda.to_device(graph.row_starts[: n_rows + 1].astype(np.int32))
        self._by_column = cuda.to_device(order.astype(np.int32))
        self._column_starts = cuda.to_device(starts.astype(np.int32))
        width = graph.n_columns * lifting_size
        self._no_messages = np.zeros((n_blocks, n_edges, lifting_size), dtype=settings.dtype)
        self._no_failures = np.zeros((settings.iterations + 1, n_blocks), dtype=np.uint8)
        self._messages = cuda.to_device(self._no_messages)
        self._unsatisfied = cuda.to_device(self._no_failures)
        self._channel = cuda.device_array((n_blocks, width), dtype=np.int16)
        self._app = cuda.device_array((n_blocks, width), dtype=np.int16)

    def load(self, llr: NDArray[np.int16], stream: Any = 0) -> None:
        """Copy channel values to the device, int16[n_blocks, n_columns * Z]; clear the rest."""
        values = np.ascontiguousarray(llr)
        self._app.copy_to_device(values, stream=stream)
        self._channel.copy_to_device(values, stream=stream)
        self._messages.copy_to_device(self._no_messages, stream=stream)
        self._unsatisfied.copy_to_device(self._no_failures, stream=stream)

    def run(self, stream: Any = 0) -> None:
        """Queue all iterations on a stream."""
        settings = self._settings
        offset, shift = settings.offset_and_shift
        code = (self._columns, self._shifts, self._row_starts, self._z)
        rule = (settings.limit, offset, shift)
        threads = min(THREADS, self._z)
        if settings.schedule == "layered":
            _layered_kernel[self._n_blocks, threads, stream](
                self._app, self._messages, *code, *rule, settings.iterations,
                settings.early_stop, self._unsatisfied,
            )  # fmt: skip
            return
        by_row = (self._n_rows, self._n_blocks), threads, stream
        by_column = (self._graph.n_columns, self._n_blocks), threads, stream
        for iteration in range(settings.iterations):
            state = (iteration, settings.early_stop, self._unsatisfied)
            if settings.early_stop:
                _parity_kernel[by_row](self._app, *code, iteration, self._unsatisfied)
            _check_kernel[by_row](self._app, self._messages, *code, *rule, *state)
            _variable_kernel[by_column](
                self._channel, self._messages, self._app, self._by_column,
                self._column_starts, self._shifts, self._z, *state,
            )  # fmt: skip
        _parity_kernel[by_row](self._app, *code, settings.iterations, self._unsatisfied)

    def result(self, stream: Any = 0) -> Decoded:
        """Copy the decisions back."""
        words = (self._app.copy_to_host(stream=stream) < 0).astype(np.uint8)
        failed = self._unsatisfied.copy_to_host(stream=stream)
        ran = failed[:-1].sum(axis=0, dtype=np.int64)
        if not self._settings.early_stop:
            ran = np.full(self._n_blocks, self._settings.iterations)
        return Decoded(words, failed[-1] == 0, ran)


def decode_cuda(
    llr: NDArray[np.int16],
    graph: BaseGraph,
    lifting_size: int,
    settings: DecoderSettings,
    n_rows: int | None = None,
) -> Decoded:
    """Decode code blocks on the current CUDA device; arguments as for ``decoder.decode``.

    Raises:
        InputError: the input does not fit the code.
    """
    rows = check_input(llr, graph, lifting_size, n_rows)
    decoder = CudaDecoder(graph, lifting_size, len(llr), settings, rows)
    decoder.load(llr)
    decoder.run()
    return decoder.result()
