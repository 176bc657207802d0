import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.federated.accumulator import ARITHMETICS, Accumulator
from ranloom.federated.payload import WIRE_DTYPES, decode, encode, peak_magnitude


def updates(count, elements=3000, scale=1e-3):
    rng = np.random.default_rng([count, elements])
    return rng.standard_normal((count, elements)) * scale, rng.integers(1, 2000, count)


def add(total, payload, weight):
    total.add(payload, weight, peak_magnitude(payload))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", [d for d in WIRE_DTYPES if d != "fix64"])
def test_weighted_sum_of_every_format_equals_exact_sums(arithmetic, dtype):
    xs, weights = updates(7)
    payloads = [encode(x, dtype) for x in xs]
    total = Accumulator(3000, arithmetic)
    for payload, weight in zip(payloads, weights, strict=True):
        add(total, payload, float(weight))
    decoded = np.array([decode(p) for p in payloads])
    exact = np.array([math.fsum(w * v) for w, v in [(weights, c) for c in decoded.T]])
    rms = np.sqrt(np.mean(exact**2))
    allowed = {"float64": 1e-14, "float32": 1e-6, "fixed64": 7 * 2**-41 / rms}[arithmetic]
    assert np.max(np.abs(total.sums() - exact)) <= allowed * rms


@given(st.permutations(range(6)), st.lists(st.integers(0, 2), min_size=6, max_size=6))
@settings(max_examples=60, deadline=None)
def test_fixed_point_is_bit_identical_in_any_order_and_grouping(order, groups):
    xs, weights = updates(6, elements=400)
    reference = Accumulator(400, "fixed64")
    for x, w in zip(xs, weights, strict=True):
        add(reference, encode(x, "fp16"), float(w))
    parts = [Accumulator(400, "fixed64") for _ in range(3)]
    for k in order:
        add(parts[groups[k]], encode(xs[k], "fp16"), float(weights[k]))
    merged = Accumulator(400, "fixed64")
    for part in parts:
        merged.merge(part)
    assert np.array_equal(merged.total, reference.total)


def test_pairwise_masks_cancel_in_fixed_point():
    xs, weights = updates(4, elements=256)
    rng = np.random.default_rng(5)
    plain = [np.ldexp(w * x, 40).round().astype(np.int64) for x, w in zip(xs, weights, strict=True)]
    masked = [p.copy() for p in plain]
    for a, b in itertools.combinations(range(4), 2):
        mask = rng.integers(-(2**63), 2**63, 256, dtype=np.int64)
        masked[a] += mask
        masked[b] -= mask
    total = Accumulator(256, "fixed64", 40)
    for m in masked:
        payload = encode(np.zeros(256), "fix64", fraction_bits=40)
        add(total, type(payload)("fix64", 256, m.tobytes(), 40), 1.0)
    assert np.array_equal(total.total, np.sum(plain, axis=0))
    assert not any(np.array_equal(m, p) for m, p in zip(masked, plain, strict=True))


def test_a_sum_that_could_overflow_is_refused_and_left_alone():
    total = Accumulator(4, "fixed64", 40)
    add(total, encode(np.full(4, 1.0), "fp32"), 2.0**20)
    before = total.total.copy()
    with pytest.raises(InputError, match="fixed64"):
        add(total, encode(np.full(4, 8.0), "fp32"), 2.0**20)
    assert np.array_equal(total.total, before)
    wide = Accumulator(1, "float64")
    add(wide, encode(np.array([1e308]), "fp64"), 1.0)
    with pytest.raises(InputError):
        add(wide, encode(np.array([1e308]), "fp64"), 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Accumulator(0, "float64"),
        lambda: Accumulator(4, "bfloat16"),
        lambda: Accumulator(4, "fixed64", 60),
        lambda: add(Accumulator(4, "float64"), encode(np.zeros(5), "fp32"), 1.0),
        lambda: add(Accumulator(4, "float64"), encode(np.zeros(4), "fix64"), 1.0),
        lambda: add(
            Accumulator(4, "fixed64", 40), encode(np.zeros(4), "fix64", fraction_bits=30), 1.0
        ),
        lambda: Accumulator(4, "float64").merge(Accumulator(4, "float32")),
        lambda: Accumulator(4, "float64").merge(Accumulator(5, "float64")),
    ],
)
def test_misuse_is_refused(call):
    with pytest.raises(InputError):
        call()
