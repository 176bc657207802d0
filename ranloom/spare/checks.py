"""Random-projection check that ``C`` really is ``A B`` (WEAVER App. F).

For random signs ``r`` and ``s`` the two sides of ``r^T C s = (A^T r)^T (B s)`` differ by
``r^T E s``, where ``E`` is the error of ``C``. That costs three products of a matrix with a
vector a probe pair, against a product of two matrices for a recomputation.

* A single wrong entry ``d`` shows as ``+d`` or ``-d`` in *every* pair: signs, unlike zeros and
  ones, cannot hide it. Any other wrong ``E`` escapes one pair with probability at most 3/4.
* Rounding shows too. The products ``r_i s_j`` are uncorrelated, so that ``r^T E s`` has
  variance ``sum E_ij^2`` whatever the errors are. A tolerance of so many standard deviations
  of the *modelled* rounding separates the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ranloom.errors import InputError

_BLOCK_ENTRIES = 1 << 17
# Unit roundoff: the largest relative error of rounding to nearest.
UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}


@dataclass(frozen=True)
class Verdict:
    """Outcome of a check.

    Args:
        residual: float64[..., pairs], absolute difference of the two sides.
        tolerance: float64[...], what rounding explains.
    """

    residual: torch.Tensor
    tolerance: torch.Tensor

    @property
    def passed(self) -> torch.Tensor:
        """Whether no pair exceeds the tolerance, bool[...]; a NaN or infinity never passes."""
        return (self.residual <= self.tolerance[..., None]).all(dim=-1)


def rounding_error(
    dtype: torch.dtype,
    reduction: int,
    norm_a: torch.Tensor,
    norm_b: torch.Tensor,
    norm_c: torch.Tensor,
) -> torch.Tensor:
    """Modelled root of the summed squares of the rounding errors of ``c = a b``.

    Two independent parts. Storing an entry errs by at most ``u |c|``, in the mean square by at
    most ``u / sqrt(3) |c|``. Adding up ``k`` terms in float32 (float64 for that type) errs in
    each addition by as much of the partial sum, which by Cauchy-Schwarz is no larger than the
    norms of the row and the column: ``u sqrt(k / 3) |A| |B|`` over all entries, in Frobenius
    norms. Kernels that add in blocks err less.

    Args:
        dtype: of ``c``; decides the roundoff.
        reduction: terms of a sum, k.
        norm_a: Frobenius norms, float64[...].
        norm_b: the same.
        norm_c: the same; one that is not finite counts as 0, since such a product never passes.

    Returns:
        float64[...].
    """
    summed_in = torch.float64 if dtype == torch.float64 else torch.float32
    stored = UNIT_ROUNDOFF[dtype] * torch.where(norm_c.isfinite(), norm_c, 0.0)
    summed = UNIT_ROUNDOFF[summed_in] * math.sqrt(reduction) * norm_a * norm_b
    return torch.hypot(stored, summed) / math.sqrt(3.0)


def check_product(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    pairs: int,
    sigmas: float,
    generator: torch.Generator,
    added: torch.Tensor | None = None,
) -> Verdict:
    """Test ``c = a b`` (or ``c = added + a b``) with ``pairs`` probe pairs, in float64.

    The probes must be unknown to whoever computed ``c``: draw them after the result is there.

    Args:
        a: [..., m, k].
        b: [..., k, n].
        c: [..., m, n], float64, float32 or bfloat16.
        pairs: probe pairs; each more costs one more set of matrix-vector products.
        sigmas: tolerance in standard deviations of the modelled rounding.
        generator: source of the probes, on the host.
        added: what was added to the product, broadcast to [..., m, n].

    Raises:
        InputError: shapes do not fit, the type of ``c`` has no error model, or no pair is asked.
    """
    if (
        a.shape[-1] != b.shape[-2]
        or c.shape[-2:] != (a.shape[-2], b.shape[-1])
        or not (a.shape[:-2] == b.shape[:-2] == c.shape[:-2])
    ):
        shapes = f"{tuple(a.shape)} {tuple(b.shape)} {tuple(c.shape)}"
        raise InputError("check: shapes", shapes, "allowed: [..., m, k] [..., k, n] [..., m, n]")
    if c.dtype not in UNIT_ROUNDOFF:
        known = ", ".join(str(t).removeprefix("torch.") for t in UNIT_ROUNDOFF)
        raise InputError("check: type", c.dtype, f"allowed: {known}")
    if pairs < 1:
        raise InputError("check: pairs", pairs, "allowed: 1 or more")
    r = _signs((*c.shape[:-1], pairs), generator).to(c.device)
    s = _signs((*c.shape[:-2], c.shape[-1], pairs), generator).to(c.device)
    left = torch.zeros((*c.shape[:-2], pairs), dtype=torch.float64, device=c.device)
    projected_a = torch.zeros(
        (*a.shape[:-2], a.shape[-1], pairs), dtype=torch.float64, device=c.device
    )
    norms = {name: left.new_zeros(c.shape[:-2]) for name in "abc"}
    for rows, block in _row_blocks(c):
        norms["c"] += block.square().sum(dim=(-2, -1))
        left += (r[..., rows, :] * (block @ s)).sum(dim=-2)
    if added is not None:
        for rows, block in _row_blocks(added.expand_as(c)):
            left -= (r[..., rows, :] * (block @ s)).sum(dim=-2)
    for rows, block in _row_blocks(a):
        norms["a"] += block.square().sum(dim=(-2, -1))
        projected_a += block.mT @ r[..., rows, :]
    right = torch.zeros_like(left)
    for rows, block in _row_blocks(b):
        norms["b"] += block.square().sum(dim=(-2, -1))
        right += (projected_a[..., rows, :] * (block @ s)).sum(dim=-2)
    norm_a, norm_b, norm_c = (norms[name].sqrt() for name in "abc")
    rounding = rounding_error(c.dtype, a.shape[-1], norm_a, norm_b, norm_c)
    return Verdict((left - right).abs(), sigmas * rounding)


def _row_blocks(x: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Rows of [..., m, n] in float64, a cache-sized part at a time.

    A copy of the whole matrix costs more than all products of a check.
    """
    step = max(1, _BLOCK_ENTRIES * x.shape[-2] // max(1, x.numel()))
    for begin in range(0, x.shape[-2], step):
        rows = slice(begin, begin + step)
        yield rows, x[..., rows, :].double()


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return 2.0 * torch.randint(0, 2, shape, generator=generator, dtype=torch.float64) - 1.0


@dataclass(frozen=True)
class DetectionRates:
    """Measured rates of a check, in percent of the trials.

    Args:
        detected_pct: a single entry off by ``corruption_rms`` times the rms entry.
        bit_flip_detected_pct: a single random bit of a single entry flipped.
        pattern_detected_pct: the pattern that escapes a pair with probability 3/4.
        false_alarm_pct: correct products that were refused.
        bit_flip_within_rounding_pct: flips after which the entry still is a correct result, as
            near to the exact one as rounding allows: no sound check can refuse them.
        bit_flip_below_tolerance_pct: flips beyond rounding, but changing the entry by less than
            the tolerance of the check: seen by a recomputation, hidden in a projection by the
            rounding of all other entries.
        bit_flip_above_tolerance_detected_pct: share found of the rest, the flips that a check
            with this tolerance can see; NaN without any.
    """

    detected_pct: float
    bit_flip_detected_pct: float
    pattern_detected_pct: float
    false_alarm_pct: float
    bit_flip_within_rounding_pct: float
    bit_flip_below_tolerance_pct: float
    bit_flip_above_tolerance_detected_pct: float


def measure_detection(
    *,
    dtype: torch.dtype,
    m: int,
    n: int,
    k: int,
    trials: int,
    pairs: int,
    sigmas: float,
    corruption_rms: float,
    seed: int,
    batch: int = 500,
) -> DetectionRates:
    """Corrupt random products and count what a check finds.

    Args:
        dtype: of the operands and the result; float32 or bfloat16.
        m: rows of a product.
        n: columns.
        k: reduction.
        trials: products, each checked unharmed and with each kind of corruption.
        pairs: probe pairs of a check.
        sigmas: tolerance of a check.
        corruption_rms: size of the single-entry corruption over the rms entry of the product.
        seed: of data, corruptions and probes.
        batch: products handled at a time.
    """
    generator = torch.Generator().manual_seed(seed)
    found = dict.fromkeys(("single", "bit", "pattern", "none"), 0)
    within = below = visible = visible_found = 0
    for begin in range(0, trials, batch):
        count = min(batch, trials - begin)
        a = torch.randn(count, m, k, generator=generator).to(dtype)
        b = torch.randn(count, k, n, generator=generator).to(dtype)
        c = a @ b
        at = torch.arange(count)
        i = torch.randint(0, m, (count,), generator=generator)
        j = torch.randint(0, n, (count,), generator=generator)
        size = corruption_rms * c.double().square().mean(dim=(-2, -1)).sqrt()
        sign = _signs((count,), generator)
        single = c.clone()
        single[at, i, j] = (c[at, i, j].double() + sign * size).to(dtype)
        flipped = c.clone()
        flipped[at, i, j] = _flip_a_bit(c[at, i, j], generator)
        pattern = c.clone()
        # Rows 0 and 1, columns 0 and 1, alternating signs: seen only by pairs whose signs
        # differ in both. Far above the rounding, so that nothing but this counts.
        for row, column, way in ((0, 0, 1), (0, 1, -1), (1, 0, -1), (1, 1, 1)):
            changed = c[:, row, column].double() + way * 1000 * size
            pattern[:, row, column] = changed.to(dtype)
        for name, result in (
            ("single", single),
            ("bit", flipped),
            ("pattern", pattern),
            ("none", c),
        ):
            verdict = check_product(a, b, result, pairs=pairs, sigmas=sigmas, generator=generator)
            found[name] += int((~verdict.passed).sum())
            if name == "bit":
                correct = _is_within_rounding(result[at, i, j], a[at, i, :], b[at, :, j])
                change = (result[at, i, j].double() - c[at, i, j].double()).abs()
                # A NaN or an infinity is above any tolerance.
                seen = ~(change <= verdict.tolerance) & ~correct
                within += int(correct.sum())
                below += int((~seen & ~correct).sum())
                visible += int(seen.sum())
                visible_found += int((seen & ~verdict.passed).sum())
    return DetectionRates(
        detected_pct=100.0 * found["single"] / trials,
        bit_flip_detected_pct=100.0 * found["bit"] / trials,
        pattern_detected_pct=100.0 * found["pattern"] / trials,
        false_alarm_pct=100.0 * found["none"] / trials,
        bit_flip_within_rounding_pct=100.0 * within / trials,
        bit_flip_below_tolerance_pct=100.0 * below / trials,
        bit_flip_above_tolerance_detected_pct=(
            100.0 * visible_found / visible if visible else math.nan
        ),
    )


def _is_within_rounding(
    values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Whether values [t] may be products of rows [t, k] and columns [t, k], rounded anyhow.

    The bound holds for every order of the additions: ``u |c|`` for storing, and ``k u |a| |b|``
    in the type of the sum (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5).
    """
    summed_in = torch.float64 if values.dtype == torch.float64 else torch.float32
    a, b = rows.double(), columns.double()
    exact = (a * b).sum(dim=-1)
    summed = rows.shape[-1] * UNIT_ROUNDOFF[summed_in]
    bound = summed / (1.0 - summed) * (a * b).abs().sum(dim=-1)
    if values.dtype != summed_in:
        bound += UNIT_ROUNDOFF[values.dtype] * (exact.abs() + bound)
    return (values.double() - exact).abs() <= bound


def _flip_a_bit(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    as_int = torch.int32 if values.dtype == torch.float32 else torch.int16
    width = 8 * values.element_size()
    bit = torch.randint(0, width, values.shape, generator=generator, dtype=torch.int64)
    mask = torch.ones_like(bit) << bit
    mask = torch.where(bit == width - 1, -mask, mask).to(as_int)
    return (values.contiguous().view(as_int) ^ mask).view(values.dtype)
