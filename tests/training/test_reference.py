"""The oracle, its update rule and checkpoints."""

from __future__ import annotations

import pytest
import torch

from ranloom.errors import InputError
from ranloom.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
    with_opt_names,
)
from ranloom.training.data import SampleOrder, generate_text
from ranloom.training.opt_model import ModelConfig, OptStage
from ranloom.training.optimizer import (
    OptimizerConfig,
    StageOptimizer,
    mean_gradient_scale,
    squared_norm,
)
from ranloom.training.reference import (
    count_lost_and_doubled,
    train_reference,
    weights_relative_error,
)

MODEL = ModelConfig(layers=2, width=16, heads=2, ffn_width=32, vocabulary=256, positions=24)
CORPUS = generate_text(seed=1, samples=24, sequence_length=24)
ORDER = SampleOrder(seed=1, samples=24, micro_batch_samples=3)
MERGED = {0: [0, 1], 1: [2], 2: [4, 3, 5]}


def summed_gradients(module: OptStage, micro_batches, step: int):
    module.zero_grad(set_to_none=True)
    for micro_batch in micro_batches:
        module(None, CORPUS.micro_batch(ORDER.sample_ids(micro_batch), step)).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerConfig(learning_rate=0.3),
        OptimizerConfig(learning_rate=0.3, momentum=0.9, weight_decay=0.01, clip_norm=0.05),
        OptimizerConfig("adamw", 0.01, weight_decay=0.1, clip_norm=0.5),
        OptimizerConfig(learning_rate=0.2, batch_rule="sqrt", base_samples=6),
    ],
)
def test_the_sites_update_equals_the_oracles(optimizer):
    module = OptStage(MODEL, 0, 2, seed=8)
    ours = StageOptimizer(optimizer, module)
    for step, micro_batches in MERGED.items():
        summed = summed_gradients(module, micro_batches, step)
        samples = 3 * len(micro_batches)
        scale = mean_gradient_scale(optimizer, samples, squared_norm(summed))
        rate = optimizer.step_learning_rate(samples)
        ours.step(summed, scale, rate)
    reference = train_reference(MODEL, optimizer, CORPUS, ORDER, MERGED, seed=8)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    assert weights_relative_error(weights, reference.weights) < 1e-13


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_oracle_equals_torchs_own_optimizers(name):
    optimizer = OptimizerConfig(name, 0.02, momentum=0.9, weight_decay=0.1, clip_norm=0.2)
    module = OptStage(MODEL, 0, 2, seed=8)
    if name == "sgd":
        theirs = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1)
    else:
        theirs = torch.optim.AdamW(module.parameters(), lr=0.02, weight_decay=0.1)
    for step, micro_batches in MERGED.items():
        summed = summed_gradients(module, micro_batches, step)
        for parameter_name, parameter in module.named_parameters():
            parameter.grad = summed[parameter_name] / (3 * len(micro_batches))
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.2)
        theirs.step()
    weights = {n: p.detach() for n, p in module.named_parameters()}
    reference = train_reference(MODEL, optimizer, CORPUS, ORDER, MERGED, seed=8)
    assert weights_relative_error(weights, reference.weights) < 1e-13


def test_sgd_by_hand_on_one_step():
    module = OptStage(MODEL, 0, 2, seed=8)
    summed = summed_gradients(module, [0, 1], step=0)
    reference = train_reference(
        MODEL, OptimizerConfig(learning_rate=0.5), CORPUS, ORDER, {0: [0, 1]}, seed=8
    )
    for name, parameter in module.named_parameters():
        expected = parameter.detach() - 0.5 * summed[name] / 6
        assert torch.allclose(reference.weights[name], expected, rtol=1e-12, atol=1e-15), name


def test_a_missing_or_doubled_sample_shows_in_the_weights():
    optimizer = OptimizerConfig(learning_rate=0.3)
    right = train_reference(MODEL, optimizer, CORPUS, ORDER, MERGED, seed=8).weights
    for wrong in ({**MERGED, 1: [2, 2, 3]}, {**MERGED, 2: [4, 3]}, {**MERGED, 2: [4, 3, 6]}):
        weights = train_reference(MODEL, optimizer, CORPUS, ORDER, wrong, seed=8).weights
        assert weights_relative_error(weights, right) > 1e-6


