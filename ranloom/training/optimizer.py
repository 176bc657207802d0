"""The update of a step: mean over its samples, clipping by the global norm, SGD or AdamW.

A step's gradient is the sum of per-sample gradients divided by the number of samples that the
step merged (Eq. 3 of WEAVER). Sites hold copies of single stages, so what concerns the whole model
(number of samples, norm) comes from outside and each stage then applies its part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ranloom.errors import InputError

_CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_
OptimizerState = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class OptimizerConfig:
    """The rule that turns a step's mean gradient into new weights.

    Args:
        name: ``sgd`` or ``adamw``.
        learning_rate: at ``base_samples`` samples a step.
        momentum: of SGD.
        weight_decay: L2 term of SGD, decoupled in AdamW.
        clip_norm: largest norm of the mean gradient over the whole model; None never clips.
        batch_rule: how the learning rate follows the samples merged: ``none``, ``linear`` (in
            proportion) or ``sqrt``.
        base_samples: samples a step for which ``learning_rate`` is meant.

    Raises:
        InputError: a value out of range.
    """

    name: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    batch_rule: str = "none"
    base_samples: int = 1

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adamw"):
            raise InputError("optimizer.name", self.name, "allowed: sgd, adamw")
        if self.batch_rule not in ("none", "linear", "sqrt"):
            raise InputError("optimizer.batch_rule", self.batch_rule, "allowed: none, linear, sqrt")
        if not self.learning_rate > 0.0:
            raise InputError("optimizer.learning_rate", self.learning_rate, "allowed: above 0")
        if not 0.0 <= self.momentum < 1.0:
            raise InputError("optimizer.momentum", self.momentum, "allowed: 0 up to 1")
        if self.weight_decay < 0.0:
            raise InputError("optimizer.weight_decay", self.weight_decay, "allowed: 0 or more")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise InputError("optimizer.clip_norm", self.clip_norm, "allowed: above 0, or null")
        if self.base_samples < 1:
            raise InputError("optimizer.base_samples", self.base_samples, "allowed: from 1 on")

    def step_learning_rate(self, samples: int) -> float:
        """Learning rate of a step that merged this many samples."""
        ratio = samples / self.base_samples
        factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.batch_rule]
        return self.learning_rate * factor


def make_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """The torch optimizer of a module."""
    if config.name == "adamw":
        return torch.optim.AdamW(
            module.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            foreach=False,
        )
    return torch.optim.SGD(
        module.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        foreach=False,
    )


def mean_gradient_scale(config: OptimizerConfig, samples: int, squared_norm_of_sum: float) -> float:
    """Factor that turns the sum of per-sample gradients into the clipped mean.

    Args:
        config: names the largest norm.
        samples: samples merged in the step.
        squared_norm_of_sum: squared norm of the *summed* gradient over the whole model, each
            shared parameter counted once.
    """
    scale = 1.0 / samples
    if config.clip_norm is not None:
        norm = math.sqrt(squared_norm_of_sum) * scale
        scale *= min(1.0, config.clip_norm / (norm + _CLIP_EPSILON))
    return scale


def apply_update(
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    summed: Mapping[str, Tensor],
    scale: float,
    learning_rate: float,
) -> None:
    """One step of the optimizer on a stage.

    Args:
        optimizer: made by ``make_optimizer`` for ``module``.
        module: the stage.
        summed: summed per-sample gradients by parameter name.
        scale: from ``mean_gradient_scale``.
        learning_rate: from ``step_learning_rate``.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    for name, parameter in module.named_parameters():
        parameter.grad = summed[name] * scale
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def squared_norm(summed: Mapping[str, Tensor]) -> float:
    """Squared norm over all tensors, summed in float64 in the order of the names."""
    return math.fsum(float(summed[name].double().square().sum()) for name in sorted(summed))


def optimizer_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> OptimizerState:
    """Tensors of the optimizer by parameter name; scalars (step counts) as 0-d tensors."""
    state: OptimizerState = {}
    for name, parameter in module.named_parameters():
        entries = {
            key: value.detach() if isinstance(value, Tensor) else torch.tensor(value)
            for key, value in optimizer.state.get(parameter, {}).items()
            if value is not None
        }
        if entries:
            state[name] = entries
    return state


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, module: nn.Module, state: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Put tensors taken by ``optimizer_state`` back; parameters without an entry start fresh."""
    for name, parameter in module.named_parameters():
        if name in state:
            optimizer.state[parameter] = {
                key: value.clone() for key, value in sorted(state[name].items())
            }
