"""Base graphs and encoder: counts, structure, and H c = 0 at every lifting size."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import base_graph, lifting_set_index
from ranloom.ldpc.encoder import encode
from ranloom.nr.segmentation import LIFTING_SIZES

# entries per row of 38.212 tables 5.3.2-2 and -3, typed in
ROW_WEIGHTS = {
    1: "19 19 19 19 3 8 9 7 10 9 7 8 7 6 7 7 6 6 6 6 6 6 5 5 6 5 5 4 5 "
    "5 5 5 5 5 5 5 5 4 5 5 4 5 4 5 5 4",
    2: "8 10 8 10 4 6 6 6 4 5 5 5 4 5 5 4 5 5 4 4 4 4 3 4 4 3 5 3 4 3 5 3 4 4 4 4 4 3 4 4 4 4",
}


def parity_holds(words, graph, z):
    """H c = 0 for each word, with the lifted matrix."""
    _, columns = graph.parity_check_matrix(z)
    edges = words[:, columns].reshape(len(words), graph.n_edges, z)
    return ~np.bitwise_xor.reduceat(edges, graph.row_starts[:-1], axis=1).any(axis=(1, 2))


@pytest.mark.parametrize(
    ("index", "rows", "columns", "edges"), [(1, 46, 68, 316), (2, 42, 52, 197)]
)
def test_dimensions(index, rows, columns, edges):
    graph = base_graph(index)
    assert (graph.n_rows, graph.n_columns, graph.n_edges) == (rows, columns, edges)
    assert np.diff(graph.row_starts).tolist() == [int(w) for w in ROW_WEIGHTS[index].split()]
    assert graph.shift_table.shape == (8, edges)
    # each entry once, in order
    key = graph.rows * columns + graph.columns
    assert (np.diff(key) > 0).all()


# shifts read off the printed tables: (row, column) to the eight sets
@pytest.mark.parametrize(
    ("index", "row", "column", "shifts"),
    [
        (1, 0, 0, [250, 307, 73, 223, 211, 294, 0, 135]),
        (1, 0, 22, [1, 1, 1, 1, 1, 1, 0, 1]),
        (1, 1, 22, [0, 0, 0, 0, 0, 0, 105, 0]),
        (1, 4, 0, [157, 332, 233, 170, 246, 42, 24, 64]),
        (2, 0, 0, [9, 174, 0, 72, 3, 156, 143, 145]),
        (2, 2, 10, [1, 1, 1, 0, 1, 1, 1, 0]),
    ],
)
def test_printed_entries(index, row, column, shifts):
    graph = base_graph(index)
    (edge,) = np.flatnonzero((graph.rows == row) & (graph.columns == column))
    assert graph.shift_table[:, edge].tolist() == shifts


@pytest.mark.parametrize("index", [1, 2])
def test_parity_part_of_the_later_rows_is_the_identity(index):
    graph = base_graph(index)
    late = graph.columns >= graph.information_columns + 4
    assert (graph.columns[late] == graph.rows[late] + graph.information_columns).all()
    assert not graph.shift_table[:, late].any()


def test_sets_of_lifting_sizes():
    assert [lifting_set_index(z) for z in (2, 3, 5, 7, 9, 11, 13, 15)] == list(range(8))
    assert [lifting_set_index(z) for z in (256, 384, 320, 224, 288, 352, 208, 240)] == list(
        range(8)
    )
    for unknown in (1, 17, 385, 400):
        with pytest.raises(InputError, match="lifting_size"):
            lifting_set_index(unknown)


@pytest.mark.parametrize("index", [1, 2])
def test_code_words_satisfy_every_check_at_every_lifting_size(index):
    graph = base_graph(index)
    rng = np.random.default_rng(38212)
    for z in LIFTING_SIZES.tolist():
        bits = rng.integers(0, 2, (2, graph.information_columns * z), dtype=np.uint8)
        words = encode(bits, graph, z)
        # against the lifted matrix as a sparse matrix, not through the library's own check
        row, column = graph.parity_check_matrix(z)
        shape = (graph.n_rows * z, graph.n_columns * z)
        matrix = csr_matrix((np.ones(len(row), dtype=np.int64), (row, column)), shape=shape)
        assert not ((matrix @ words.T.astype(np.int64)) % 2).any()
        assert (words[:, : bits.shape[1]] == bits).all()
        assert parity_holds(words, graph, z).all()
        # a single flipped bit is seen
        words[0, int(rng.integers(words.shape[1]))] ^= 1
        assert parity_holds(words, graph, z).tolist() == [False, True]


@pytest.mark.parametrize("index", [1, 2])
def test_encoder_is_linear(index):
    graph, z = base_graph(index), 36
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2, (2, 3, graph.information_columns * z), dtype=np.uint8)
    np.testing.assert_array_equal(
        encode(a ^ b, graph, z), encode(a, graph, z) ^ encode(b, graph, z)
    )


def test_rows_needed_by_rate():
    graph = base_graph(1)

    def rows(sent, filler=0):
        return int(graph.rows_needed(sent, filler, 384))

    assert rows(66 * 384) == 46  # everything sent once
    assert rows(99 * 384) == 46  # repetition adds no rows
    assert rows(20 * 384) == 4  # at least the core
    assert rows(30 * 384) == 10  # 2 punctured + 30 sent - 22
    assert rows(30 * 384 + 1) == 11
    assert rows(29 * 384, filler=384) == 10
    assert graph.rows_needed(np.array([30, 66]) * 384, 0, 384).tolist() == [10, 46]


def test_wrong_number_of_bits_is_refused():
    with pytest.raises(InputError, match=r"needed: \(blocks, 220\)"):
        encode(np.zeros((1, 219), dtype=np.uint8), base_graph(1), 10)
    with pytest.raises(InputError, match="base_graph: 3"):
        base_graph(3)
