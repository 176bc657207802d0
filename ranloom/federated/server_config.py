"""Configuration file of an aggregator process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ranloom.errors import InputError
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.cutoff import CutOff
from ranloom.federated.layout import TensorLayout

MAX_CHUNK_BYTES = 64 << 20
_Positive = Annotated[float, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CutOffFile(_Model):
    """See :class:`CutOff`."""

    policy: Literal["fixed", "quorum", "mad"]
    min_s: Annotated[float, Field(ge=0)]
    max_s: _Positive
    quorum: Annotated[float, Field(gt=0, le=1)]
    mad_factor: Annotated[float, Field(ge=0)]


class ServerFile(_Model):
    """See :class:`AggregatorConfig`; ``tensors`` are (name, shape)."""

    gnb: Annotated[str, Field(min_length=1, max_length=128)]
    tensors: Annotated[list[tuple[str, list[int]]], Field(min_length=1, max_length=100_000)]
    arithmetic: Literal["float64", "fixed64", "float32"]
    fraction_bits: Annotated[int, Field(ge=0, le=52)]
    chunk_bytes: Annotated[int, Field(ge=1, le=MAX_CHUNK_BYTES)]
    staging_bytes: Annotated[int, Field(ge=1)]
    stall_s: _Positive
    cut_off: CutOffFile
    wave_max_s: _Positive
    late: Literal["carry_over", "carry_discount", "drop"]
    alpha: Annotated[float, Field(ge=0)]
    max_staleness: Annotated[int, Field(ge=1)]


def read_config(path: Path) -> AggregatorConfig:
    """The configuration in a JSON file.

    Raises:
        InputError: the file is missing or does not fit; names the first fault.
    """
    if not path.is_file():
        raise InputError(str(path), "missing", "allowed: a JSON file")
    try:
        file = ServerFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        where = f"{path}: {at}" if at else str(path)
        raise InputError(where, first.get("input"), first["msg"]) from None
    values = {name: getattr(file, name) for name in ServerFile.model_fields}
    values["layout"] = TensorLayout.of([(n, tuple(s)) for n, s in values.pop("tensors")])
    values["cut_off"] = CutOff(**file.cut_off.model_dump())
    return AggregatorConfig(**values)