def test_training_lowers_the_loss():
    merged = {step: [step % 8] for step in range(24)}
    losses = train_reference(
        MODEL, OptimizerConfig("adamw", 0.01), CORPUS, ORDER, merged, seed=8
    ).losses
    assert losses[0] == pytest.approx(5.545, abs=0.05)  # ln 256: nothing known yet
    assert losses[-1] < losses[0] - 1.0


def test_lost_and_doubled_are_counted():
    assert count_lost_and_doubled(range(6), [[0, 1], [2, 5], [4, 3]]) == (0, 0)
    assert count_lost_and_doubled(range(6), [[0, 1], [1, 1], [4, 3]]) == (2, 2)


def test_checkpoint_round_trip_is_exact_and_resumable(tmp_path):
    optimizer = OptimizerConfig("adamw", 0.01)
    module = OptStage(MODEL, 0, 2, seed=8)
    stage_optimizer = StageOptimizer(optimizer, module)

    def advance(target, target_optimizer, step):
        target_optimizer.step(summed_gradients(target, [step], step), 1 / 3, 0.01)

    advance(module, stage_optimizer, 0)
    path = tmp_path / "model.safetensors"
    weights = {name: p.detach() for name, p in module.named_parameters()}
    state = stage_optimizer.state
    save_checkpoint(path, Checkpoint(MODEL, 1, (0, 2), weights, state, {"next_micro_batch": 1}))
    first_bytes = path.read_bytes()
    save_checkpoint(path, Checkpoint(MODEL, 1, (0, 2), weights, state, {"next_micro_batch": 1}))
    assert path.read_bytes() == first_bytes

    loaded = load_checkpoint(path)
    resumed = OptStage(MODEL, 0, 2, seed=99)
    resumed.load_state_dict(dict(loaded.weights))
    resumed_optimizer = StageOptimizer(optimizer, resumed)
    resumed_optimizer.state = loaded.optimizer
    advance(module, stage_optimizer, 1)
    advance(resumed, resumed_optimizer, 1)
    for (name, one), (_, two) in zip(
        module.named_parameters(), resumed.named_parameters(), strict=True
    ):
        assert torch.equal(one, two), name
    assert loaded.progress == {"next_micro_batch": 1}


def test_spoilt_checkpoints_are_refused(tmp_path):
    module = OptStage(MODEL, 0, 2, seed=8)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, Checkpoint(MODEL, 0, (0, 2), weights, {}))
    whole = path.read_bytes()
    for spoilt in (whole[: len(whole) // 2], b"", b"\xff" * 64):
        path.write_bytes(spoilt)
        with pytest.raises(InputError, match="whole safetensors"):
            load_checkpoint(path)
    partial = {name: t for name, t in weights.items() if not name.startswith("layers.1.fc1")}
    save_checkpoint(path, Checkpoint(MODEL, 0, (0, 2), partial, {}))
    with pytest.raises(InputError, match=r"layers.1.fc1"):
        load_checkpoint(path)
    narrow = {name: t.float() for name, t in weights.items()}
    save_checkpoint(path, Checkpoint(MODEL, 0, (0, 2), narrow, {}))
    with pytest.raises(InputError, match="float64"):
        load_checkpoint(path)


def test_export_carries_the_names_of_hugging_face_opt():
    module = OptStage(MODEL, 0, 2, seed=8)
    renamed = with_opt_names({name: p.detach() for name, p in module.named_parameters()})
    assert renamed["model.decoder.embed_positions.weight"].shape == (26, 16)
    assert "model.decoder.layers.1.self_attn.k_proj.bias" in renamed
    assert torch.equal(renamed["lm_head.weight"], renamed["model.decoder.embed_tokens.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "lion"},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"clip_norm": 0.0},
        {"batch_rule": "cubic"},
        {"base_samples": 0},
        {"weight_decay": -1.0},
    ],
)
def test_bad_optimizer_settings_are_refused(settings):
    with pytest.raises(InputError, match="allowed"):
        OptimizerConfig(**settings)
