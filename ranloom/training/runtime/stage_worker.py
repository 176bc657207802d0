"""The numbers of a site: one stage's weights, forward and backward passes, and its updates.

Knows nothing of tasks, tokens or peers. Activations are kept between forward and backward; without
them (evicted, or the task came from elsewhere) the backward pass recomputes them from its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ranloom.spare.checked_products import CheckedProducts
from ranloom.training.data import Corpus, SampleOrder
from ranloom.training.layer_list import LayerListStage, Model
from ranloom.training.opt_model import OptStage
from ranloom.training.optimizer import (
    OptimizerConfig,
    OptimizerState,
    StageOptimizer,
    mean_gradient_scale,
)

TIED_PARAMETER = "embed_tokens.weight"
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Workload:
    """What is trained; the same on every site.

    Args:
        model: what is trained.
        optimizer: update rule.
        corpus: the text.
        order: which samples a micro-batch holds.
        seed: of initial values and dropout.
        device: torch device on which the stage computes; exchanged tensors live on the CPU.
        check_pairs: probe pairs with which each matrix product is checked; 0 checks none.
    """

    model: Model
    optimizer: OptimizerConfig
    corpus: Corpus
    order: SampleOrder
    seed: int
    device: str = "cpu"
    check_pairs: int = 0

    def names(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Names of the parameters in a range of layers, ascending."""
        return tuple(sorted(self.model.parameter_shapes(first_layer, end_layer)))

    def is_boundary(self, value: Tensor) -> bool:
        """Whether a tensor can be what one stage hands to the next, or its gradient."""
        shapes = self.model.boundary_shapes(
            self.order.micro_batch_samples, self.corpus.sequence_length
        )
        return tuple(value.shape) in shapes and value.dtype == self.model.torch_dtype

    def stage(self, first_layer: int, end_layer: int) -> OptStage | LayerListStage:
        """A stage with its initial weights, on the device."""
        return self.model.stage(first_layer, end_layer, self.seed).to(self.device)


