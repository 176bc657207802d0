"""Result checks as an option of the trainer: nothing changes but what was wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ranloom.spare.checked_products import CorruptedProductError
from ranloom.training.runtime.chaos import SMALL_SETUP
from ranloom.training.runtime.stage_worker import StageWorker, TrainedLayers
from tests.spare.test_checked_products import Corrupted


def worker(check_pairs: int) -> StageWorker:
    workload = replace(SMALL_SETUP, check_pairs=check_pairs).workload("cpu")
    return StageWorker(TrainedLayers(workload, 0, workload.model.layers, 0))


def test_a_corrupted_product_of_a_pass_is_repaired() -> None:
    plain, checked = worker(0), worker(2)
    assert plain.checks is None
    checks = checked.checks
    assert checks is not None
    expected, found = plain.forward(1, 0, None), checked.forward(1, 0, None)
    assert torch.equal(found, expected)
    forward = checks.checked
    assert forward > 4 * SMALL_SETUP.model.layers
    with Corrupted(5):
        result = checked.backward(1, 0, None, None)
    wanted = plain.backward(1, 0, None, None)
    assert checks.checked >= 3 * forward
    assert checks.repaired == 1
    for name, gradient in wanted.gradients.items():
        assert torch.equal(result.gradients[name], gradient), name
    with Corrupted(*range(10_000)), pytest.raises(CorruptedProductError):
        checked.forward(1, 1, None)
