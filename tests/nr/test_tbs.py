"""Transport block sizes against an independent reading of 38.214 clause 5.1.3.2."""

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.nr.tbs import SMALL_TBS_BITS, tbs_table, transport_block_bits

# (modulation order, 1024 R) of some rows, typed in again
MCS_ROWS = {
    1: {0: (2, 120), 4: (2, 308), 10: (4, 340), 15: (4, 616), 28: (6, 948)},
    2: {1: (2, 193), 11: (6, 466), 20: (8, Fraction(1365, 2)), 26: (8, 916.5), 27: (8, 948)},
    3: {0: (2, 30), 5: (2, 99), 14: (2, 602), 21: (6, 438), 28: (6, 772)},
}


def size_by_the_letter(n_prb, order, rate_1024, layers, symbols, dmrs, overhead):
    """Clause 5.1.3.2 step by step, in exact fractions."""
    per_prb = 12 * symbols - dmrs - overhead
    rate = Fraction(rate_1024) / 1024
    info = min(156, per_prb) * n_prb * rate * order * layers

    def log2_floor(value):
        power = 0
        while Fraction(2) ** (power + 1) <= value:
            power += 1
        return power

    if info <= 3824:
        n = max(3, log2_floor(info) - 6) if info >= 1 else 3
        quantised = max(24, 2**n * floor(info / 2**n))
        return min(int(s) for s in SMALL_TBS_BITS if s >= quantised)
    n = log2_floor(info - 24) - 5
    steps = floor((info - 24) / 2**n + Fraction(1, 2))
    quantised = max(3840, 2**n * steps)
    if rate <= Fraction(1, 4):
        blocks = ceil(Fraction(quantised + 24, 3816))
    elif quantised > 8424:
        blocks = ceil(Fraction(quantised + 24, 8424))
    else:
        blocks = 1
    return 8 * blocks * ceil(Fraction(quantised + 24, 8 * blocks)) - 24


def test_table_of_small_sizes():
    assert len(SMALL_TBS_BITS) == 93
    # heads of the four columns in which table 5.1.3.2-1 is printed, and its last entry
    picked = [int(SMALL_TBS_BITS[i - 1]) for i in (1, 31, 61, 91, 93)]
    assert picked == [24, 336, 1288, 3624, 3824]
    assert (np.diff(SMALL_TBS_BITS) > 0).all()


@pytest.mark.parametrize(
    ("n_prb", "mcs", "options", "bits"),
    [
        # 1.28 Mbit: the often quoted largest block at 100 MHz, 4 layers, 256QAM, 13 data symbols
        (273, 27, {"table": 2, "n_layers": 4}, 1_277_992),
        (162, 15, {}, 60_456),
        (162, 15, {"n_symbols": 13}, 56_368),  # the configuration of Sionna's decode
        (1, 0, {}, 32),
        (0, 5, {}, 0),
    ],
)
def test_known_sizes(n_prb, mcs, options, bits):
    assert transport_block_bits(n_prb, mcs, **options) == bits


@settings(deadline=None)
@given(
    table=st.sampled_from([1, 2, 3]),
    pick=st.integers(0, 4),
    n_prb=st.integers(1, 275),
    layers=st.integers(1, 4),
    symbols=st.integers(3, 14),
    dmrs=st.sampled_from([6, 12, 24, 36]),
    overhead=st.sampled_from([0, 6, 12, 18]),
)
def test_equals_the_standard(table, pick, n_prb, layers, symbols, dmrs, overhead):
    if 12 * symbols - dmrs - overhead < 1:
        with pytest.raises(InputError):
            transport_block_bits(n_prb, 0, n_symbols=symbols, n_dmrs_per_prb=dmrs, n_oh=overhead)
        return
    mcs, (order, rate) = list(MCS_ROWS[table].items())[pick]
    assert transport_block_bits(
        n_prb,
        mcs,
        table=table,
        n_layers=layers,
        n_symbols=symbols,
        n_dmrs_per_prb=dmrs,
        n_oh=overhead,
    ) == size_by_the_letter(n_prb, order, rate, layers, symbols, dmrs, overhead)


def test_table_holds_the_single_sizes():
    sizes = tbs_table(106, n_layers=2)
    assert sizes.shape == (29, 107)
    assert sizes.dtype == np.int32
    for mcs, n_prb in [(0, 1), (9, 50), (17, 106), (28, 3)]:
        assert sizes[mcs, n_prb] == transport_block_bits(n_prb, mcs, n_layers=2)
    assert not sizes[:, 0].any()
    # wider never carries less
    assert (np.diff(sizes, axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("max_prb", {"max_prb": 276}),
        ("n_layers", {"max_prb": 10, "n_layers": 5}),
        ("n_symbols", {"max_prb": 10, "n_symbols": 15}),
        ("n_oh", {"max_prb": 10, "n_oh": 5}),
        ("n_dmrs_per_prb", {"max_prb": 10, "n_dmrs_per_prb": 168}),
        ("mcs_table", {"max_prb": 10, "table": 0}),
    ],
)
def test_out_of_range_is_refused(where, options):
    with pytest.raises(InputError, match=f"^{where}: "):
        tbs_table(**options)


def test_unknown_mcs_is_refused():
    with pytest.raises(InputError, match=r"^mcs: 28 .* 0 to 27"):
        transport_block_bits(10, 28, table=2)
