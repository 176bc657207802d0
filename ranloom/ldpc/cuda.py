"""Flooding min-sum decoder for CUDA, bit-exact with the flooding decoder of ``decoder``.

Two kernels an iteration, over all code blocks at once. Check kernel: one thread block per row of
the base graph and code block, one thread per lifted check. Variable kernel: one thread block per
column and code block. One source in ``numba.cuda``: it compiles for a GPU, and runs without one on
numba's simulator (``NUMBA_ENABLE_CUDASIM=1`` before the first import of numba).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import BaseGraph
from ranloom.ldpc.decoder import Decoded, DecoderSettings
from ranloom.ldpc.encoder import parity_holds

THREADS = 128  # lifted checks or variables of a thread block at a time


@cuda.jit
def _check_kernel(
    app: Any, messages: Any, columns: Any, shifts: Any, row_starts: Any, z: Any,
    limit: Any, offset: Any, shift: Any,
) -> None:  # fmt: skip
    row, block = cuda.blockIdx.x, cuda.blockIdx.y
    first, last = row_starts[row], row_starts[row + 1]
    for lift in range(cuda.threadIdx.x, z, cuda.blockDim.x):
        smallest, second, negative = limit, limit, 0
        for edge in range(first, last):
            place = columns[edge] * z + (lift + shifts[edge]) % z
            value = int(app[block, place]) - int(messages[block, edge, lift])
            value = max(min(value, limit), -limit)
            negative ^= value < 0
            magnitude = abs(value)
            if magnitude < smallest:
                smallest, second = magnitude, smallest
            elif magnitude < second:
                second = magnitude
        for edge in range(first, last):
            place = columns[edge] * z + (lift + shifts[edge]) % z
            value = int(app[block, place]) - int(messages[block, edge, lift])
            value = max(min(value, limit), -limit)
            magnitude = second if abs(value) == smallest else smallest
            magnitude = max(magnitude - (magnitude >> shift) - offset, 0)
            messages[block, edge, lift] = -magnitude if negative ^ (value < 0) else magnitude


@cuda.jit
def _variable_kernel(
    channel: Any, messages: Any, app: Any, by_column: Any, column_starts: Any, shifts: Any, z: Any
) -> None:
    column, block = cuda.blockIdx.x, cuda.blockIdx.y
    for lift in range(cuda.threadIdx.x, z, cuda.blockDim.x):
        place = column * z + lift
        total = int(channel[block, place])
        for i in range(column_starts[column], column_starts[column + 1]):
            edge = by_column[i]
            total += int(messages[block, edge, (lift - shifts[edge]) % z])
        app[block, place] = total


class CudaDecoder:
    """Decoder of one code on the current device: tables and buffers stay there between calls.

    Args:
        graph: base graph.
        lifting_size: Z.
        n_blocks: code blocks decoded at once.
        settings: flooding, without early stop: every call runs all iterations.
        n_rows: rows of the base graph to use.

    Raises:
        InputError: the settings ask for what this decoder does not do.
    """

    def __init__(
        self,
        graph: BaseGraph,
        lifting_size: int,
        n_blocks: int,
        settings: DecoderSettings,
        n_rows: int,
    ) -> None:
        if settings.schedule != "flooding" or settings.early_stop:
            raise InputError(
                "settings", settings, "needed on CUDA: schedule flooding, no early stop"
            )
        self._graph, self._z, self._settings = graph, lifting_size, settings
        self._n_rows = n_rows
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
        self._zeros = np.zeros((n_blocks, n_edges, lifting_size), dtype=settings.dtype)
        self._messages = cuda.to_device(self._zeros)
        self._channel = cuda.device_array((n_blocks, width), dtype=np.int16)
        self._app = cuda.device_array((n_blocks, width), dtype=np.int16)

    def load(self, llr: NDArray[np.int16], stream: Any = 0) -> None:
        """Copy channel values to the device and clear the messages."""
        if llr.shape != self._app.shape or llr.dtype != np.int16:
            found = f"{llr.dtype}{list(llr.shape)}"
            raise InputError("llr", found, f"needed: int16{list(self._app.shape)}")
        self._channel.copy_to_device(np.ascontiguousarray(llr), stream=stream)
        self._app.copy_to_device(np.ascontiguousarray(llr), stream=stream)
        self._messages.copy_to_device(self._zeros, stream=stream)

    def run(self, stream: Any = 0) -> None:
        """Queue all iterations on a stream."""
        settings, blocks = self._settings, self._app.shape[0]
        offset, shift = settings.offset_and_shift
        threads = min(THREADS, self._z)
        for _ in range(settings.iterations):
            _check_kernel[(self._n_rows, blocks), threads, stream](
                self._app, self._messages, self._columns, self._shifts, self._row_starts,
                self._z, settings.limit, offset, shift,
            )  # fmt: skip
            _variable_kernel[(self._graph.n_columns, blocks), threads, stream](
                self._channel, self._messages, self._app, self._by_column,
                self._column_starts, self._shifts, self._z,
            )  # fmt: skip

    def result(self, stream: Any = 0) -> Decoded:
        """Copy the decisions back."""
        words = (self._app.copy_to_host(stream=stream) < 0).astype(np.uint8)
        holds = parity_holds(words, self._graph, self._z, self._n_rows)
        return Decoded(words, holds, np.full(len(words), self._settings.iterations))


def decode_cuda(
    llr: NDArray[np.int16],
    graph: BaseGraph,
    lifting_size: int,
    settings: DecoderSettings,
    n_rows: int | None = None,
) -> Decoded:
    """Decode code blocks on the current CUDA device; arguments as for ``decoder.decode``."""
    rows = graph.n_rows if n_rows is None else n_rows
    decoder = CudaDecoder(graph, lifting_size, len(llr), settings, rows)
    decoder.load(llr)
    decoder.run()
    return decoder.result()
