"""Rate matching against a literal reading of 38.212 clause 5.4.2."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.rate_matching import block_lengths, recover, selected_positions

START = {1: [(0, 1), (17, 66), (33, 66), (56, 66)], 2: [(0, 1), (13, 50), (25, 50), (43, 50)]}


def sent_by_the_letter(word, graph_index, z, payload, n_sent, order, version, limit):
    """Circular buffer with None for filler bits, bit by bit, then the interleaver."""
    total = {1: 22, 2: 10}[graph_index] * z
    whole = {1: 66, 2: 50}[graph_index] * z
    buffer = [None if payload <= i < total else word[i] for i in range(2 * z, len(word))]
    length = whole if limit is None else min(whole, limit)
    top, bottom = START[graph_index][version]
    k, j, e = (top * length) // (bottom * z) * z, 0, []
    while len(e) < n_sent:
        bit = buffer[(k + j) % length]
        if bit is not None:
            e.append(bit)
        j += 1
    rows = n_sent // order
    f = [None] * n_sent
    for j in range(rows):
        for i in range(order):
            f[i + j * order] = e[i * rows + j]
    return f


@settings(deadline=None)
@given(
    index=st.sampled_from([1, 2]),
    z=st.sampled_from([2, 5, 14, 30]),
    filler=st.integers(0, 20),
    symbols=st.integers(1, 300),
    order=st.sampled_from([2, 4, 6, 8]),
    version=st.integers(0, 3),
    share=st.sampled_from([None, 0.5, 0.8]),
)
def test_equals_the_standard(index, z, filler, symbols, order, version, share):
    graph = base_graph(index)
    total = graph.information_columns * z
    payload = max(total - filler, 2 * z + 1)
    limit = None if share is None else int(share * (graph.n_columns - 2) * z)
    word = np.arange(graph.n_columns * z)  # every bit tells its place
    positions = selected_positions(graph, z, payload, symbols * order, order, version, limit)
    expected = sent_by_the_letter(
        word.tolist(), index, z, payload, symbols * order, order, version, limit
    )
    assert word[positions].tolist() == expected


@settings(deadline=None)
@given(
    blocks=st.integers(1, 20),
    symbols=st.integers(20, 5000),
    order=st.sampled_from([2, 4, 6, 8]),
    layers=st.integers(1, 4),
)
def test_block_lengths(blocks, symbols, order, layers):
    unit = order * layers
    lengths = block_lengths(symbols * unit, blocks, order, layers)
    assert lengths.sum() == symbols * unit
    assert (lengths % unit == 0).all()
    # the shorter ones first, at most one symbol apart
    assert (np.diff(lengths) >= 0).all()
    assert lengths[-1] - lengths[0] in (0, unit)


def test_recovery_adds_repeated_bits():
    graph, z = base_graph(2), 4
    n_sent = 3 * 50 * z // 4 * 4  # three times around the buffer
    payload = 10 * z - 6
    positions = selected_positions(graph, z, payload, n_sent, 4, 0)
    word = recover(np.ones(n_sent), positions, graph, z, payload, filler_llr=99.0)
    assert (word[: 2 * z] == 0).all()
    assert (word[payload : 10 * z] == 99.0).all()
    sent = np.delete(word[2 * z :], np.arange(payload - 2 * z, 8 * z))
    assert sent.min() >= 3
    assert sent.sum() == n_sent


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"sent_bits": 13}, "sent_bits"),
        ({"sent_bits": 0}, "sent_bits"),
        ({"redundancy_version": 4}, "redundancy_version"),
    ],
)
def test_out_of_range_is_refused(options, where):
    values = {"sent_bits": 12, "modulation_order": 4, "redundancy_version": 0, **options}
    with pytest.raises(InputError, match=f"^{where}: "):
        selected_positions(base_graph(1), 10, 200, **values)
    with pytest.raises(InputError, match=r"^coded_bits: 100 .* multiples of 6, at least 18"):
        block_lengths(100, 3, 6)
