"""Lookup table: conservative by construction, infeasible pairs explicit, round trip."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.lut.table import INFEASIBLE, PROVENANCES, UNPROFILED, Cells, Lut

LEVELS = [8, 16, 24, 32, 40, 48]


def cells(points):
    mcs, prb, sm = (np.array(c, dtype=np.int64) for c in zip(*points, strict=True))
    return Cells(mcs, prb, sm, np.full(len(mcs), PROVENANCES.index("measured"), np.int8))


@st.composite
def profiles(draw):
    """Random profiles, monotone or not, ragged or on a grid, some points infeasible."""
    pairs = draw(st.sets(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=30))
    values = st.sampled_from([*LEVELS, INFEASIBLE])
    return [(m, p, draw(values)) for m, p in sorted(pairs)]


@settings(deadline=None)
@given(points=profiles(), mcs=st.integers(0, 9), prb=st.integers(1, 40))
def test_a_query_is_never_optimistic(points, mcs, prb):
    lut = Lut.from_cells(cells(points), n_mcs=10, carrier_prb=40, sm_count=48)
    answer = int(lut.min_sm[mcs, prb])
    # not below any profiled point that it dominates
    below = [sm for m, p, sm in points if m <= mcs and p <= prb]
    assert all(answer >= sm for sm in below)
    # not below the profiled points next above it in both dimensions: none smaller lies between
    above = [(m, p, sm) for m, p, sm in points if m >= mcs and p >= prb]
    nearest = [
        sm
        for m, p, sm in above
        if not any((m2, p2) != (m, p) and m2 <= m and p2 <= p for m2, p2, _ in above)
    ]
    assert answer >= min(nearest, default=INFEASIBLE)
    # and it says so where nothing is known
    if not above:
        assert answer == INFEASIBLE
        assert lut.lut_sm(mcs, prb) is None


@settings(deadline=None)
@given(
    data=st.data(),
    rows=st.lists(st.integers(0, 9), min_size=2, max_size=4, unique=True).map(sorted),
    columns=st.lists(st.integers(1, 40), min_size=2, max_size=5, unique=True).map(sorted),
)
def test_between_the_points_of_a_grid_no_corner_needs_more(data, rows, columns):
    """Ceiling interpolation: at least all four profiled corners around a query."""
    values = st.sampled_from([*LEVELS, INFEASIBLE])
    profiled = {(m, p): data.draw(values) for m in rows for p in columns}
    points = [(m, p, sm) for (m, p), sm in profiled.items()]
    lut = Lut.from_cells(cells(points), n_mcs=10, carrier_prb=40, sm_count=48)
    mcs = data.draw(st.integers(rows[0], rows[-1]))
    prb = data.draw(st.integers(columns[0], columns[-1]))
    corners = [
        profiled[m, p]
        for m in (max(r for r in rows if r <= mcs), min(r for r in rows if r >= mcs))
        for p in (max(c for c in columns if c <= prb), min(c for c in columns if c >= prb))
    ]
    assert int(lut.min_sm[mcs, prb]) >= max(corners)


@settings(deadline=None)
@given(points=profiles())
def test_envelope_is_monotone_and_no_larger_than_needed(points):
    lut = Lut.from_cells(cells(points), n_mcs=10, carrier_prb=40, sm_count=48)
    assert (np.diff(lut.min_sm, axis=0) >= 0).all()
    assert (np.diff(lut.min_sm, axis=1) >= 0).all()
    # at a profiled point: the largest of the points that it dominates, and no more
    for m, p, _ in points:
        assert lut.min_sm[m, p] == max(sm for m2, p2, sm in points if m2 <= m and p2 <= p)
        assert lut.min_sm_raw[m, p] == next(sm for m2, p2, sm in points if (m2, p2) == (m, p))
    assert (lut.min_sm_raw != UNPROFILED).sum() == len(points)


@settings(deadline=None)
@given(points=profiles(), mcs=st.integers(0, 9), sm=st.integers(0, 48))
def test_lut_prb_is_the_inverse_of_lut_sm(points, mcs, sm):
    lut = Lut.from_cells(cells(points), n_mcs=10, carrier_prb=40, sm_count=48)
    prb = lut.lut_prb(mcs, sm)
    if prb:
        needed = lut.lut_sm(mcs, prb)
        assert needed is not None
        assert needed <= sm
    if prb < lut.carrier_prb:
        more = lut.lut_sm(mcs, prb + 1)
        assert more is None or more > sm


@settings(deadline=None)
@given(points=profiles(), carrier=st.integers(1, 40))
def test_columns_round_trip(points, carrier):
    lut = Lut.from_cells(cells(points), n_mcs=10, carrier_prb=40, sm_count=48)
    back = Lut.from_columns(lut.to_columns(), sm_count=48)
    for name in ("min_sm_raw", "min_sm", "max_prb", "provenance"):
        np.testing.assert_array_equal(getattr(back, name), getattr(lut, name))
    narrow = Lut.from_columns(lut.to_columns(), sm_count=48, carrier_prb=carrier)
    np.testing.assert_array_equal(narrow.min_sm, lut.min_sm[:, : carrier + 1])
    np.testing.assert_array_equal(narrow.max_prb, np.minimum(lut.max_prb, carrier))


def test_points_beyond_the_carrier_still_count():
    lut = Lut.from_cells(cells([(9, 30, 24)]), n_mcs=10, carrier_prb=20, sm_count=48)
    assert lut.lut_sm(5, 20) == 24
    assert lut.carrier_prb == 20
    assert lut.lut_prb(5, 24) == 20


def test_nothing_to_decode_needs_no_sm():
    lut = Lut.from_cells(cells([(3, 5, 16)]), n_mcs=4, carrier_prb=5, sm_count=48)
    assert lut.lut_sm(3, 0) == 0
    assert lut.lut_prb(3, 8) == 0
    assert lut.min_sm.dtype == lut.max_prb.dtype == np.int16


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(10, 5, 8)], r"\(10, 5\)"),
        ([(0, 0, 8)], "at least 1 PRB"),
        ([(1, 2, 8), (1, 2, 16)], r"\(1, 2\) .* each point once"),
    ],
)
def test_bad_points_are_refused(points, message):
    with pytest.raises(InputError, match=message):
        Lut.from_cells(cells(points), n_mcs=10, carrier_prb=40, sm_count=48)


def test_no_points_are_refused():
    empty = np.zeros(0, dtype=np.int64)
    with pytest.raises(InputError, match="at least one"):
        Lut.from_cells(Cells(empty, empty, empty, empty.astype(np.int8)), 10, 40, 48)


def test_query_outside_the_table_is_refused():
    lut = Lut.from_cells(cells([(3, 5, 16)]), n_mcs=4, carrier_prb=5, sm_count=48)
    for call, where in [
        (lambda: lut.lut_sm(4, 1), "mcs"),
        (lambda: lut.lut_sm(0, 6), "prb"),
        (lambda: lut.lut_prb(0, 49), "sm"),
        (lambda: lut.lut_prb(-1, 8), "mcs"),
    ]:
        with pytest.raises(InputError, match=f"^{where}: "):
            call()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: {k: v[:-1] for k, v in c.items()}, "each once"),
        (lambda c: {**c, "prb": np.ones_like(c["prb"])}, "each once"),
        (lambda c: {**c, "provenance": ["guessed"] * len(c["mcs"])}, "guessed"),
        (lambda c: {**c, "min_sm": c["min_sm"][::-1]}, "grows with"),
    ],
)
def test_damaged_columns_are_refused(damage, message):
    lut = Lut.from_cells(
        cells([(0, 5, 8), (3, 3, 16), (3, 5, 24)]), n_mcs=4, carrier_prb=5, sm_count=48
    )
    with pytest.raises(InputError, match=message):
        Lut.from_columns(damage(lut.to_columns()), sm_count=48)


def test_carrier_wider_than_the_table_is_refused():
    lut = Lut.from_cells(cells([(3, 5, 16)]), n_mcs=4, carrier_prb=5, sm_count=48)
    with pytest.raises(InputError, match=r"n_prb: 6 .* 1 to 5"):
        Lut.from_columns(lut.to_columns(), sm_count=48, carrier_prb=6)
