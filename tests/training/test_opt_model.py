"""The decoder: cut into stages it is the same function, and its parts are OPT's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ranloom.errors import InputError
from ranloom.training.data import generate_text
from ranloom.training.opt_model import (
    MicroBatch,
    ModelConfig,
    OptStage,
    build_stages,
    check_boundaries,
    even_boundaries,
    keyed_dropout,
    parameter_shapes,
    per_sample_loss,
)

CONFIG = ModelConfig(
    layers=4, width=32, heads=4, ffn_width=64, vocabulary=256, positions=48, dropout=0.1
)
CORPUS = generate_text(seed=5, samples=16, sequence_length=48)
BATCH = CORPUS.micro_batch([3, 0, 7], step=2)


def through_stages(stages: list[OptStage], batch: MicroBatch):
    """Loss sum and summed gradients, each stage in a graph of its own as on separate sites."""
    inputs, outputs = [], []
    hidden = None
    for stage in stages:
        if hidden is not None:
            hidden = hidden.detach().requires_grad_()
        inputs.append(hidden)
        hidden = stage(hidden, batch)
        outputs.append(hidden)
    upstream = torch.ones_like(outputs[-1])
    summed: dict[str, torch.Tensor] = {}
    for stage, entered, left in reversed(list(zip(stages, inputs, outputs, strict=True))):
        names, parameters = zip(*stage.named_parameters(), strict=True)
        wanted = parameters if entered is None else (entered, *parameters)
        gradients = torch.autograd.grad(left, wanted, upstream)
        if entered is not None:
            upstream, gradients = gradients[0], gradients[1:]
        for name, gradient in zip(names, gradients, strict=True):
            summed[name] = summed[name] + gradient if name in summed else gradient
    return float(outputs[-1].detach().sum()), summed


@pytest.mark.parametrize("boundaries", [(0, 2, 4), (0, 1, 4), (0, 1, 2, 3, 4), (0, 4)])
def test_split_stages_give_the_gradients_of_the_whole(boundaries):
    whole = OptStage(CONFIG, 0, CONFIG.layers, seed=11)
    loss = whole(None, BATCH).sum()
    loss.backward()
    split_loss, summed = through_stages(build_stages(CONFIG, boundaries, seed=11), BATCH)
    assert split_loss == pytest.approx(float(loss.detach()), rel=1e-14)
    expected = dict(whole.named_parameters())
    assert summed.keys() == expected.keys()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in expected.values()))
    error = torch.sqrt(sum((summed[n] - p.grad).square().sum() for n, p in expected.items()))
    assert float(error / norm) < 1e-14


def test_dropout_mask_follows_the_sample_and_nothing_else():
    hidden = torch.ones(3, 8, 16, dtype=torch.float64)

    def dropped(sample_ids, step=2, layer=1, place=0, seed=9):
        batch = replace(BATCH, sample_ids=tuple(sample_ids), step=step)
        return keyed_dropout(hidden[: len(sample_ids)], 0.25, seed, batch, layer, place)

    together = dropped([3, 0, 7])
    alone = dropped([7])
    assert torch.equal(together[2], alone[0])
    for other in (dropped([7], step=3), dropped([7], layer=2), dropped([7], place=1)):
        assert not torch.equal(alone, other)
    assert not torch.equal(alone, dropped([7], seed=10))
    many = dropped(list(range(3)))
    assert 0.6 < float((many > 0).double().mean()) < 0.9
    assert float(many.max()) == pytest.approx(1 / 0.75)


def test_recomputing_with_dropout_is_bitwise_repeatable():
    stage = OptStage(CONFIG, 0, 2, seed=1)
    assert torch.equal(stage(None, BATCH), stage(None, BATCH))


def test_loss_is_the_mean_over_a_samples_own_tokens():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 7)))
    tokens = torch.tensor([[0, 3, 1, 0, 0], [0, 6, 2, 5, 4]])
    batch = MicroBatch(0, (0, 1), tokens, torch.tensor([3, 5]))
    log_p = torch.log_softmax(logits, dim=-1)
    first = -(log_p[0, 0, 3] + log_p[0, 1, 1]) / 2
    second = -(log_p[1, 0, 6] + log_p[1, 1, 2] + log_p[1, 2, 5] + log_p[1, 3, 4]) / 4
    assert torch.allclose(per_sample_loss(logits, batch), torch.stack([first, second]))


def test_attention_is_causal_and_padding_is_without_effect():
    stage = OptStage(replace(CONFIG, dropout=0.0), 0, 4, seed=1)
    changed = BATCH.tokens.clone()
    row = int(BATCH.lengths.argmin())
    assert BATCH.lengths[row] < changed.shape[1]
    changed[row, int(BATCH.lengths[row]) :] = 65
    losses, same = stage(None, BATCH), stage(None, replace(BATCH, tokens=changed))
    assert torch.equal(losses, same)


def test_copies_of_a_parameter_agree_in_every_cut():
    first, last = build_stages(CONFIG, (0, 1, 4), seed=3)
    whole = dict(OptStage(CONFIG, 0, 4, seed=3).named_parameters())
    assert torch.equal(first.embed_tokens.weight, last.embed_tokens.weight)
    for stage in (first, last):
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, whole[name]), name
    other = OptStage(CONFIG, 0, 1, seed=4)
    assert not torch.equal(other.embed_tokens.weight, first.embed_tokens.weight)


def test_parameter_shapes_need_no_model():
    for first, end in ((0, 4), (0, 2), (1, 3), (3, 4)):
        stage = OptStage(CONFIG, first, end, seed=0)
        built = {name: tuple(p.shape) for name, p in stage.named_parameters()}
        assert parameter_shapes(CONFIG, first, end) == built


def test_opt_125m_has_its_published_size():
    shapes = parameter_shapes(
        ModelConfig(layers=12, width=768, heads=12, ffn_width=3072, vocabulary=50272,
                    positions=2050),
        0,
        12,
    )  # fmt: skip
    # facebook/opt-125m: 125,239,296 parameters with the tied head counted once.
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 125_239_296


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(8, 2, (0, 4, 8)), (4, 4, (0, 1, 2, 3, 4)), (5, 2, (0, 2, 5)), (24, 1, (0, 24))],
)
def test_even_boundaries(layers, stages, expected):
    assert even_boundaries(layers, stages) == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda: replace(CONFIG, heads=5),
        lambda: replace(CONFIG, dropout=1.0),
        lambda: replace(CONFIG, dtype="int8"),
        lambda: replace(CONFIG, layers=0),
        lambda: check_boundaries((0, 2, 2, 4), 4),
        lambda: check_boundaries((0, 2), 4),
        lambda: check_boundaries((1, 4), 4),
        lambda: even_boundaries(2, 3),
        lambda: OptStage(CONFIG, 2, 5, seed=0),
    ],
)
def test_bad_shapes_are_refused_in_one_line(call):
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
