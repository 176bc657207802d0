"""Waterfall curves, their file, and HARQ combining."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from ranloom.errors import InputError
from ranloom.nr.bler import (
    bler_curves,
    block_error_rate,
    combined_snr_db,
    redundancy_share,
    transport_block_curves,
)
from ranloom.nr.bler_fit import BlerPoints, fit_curves, shannon_snr_db, write_curves
from ranloom.nr.mcs import mcs_table


@pytest.fixture(scope="module", params=[1, 2, 3])
def shipped(request, root):
    table = request.param
    return table, bler_curves(root / "data" / "bler" / f"table{table}.csv", table)


def test_shipped_curves_lie_above_shannon(shipped):
    table, curves = shipped
    shannon = shannon_snr_db(mcs_table(table).spectral_efficiency)
    gap = curves.snr50_db[:, curves.code_block_bits >= 1000] - shannon[:, None]
    assert gap.min() > 0.5
    assert gap.max() < 3.5


def test_shipped_curves_order_and_narrow(shipped):
    _, curves = shipped
    large = curves.code_block_bits >= 1000
    # a higher MCS needs more SNR, a larger block has a steeper waterfall
    assert (np.diff(curves.snr50_db[:, large], axis=0) > 0).all()
    assert (np.diff(curves.slope_db, axis=1) < 0).all()


def test_same_modulation_and_rate_agree_across_tables(root):
    # 16QAM 616/1024 is MCS 15 of table 1, MCS 9 of table 2 and MCS 20 of table 3
    at = {
        table: bler_curves(root / "data" / "bler" / f"table{table}.csv", table).snr50_db[mcs, -1]
        for table, mcs in {1: 15, 2: 9, 3: 20}.items()
    }
    assert max(at.values()) - min(at.values()) < 0.1


# error rates of the source table (PDSCH table 1) at its own grid points
@pytest.mark.parametrize(
    ("mcs", "bits", "snr_db", "rate"),
    [
        (16, 100, 7.5, 0.848),
        (17, 1000, 9.285714, 0.069),
        (18, 1000, 9.285714, 0.603),
        (26, 100, 18.214286, 0.221),
        (28, 1000, 18.214286, 0.967),
        (3, 24, -1.428571, 0.170),
    ],
)
def test_curves_pass_through_measured_points(root, mcs, bits, snr_db, rate):
    curves = bler_curves(root / "data" / "bler" / "table1.csv", 1)
    snr50, sigma = curves.at(np.array(mcs), np.array(bits))
    assert block_error_rate(snr_db, float(snr50), float(sigma), 1) == pytest.approx(rate, abs=0.06)


@settings(deadline=None)
@given(
    snr=st.floats(-10, 30),
    snr50=st.floats(-10, 30),
    slope=st.floats(0.05, 3),
    blocks=st.integers(1, 60),
)
def test_block_error_rate_formula(snr, snr50, slope, blocks):
    one = norm.sf((snr - snr50) / slope)
    expected = 1.0 if one == 1.0 else -np.expm1(blocks * np.log1p(-one))
    found = block_error_rate(snr, snr50, slope, blocks)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert 0.0 <= found <= 1.0


def test_no_block_never_fails():
    assert block_error_rate(-50.0, 0.0, 0.1, 0) == 0.0
    assert block_error_rate(-50.0, 0.0, 0.1, 3) == 1.0
    assert block_error_rate(0.0, 0.0, 0.1, 1) == 0.5
    assert block_error_rate(0.0, 0.0, 0.1, 2) == 0.75


@settings(deadline=None)
@given(snrs=st.lists(st.floats(0.05, 300), min_size=1, max_size=4), share=st.floats(0, 1))
def test_combining_lies_between_chase_and_incremental_redundancy(snrs, share):
    chase = 10 * math.log10(sum(snrs))
    full = 10 * math.log10(math.prod(1 + s for s in snrs) - 1)
    found = combined_snr_db(sum(snrs), sum(math.log2(1 + s) for s in snrs), share)
    assert chase - 1e-9 <= found <= full + 1e-9


def test_combining_of_two_equal_transmissions():
    # repetition doubles the SNR: 3.01 dB
    gain = combined_snr_db(20.0, 2 * math.log2(11.0), 0.0) - 10.0
    assert gain == pytest.approx(10 * math.log10(2))
    # all new parity: 11^2 - 1 = 120
    assert combined_snr_db(20.0, 2 * math.log2(11.0), 1.0) == pytest.approx(10 * math.log10(120))


def test_redundancy_share():
    np.testing.assert_allclose(redundancy_share(np.array([0.2, 1 / 3, 0.5, 2 / 3, 0.9])),
                               [0, 0, 0.5, 1, 1], atol=1e-12)  # fmt: skip


def test_transport_block_curves_follow_the_segmentation(root):
    curves = bler_curves(root / "data" / "bler" / "table1.csv", 1)
    blocks = transport_block_curves(curves, 273)
    assert blocks.n_code_blocks[15, 162] == 8
    assert blocks.snr50_db.shape == (29, 274)
    # 8 blocks of 7605 bits: between the curves of 3840 and 8448 bits
    assert curves.slope_db[15, -1] < blocks.slope_db[15, 162] < curves.slope_db[15, -2]


def test_fit_recovers_known_curves(tmp_path):
    rng = np.random.default_rng(7)
    sizes, snr = np.array([100, 500, 2000, 3840]), np.arange(-5, 20, 0.5)
    mcs, bits, grid = (a.ravel() for a in np.meshgrid([4, 6, 8, 12, 14, 18, 20], sizes, snr))
    order = mcs_table(1).modulation_order[mcs]
    snr50 = shannon_snr_db(mcs_table(1).spectral_efficiency)[mcs] + 1.2
    sigma = np.select([order == 2, order == 4], [6.0, 7.0], 9.0) * bits**-0.45
    trials = 3000
    rate = rng.binomial(trials, norm.sf((grid - snr50) / sigma)) / trials
    fitted = fit_curves(BlerPoints(mcs, bits, grid, rate), 1)
    path = tmp_path / "curves.csv"
    write_curves(path, fitted, "made up")
    curves = bler_curves(path, 1)
    found, width = curves.at(mcs, bits)
    np.testing.assert_allclose(found, snr50, atol=0.1)
    np.testing.assert_allclose(width, sigma, rtol=0.1)
    origins = {(c.mcs, c.code_block_bits): c.origin for c in fitted}
    assert origins[4, 500] == "fitted"
    assert origins[4, 8448] == origins[28, 100] == "extended"
    assert origins[4, 3840] == "fitted"
    assert len(origins) == len(fitted) == 29 * 5


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace("snr50_db", "snr"), "needed columns"),
        (lambda t: t.replace("15,100,", "15,abc,"), "allowed: numbers"),
        (lambda t: t.replace("15,100,", "15,500,"), "each MCS and code block size once"),
        (lambda t: t.replace("15,100,", "29,100,"), "allowed: mcs 0 to 28"),
        (lambda t: "\n".join(t.splitlines()[:-1]), "at every size"),
        (lambda t: "\n".join(t.splitlines()[:3]), "at every size"),
        (lambda t: t.replace("15,100,7", "15,100,nan,7"), "finite SNR"),
    ],
)
def test_bad_curve_file_is_refused(root, tmp_path, edit, message):
    text = (root / "data" / "bler" / "table1.csv").read_text()
    changed = edit(text)
    assert changed != text
    path = tmp_path / "curves.csv"
    path.write_text(changed)
    with pytest.raises(InputError, match=message):
        bler_curves(path, 1)


def test_missing_curve_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        bler_curves(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\x80\x81")
    with pytest.raises(InputError, match="binary data"):
        bler_curves(tmp_path / "binary.csv")


def test_a_curve_file_needs_no_origin_and_may_have_a_mark_of_order(root, tmp_path):
    text = (root / "data" / "bler" / "table1.csv").read_text()
    rows = [line.rpartition(",")[0] for line in text.splitlines() if not line.startswith("#")]
    path = tmp_path / "curves.csv"
    path.write_text("\ufeff" + "\n".join(rows), encoding="utf-8")
    given = bler_curves(root / "data" / "bler" / "table1.csv")
    assert (bler_curves(path).snr50_db == given.snr50_db).all()
