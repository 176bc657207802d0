"""An OPT-shaped decoder that can be cut into pipeline stages.

Shape of OPT (arXiv 2205.01068): token and learned position embeddings, pre-norm decoder layers
with a ReLU feed-forward part, a final layer norm and a head tied to the token embedding.
A stage holds a contiguous range of decoder layers; the first one also the embeddings, the last
one the final norm and the head. Parameters carry the same global name in every cut, so a layer
keeps its identity when a boundary moves, and a name held by two stages (the tied embedding) is
one parameter of which both hold a copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ranloom.errors import InputError

DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
_INIT_STD = 0.02
_IGNORED_TARGET = -100


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the decoder.

    Args:
        layers: decoder layers L.
        width: hidden width d.
        heads: attention heads; divides ``width``.
        ffn_width: width of the feed-forward part (OPT: 4 d).
        vocabulary: number of token ids V.
        positions: longest sequence T.
        dropout: residual dropout probability (OPT: after attention and after the feed-forward).
        dtype: ``float64``, ``float32`` or ``bfloat16``, for parameters and activations.

    Raises:
        InputError: a value out of range.
    """

    layers: int
    width: int
    heads: int
    ffn_width: int
    vocabulary: int
    positions: int
    dropout: float = 0.0
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "ffn_width", "vocabulary", "positions"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name}", getattr(self, name), "allowed: at least 1")
        if self.width % self.heads:
            raise InputError(
                "model.heads", self.heads, f"allowed: a divisor of the width {self.width}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise InputError("model.dropout", self.dropout, "allowed: 0 up to, not including, 1")
        if self.dtype not in DTYPES:
            raise InputError("model.dtype", self.dtype, f"allowed: {', '.join(DTYPES)}")

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
        """The head shares its weight with the token embedding."""
        return True

    def stage(self, first: int, end: int, seed: int) -> OptStage:
        """Decoder layers ``first`` up to, not including, ``end``, with their initial values."""
        return OptStage(self, first, end, seed)

    def parameter_shapes(self, first: int, end: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter of a range of layers, without building it."""
        return parameter_shapes(self, first, end)

    def boundary_shapes(self, samples: int, length: int) -> frozenset[tuple[int, ...]]:
        """Shapes of what one stage hands to the next: activations [B, T, d]."""
        return frozenset({(samples, length, self.width)})


@dataclass(frozen=True)
class MicroBatch:
    """What a stage must know of a micro-batch beside its input tensor.

    Args:
        step: training step in which it is computed (keys the dropout).
        sample_ids: ids of the B samples.
        tokens: token ids [B, T]; the first stage embeds them, the last predicts them.
        lengths: tokens of each sample that count [B], each at least 2.
    """

    step: int
    sample_ids: tuple[int, ...]
    tokens: Tensor
    lengths: Tensor

    def to(self, device: str) -> MicroBatch:
        """The same micro-batch with its tensors on a device."""
        if device == "cpu":
            return self
        return replace(self, tokens=self.tokens.to(device), lengths=self.lengths.to(device))


def even_boundaries(layers: int, stages: int) -> tuple[int, ...]:
    """Boundaries (0, ..., layers) that cut the layers into stages as evenly as possible.

    Raises:
        InputError: more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise InputError("stages", stages, f"allowed: 1 to {layers} (the number of layers)")
    return tuple(round(stage * layers / stages) for stage in range(stages + 1))


def check_boundaries(boundaries: Sequence[int], layers: int) -> tuple[int, ...]:
    """The boundaries as a tuple.

    Raises:
        InputError: they do not rise strictly from 0 to ``layers``.
    """
    rising = all(low < high for low, high in pairwise(boundaries))
    if len(boundaries) < 2 or boundaries[0] != 0 or boundaries[-1] != layers or not rising:
        raise InputError("boundaries", list(boundaries), f"allowed: strictly from 0 to {layers}")
    return tuple(int(boundary) for boundary in boundaries)


def keyed_dropout(
    hidden: Tensor,
    probability: float,
    seed: int,
    batch: MicroBatch,
    layer: int,
    place: int,
) -> Tensor:
    """Dropout whose mask depends on (seed, step, sample, layer, place) and on nothing else.

    A task that runs again on another site, in another micro-batch or under another cut draws the
    same mask. The counter-based generator (Philox) takes the key directly, so masks need no state.

    Args:
        hidden: activations [B, T, d].
        probability: share of elements dropped.
        seed: root of the random stream.
        batch: names the step and the samples.
        layer: global index of the decoder layer.
        place: which dropout of the layer.

    Returns:
        Activations [B, T, d]; the kept ones scaled by 1 / (1 - probability).
    """
    if probability == 0.0:
        return hidden
    shape = hidden.shape[1:]
    kept = np.empty(hidden.shape, dtype=np.bool_)
    for row, sample in enumerate(batch.sample_ids):
        stream = np.random.Philox(
            key=np.array([seed, batch.step], dtype=np.uint64),
            counter=np.array([0, place, layer, sample], dtype=np.uint64),
        )
        uniform = np.random.Generator(stream).random(shape, dtype=np.float32)
        np.greater_equal(uniform, np.float32(probability), out=kept[row])
    mask = torch.from_numpy(kept).to(device=hidden.device, dtype=hidden.dtype)
    return hidden * mask / (1.0 - probability)


class SelfAttention(nn.Module):
    """Causal multi-head self-attention with biases, as in OPT."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        dtype = config.torch_dtype
        self.q_proj = nn.Linear(config.width, config.width, dtype=dtype)
        self.k_proj = nn.Linear(config.width, config.width, dtype=dtype)
        self.v_proj = nn.Linear(config.width, config.width, dtype=dtype)
        self.out_proj = nn.Linear(config.width, config.width, dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attention output [B, T, d] of activations [B, T, d]."""
        batch, length, width = hidden.shape

        def split(projected: Tensor) -> Tensor:
            # [B, T, d] -> [B, heads, T, d / heads]
            return projected.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            split(self.q_proj(hidden)),
            split(self.k_proj(hidden)),
            split(self.v_proj(hidden)),
            is_causal=True,
        )
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class DecoderLayer(nn.Module):
    """One pre-norm decoder layer: attention, then a ReLU feed-forward part."""

    def __init__(self, config: ModelConfig, index: int, dropout_seed: int) -> None:
        super().__init__()
        dtype = config.torch_dtype
        self.index = index
        self.dropout = config.dropout
        self.dropout_seed = dropout_seed
        self.self_attn_layer_norm = nn.LayerNorm(config.width, dtype=dtype)
        self.self_attn = SelfAttention(config)
        self.final_layer_norm = nn.LayerNorm(config.width, dtype=dtype)
        self.fc1 = nn.Linear(config.width, config.ffn_width, dtype=dtype)
        self.fc2 = nn.Linear(config.ffn_width, config.width, dtype=dtype)

    def forward(self, hidden: Tensor, batch: MicroBatch) -> Tensor:
        """Activations after the layer [B, T, d]."""
        attended = self.self_attn(self.self_attn_layer_norm(hidden))
        hidden = hidden + self._drop(attended, batch, place=0)
        inner = functional.relu(self.fc1(self.final_layer_norm(hidden)))
        return hidden + self._drop(self.fc2(inner), batch, place=1)

    def _drop(self, hidden: Tensor, batch: MicroBatch, place: int) -> Tensor:
        return keyed_dropout(hidden, self.dropout, self.dropout_seed, batch, self.index, place)


class OptStage(nn.Module):
    """Decoder layers ``first`` up to, not including, ``end`` with what belongs to the ends.

    Args:
        config: shape of the whole decoder.
        first: index of the first layer; 0 adds the embeddings.
        end: index after the last layer; ``config.layers`` adds the final norm and the head.
        seed: root of the initial values and of the dropout masks. Initial values depend on (seed,
            parameter name) alone, so copies and cuts agree without any exchange.
    """

    def __init__(self, config: ModelConfig, first: int, end: int, seed: int) -> None:
        super().__init__()
        if not 0 <= first < end <= config.layers:
            raise InputError("stage", [first, end], f"allowed: a range within 0..{config.layers}")
        self.config = config
        self.is_first = first == 0
        self.is_last = end == config.layers
        dtype = config.torch_dtype
        # What the modules draw for themselves is overwritten; nobody else's stream may notice.
        with torch.random.fork_rng(devices=[]):
            if self.is_first or self.is_last:
                self.embed_tokens = nn.Embedding(config.vocabulary, config.width, dtype=dtype)
            if self.is_first:
                self.embed_positions = nn.Embedding(config.positions, config.width, dtype=dtype)
            self.layers = nn.ModuleDict(
                {str(index): DecoderLayer(config, index, seed) for index in range(first, end)}
            )
            if self.is_last:
                self.final_layer_norm = nn.LayerNorm(config.width, dtype=dtype)
        for name, parameter in self.named_parameters():
            parameter.data.copy_(_initial_value(name, parameter, seed))

    def forward(self, hidden: Tensor | None, batch: MicroBatch) -> Tensor:
        """Run the stage.

        Args:
            hidden: activations [B, T, d] of the stage before; None for the first stage.
            batch: the micro-batch.

        Returns:
            Activations [B, T, d], or of the last stage the loss of each sample [B]: the mean of
            the cross entropy over its predicted tokens.
        """
        if self.is_first:
            hidden = self._embed(batch.tokens)
        if hidden is None:
            raise ValueError("only the first stage runs without activations")
        for layer in self.layers.values():
            hidden = layer(hidden, batch)
        if not self.is_last:
            return hidden
        logits = functional.linear(self.final_layer_norm(hidden), self.embed_tokens.weight)
        return per_sample_loss(logits, batch)

    def _embed(self, tokens: Tensor) -> Tensor:
        positions = self.embed_positions.weight[: tokens.shape[1]]
        embedded: Tensor = self.embed_tokens(tokens) + positions
        return embedded


def per_sample_loss(logits: Tensor, batch: MicroBatch) -> Tensor:
    """Mean next-token cross entropy of each sample [B] from logits [B, T, V].

    A sample of n tokens predicts n - 1 of them. The mean is taken per sample, so that a sum over
    samples weights a short sample like a long one.
    """
    targets = batch.tokens[:, 1:].clone()
    predicted = (batch.lengths - 1).to(targets.device)
    positions = torch.arange(targets.shape[1], device=targets.device)
    targets[positions >= predicted[:, None]] = _IGNORED_TARGET
    losses = functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), targets, ignore_index=_IGNORED_TARGET, reduction="none"
    )
    means: Tensor = losses.sum(dim=1) / predicted.to(losses.dtype)
    return means


