"""Shapes of the OPT family and what they cost: parameters, operations, bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.errors import InputError
from ranloom.federated.shapes import MODEL_SHAPES
from ranloom.training.costs import LayerCosts


@dataclass(frozen=True)
class ModelShape:
    """Shape of a decoder (OPT, arXiv 2205.01068, table 1).

    Args:
        name: of the model.
        layers: decoder layers L.
        width: hidden width d.
        heads: attention heads.
        vocabulary: token ids V; OPT pads 50265 to 50272.
        positions: longest sequence; OPT stores two more.
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int = 50272
    positions: int = 2048

    @property
    def block_parameters(self) -> int:
        """Parameters of a decoder layer: four d x d and two d x 4d products, biases, two norms."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def embedding_parameters(self) -> int:
        """Token embedding, which is the head as well (tied), and position embedding."""
        return (self.vocabulary + self.positions + 2) * self.width

    @property
    def parameters(self) -> int:
        """All parameters, the tied embedding counted once."""
        return self.layers * self.block_parameters + self.embedding_parameters + 2 * self.width

    def block_flop(self, tokens: int, sequence: int) -> float:
        """Forward operations of a layer: 24 d^2 a token in products, 4 T d in attention."""
        return float(tokens) * (24.0 * self.width**2 + 4.0 * sequence * self.width)

    def head_flop(self, tokens: int) -> float:
        """Forward operations of the head."""
        return 2.0 * tokens * self.width * self.vocabulary

    def step_flop(self, tokens: int, sequence: int) -> float:
        """Forward and backward operations of the whole model; a backward costs two forwards."""
        forward = self.layers * self.block_flop(tokens, sequence) + self.head_flop(tokens)
        return 3.0 * forward

    def activation_bytes(self, samples: int, sequence: int) -> float:
        """Kept for the backward pass of a layer in 16 bits: T m d (34 + 5 a T / d).

        Source: Korthikanti et al., Reducing activation recomputation in large transformer models
        (arXiv 2205.05198), eq. 2.
        """
        tokens = samples * sequence
        return float(tokens * self.width) * (34.0 + 5.0 * self.heads * sequence / self.width)


@dataclass(frozen=True)
class TrainingBytes:
    """Bytes a parameter takes.

    Args:
        weights: parameter and optimizer state on the device; moves with a layer.
        gradient: one gradient as it is held, summed and sent.
        boundary: one value of a stage's output as it is sent.
    """

    weights: float
    gradient: float
    boundary: float


MIXED_PRECISION_ADAM = TrainingBytes(weights=14.0, gradient=2.0, boundary=2.0)
"""16-bit weights and gradients, 32-bit master copy and two moments, all on the device."""

HOST_OPTIMIZER = TrainingBytes(weights=2.0, gradient=2.0, boundary=2.0)
"""The same with master copy and moments in host memory (WEAVER App. E: dual-tier pool)."""

_HEADS = {
    "opt-125m": 12,
    "opt-350m": 16,
    "opt-1.3b": 32,
    "opt-2.7b": 32,
    "opt-6.7b": 32,
    "opt-13b": 40,
    "opt-30b": 56,
    "opt-66b": 72,
    "opt-70b": 64,
}

SHAPES = {
    name: ModelShape(name, MODEL_SHAPES[name].layers, MODEL_SHAPES[name].hidden, heads)
    for name, heads in _HEADS.items()
}
"""The OPT models; depth and width (and what is assumed of ``opt-70b``) as in the shape table of
the federated rounds. With OPT's feed-forward width that 70B model has 64.8 billion parameters."""


def model_shape(name: str) -> ModelShape:
    """A shape by name.

    Raises:
        InputError: unknown name.
    """
    if name not in SHAPES:
        raise InputError("model", name, f"allowed: {', '.join(SHAPES)}")
    return SHAPES[name]


def layer_costs(
    shape: ModelShape,
    samples: int,
    sequence: int,
    sizes: TrainingBytes = MIXED_PRECISION_ADAM,
    unmerged_limit: int = 1 << 30,
) -> LayerCosts:
    """Costs of each layer for one micro-batch.

    The first layer carries the embeddings, the last one head, final norm and its copy of the tied
    embedding.

    Args:
        shape: of the model.
        samples: samples in a micro-batch m.
        sequence: tokens of a sample T.
        sizes: bytes a parameter takes.
        unmerged_limit: gradients of single micro-batches that a site holds at most.
    """
    tokens = samples * sequence
    forward = np.full(shape.layers, shape.block_flop(tokens, sequence))
    forward[-1] += shape.head_flop(tokens)
    parameters = np.full(shape.layers, float(shape.block_parameters))
    parameters[0] += shape.embedding_parameters
    parameters[-1] += shape.vocabulary * shape.width + 2 * shape.width
    activations = np.full(shape.layers, shape.activation_bytes(samples, sequence))
    activations[-1] += 4.0 * tokens * shape.vocabulary
    return LayerCosts(
        forward_flop=forward,
        backward_flop=2.0 * forward,
        weight_bytes=parameters * sizes.weights,
        gradient_bytes=parameters * sizes.gradient,
        activation_bytes=activations,
        boundary_bytes=sizes.boundary * tokens * shape.width,
        tied_bytes=sizes.gradient * shape.vocabulary * shape.width,
        unmerged_limit=unmerged_limit,
    )
