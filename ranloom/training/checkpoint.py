"""Checkpoints of a model in safetensors: weights, optimizer state and what they belong to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ranloom.errors import InputError
from ranloom.training.layer_list import Model, model_of
from ranloom.training.optimizer import OptimizerState

FORMAT = 1
_METADATA_KEY = "ranloom"
_OPTIMIZER = "optimizer/"
_OPT_POSITION_OFFSET = 2  # Hugging Face OPT keeps two unused rows before the first position


@dataclass(frozen=True)
class Checkpoint:
    """State of a range of layers between two steps.

    Args:
        model: what the weights belong to.
        version: model version.
        layers: first decoder layer and one past the last; the whole model is (0, L).
        weights: parameters by name.
        optimizer: state tensors by parameter name and entry; empty for plain SGD.
        progress: small facts that a resumed run needs (position in the sample queue, seed).
    """

    model: Model
    version: int
    layers: tuple[int, int]
    weights: Mapping[str, Tensor]
    optimizer: OptimizerState
    progress: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the file appears whole or not at all, and the same state gives one file.

    Args:
        path: target; its folder exists.
        checkpoint: the state.
    """
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.weights.items()}
    for name, entries in checkpoint.optimizer.items():
        for entry, tensor in entries.items():
            tensors[f"{_OPTIMIZER}{name}/{entry}"] = tensor.contiguous()
    facts = {
        "format": FORMAT,
        "model": asdict(checkpoint.model),
        "version": checkpoint.version,
        "layers": list(checkpoint.layers),
        "progress": dict(checkpoint.progress),
    }
    # One metadata entry: safetensors does not keep the order of several.
    metadata = {_METADATA_KEY: json.dumps(facts, sort_keys=True)}
    temporary = path.with_name(path.name + ".partial")
    save_file(tensors, temporary, metadata)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check it against the model that it names.

    Raises:
        InputError: missing, truncated, another format, or tensors that do not fit the model.
    """
    if not path.is_file():
        raise InputError(str(path), "missing", "allowed: an existing checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(str(path), str(error), "allowed: a whole safetensors file") from None
    facts = json.loads(metadata.get(_METADATA_KEY, "{}"))
    if facts.get("format") != FORMAT:
        raise InputError(str(path), facts.get("format"), f"allowed: checkpoint format {FORMAT}")
    model = model_of(facts["model"])
    weights: dict[str, Tensor] = {}
    optimizer: OptimizerState = {}
    for name, tensor in tensors.items():
        if name.startswith(_OPTIMIZER):
            parameter, entry = name.removeprefix(_OPTIMIZER).rsplit("/", 1)
            optimizer.setdefault(parameter, {})[entry] = tensor
        else:
            weights[name] = tensor
    layers = (facts["layers"][0], facts["layers"][1])
    _check_weights(str(path), model, layers, weights)
    return Checkpoint(model, facts["version"], layers, weights, optimizer, facts["progress"])


def stage_path(folder: Path, version: int, layers: tuple[int, int]) -> Path:
    """File of one stage's part of a checkpoint."""
    return folder / f"version-{version}-layers-{layers[0]}-{layers[1]}.safetensors"


def load_stages(folder: Path, model: Model, version: int) -> Checkpoint:
    """Put the parts of a checkpoint, one a stage, together to the whole model.

    Raises:
        InputError: a part is missing, spoilt, or of another model.
    """
    weights: dict[str, Tensor] = {}
    optimizer: OptimizerState = {}
    for path in sorted(folder.glob(f"version-{version}-layers-*.safetensors")):
        part = load_checkpoint(path)
        if part.model != model or part.version != version:
            raise InputError(str(path), part.model, f"allowed: a part of {model}")
        weights |= part.weights
        optimizer |= part.optimizer
    layers = (0, model.layers)
    _check_weights(f"{folder}: version {version}", model, layers, weights)
    return Checkpoint(model, version, layers, weights, optimizer)


def _check_weights(
    where: str, model: Model, layers: tuple[int, int], weights: Mapping[str, Tensor]
) -> None:
    """Refuse weights that are not those of the layers.

    Raises:
        InputError: a parameter is missing or unknown, or has another shape or type.
    """
    shapes = model.parameter_shapes(*layers)
    if weights.keys() != shapes.keys():
        differing = sorted(weights.keys() ^ shapes.keys())
        raise InputError(where, differing, "allowed: exactly the parameters of the model")
    for name, shape in shapes.items():
        tensor = weights[name]
        if tuple(tensor.shape) != shape or tensor.dtype != model.torch_dtype:
            found = f"{name} {tuple(tensor.shape)} {tensor.dtype}"
            raise InputError(where, found, f"allowed: shape {shape} of type {model.dtype}")


def with_opt_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under the names of Hugging Face's ``OPTForCausalLM``."""
    renamed = {}
    for name, tensor in weights.items():
        if name == "embed_positions.weight":
            unused = torch.zeros(_OPT_POSITION_OFFSET, tensor.shape[1], dtype=tensor.dtype)
            tensor = torch.cat([unused, tensor])
        renamed[f"model.decoder.{name}"] = tensor
    renamed["lm_head.weight"] = renamed["model.decoder.embed_tokens.weight"].clone()
    return renamed
