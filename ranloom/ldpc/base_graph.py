"""The two quasi-cyclic base graphs of the NR LDPC code (3GPP TS 38.212 clause 5.3.2).

A base graph of R rows and C columns describes the parity-check matrix of R x Z rows and C x Z
columns: an entry with shift v stands for the Z x Z identity, cyclically shifted right by v
modulo Z. The first two columns are punctured, and the rows from the fifth on each add one
column of parity bits of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc import base_graph_tables
from ranloom.nr.segmentation import INFORMATION_COLUMNS, LIFTING_SETS, LIFTING_SIZES

PUNCTURED_COLUMNS = 2
CORE_ROWS = 4  # rows with the double-diagonal parity part

_TABLES = {1: base_graph_tables.BASE_GRAPH_1, 2: base_graph_tables.BASE_GRAPH_2}


def lifting_set_index(lifting_size: int) -> int:
    """Set index i_LS of a lifting size (38.212 table 5.3.2-1).

    Raises:
        InputError: not one of the 51 lifting sizes.
    """
    for index, sizes in enumerate(LIFTING_SETS):
        if lifting_size in sizes:
            return index
    raise InputError(
        "lifting_size",
        lifting_size,
        f"allowed: one of the {len(LIFTING_SIZES)} sizes of 38.212 table 5.3.2-1 (2 to 384)",
    )


@dataclass(frozen=True, eq=False)
class BaseGraph:
    """Entries of a base graph, row by row.

    Attributes:
        index: 1 or 2.
        n_rows: rows (46 or 42).
        n_columns: columns (68 or 52).
        rows: int64[n_edges], row of each entry, ascending.
        columns: int64[n_edges], column of each entry, ascending within a row.
        shift_table: int64[8, n_edges], shift of each entry by lifting set.
        row_starts: int64[n_rows + 1], first entry of each row, and the number of entries.
    """

    index: int
    n_rows: int
    n_columns: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    shift_table: NDArray[np.int64]
    row_starts: NDArray[np.int64]

    @property
    def n_edges(self) -> int:
        """Entries of the whole graph (316 or 197)."""
        return len(self.rows)

    @property
    def information_columns(self) -> int:
        """Columns of information bits (22 or 10)."""
        return INFORMATION_COLUMNS[self.index]

    def shifts(self, lifting_size: int) -> NDArray[np.int64]:
        """Shift of each entry at a lifting size, int64[n_edges], in 0 to ``lifting_size - 1``.

        Raises:
            InputError: no lifting size of the standard.
        """
        return np.asarray(self.shift_table[lifting_set_index(lifting_size)] % lifting_size)

    def rows_needed(self, sent_bits: Any, filler_bits: Any, lifting_size: Any) -> Any:
        """Rows that a decoder needs for a first transmission (redundancy version 0).

        Parity columns beyond the last sent bit carry no channel value, so the rows that own them
        say nothing. At least the four core rows remain.

        Args:
            sent_bits: rate-matched bits of a code block, E; arrays broadcast.
            filler_bits: filler bits of the block, which are not sent.
            lifting_size: Z.

        Returns:
            Integers of the common shape, 4 to ``n_rows``.
        """
        last_column = PUNCTURED_COLUMNS - (-(sent_bits + filler_bits) // lifting_size)
        return np.clip(last_column - self.information_columns, CORE_ROWS, self.n_rows)

    def edges_of_rows(self, n_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Entries in the first ``n_rows`` rows."""
        return np.take(self.row_starts, n_rows)

    def parity_check_matrix(self, lifting_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Coordinates of the ones of the lifted parity-check matrix.

        Args:
            lifting_size: Z.

        Returns:
            Row and column indices, int64[n_edges * Z] each.
        """
        offset = np.arange(lifting_size)
        shift = self.shifts(lifting_size)[:, None]
        row = self.rows[:, None] * lifting_size + offset
        column = self.columns[:, None] * lifting_size + (offset + shift) % lifting_size
        return row.ravel(), column.ravel()


@cache
def base_graph(index: int) -> BaseGraph:
    """Base graph 1 or 2.

    Raises:
        InputError: there is no such base graph.
    """
    if index not in _TABLES:
        raise InputError("base_graph", index, "allowed: 1 or 2")
    table = np.array([line.split() for line in _TABLES[index].splitlines()], dtype=np.int64)
    rows, columns = table[:, 0].copy(), table[:, 1].copy()
    n_rows = int(rows[-1]) + 1
    graph = BaseGraph(
        index=index,
        n_rows=n_rows,
        n_columns=int(columns.max()) + 1,
        rows=rows,
        columns=columns,
        shift_table=np.ascontiguousarray(table[:, 2:].T),
        row_starts=np.searchsorted(rows, np.arange(n_rows + 1)).astype(np.int64),
    )
    for array in (graph.rows, graph.columns, graph.shift_table, graph.row_starts):
        array.setflags(write=False)
    return graph
