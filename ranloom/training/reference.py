"""One-process training, the oracle for every distributed run.

The oracle is told only the *numbers* of the micro-batches that each step merged. Which samples
these are it works out from the seed; the gradients come from the uncut model and autograd, the
mean and the update are written out here. It shares the model and the data with the runtime, and
nothing of its protocol, reduction or update code. One thread, so that it gives the same bits
everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ranloom.training.data import Corpus, SampleOrder
from ranloom.training.layer_list import Model
from ranloom.training.optimizer import ADAM_BETAS, ADAM_EPSILON, OptimizerConfig


@dataclass(frozen=True)
class ReferenceRun:
    """What one-process training gave.

    Args:
        weights: final parameters by name.
        losses: mean loss per sample of each step, before its update.
    """

    weights: dict[str, Tensor]
    losses: list[float]


def train_reference(
    model: Model,
    optimizer: OptimizerConfig,
    corpus: Corpus,
    order: SampleOrder,
    merged: Mapping[int, Sequence[int]],
    seed: int,
) -> ReferenceRun:
    """Train the whole model in this process on the given composition of steps.

    Args:
        model: what is trained.
        optimizer: update rule.
        corpus: the text.
        order: names the samples of a micro-batch.
        merged: step to the numbers of the micro-batches that it merged, in order of the steps.
        seed: of initial values and dropout.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(model, optimizer, corpus, order, merged, seed)
    finally:
        torch.set_num_threads(threads)


def _train(
    model: Model,
    optimizer: OptimizerConfig,
    corpus: Corpus,
    order: SampleOrder,
    merged: Mapping[int, Sequence[int]],
    seed: int,
) -> ReferenceRun:
    module = model.stage(0, model.layers, seed)
    parameters = list(module.parameters())
    memory: list[dict[str, Tensor]] = [{} for _ in parameters]
    losses = []
    for number, (step, micro_batches) in enumerate(sorted(merged.items()), start=1):
        total = 0.0
        samples = 0
        for micro_batch in micro_batches:
            batch = corpus.micro_batch(order.sample_ids(micro_batch), step)
            loss = module(None, batch).sum()
            loss.backward()
            total += float(loss.detach())
            samples += len(batch.sample_ids)
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= samples
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, optimizer.clip_norm, foreach=False)
        rate = optimizer.step_learning_rate(samples)
        with torch.no_grad():
            for parameter, kept in zip(parameters, memory, strict=True):
                update = _adamw if optimizer.name == "adamw" else _sgd
                update(optimizer, parameter, kept, rate, number)
        module.zero_grad(set_to_none=True)
        losses.append(total / samples)
    weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    return ReferenceRun(weights, losses)


def _sgd(
    config: OptimizerConfig, weight: Tensor, kept: dict[str, Tensor], rate: float, number: int
) -> None:
    assert weight.grad is not None
    direction = weight.grad + config.weight_decay * weight
    if config.momentum > 0.0:
        direction = direction + config.momentum * kept["direction"] if number > 1 else direction
        kept["direction"] = direction
    weight -= rate * direction


def _adamw(
    config: OptimizerConfig, weight: Tensor, kept: dict[str, Tensor], rate: float, number: int
) -> None:
    gradient = weight.grad
    assert gradient is not None
    first, second = ADAM_BETAS
    zero = torch.zeros_like(weight)
    kept["mean"] = first * kept.get("mean", zero) + (1.0 - first) * gradient
    kept["square"] = second * kept.get("square", zero) + (1.0 - second) * gradient**2
    mean = kept["mean"] / (1.0 - first**number)
    square = kept["square"] / (1.0 - second**number)
    weight -= rate * config.weight_decay * weight
    weight -= rate * mean / (square.sqrt() + ADAM_EPSILON)


def weights_relative_error(weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Norm of the difference over the norm of the reference, over all parameters together.

    Raises:
        ValueError: the two do not hold the same names.
    """
    if weights.keys() != reference.keys():
        raise ValueError(f"parameters differ: {sorted(weights.keys() ^ reference.keys())}")
    difference = sum(
        float((weights[name].double() - reference[name].double()).square().sum())
        for name in sorted(reference)
    )
    norm = sum(float(reference[name].double().square().sum()) for name in sorted(reference))
    return float((difference / norm) ** 0.5)


def count_lost_and_doubled(
    expected: Iterable[int], merged: Iterable[Iterable[int]]
) -> tuple[int, int]:
    """How many of the expected keys were never merged, and how many merges were one too many.

    Args:
        expected: keys that a run had to merge once each.
        merged: keys of each step.
    """
    counts = Counter(key for step in merged for key in step)
    lost = sum(1 for key in expected if counts[key] == 0)
    doubled = sum(count - 1 for count in counts.values() if count > 1)
    return lost, doubled
