"""Times of a model's layers on one device: what measuring writes, importing reads, simulation uses.

A profile file is CSV: comment lines ``# key: value`` that say how it was taken, then one row per
model, layer (``embedding``, ``block``, ``head``), micro-batch and sequence, in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ranloom.commented_csv import read_commented_csv
from ranloom.errors import InputError
from ranloom.training.costs import LayerCosts
from ranloom.training.model_shapes import SHAPES, ModelShape

LAYERS = ("embedding", "block", "head")
KEYS = ("model", "layer", "micro_batch_samples", "sequence")
TIMES = ("forward_ms", "backward_ms")
COLUMNS = (*KEYS, *TIMES)

# several times the dense 16-bit peak of any device: a block that is faster is in other units
_FASTEST_TFLOPS = 10_000.0

Times = tuple[float, float]
"""Forward and backward pass, s."""
Key = tuple[str, str, int, int]
"""Model, layer, samples of a micro-batch, tokens of a sample."""


@dataclass(frozen=True)
class LayerProfile:
    """Times of single layers on a device that does nothing else.

    Args:
        times: by model, layer, micro-batch and sequence.
        where: where they come from, for messages.
        how: what is known of the measurement (device, data type, date ...).
    """

    times: Mapping[Key, Times]
    where: str
    how: Mapping[str, str] = field(default_factory=dict)

    def has(self, model: str, samples: int, sequence: int) -> bool:
        """Whether all layers of a model are there for a micro-batch."""
        return all((model, layer, samples, sequence) in self.times for layer in LAYERS)


@dataclass(frozen=True)
class ProfiledLayers:
    """A profile and the usable compute of a site at which its times hold.

    Args:
        profile: times on the whole device.
        usable_tflops: what counts as usable compute where the whole device is free.
    """

    profile: LayerProfile
    usable_tflops: float

    def costs(
        self, costs: LayerCosts, shape: ModelShape, samples: int, sequence: int
    ) -> LayerCosts:
        """The same costs with the work that takes the profiled times on the whole device.

        Args:
            costs: of the model's layers; bytes stay as they are.
            shape: of the model.
            samples: samples of a micro-batch.
            sequence: tokens of a sample.

        Raises:
            InputError: the profile lacks a layer of the model for this micro-batch.
        """
        times = self.profile.times
        try:
            embedding, block, head = (
                np.array(times[shape.name, layer, samples, sequence]) for layer in LAYERS
            )
        except KeyError as error:
            allowed = "needed: embedding, block and head of each micro-batch that is tried"
            raise InputError(self.profile.where, error.args[0], allowed) from None
        layers = np.repeat(block[:, None], costs.layers, axis=1)
        layers[:, 0] += embedding
        layers[:, -1] += head
        forward, backward = layers * (self.usable_tflops * 1e12)
        return replace(costs, forward_flop=forward, backward_flop=backward)


def card_times(shape: ModelShape, samples: int, sequence: int, tflops: float) -> dict[str, Times]:
    """Times of the layers on a device of that rate, by the operations of their shape.

    A backward pass costs two forward passes; looking up an embedding costs nothing.
    """
    tokens = samples * sequence
    flop = {
        "embedding": 0.0,
        "block": shape.block_flop(tokens, sequence),
        "head": shape.head_flop(tokens),
    }
    return {name: (one / tflops / 1e12, 2.0 * one / tflops / 1e12) for name, one in flop.items()}


def card_profile(
    shapes: Iterable[ModelShape],
    micro_batch_samples: Iterable[int],
    sequences: Iterable[int],
    tflops: float,
    how: Mapping[str, str],
) -> LayerProfile:
    """Profile of a device by its rate: peak times efficiency."""
    points = [(m, s) for m in micro_batch_samples for s in sequences]
    times = {
        (shape.name, layer, samples, sequence): found
        for shape in shapes
        for samples, sequence in points
        for layer, found in card_times(shape, samples, sequence, tflops).items()
    }
    return LayerProfile(times, "card", how)


def write_profile(path: Path, profile: LayerProfile) -> None:
    """Write a profile file; times keep all their digits."""
    lines = [f"# {key}: {value}" for key, value in profile.how.items()]
    lines.append(",".join(COLUMNS))
    for key, times in profile.times.items():
        cells = [*map(str, key), *(repr(1000.0 * float(one)) for one in times)]
        lines.append(",".join(cells))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_profile(path: Path) -> LayerProfile:
    """Read a profile file; further columns are ignored.

    Raises:
        InputError: a column or number is missing or unusable; a model or layer is unknown; a row
            comes twice with different times; the times are not in milliseconds; there is no row.
    """
    table = read_commented_csv(path, "a layer profile")
    _check_columns(path, table.columns)
    times: dict[Key, Times] = {}
    for number, row in enumerate(table.rows, start=1):
        where = f"{path} (data row {number})"
        key, found = _row(where, row)
        if times.setdefault(key, found) != found:
            raise InputError(f"{where}: {', '.join(KEYS)}", key, "allowed: each once, or alike")
    if not times:
        raise InputError(str(path), "no data row", "needed: at least one layer")
    return LayerProfile(times, str(path), table.how)


def _check_columns(path: Path, names: Iterable[str]) -> None:
    """Refuse a header that lacks a column, or has one in another unit."""
    found = list(names)
    for name in TIMES:
        stem = name.partition("_")[0]
        other = [n for n in found if n.partition("_")[0] == stem and n != name]
        if name not in found and other:
            raise InputError(f"{path}: column", other[0], f"needed: {name}, in milliseconds")
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise InputError(str(path), missing, f"needed columns: {', '.join(COLUMNS)}")


def _row(where: str, row: Mapping[str, str]) -> tuple[Key, Times]:
    try:
        samples, sequence = int(row["micro_batch_samples"]), int(row["sequence"])
        forward_ms, backward_ms = float(row["forward_ms"]), float(row["backward_ms"])
    except (TypeError, ValueError):
        raise InputError(
            where, list(row.values()), "allowed: numbers from micro-batch on"
        ) from None
    model, layer = row["model"].strip(), row["layer"].strip()
    if model not in SHAPES:
        raise InputError(f"{where}: model", model, f"allowed: {', '.join(SHAPES)}")
    if layer not in LAYERS:
        raise InputError(f"{where}: layer", layer, f"allowed: {', '.join(LAYERS)}")
    if samples < 1 or sequence < 1:
        raise InputError(where, (samples, sequence), "allowed: micro-batch and sequence from 1")
    least = 0.0 if layer == "embedding" else math.ulp(0.0)
    if not all(least <= one < math.inf for one in (forward_ms, backward_ms)):
        allowed = "allowed: times above 0, of the embedding from 0"
        raise InputError(where, (forward_ms, backward_ms), allowed)
    if layer == "block":
        tflops = SHAPES[model].block_flop(samples * sequence, sequence) / forward_ms / 1e9
        if tflops > _FASTEST_TFLOPS:
            allowed = f"allowed: milliseconds; these would be {tflops:.3g} TFLOPS"
            raise InputError(f"{where}: forward_ms", forward_ms, allowed)
    return (model, layer, samples, sequence), (forward_ms / 1000.0, backward_ms / 1000.0)
