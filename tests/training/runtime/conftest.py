"""Small runs for the tests of the runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranloom.training.layout import regular_layout
from ranloom.training.opt_model import ModelConfig, even_boundaries
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.virtual import FaultRates, VirtualConfig
from ranloom.training.settings import CoordinatorSettings

SETTINGS = CoordinatorSettings(
    micro_batch_samples=2,
    step_micro_batches=6,
    min_step_micro_batches=1,
    max_steps=1000,
    micro_batch_limit=36,
    window=6,
    hop_s=0.002,
    reduce_fanout=2,
    control_interval_s=0.05,
    slack_fraction=0.2,
    steal_gain=0.05,
    exact_assignment=4096,
    speculate=True,
    error_weight=0.3,
    margin_errors=1.0,
    debt_gain=0.3,
    max_debt_samples=32.0,
    mlr_threshold=0.1,
    mlr_weight=0.5,
    mlr_patience_steps=2,
    mlr_min_gain=0.1,
    lease_s=0.8,
    checkpoint_steps=3,
    tied_embeddings=True,
    rerouting=True,
    rebalancing=True,
)

SETUP = TrainingSetup(
    model=ModelConfig(
        layers=4, width=8, heads=2, ffn_width=16, vocabulary=256, positions=12, dropout=0.1
    ),
    optimizer=OptimizerConfig(learning_rate=0.3, clip_norm=0.5),
    source="generated",
    generated_samples=96,
    sequence_length=12,
    micro_batch_samples=2,
    seed=5,
)


@pytest.fixture
def virtual_config(tmp_path):
    """Makes a small run on virtual time: 4 layers on D x P sites, 6 steps of 6 micro-batches."""

    def make(seed, rates=None, setup=SETUP, replicas=2, stages=2, reserve=0, **changes):
        layout = regular_layout(even_boundaries(setup.model.layers, stages), replicas)
        # A micro-batch takes a site about 30 ms, forward and backward.
        tflops = float(layer_costs(setup).forward_flop.sum()) * 3.0 / stages / 0.03 / 1e12
        folder = tmp_path / f"checkpoints-{seed}"
        folder.mkdir()
        return VirtualConfig(
            setup=setup,
            settings=replace(SETTINGS, **changes),
            layout=layout,
            tflops=(tflops,) * (replicas * stages + reserve),
            folder=folder,
            rates=rates or FaultRates(),
            seed=seed,
            calm_s=20.0,
        )

    return make
