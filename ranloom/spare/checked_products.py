"""Checks every matrix product that PyTorch computes within a ``with`` block (WEAVER App. F).

Below autograd, so that the products of the backward pass are seen as well. A product that fails is
computed once more; if it fails again, the block is left with an error. Products inside fused
kernels (attention) are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ranloom.errors import InputError
from ranloom.spare.checks import UNIT_ROUNDOFF, check_product

SIGMAS = 6.0  # no false alarm in 20,000 products: ``checks`` in the metrics of replay_spare
_aten = torch.ops.aten
_PLAIN = (_aten.mm.default, _aten.bmm.default)
_ADDED = (_aten.addmm.default, _aten.baddbmm.default)


class CorruptedProductError(ArithmeticError):
    """A matrix product was wrong twice in a row."""


class CheckedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks products; use as a context manager, again and again.

    Args:
        pairs: probe pairs a product.
        sigmas: tolerance in standard deviations of the modelled rounding.
        seed: of the probes; without one they cannot be foretold, which is what a check against
            tampering needs.

    Attributes:
        checked: products checked.
        repaired: products that were wrong and right when computed again.

    Raises:
        InputError: no pair.
    """

    def __init__(self, pairs: int, sigmas: float = SIGMAS, seed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if pairs < 1:
            raise InputError("checked products: pairs", pairs, "allowed: 1 or more")
        self.checked = 0
        self.repaired = 0
        self._pairs, self._sigmas = pairs, sigmas
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute, then check what is a product."""
        given = dict(kwargs or {})
        result = func(*args, **given)
        if func not in _PLAIN + _ADDED or result.dtype not in UNIT_ROUNDOFF:
            return result
        self.checked += 1
        if self._right(func, args, given, result):
            return result
        result = func(*args, **given)
        if not self._right(func, args, given, result):
            shapes = " ".join(str(tuple(t.shape)) for t in args if isinstance(t, Tensor))
            raise CorruptedProductError(f"{func} of {shapes} failed its check twice")
        self.repaired += 1
        return result

    def _right(
        self, func: object, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> bool:
        a, b = args[-2:]
        added = kwargs.get("beta", 1) * args[0] if func in _ADDED else None
        verdict = check_product(
            kwargs.get("alpha", 1) * a,
            b,
            result,
            pairs=self._pairs,
            sigmas=self._sigmas,
            generator=self._generator,
            added=added,
        )
        return bool(verdict.passed.all())