class TrainedLayers:
    """A range of layers with their optimizer at one model version.

    Args:
        workload: what is trained.
        first_layer: first decoder layer.
        end_layer: one past the last.
        version: model version of the weights.
    """

    def __init__(self, workload: Workload, first_layer: int, end_layer: int, version: int) -> None:
        self.workload = workload
        self.first_layer = first_layer
        self.end_layer = end_layer
        self.version = version
        self.module = workload.stage(first_layer, end_layer)
        self.optimizer = StageOptimizer(workload.optimizer, self.module)

    def names(self) -> tuple[str, ...]:
        """Names of the parameters, ascending."""
        return tuple(sorted(name for name, _ in self.module.named_parameters()))

    def names_within(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Names of those parameters that also belong to another range of layers, ascending.

        Args:
            first_layer: first layer of the range, -1 for all that is here.
            end_layer: one past the last.
        """
        if first_layer < 0:
            return self.names()
        wanted = self.workload.model.parameter_shapes(first_layer, end_layer)
        return tuple(name for name in self.names() if name in wanted)

    def are_sums(self, tensors: Mapping[str, Tensor], names: Iterable[str] | None = None) -> bool:
        """Whether tensors can be summed gradients of these layers: names, shapes and type.

        Args:
            tensors: what came from another site.
            names: parameters that there have to be; None for all of the layers.
        """
        shapes = {name: p.shape for name, p in self.module.named_parameters()}
        dtype = self.workload.model.sum_dtype
        wanted = shapes.keys() if names is None else set(names) & shapes.keys()
        return tensors.keys() == wanted and all(
            tensor.shape == shapes[name] and tensor.dtype == dtype
            for name, tensor in tensors.items()
        )

    def zeros(self) -> Gradients:
        """The sum of no gradient."""
        dtype = self.workload.model.sum_dtype
        return {n: torch.zeros(p.shape, dtype=dtype) for n, p in self.module.named_parameters()}

    def apply(self, total: Mapping[str, Tensor], samples: int, squared_norm: float) -> None:
        """Update the weights from summed gradients; the version is the caller's to set.

        Args:
            total: summed gradients by parameter; may name more than these layers have.
            samples: samples in the sum over the whole step.
            squared_norm: of the sum over the whole model.
        """
        rule = self.workload.optimizer
        on_device = {name: total[name].to(self.workload.device) for name in self.names()}
        scale = mean_gradient_scale(rule, samples, squared_norm)
        rate = rule.step_learning_rate(samples)
        self.optimizer.step(on_device, scale, rate)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the parameters on the CPU."""
        return {n: p.detach().cpu().clone() for n, p in self.module.named_parameters()}

    def optimizer_state(self) -> OptimizerState:
        """Copies of the optimizer's tensors on the CPU."""
        state = self.optimizer.state
        return {n: {k: v.cpu().clone() for k, v in entry.items()} for n, entry in state.items()}

    def load(self, weights: Mapping[str, Tensor], state: OptimizerState) -> None:
        """Take over those weights and optimizer tensors that belong to these layers."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])
                    if name in state:
                        self.optimizer.state[name] = {
                            entry: tensor.to(self.workload.device, copy=True)
                            for entry, tensor in state[name].items()
                        }


@dataclass
class _Pass:
    """A forward pass whose graph is kept: the leaf that entered and what came out."""

    entered: Tensor | None
    output: Tensor


@dataclass(frozen=True)
class BackwardResult:
    """What a backward task gives.

    Args:
        gradients: summed over the samples of the micro-batch, by parameter.
        input_gradient: for the stage before; None on the first stage.
        loss: summed loss of the samples on the last stage, else 0.
    """

    gradients: Gradients
    input_gradient: Tensor | None
    loss: float


class StageWorker:
    """Forward and backward passes of one stage.

    Args:
        layers: the stage's layers.

    Attributes:
        checks: what checks the products, None where nothing does.
    """

    def __init__(self, layers: TrainedLayers) -> None:
        self.layers = layers
        self._kept: dict[tuple[int, int], _Pass] = {}
        pairs = layers.workload.check_pairs
        self.checks = CheckedProducts(pairs) if pairs else None

    @property
    def is_last(self) -> bool:
        """Whether the stage makes the loss."""
        return self.layers.module.is_last

    def keeps(self, step: int, micro_batch: int) -> bool:
        """Whether activations of a micro-batch are kept."""
        return (step, micro_batch) in self._kept

    def evict(self, keys: Iterable[tuple[int, int]] | None = None) -> None:
        """Free kept activations of these (step, micro-batch); all of them without keys."""
        for key in list(self._kept) if keys is None else keys:
            self._kept.pop(key, None)

    def forward(self, step: int, micro_batch: int, entering: Tensor | None) -> Tensor:
        """Output for the next stage [B, T, d]; keeps the activations.

        Args:
            step: training step.
            micro_batch: number in the global queue.
            entering: output of the stage before; None on the first stage.
        """
        kept = self._run(step, micro_batch, entering)
        self._kept[step, micro_batch] = kept
        return kept.output.detach().cpu()

    def backward(
        self, step: int, micro_batch: int, entering: Tensor | None, gradient: Tensor | None
    ) -> BackwardResult:
        """Gradients of a micro-batch; frees its activations.

        Args:
            step: training step.
            micro_batch: number in the global queue.
            entering: output of the stage before, used where no activations are kept.
            gradient: gradient of this stage's output; None on the last stage.
        """
        kept = self._kept.pop((step, micro_batch), None) or self._run(step, micro_batch, entering)
        names, parameters = zip(*self.layers.module.named_parameters(), strict=True)
        if gradient is None:
            gradient = torch.ones_like(kept.output)
        wanted = parameters if kept.entered is None else (kept.entered, *parameters)
        with self.checks or nullcontext():
            found = torch.autograd.grad(kept.output, wanted, gradient.to(kept.output.device))
        input_gradient = None
        if kept.entered is not None:
            input_gradient, found = found[0].cpu(), found[1:]
        dtype = self.layers.workload.model.sum_dtype
        gradients = {name: g.to("cpu", dtype) for name, g in zip(names, found, strict=True)}
        loss = float(kept.output.detach().sum()) if self.is_last else 0.0
        return BackwardResult(gradients, input_gradient, loss)

    def _run(self, step: int, micro_batch: int, entering: Tensor | None) -> _Pass:
        workload = self.layers.workload
        batch = workload.corpus.micro_batch(workload.order.sample_ids(micro_batch), step)
        leaf = None
        if entering is not None:
            leaf = entering.to(workload.device).detach().requires_grad_()
        with self.checks or nullcontext():
            return _Pass(leaf, self.layers.module(leaf, batch.to(workload.device)))
