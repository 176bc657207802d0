"""Metrics as documents: plain numbers, ten significant digits, nothing that is not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SIGNIFICANT_DIGITS = 10


def normalised(metrics: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested metrics with plain Python numbers, floats cut to ten significant digits.

    Raises:
        ValueError: a value is not finite.
        TypeError: a value is neither number nor bool nor a mapping of them.
    """
    document: dict[str, Any] = {}
    for key, value in metrics.items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"metric name {key!r} in {where or 'metrics'} is no string")
        name = f"{where}.{key}" if where else key
        document[key] = (
            normalised(value, name) if isinstance(value, Mapping) else _plain(name, value)
        )
    return document


def _plain(name: str, value: Any) -> bool | int | float:
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"metric {name} is {value}")
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    raise TypeError(f"metric {name} is a {type(value).__name__}, not a number or bool")


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write normalised metrics as JSON, keys in the given order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(normalised(metrics), indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def flattened(metrics: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every number in a metrics document."""
    for key, value in metrics.items():
        name = f"{where}.{key}" if where else key
        if isinstance(value, Mapping):
            yield from flattened(value, name)
        else:
            yield name, value
