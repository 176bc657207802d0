"""Device cards: what is known of a GPU, and in which SM counts it can be partitioned."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ranloom.errors import InputError


@dataclass(frozen=True)
class Card:
    """A GPU and its partition granularity.

    Args:
        name: what reports call it.
        device_name_contains: part of the device name that the driver reports.
        compute_capability: CUDA compute capability, ``major.minor``.
        sm_count: streaming multiprocessors.
        sm_min: smallest partition.
        sm_step: granularity of partitions.
        full_device_level: whether all SMs are a level of their own where ``sm_count`` is no
            multiple of ``sm_step``.
        fp16_tensor_tflops: dense FP16 tensor peak.
        fp32_tflops: FP32 peak; a fused multiply-add counts as two operations.
        memory_bandwidth_gb_per_s: device memory bandwidth.
        memory_gb: device memory.
        clock_mhz: boost clock.
        power_w: board power limit.
    """

    name: str
    device_name_contains: str
    compute_capability: str
    sm_count: int
    sm_min: int
    sm_step: int
    full_device_level: bool
    fp16_tensor_tflops: float
    fp32_tflops: float
    memory_bandwidth_gb_per_s: float
    memory_gb: float
    clock_mhz: float
    power_w: float

    @property
    def levels(self) -> NDArray[np.int64]:
        """SM counts that can be reserved, ascending; the last one is the whole device."""
        steps = np.arange(self.sm_min, self.sm_count + 1, self.sm_step, dtype=np.int64)
        if steps[-1] != self.sm_count:
            steps = np.append(steps, self.sm_count)
        return steps

    @property
    def ridge_ops_per_byte(self) -> float:
        """Ridge point of the roofline: FP16 tensor peak over memory bandwidth (WEAVER A.1)."""
        return 1000.0 * self.fp16_tensor_tflops / self.memory_bandwidth_gb_per_s

    def check_level(self, sm: int, where: str) -> None:
        """Refuse an SM count that this device cannot be partitioned into.

        Raises:
            InputError: ``sm`` is no level of the card.
        """
        if sm not in self.levels:
            shown = ", ".join(str(level) for level in self.levels[:4])
            raise InputError(where, sm, f"allowed on {self.name}: {shown}, ... {self.sm_count} SMs")


def load_card(path: Path) -> Card:
    """Read a device card.

    Args:
        path: YAML file with exactly the fields of :class:`Card`.

    Raises:
        InputError: the file is missing or no YAML mapping; a key is missing, unknown or of the
            wrong type; the SM counts do not fit together.
    """
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(str(path), "no such file", "allowed: a device card (YAML)") from None
    except (YAMLError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise InputError(str(path), first, "allowed: a device card (YAML)") from None
    if not isinstance(document, dict):
        raise InputError(str(path), document, "allowed: a mapping of device card keys")
    names = [f.name for f in fields(Card)]
    for key in document:
        if key not in names:
            raise InputError(f"{path}: {key}", document[key], f"known keys: {', '.join(names)}")
    values: dict[str, Any] = {}
    for entry in fields(Card):
        if entry.name not in document:
            raise InputError(f"{path}: {entry.name}", "missing", "every key of a card is needed")
        values[entry.name] = _typed(f"{path}: {entry.name}", document[entry.name], str(entry.type))
    card = Card(**values)
    if card.sm_min > card.sm_count:
        raise InputError(f"{path}: sm_min", card.sm_min, f"allowed: up to {card.sm_count} SMs")
    if card.sm_min % card.sm_step:
        raise InputError(
            f"{path}: sm_min", card.sm_min, f"allowed: a multiple of sm_step ({card.sm_step})"
        )
    if card.sm_count % card.sm_step and not card.full_device_level:
        raise InputError(
            f"{path}: sm_count",
            card.sm_count,
            f"allowed: a multiple of sm_step ({card.sm_step}), or full_device_level: true",
        )
    return card


def _typed(where: str, value: Any, kind: str) -> Any:
    if kind == "bool":
        if not isinstance(value, bool):
            raise InputError(where, value, "allowed: true or false")
        return value
    if kind == "str":
        if not isinstance(value, str) or not value:
            raise InputError(where, value, "allowed: text (quote numbers)")
        return value
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(where, value, "allowed: a whole number above 0")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(where, value, "allowed: a number above 0")
    if not 0 < value < math.inf:
        raise InputError(where, value, "allowed: a number above 0")
    return float(value)
