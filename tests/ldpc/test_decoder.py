"""Decoders: every variant corrects errors, equals a plain reference, and knows when it fails."""

import itertools

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.decoder import CHECK_RULES, SCHEDULES, DecoderSettings, decode
from ranloom.ldpc.encoder import encode
from ranloom.nr.segmentation import LIFTING_SIZES

VARIANTS = list(itertools.product(SCHEDULES, CHECK_RULES, (8, 16)))


def received(graph, z, n_blocks, sigma, rng):
    bits = rng.integers(0, 2, (n_blocks, graph.information_columns * z), dtype=np.uint8)
    words = encode(bits, graph, z)
    llr = 2 * (1 - 2.0 * words + sigma * rng.normal(size=words.shape)) / sigma**2
    llr[:, : 2 * z] = 0.0
    return words, llr


def reference_decode(llr, graph, z, settings, n_rows):
    """Min-sum on the lifted matrix, check by check, in plain integers."""
    rows, columns = graph.parity_check_matrix(z)
    checks = [columns[rows == r] for r in range(n_rows * z)]
    offset, shift = settings.offset_and_shift
    app = [int(v) for v in llr]
    messages = [[0] * len(c) for c in checks]
    for _ in range(settings.iterations):
        before, total = list(app), [int(v) for v in llr]
        for row, members in enumerate(checks):
            source = app if settings.schedule == "layered" else before
            inputs = [
                max(-settings.limit, min(settings.limit, source[c] - m))
                for c, m in zip(members, messages[row], strict=True)
            ]
            for k, c in enumerate(members):
                others = inputs[:k] + inputs[k + 1 :]
                least = min(min(abs(v) for v in others), settings.limit)
                least = max(least - (least >> shift) - offset, 0)
                new = -least if sum(v < 0 for v in others) % 2 else least
                total[c] += new
                if settings.schedule == "layered":
                    app[c] += new - messages[row][k]
                messages[row][k] = new
        if settings.schedule == "flooding":
            app = total
    return [int(v < 0) for v in app]


@pytest.mark.parametrize(("schedule", "rule", "bits"), VARIANTS)
@pytest.mark.parametrize("index", [1, 2])
def test_equals_a_plain_reference(index, schedule, rule, bits):
    graph, z = base_graph(index), 2
    settings = DecoderSettings(schedule, rule, bits, iterations=8, early_stop=False)
    # noisy enough that decisions are still wrong at the end; many messages have saturated
    _, llr = received(graph, z, 1, 1.1, np.random.default_rng(index))
    quantised = settings.quantise(llr)
    found = decode(quantised, graph, z, settings)
    expected = reference_decode(quantised[0], graph, z, settings, graph.n_rows)
    assert found.words[0].tolist() == expected
    assert found.iterations.tolist() == [8]


@pytest.mark.parametrize(("schedule", "rule", "bits"), VARIANTS)
def test_corrects_noise_at_every_lifting_size(schedule, rule, bits):
    settings = DecoderSettings(schedule, rule, bits, iterations=30)
    rng = np.random.default_rng(77)
    step = 1 if (schedule, rule, bits) == VARIANTS[0] else 3  # all sizes once
    for index, z in itertools.product((1, 2), LIFTING_SIZES[::step].tolist()):
        graph = base_graph(index)
        # small codes are weak: less noise for them
        sigma = 0.7 if z < 30 else 0.9
        words, llr = received(graph, z, 3, sigma, rng)
        channel_errors = ((llr < 0) != words)[:, 2 * z :].sum()
        found = decode(settings.quantise(llr), graph, z, settings)
        assert channel_errors > 0
        assert found.parity_ok.all()
        np.testing.assert_array_equal(found.words, words)


def test_early_stop_changes_no_decision():
    graph, z = base_graph(1), 64
    words, llr = received(graph, z, 6, 0.95, np.random.default_rng(3))
    stop = DecoderSettings(iterations=20, early_stop=True)
    full = DecoderSettings(iterations=20, early_stop=False)
    a = decode(stop.quantise(llr), graph, z, stop)
    b = decode(full.quantise(llr), graph, z, full)
    np.testing.assert_array_equal(a.words, b.words)
    np.testing.assert_array_equal(a.words, words)
    assert (a.iterations < 20).all()
    assert (b.iterations == 20).all()


def test_noiseless_word_needs_no_iteration_once_nothing_is_punctured():
    graph, z = base_graph(2), 10
    settings = DecoderSettings()
    words, _ = received(graph, z, 2, 1.0, np.random.default_rng(1))
    llr = settings.quantise(10.0 * (1 - 2.0 * words))
    assert decode(llr, graph, z, settings).iterations.tolist() == [0, 0]
    llr[:, : 2 * z] = 0
    assert (decode(llr, graph, z, settings).iterations > 0).all()


def test_pure_noise_is_reported():
    graph, z = base_graph(1), 48
    settings = DecoderSettings(iterations=5)
    noise = np.random.default_rng(2).normal(size=(4, graph.n_columns * z))
    found = decode(settings.quantise(noise), graph, z, settings)
    assert not found.parity_ok.any()
    assert (found.iterations == 5).all()


def test_layered_needs_fewer_iterations_than_flooding():
    graph, z = base_graph(1), 128
    _, llr = received(graph, z, 10, 0.95, np.random.default_rng(8))
    ran = {}
    for schedule in SCHEDULES:
        settings = DecoderSettings(schedule, iterations=40)
        ran[schedule] = decode(settings.quantise(llr), graph, z, settings).iterations.mean()
    assert ran["layered"] < 0.7 * ran["flooding"]


def test_fewer_rows_suffice_where_the_rest_was_not_sent():
    graph, z = base_graph(1), 96
    words, llr = received(graph, z, 4, 0.4, np.random.default_rng(4))
    rows = 10
    llr[:, (22 + rows) * z :] = 0.0  # parity columns of the later rows are not sent
    settings = DecoderSettings(iterations=20)
    used = decode(settings.quantise(llr), graph, z, settings, n_rows=rows)
    whole = decode(settings.quantise(llr), graph, z, settings)
    for found in (used, whole):
        np.testing.assert_array_equal(found.words[:, : 22 * z], words[:, : 22 * z])


def test_extreme_values_do_not_wrap_around():
    graph, z = base_graph(1), 8
    words, _ = received(graph, z, 1, 1.0, np.random.default_rng(6))
    for schedule, rule, bits in VARIANTS:
        settings = DecoderSettings(schedule, rule, bits, iterations=50, early_stop=False)
        llr = settings.quantise(1e9 * (1 - 2.0 * words))
        assert abs(llr).max() == settings.limit
        llr[:, : 2 * z] = 0
        np.testing.assert_array_equal(decode(llr, graph, z, settings).words, words)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"schedule": "zigzag"}, "schedule"),
        ({"check_rule": "exact"}, "check_rule"),
        ({"message_bits": 6}, "message_bits"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_unknown_settings_are_refused(options, where):
    with pytest.raises(InputError, match=f"^{where}: "):
        DecoderSettings(**options)


def test_wrong_input_is_refused():
    graph, settings = base_graph(2), DecoderSettings()
    with pytest.raises(InputError, match=r"llr: 'int16\[1, 51\]' .* int16\[blocks, 104\]"):
        decode(np.zeros((1, 51), dtype=np.int16), graph, 2, settings)
    with pytest.raises(InputError, match="llr: 'float64"):
        decode(np.zeros((1, 104)), graph, 2, settings)
    with pytest.raises(InputError, match="n_rows: 3 "):
        decode(np.zeros((1, 104), dtype=np.int16), graph, 2, settings, n_rows=3)
