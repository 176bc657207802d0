"""Small runs for the tests of the runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranloom.training.runtime.chaos import SETTINGS, SMALL_SETUP, virtual_schedule
from ranloom.training.runtime.virtual import FaultRates


@pytest.fixture
def virtual_config(tmp_path):
    """Makes a small run on virtual time: 4 layers on D x P sites, 6 steps of 6 micro-batches."""

    def make(seed, rates=None, setup=SMALL_SETUP, replicas=2, stages=2, reserve=0, **changes):
        folder = tmp_path / f"checkpoints-{seed}"
        folder.mkdir()
        settings = replace(SETTINGS, **changes)
        rates = rates or FaultRates()
        return virtual_schedule(seed, folder, rates, setup, settings, replicas, stages, reserve)

    return make
