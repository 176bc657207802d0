"""LDPC encoder for both base graphs and all lifting sizes (3GPP TS 38.212 clause 5.3.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import CORE_ROWS, BaseGraph


def encode(
    information: NDArray[np.uint8], graph: BaseGraph, lifting_size: int
) -> NDArray[np.uint8]:
    """Encode code blocks.

    The core parity part is double-diagonal: summing its four rows leaves one shifted copy of the
    first parity column. The other three follow row by row, and each later row yields its own
    parity column. Row and column operations act on whole Z-blocks of all code blocks at once.

    Args:
        information: uint8[n_blocks, K], zeros and ones, filler bits as zeros.
        graph: base graph.
        lifting_size: Z, with ``K = information_columns * Z``.

    Returns:
        uint8[n_blocks, n_columns * Z]: all columns, the two punctured ones included.

    Raises:
        InputError: the number of bits does not fit.
    """
    columns = graph.information_columns
    if information.ndim != 2 or information.shape[1] != columns * lifting_size:
        raise InputError(
            "information",
            information.shape,
            f"needed: (blocks, {columns * lifting_size}) bits for base graph {graph.index} "
            f"at lifting size {lifting_size}",
        )
    shifts = graph.shifts(lifting_size)
    word = np.zeros((len(information), graph.n_columns, lifting_size), dtype=np.uint8)
    word[:, :columns] = information.reshape(len(information), columns, lifting_size)

    def row_sum(row: int, skip: int) -> NDArray[np.uint8]:
        """Sum of a row over the columns known so far, without column ``skip``."""
        total = np.zeros((len(word), lifting_size), dtype=np.uint8)
        for edge in range(graph.row_starts[row], graph.row_starts[row + 1]):
            column = graph.columns[edge]
            if column != skip:
                total ^= np.roll(word[:, column], -shifts[edge], axis=1)
        return total

    first = columns
    total = np.zeros((len(word), lifting_size), dtype=np.uint8)
    first_shifts: set[int] = set()
    for row in range(CORE_ROWS):
        total ^= row_sum(row, skip=-1)  # parity columns are still zero
        edges = np.arange(graph.row_starts[row], graph.row_starts[row + 1])
        for edge in edges[graph.columns[edges] == first]:
            first_shifts ^= {int(shifts[edge])}  # equal shifts cancel
    (left,) = first_shifts
    word[:, first] = np.roll(total, left, axis=1)

    # rows 0, 1, 2 close columns first + 1, + 2, + 3, whose entries there have shift 0
    for row in range(CORE_ROWS - 1):
        word[:, first + 1 + row] = row_sum(row, skip=first + 1 + row)
    for row in range(CORE_ROWS, graph.n_rows):
        word[:, columns + row] = row_sum(row, skip=columns + row)
    return word.reshape(len(word), graph.n_columns * lifting_size)
