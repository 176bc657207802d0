"""Products inside a block are checked, repaired once, and refused when they stay wrong."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ranloom.errors import InputError
from ranloom.spare.checked_products import CheckedProducts, CorruptedProductError

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default}


class Corrupted(TorchDispatchMode):
    """Adds one to an entry of chosen products, counted from 0 over all that are computed."""

    def __init__(self, *which: int) -> None:
        super().__init__()
        self.which, self.seen = which, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            if self.seen in self.which:
                result.view(-1)[3] += 1.0
            self.seen += 1
        return result


def network(dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8, bias=False)]
    return torch.nn.Sequential(*layers).to(dtype), torch.randn(5, 7, 16).to(dtype)


def gradients(module: torch.nn.Module, entering: torch.Tensor) -> list[torch.Tensor]:
    leaf = entering.clone().requires_grad_()
    return list(torch.autograd.grad(module(leaf).square().sum(), [leaf, *module.parameters()]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_right_results_pass_unchanged(dtype: torch.dtype) -> None:
    module, entering = network(dtype)
    plain = gradients(module, entering)
    state = torch.random.get_rng_state()
    with CheckedProducts(4) as checks:
        checked = gradients(module, entering)
    assert all(torch.equal(p, c) for p, c in zip(plain, checked, strict=True))
    assert checks.checked == 6  # two forward, and two backward for each
    assert checks.repaired == 0
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's stream is touched


@pytest.mark.parametrize("which", range(6))
def test_a_wrong_product_is_computed_again(which: int) -> None:
    module, entering = network(torch.float32)
    plain = gradients(module, entering)
    with Corrupted(which), CheckedProducts(4, seed=1) as checks:
        checked = gradients(module, entering)
    assert all(torch.equal(p, c) for p, c in zip(plain, checked, strict=True))
    assert checks.repaired == 1


def test_what_stays_wrong_is_refused() -> None:
    module, entering = network(torch.float32)
    with (
        Corrupted(0, 1),
        CheckedProducts(4, seed=1),
        pytest.raises(CorruptedProductError, match=r"addmm.*\(32,\) \(35, 16\) \(16, 32\)"),
    ):
        module(entering)


def test_scaled_sums_and_batches() -> None:
    g = torch.Generator().manual_seed(2)
    c, a, b = (torch.randn(s, generator=g) for s in ((6, 5), (6, 4), (4, 5)))
    with CheckedProducts(3, seed=1) as checks:
        found = torch.addmm(c, a, b, beta=0.5, alpha=2.0)
        batched = torch.baddbmm(c[None], a[None], b[None], beta=2.0)
        torch.bmm(a[None], b[None])
        (a.half() @ b.half())  # no model of its rounding: not checked
    torch.testing.assert_close(found, 0.5 * c + 2.0 * a @ b)
    torch.testing.assert_close(batched[0], 2.0 * c + a @ b)
    assert (checks.checked, checks.repaired) == (3, 0)


def test_no_pair_is_refused() -> None:
    with pytest.raises(InputError, match="checked products: pairs: 0"):
        CheckedProducts(0)
