"""The tensors of an update as one flat vector, so that it can be streamed, hashed and summed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError


@dataclass(frozen=True)
class TensorSpec:
    """Name and shape of one tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorLayout:
    """Ordered tensors of a federated job; every update of the job has exactly these.

    Args:
        tensors: in the order in which they lie in the flat vector.

    Raises:
        InputError: no tensor, a name twice, or a dimension below 1.
    """

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise InputError("layout", [], "allowed: at least one tensor")
        names = [t.name for t in self.tensors]
        if len(set(names)) != len(names):
            doubled = sorted({n for n in names if names.count(n) > 1})
            raise InputError("layout", doubled[0], "allowed: each tensor name once")
        for tensor in self.tensors:
            if any(d < 1 for d in tensor.shape):
                raise InputError(f"layout.{tensor.name}", tensor.shape, "allowed: dimensions >= 1")

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> TensorLayout:
        """Layout from (name, shape) pairs."""
        return cls(tuple(TensorSpec(name, tuple(shape)) for name, shape in tensors))

    @cached_property
    def elements(self) -> int:
        """Values in all tensors together."""
        return sum(t.elements for t in self.tensors)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of names, shapes and order: the same digest means the same vector."""
        document = [[t.name, list(t.shape)] for t in self.tensors]
        return hashlib.sha256(json.dumps(document, separators=(",", ":")).encode()).hexdigest()

    def flatten(self, arrays: Mapping[str, NDArray[np.floating]]) -> NDArray[np.float64]:
        """One float64 vector of ``elements`` values.

        Raises:
            InputError: a tensor is missing, unknown or of another shape.
        """
        unknown = sorted(set(arrays) - {t.name for t in self.tensors})
        if unknown:
            raise InputError("update", unknown[0], "allowed: only tensors of the layout")
        flat = np.empty(self.elements, dtype=np.float64)
        at = 0
        for tensor in self.tensors:
            if tensor.name not in arrays:
                raise InputError("update", tensor.name, "allowed: every tensor of the layout")
            values = arrays[tensor.name]
            if values.shape != tensor.shape:
                raise InputError(
                    f"update.{tensor.name}", values.shape, f"allowed: shape {tensor.shape}"
                )
            flat[at : at + tensor.elements] = values.reshape(-1)
            at += tensor.elements
        return flat

    def unflatten(self, flat: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Named views into a flat vector.

        Raises:
            InputError: the vector has another length.
        """
        if flat.shape != (self.elements,):
            raise InputError("update", flat.shape, f"allowed: shape ({self.elements},)")
        arrays = {}
        at = 0
        for tensor in self.tensors:
            arrays[tensor.name] = flat[at : at + tensor.elements].reshape(tensor.shape)
            at += tensor.elements
        return arrays
