import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.federated.payload import (
    WIRE_DTYPES,
    Payload,
    decode,
    encode,
    encoding_error,
    payload_bytes,
    peak_magnitude,
)


def small_update(elements=5000, scale=1e-4, seed=3):
    return np.random.default_rng(seed).standard_normal(elements) * scale


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
def test_bytes_on_the_wire_are_the_planned_bytes(dtype):
    for elements in (1, 1023, 1024, 1025, 5000):
        payload = encode(small_update(elements), dtype, fraction_bits=40)
        assert len(payload.data) == payload_bytes(dtype, elements)
        assert decode(payload).shape == (elements,)


@pytest.mark.parametrize(
    ("dtype", "at_least", "at_most"),
    [("fp64", 0, 0), ("fp32", 1e-8, 6e-8), ("fp16", 1e-4, 5e-4), ("int8", 1e-3, 1.5e-2)],
)
@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e3])
def test_rounding_error_does_not_depend_on_the_size_of_the_update(dtype, at_least, at_most, scale):
    assert at_least <= encoding_error(small_update(scale=scale), dtype) <= at_most


def test_fixed_point_resolution():
    x = small_update()
    assert np.max(np.abs(decode(encode(x, "fix64", fraction_bits=40)) - x)) <= 2.0**-41


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=50
    ).map(np.array)
)
@settings(max_examples=200, deadline=None)
def test_fp32_is_exact_for_binary32_and_peak_is_the_largest_magnitude(x):
    payload = encode(x, "fp32")
    assert np.array_equal(decode(payload), x)
    assert peak_magnitude(payload) == np.max(np.abs(x))
    for dtype in ("fp64", "fp16"):
        payload = encode(x, dtype)
        assert peak_magnitude(payload) == np.max(np.abs(decode(payload)))
    payload = encode(x, "int8")
    assert peak_magnitude(payload) >= np.max(np.abs(decode(payload)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["<f8", "<f4", "<f2"])
def test_one_bad_value_is_seen(bad, kind):
    x = small_update(2000).astype(kind)
    x[1777] = bad
    dtype = {"<f8": "fp64", "<f4": "fp32", "<f2": "fp16"}[kind]
    assert not math.isfinite(peak_magnitude(Payload(dtype, x.size, x.tobytes())))


def test_bad_int8_scales_are_seen():
    payload = encode(small_update(3000), "int8")
    for bad in (math.nan, math.inf, -1.0):
        data = np.array([1.0, bad, 1.0], "<f4").tobytes() + bytes(payload.data[12:])
        assert not math.isfinite(peak_magnitude(Payload("int8", 3000, data)))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([1.0, math.nan]), "fp32"),
        (np.array([math.inf]), "int8"),
        (np.array([1e39]), "fp32"),
        (np.array([2.0**30]), "fix64"),
        (np.array([1.0]), "bf16"),
    ],
)
def test_what_cannot_be_encoded_is_refused(values, dtype):
    with pytest.raises(InputError):
        encode(values, dtype, fraction_bits=40)


def test_zeros_survive_every_format():
    for dtype in WIRE_DTYPES:
        assert not decode(encode(np.zeros(2000), dtype, fraction_bits=40)).any()
        assert encoding_error(np.zeros(10), dtype) == 0.0
