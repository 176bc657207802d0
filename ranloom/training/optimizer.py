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
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from ranloom.errors import InputError

_CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
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


def squared_norm(summed: Mapping[str, Tensor]) -> float:
    """Squared norm over all tensors, summed in float64 in the order of the names."""
    return math.fsum(float(summed[name].double().square().sum()) for name in sorted(summed))


class StageOptimizer:
    """The update rule with its state for the parameters of one stage.

    Uses torch's functional updates: the optimizer classes import the compiler stack, which takes
    seconds in every process.

    Args:
        config: the rule.
        module: the stage whose parameters are updated.
    """

    def __init__(self, config: OptimizerConfig, module: nn.Module) -> None:
        self._config = config
        self._parameters = dict(module.named_parameters())
        self.state: OptimizerState = {}

    @torch.no_grad()
    def step(self, summed: Mapping[str, Tensor], scale: float, learning_rate: float) -> None:
        """Update the parameters in place.

        Args:
            summed: summed per-sample gradients by parameter name.
            scale: from ``mean_gradient_scale``.
            learning_rate: from ``OptimizerConfig.step_learning_rate``.
        """
        gradients = [
            (summed[name] * scale).to(parameter.dtype)
            for name, parameter in self._parameters.items()
        ]
        parameters: list[Tensor] = list(self._parameters.values())
        if self._config.name == "adamw":
            self._adamw(parameters, gradients, learning_rate)
        else:
            self._sgd(parameters, gradients, learning_rate)

    def _sgd(self, parameters: list[Tensor], gradients: list[Tensor], rate: float) -> None:
        config = self._config
        momenta = [self.state.get(name, {}).get("momentum_buffer") for name in self._parameters]
        sgd(
            parameters,
            gradients,
            momenta,
            foreach=False,
            fused=False,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for name, momentum in zip(self._parameters, momenta, strict=True):
            if momentum is not None:
                self.state[name] = {"momentum_buffer": momentum}

    def _adamw(self, parameters: list[Tensor], gradients: list[Tensor], rate: float) -> None:
        for name, parameter in self._parameters.items():
            if name not in self.state:
                self.state[name] = {
                    "step": torch.zeros((), dtype=torch.float64),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[name] for name in self._parameters]
        adamw(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=False,
            fused=False,
            amsgrad=False,
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            lr=rate,
            weight_decay=self._config.weight_decay,
            eps=ADAM_EPSILON,
            maximize=False,
        )
