"""The projection check: what it finds, what it lets pass, and how often it is wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.spare.checks import (
    _is_within_rounding,
    check_product,
    measure_detection,
    rounding_error,
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def operands(seed: int, m: int, n: int, k: int, dtype: torch.dtype = torch.float32):
    g = generator(seed)
    return (torch.randn(s, generator=g).to(dtype) for s in ((m, k), (k, n)))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(0, 99))
def test_any_single_entry_is_found_in_every_pair(m: int, n: int, k: int, seed: int) -> None:
    a, b = operands(seed, m, n, k, torch.float64)
    c = a @ b
    good = check_product(a, b, c, pairs=3, sigmas=20, generator=generator(seed))
    assert bool(good.passed)
    c[seed % m, seed % n] += 1e-3
    bad = check_product(a, b, c, pairs=3, sigmas=20, generator=generator(seed + 1))
    assert not bool(bad.passed)
    torch.testing.assert_close(bad.residual, torch.full((3,), 1e-3, dtype=torch.float64))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_never_pass(wrong: float) -> None:
    a, b = operands(1, 8, 8, 8)
    c = a @ b
    c[2, 3] = wrong
    assert not bool(check_product(a, b, c, pairs=1, sigmas=6, generator=generator(0)).passed)


def test_batches_are_checked_one_by_one() -> None:
    g = generator(4)
    a, b = torch.randn(5, 6, 7, generator=g), torch.randn(5, 7, 9, generator=g)
    c = a @ b
    c[3, 0, 0] += 1.0
    passed = check_product(a, b, c, pairs=2, sigmas=8, generator=g).passed
    assert passed.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_covers_the_actual_rounding(dtype: torch.dtype) -> None:
    a, b = operands(2, 64, 64, 512, dtype)
    c = a @ b
    actual = torch.linalg.matrix_norm(c.double() - a.double() @ b.double())
    norms = (torch.linalg.matrix_norm(x.double()) for x in (a, b, c))
    modelled = rounding_error(dtype, 512, *norms)
    assert actual < modelled
    # bfloat16 is dominated by storing: the bound of a binade is at most 2 times its mean square.
    assert modelled < (2.5 if dtype == torch.bfloat16 else 200) * actual


def test_measured_rates_follow_theory() -> None:
    """One entry: always. The worst pattern: 1 - (3/4)^pairs, here 57.8 % with three pairs."""
    rates = measure_detection(
        dtype=torch.float32,
        m=8,
        n=8,
        k=16,
        trials=10_000,
        pairs=3,
        sigmas=8.0,
        corruption_rms=1.0,
        seed=3,
    )
    assert rates.detected_pct == 100.0
    assert rates.false_alarm_pct == 0.0
    expected = 100 * (1 - 0.75**3)
    assert rates.pattern_detected_pct == pytest.approx(expected, abs=2.0)  # four standard errors
    # Of 32 bits the lowest dozen lie below the tolerance; sign and exponent never do.
    assert 9 / 32 * 100 < rates.bit_flip_detected_pct < 90
    # The three kinds of flips are all there are: what is found are those above the tolerance, and
    # a few just below, to which rounding adds.
    hidden = rates.bit_flip_within_rounding_pct + rates.bit_flip_below_tolerance_pct
    assert rates.bit_flip_detected_pct == pytest.approx(100.0 - hidden, abs=1.0)
    assert rates.bit_flip_above_tolerance_detected_pct > 99.5


def test_a_flip_within_rounding_is_a_correct_result() -> None:
    """The lowest two of 24 bits of a sum of 16 terms may be either way; the tenth may not."""
    generator = torch.Generator().manual_seed(2)
    rows, columns = (torch.rand(500, 16, generator=generator) for _ in "ab")
    stored = (rows.double() * columns.double()).sum(dim=-1).float()
    for bit, allowed in ((0, True), (1, True), (10, False)):
        flipped = (stored.view(torch.int32) ^ (1 << bit)).view(torch.float32)
        assert bool((_is_within_rounding(flipped, rows, columns) == allowed).all())


def test_what_rounding_hides_is_not_claimed() -> None:
    """In bfloat16 an entry off by a tenth of the rms cannot be told from rounding."""
    rates = measure_detection(
        dtype=torch.bfloat16,
        m=32,
        n=32,
        k=32,
        trials=500,
        pairs=4,
        sigmas=8.0,
        corruption_rms=0.1,
        seed=3,
    )
    assert rates.detected_pct < 5.0
    assert rates.false_alarm_pct == 0.0


def test_tolerance_too_tight_raises_alarms() -> None:
    rates = measure_detection(
        dtype=torch.bfloat16,
        m=16,
        n=16,
        k=32,
        trials=500,
        pairs=4,
        sigmas=0.3,
        corruption_rms=1.0,
        seed=3,
    )
    assert rates.false_alarm_pct > 50.0


def test_bad_arguments_are_named() -> None:
    a, b = operands(0, 4, 5, 6)
    with pytest.raises(InputError, match="check: shapes"):
        check_product(a, b, torch.zeros(5, 4), pairs=1, sigmas=6, generator=generator(0))
    with pytest.raises(InputError, match="check: type"):
        check_product(a, b, (a @ b).half(), pairs=1, sigmas=6, generator=generator(0))
    with pytest.raises(InputError, match="check: pairs"):
        check_product(a, b, a @ b, pairs=0, sigmas=6, generator=generator(0))
