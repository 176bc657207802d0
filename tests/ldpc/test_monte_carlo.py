"""Modulation, and error rates of the decoder against the shipped curves."""

import itertools

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.ldpc.modulation import axis_levels, demodulate, modulate
from ranloom.ldpc.monte_carlo import (
    SIZES,
    SweepSettings,
    block_errors,
    decibels_apart,
    main,
    single_block,
    sweep,
)
from ranloom.nr.bler import bler_curves, block_error_rate, transport_block_curves

# 38.211 clause 5.1: symbols of some bit groups, in units of the square root given
SYMBOLS = [
    ("00", 1 + 1j, 2),
    ("01", 1 - 1j, 2),
    ("0000", 1 + 1j, 10),
    ("0010", 3 + 1j, 10),
    ("1011", -3 + 3j, 10),
    ("000000", 3 + 3j, 42),
    ("000010", 1 + 3j, 42),
    ("001000", 5 + 3j, 42),
    ("00000000", 5 + 5j, 170),
]


@pytest.mark.parametrize(("bits", "symbol", "energy"), SYMBOLS)
def test_symbols_of_the_standard(bits, symbol, energy):
    found = modulate(np.array([int(b) for b in bits], dtype=np.uint8), len(bits))
    assert found[0] == pytest.approx(symbol / np.sqrt(energy))


@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_constellation(order):
    bits = np.array(list(itertools.product((0, 1), repeat=order)), dtype=np.uint8)
    symbols = modulate(bits, order)[:, 0]
    assert np.mean(abs(symbols) ** 2) == pytest.approx(1.0)
    assert len(np.unique(symbols.round(9))) == 2**order
    # Gray: nearest neighbours differ in one bit
    amplitudes, codes = axis_levels(order)
    ordered = codes[np.argsort(amplitudes)]
    assert (abs(np.diff(ordered.astype(int), axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_demapping_inverts_mapping(order):
    bits = np.random.default_rng(order).integers(0, 2, (3, 40 * order), dtype=np.uint8)
    llr = demodulate(modulate(bits, order), order, noise_power=0.01)
    np.testing.assert_array_equal(llr < 0, bits == 1)


def test_qpsk_metric_is_exact():
    # for QPSK max-log is the true ratio: 4 Re(y) / (sqrt(2) N)
    y = np.array([0.3 - 0.7j])
    found = demodulate(y, 2, noise_power=0.5)
    np.testing.assert_allclose(found, 4 * np.array([0.3, -0.7]) / np.sqrt(2) / 0.5)
    with pytest.raises(InputError, match="modulation_order: 3"):
        axis_levels(3)


@pytest.mark.parametrize(("mcs", "bits"), [(4, 1000), (13, 2000), (22, 1000)])
def test_error_rates_agree_with_the_shipped_curves(root, mcs, bits):
    """Min-sum with 10 iterations loses up to 0.4 dB on the shipped belief-propagation curves."""
    curves = bler_curves(root / "data" / "bler" / "table1.csv", 1)
    snr50, sigma = (float(v) for v in curves.at(np.array(mcs), np.array(bits)))
    settings = DecoderSettings("layered", "offset", 16, iterations=10)
    rng = np.random.default_rng(mcs)
    n = 120
    # where the shipped curve says 90 %, at least as many fail ...
    low = snr50 - 1.28 * sigma
    assert block_error_rate(low, snr50, sigma, 1) == pytest.approx(0.9, abs=0.01)
    assert block_errors(mcs, bits, low, n, settings, rng) >= 0.8 * n
    # ... and 0.4 dB above its 10 % point at most a third
    high = snr50 + 1.28 * sigma + 0.4
    assert block_errors(mcs, bits, high, n, settings, rng) <= n / 3


def test_sweep_covers_the_waterfall():
    settings = DecoderSettings(iterations=10)
    points = sweep([9], [500], settings, SweepSettings(blocks=30))
    assert points.bler.max() > 0.98
    assert points.bler.min() < 0.02
    again = sweep([9], [500], settings, SweepSettings(blocks=30))
    np.testing.assert_array_equal(points.bler, again.bler)


def test_sizes_that_a_base_graph_does_not_hold_are_left_out():
    assert single_block(8448, 0.1) is None  # base graph 2 holds 3840 bits
    assert single_block(3840, 0.1).payload_bits == 3840
    assert single_block(8448, 0.5).payload_bits == 8448
    settings = DecoderSettings()
    rng = np.random.default_rng(1)
    assert block_errors(0, 8448, 0.0, 1, settings, rng) is None


def test_measured_curves_lie_a_little_above_the_shipped_ones(root, monkeypatch, capsys):
    """Min-sum with ten iterations against the belief propagation of the source tables."""
    folder = root / "data" / "bler"
    ours, shipped = (bler_curves(folder / n) for n in ("decoder_table1.csv", "table1.csv"))
    for size in SIZES[1:]:
        apart = decibels_apart(ours, shipped, size)
        assert apart.mean() == pytest.approx(0.32, abs=0.03)
        assert apart.min() > -0.05
        assert apart.max() < 0.8
    monkeypatch.chdir(root)
    main(folder / "decoder_table1.csv", compare=True)
    assert "  500 bits: +0.32 dB on average over MCS" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"none.csv.*no such file"):
        main(folder / "none.csv", compare=True)


def test_the_cell_takes_measured_curves(root):
    """The same shape for kernels, and a block that needs more SNR to get through."""
    ours, shipped = (
        transport_block_curves(bler_curves(root / "data" / "bler" / name), 106)
        for name in ("decoder_table1.csv", "table1.csv")
    )
    assert ours.snr50_db.shape == shipped.snr50_db.shape == (29, 107)
    np.testing.assert_array_equal(ours.n_code_blocks, shipped.n_code_blocks)
    wide = ours.snr50_db[:, 50:] - shipped.snr50_db[:, 50:]
    assert wide.mean() == pytest.approx(0.32, abs=0.03)
