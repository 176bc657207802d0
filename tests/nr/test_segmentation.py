"""Code block segmentation against 38.212 clause 5.2.2, and the decoder work of WEAVER's table."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.nr.mcs import mcs_table
from ranloom.nr.segmentation import LIFTING_SIZES, segment, segment_arrays, work_table
from ranloom.nr.tbs import tbs_table

# 38.212 table 5.3.2-1, typed in
TABLE_5_3_2_1 = [
    [2, 4, 8, 16, 32, 64, 128, 256],
    [3, 6, 12, 24, 48, 96, 192, 384],
    [5, 10, 20, 40, 80, 160, 320],
    [7, 14, 28, 56, 112, 224],
    [9, 18, 36, 72, 144, 288],
    [11, 22, 44, 88, 176, 352],
    [13, 26, 52, 104, 208],
    [15, 30, 60, 120, 240],
]


def segment_by_the_letter(size, rate):
    """(base graph, C, Z, K, K', L_tb, L_cb) after clauses 5.1, 5.2.2 and 7.2.2."""
    bg2 = size <= 292 or (size <= 3824 and rate <= 0.67) or rate <= 0.25
    tb_crc = 24 if size > 3824 else 16
    bits = size + tb_crc
    limit = 3840 if bg2 else 8448
    if bits <= limit:
        blocks, cb_crc = 1, 0
    else:
        cb_crc = 24
        blocks = ceil(bits / (limit - 24))
    payload = (bits + blocks * cb_crc) / blocks
    if not bg2:
        columns = 22
    elif bits > 640:
        columns = 10
    elif bits > 560:
        columns = 9
    elif bits > 192:
        columns = 8
    else:
        columns = 6
    sizes = sorted(z for row in TABLE_5_3_2_1 for z in row)
    lifting = min(z for z in sizes if z * columns >= payload)
    total = lifting * (10 if bg2 else 22)
    return (2 if bg2 else 1), blocks, lifting, total, payload, tb_crc, cb_crc


def test_lifting_sizes():
    assert LIFTING_SIZES.tolist() == sorted(z for row in TABLE_5_3_2_1 for z in row)
    assert len(LIFTING_SIZES) == 51


@pytest.mark.parametrize(
    ("size", "rate", "graph", "blocks", "lifting"),
    [
        (292, 0.9, 2, 1, 40),  # 308 bits over 8 columns: 38.5
        (293, 0.9, 1, 1, 15),  # 309 bits over 22 columns: 14.05
        (3824, 0.67, 2, 1, 384),  # 3840 bits: exactly the largest block
        (3824, 0.68, 1, 1, 176),
        (3840, 0.25, 2, 2, 208),  # 3864 bits in two blocks of 1956 bits
        (8424, 0.5, 1, 1, 384),  # 8448 bits: exactly the largest block
        (8448, 0.5, 1, 2, 208),  # 8472 bits in two blocks of 4260 bits
        (60_456, 616 / 1024, 1, 8, 352),  # MCS 15 on 162 PRB
        (34_944, 30 / 1024, 2, 10, 384),  # no size of 38.214: 3520.8 bits a block, just above 352
    ],
)
def test_known_cases(size, rate, graph, blocks, lifting):
    found = segment(size, rate)
    assert (found.base_graph, found.n_code_blocks, found.lifting_size) == (graph, blocks, lifting)
    assert found.work == blocks * lifting


@settings(deadline=None)
@given(
    size=st.integers(24, 1_300_000),
    rate_1024=st.sampled_from([30, 120, 251, 256, 308, 616, 686, 687, 772, 948]),
)
def test_equals_the_standard(size, rate_1024):
    size = size // 8 * 8
    graph, blocks, lifting, total, payload, tb_crc, cb_crc = segment_by_the_letter(
        size, rate_1024 / 1024
    )
    found = segment(size, rate_1024 / 1024)
    assert (found.base_graph, found.n_code_blocks, found.lifting_size) == (graph, blocks, lifting)
    assert (found.code_block_bits, found.tb_crc_bits, found.cb_crc_bits) == (total, tb_crc, cb_crc)
    assert found.payload_bits == int(payload)
    assert found.filler_bits == total - int(payload)


def test_work_is_not_monotone():
    work = work_table(273)
    # MCS 3 has code rate 251/1024 and so base graph 2, MCS 4 base graph 1
    assert work[3, 273] == 2304
    assert work[4, 273] == 1280
    # dips in PRB: a wider allocation passes to base graph 1 and its larger blocks
    assert work[5, 33] > work[5, 34]
    assert work[15, 10] > work[15, 11]
    assert work[5, 25] > work[5, 52]
    assert not work[:, 0].any()


def test_whole_blocks_are_equal_in_length():
    # transport block sizes are built so that C divides B: no rounding in K'
    for table in (1, 2, 3):
        sizes = tbs_table(273, table=table, n_layers=2)[:, 1:].astype(np.int64)
        arrays = segment_arrays(sizes, mcs_table(table).code_rate_x2048[:, None])
        with_crc = sizes + arrays.tb_crc_bits + arrays.n_code_blocks * arrays.cb_crc_bits
        assert (arrays.payload_bits * arrays.n_code_blocks == with_crc).all()


@pytest.mark.parametrize(("size", "rate"), [(0, 0.5), (-8, 0.5), (100, 0.0), (100, 1.0)])
def test_out_of_range_is_refused(size, rate):
    with pytest.raises(InputError):
        segment(size, rate)