def build_stages(config: ModelConfig, boundaries: Sequence[int], seed: int) -> list[OptStage]:
    """All stages of a cut, first to last.

    Raises:
        InputError: boundaries that do not rise strictly from 0 to the number of layers.
    """
    cut = check_boundaries(boundaries, config.layers)
    return [OptStage(config, first, end, seed) for first, end in pairwise(cut)]


def parameter_shapes(config: ModelConfig, first: int, end: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of each parameter of a stage, without building it."""
    width, ffn = config.width, config.ffn_width
    shapes: dict[str, tuple[int, ...]] = {}
    if first == 0 or end == config.layers:
        shapes["embed_tokens.weight"] = (config.vocabulary, width)
    if first == 0:
        shapes["embed_positions.weight"] = (config.positions, width)
    for index in range(first, end):
        layer = f"layers.{index}."
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            shapes[f"{layer}{norm}.weight"] = shapes[f"{layer}{norm}.bias"] = (width,)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{layer}self_attn.{projection}.weight"] = (width, width)
            shapes[f"{layer}self_attn.{projection}.bias"] = (width,)
        shapes[f"{layer}fc1.weight"], shapes[f"{layer}fc1.bias"] = (ffn, width), (ffn,)
        shapes[f"{layer}fc2.weight"], shapes[f"{layer}fc2.bias"] = (width, ffn), (width,)
    if end == config.layers:
        shapes["final_layer_norm.weight"] = shapes["final_layer_norm.bias"] = (width,)
    return shapes


def _initial_value(name: str, parameter: Tensor, seed: int) -> Tensor:
    if name.endswith(".bias"):
        return torch.zeros(parameter.shape, dtype=parameter.dtype)
    if "layer_norm" in name:
        return torch.ones(parameter.shape, dtype=parameter.dtype)
    sequence = np.random.SeedSequence([seed, zlib.crc32(name.encode())])
    values = np.random.default_rng(sequence).normal(0.0, _INIT_STD, tuple(parameter.shape))
    return torch.from_numpy(values).to(parameter.dtype)
