"""The cross-check with Sionna, smaller than the command; its statistics do not need Sionna."""

import importlib.util
import itertools
import sys

import pytest

from ranloom.errors import InputError
from ranloom.ldpc import against_sionna as check
from ranloom.ldpc.decoder import DecoderSettings

with_sionna = pytest.mark.skipif(
    not importlib.util.find_spec("sionna"), reason="sionna-no-rt is not installed"
)


@with_sionna
@pytest.mark.parametrize("table", [1, 2, 3])
def test_mcs_tables(table):
    assert check.differing_mcs(table) == 0


@with_sionna
@pytest.mark.parametrize("allocation", check.ALLOCATIONS)
def test_sizes_and_segmentation_on_the_full_grid(allocation):
    assert check.differing_sizes(allocation) == 0


@with_sionna
def test_encoder_is_bit_exact():
    assert check.differing_words(50, seed=1) == 0


@with_sionna
def test_decoders_err_alike_on_the_same_noise():
    form, _, (_, noise, _) = check.CASES[0]
    settings = DecoderSettings("flooding", "offset", 16, iterations=20)
    found = check.compare_decoders(form, settings, 20, noise, blocks=400, seed=3)
    assert 20 < found.theirs.block_errors < 380
    assert check.bler_agrees([found])
    assert abs(found.ber_difference) <= found.ber_half_interval


def test_without_sionna_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sionna.phy.nr", None)
    with pytest.raises(InputError, match="needed: pip install sionna-no-rt"):
        check.sionna("nr")


def test_random_configurations_are_of_every_kind():
    forms = list(itertools.islice(check.random_formats(50), 60))
    kinds = {(f.segmentation.base_graph, f.segmentation.n_code_blocks > 1) for f in forms}
    assert {(1, False), (1, True), (2, False)} <= kinds
    assert {f.modulation_order for f in forms} == {2, 4, 6, 8}
    assert {f.n_layers for f in forms} == {1, 2, 3, 4}


def counts(errors, blocks=400):
    return check.ErrorCount(blocks, errors, blocks * 1000, errors * 50)


def comparison(ours_only, theirs_only):
    return check.Comparison(counts(40), counts(40), ours_only, theirs_only, 0.0, 1e-3)


def test_intervals():
    # Wilson's interval of 40 in 400 and of 0 in 400, worked out by hand
    assert counts(40).bler_interval == pytest.approx((0.0743, 0.1334), abs=1e-4)
    assert counts(0).bler_interval == pytest.approx((0.0, 0.0095), abs=1e-4)
    assert counts(40).ber == pytest.approx(0.005)
    # (10 - 2) / 400 and 1.96 sqrt(12 - 64 / 400 + 1) / 400
    assert comparison(10, 2).bler_difference == pytest.approx(0.02)
    assert comparison(10, 2).bler_half_interval == pytest.approx(0.01756, abs=1e-5)


def test_verdict_is_over_all_points():
    assert not check.bler_agrees([comparison(10, 2)])
    assert check.bler_agrees([comparison(10, 2), comparison(9, 9), comparison(8, 9)])
    assert not check.bler_agrees([comparison(10, 2)] * 3)
