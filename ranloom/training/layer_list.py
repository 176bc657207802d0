"""Any model that is a list of layers: the user's own ``nn.Module``s, cut into stages between them.

The user names a function that builds the list; every process calls it, so no code and no pickle
travels. The first layer takes token ids [B, T], each further one what the layer before gives, the
last gives logits [B, T, V]. Layers share no parameters.
"""

from __future__ import annotations

import importlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ranloom.errors import InputError
from ranloom.training.opt_model import DTYPES, MicroBatch, ModelConfig, per_sample_loss

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerListConfig:
    """A model of the user's own.

    Args:
        factory: ``package.module:function`` that returns the list of layers.
        arguments: keyword arguments of the function, as JSON.
        layers: length of the list L.
        dtype: ``float64``, ``float32`` or ``bfloat16``, for parameters and activations.

    Raises:
        InputError: a value that cannot be used.
    """

    factory: str
    arguments: str
    layers: int
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise InputError("model.layers", self.layers, "allowed: at least 1")
        if self.dtype not in DTYPES:
            raise InputError("model.dtype", self.dtype, f"allowed: {', '.join(DTYPES)}")
        module, _, function = self.factory.partition(":")
        if not module or not function:
            raise InputError("model.factory", self.factory, "allowed: package.module:function")
        try:
            is_object = isinstance(json.loads(self.arguments), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise InputError("model.arguments", self.arguments, "allowed: a JSON object")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type of parameters and activations."""
        return DTYPES[self.dtype]

    @property
    def sum_dtype(self) -> torch.dtype:
        """The torch type in which gradients are held and summed: float32 at least."""
        return torch.promote_types(self.torch_dtype, torch.float32)

    @property
    def tied(self) -> bool:
        """Layers of a list share nothing."""
        return False

    def stage(self, first: int, end: int, seed: int) -> LayerListStage:
        """Layers ``first`` up to, not including, ``end``, with their initial values."""
        return LayerListStage(self, first, end, seed)

    def parameter_shapes(self, first: int, end: int) -> dict[str, Shape]:
        """Name and shape of each parameter of a range of layers."""
        shapes = _parameter_shapes(self)
        wanted = {str(layer) for layer in range(first, end)}
        return {name: shape for name, shape in shapes.items() if name.split(".")[1] in wanted}

    def boundary_shapes(self, samples: int, length: int) -> frozenset[Shape]:
        """Shapes of what one stage may hand to the next."""
        return frozenset(measure(self, samples, length).shapes[:-1])


class LayerListStage(nn.Module):
    """A range of the layers.

    Args:
        config: the model.
        first: index of the first layer, which takes token ids if it is 0.
        end: index after the last layer; the model's last one is followed by the loss.
        seed: root of the initial values and of whatever the layers draw in training.

    Raises:
        InputError: a range that does not exist, or a factory that cannot be used.
    """

    def __init__(self, config: LayerListConfig, first: int, end: int, seed: int) -> None:
        super().__init__()
        if not 0 <= first < end <= config.layers:
            raise InputError("stage", [first, end], f"allowed: a range within 0..{config.layers}")
        self.is_first = first == 0
        self.is_last = end == config.layers
        self.seed = seed
        layers = build_layers(config, seed)
        self.layers = nn.ModuleDict({str(index): layers[index] for index in range(first, end)})

    def forward(self, hidden: Tensor | None, batch: MicroBatch) -> Tensor:
        """Run the layers; as ``OptStage.forward``.

        What a layer draws (dropout) depends on the seed, the step, the samples and the layer alone,
        so that a task which runs again elsewhere draws the same.
        """
        value = batch.tokens if self.is_first else hidden
        if value is None:
            raise ValueError("only the first stage runs without activations")
        with torch.random.fork_rng(devices=[]):
            for index, layer in self.layers.items():
                key = f"{self.seed}/{batch.step}/{batch.sample_ids}/{index}"
                torch.manual_seed(zlib.crc32(key.encode()))
                value = layer(value)
        return per_sample_loss(value, batch) if self.is_last else value


def build_layers(config: LayerListConfig, seed: int) -> list[nn.Module]:
    """Call the user's function; the same seed gives the same initial values in every process.

    Raises:
        InputError: it cannot be imported or called, or returns something else.
    """
    module, _, function = config.factory.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            found: Any = getattr(importlib.import_module(module), function)(
                **json.loads(config.arguments)
            )
            layers = list(found)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise InputError("model.factory", config.factory, f"allowed: {error}") from None
    if len(layers) != config.layers or not all(isinstance(item, nn.Module) for item in layers):
        raise InputError(
            "model.factory",
            f"{len(layers)} of {[type(item).__name__ for item in layers]}",
            f"allowed: {config.layers} nn.Modules",
        )
    seen: set[int] = set()
    for layer in layers:
        layer.to(config.torch_dtype)
        owned = {id(parameter) for parameter in layer.parameters()}
        if seen & owned:
            raise InputError("model.factory", config.factory, "allowed: layers that share nothing")
        if any(True for _ in layer.buffers()):
            raise InputError("model.factory", config.factory, "allowed: layers without buffers")
        seen |= owned
    return layers


@lru_cache(maxsize=8)
def _parameter_shapes(config: LayerListConfig) -> Mapping[str, Shape]:
    stage = LayerListStage(config, 0, config.layers, 0)
    return {name: tuple(parameter.shape) for name, parameter in stage.named_parameters()}


@dataclass(frozen=True)
class LayerSizes:
    """What each layer gives and costs for a micro-batch.

    Args:
        shapes: of each layer's output.
        forward_flop: of each layer's forward pass, at least one operation a value of its output.
    """

    shapes: tuple[Shape, ...]
    forward_flop: tuple[float, ...]


@lru_cache(maxsize=8)
def measure(config: LayerListConfig, samples: int, length: int) -> LayerSizes:
    """Run a micro-batch of zeros through the layers.

    Raises:
        InputError: a layer that does not take what the layer before gives, or no logits at the end.
    """
    value = torch.zeros(samples, length, dtype=torch.int64)
    shapes, flops = [], []
    for index, layer in enumerate(build_layers(config, 0)):
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                value = layer(value)
        except (RuntimeError, TypeError, IndexError) as error:
            where = f"model.factory: layer {index}"
            what = str(error).split("\n")[0]
            raise InputError(where, tuple(value.shape), f"allowed: its input ({what})") from None
        shapes.append(tuple(value.shape))
        flops.append(float(max(counter.get_total_flops(), value.numel())))
    if len(shapes[-1]) != 3 or shapes[-1][:2] != (samples, length):
        allowed = f"allowed: logits [{samples}, {length}, V]"
        raise InputError("model.factory: last layer", shapes[-1], allowed)
    return LayerSizes(tuple(shapes), tuple(flops))


Model = ModelConfig | LayerListConfig
"""What can be trained."""


def model_of(fields: Mapping[str, Any]) -> Model:
    """A model from the fields of its configuration.

    Raises:
        InputError: a field that is missing, unknown or out of range.
    """
    try:
        return LayerListConfig(**fields) if "factory" in fields else ModelConfig(**fields)
    except TypeError as error:
        raise InputError("model", str(error), "allowed: the fields of a model") from None
