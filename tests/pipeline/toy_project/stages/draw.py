"""Draws rows from a file of the user."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    Folder,
    FromParam,
    Plot,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.errors import InputError


class Base(StageParams):
    seed: int = Field(ge=0, description="root of every random stream")


class Noise(StageParams):
    level_db: float = Field(ge=-30, le=30, description="noise level")


class Params(StageParams):
    base: Base
    rows: int = Field(ge=1, le=100, description="rows to draw")
    scale: float = Field(gt=0, description="factor on each value")
    taps: tuple[float, ...] = Field(min_length=1, description="filter taps")
    noise: Noise
    source_path: str = Field(description="file or folder of numbers, one a line")
    behave: Literal["well", "crash", "nan", "hang", "forget"] = Field(description="for tests")


def numbers(path: Path) -> list[float]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    lines = [(f, i, line) for f in files for i, line in enumerate(f.read_text().splitlines(), 1)]
    if not lines:
        raise InputError(str(path), "", "at least one number is expected")
    found = []
    for file, row, line in lines:
        try:
            found.append(float(line))
        except ValueError:
            raise InputError(f"{file.name}: row {row}", line, "a number is expected") from None
    return found


def check(params: Params, paths: Mapping[str, Path]) -> Iterator[Fault]:
    if len(numbers(paths["source"])) > 50:
        yield Fault("source", len(numbers(paths["source"])), "at most 50 numbers")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    random = np.random.default_rng(np.random.SeedSequence([params.base.seed, 1]))
    values = params.scale * random.choice(numbers(inputs.path("source")), params.rows)
    outputs.table(
        "rows", {"row": np.arange(params.rows), "value_ms": values, "kind": ["a"] * params.rows}
    )
    (outputs.path("figures") / "one.txt").write_text(f"{values.sum()}\n")
    if params.behave == "hang":
        Path("hanging").write_text(str(os.getpid()))
        until = time.monotonic() + 300
        while not Path("go_on").exists() and time.monotonic() < until:
            time.sleep(0.02)
    if params.behave == "crash":
        raise ZeroDivisionError("the stage has a bug")
    if params.behave == "forget":
        (outputs.path("figures") / "one.txt").unlink()
        outputs.path("figures").rmdir()
    total = float("nan") if params.behave == "nan" else values.sum()
    return Result(
        {
            "total_ms": total,
            "third": 1 / 3,
            "deep": {"fine": np.bool_(True), "rows": np.int32(params.rows)},
        }
    )


STAGE = Stage(
    name="draw",
    title="Draws rows",
    params=Params,
    inputs={"source": FromParam("draw.source_path", folder=True)},
    outputs={
        "rows": Table(
            "rows.parquet",
            "what was drawn",
            (
                Column("row", "int32", "index"),
                Column("value_ms", "float64", "value"),
                Column("kind", "string", "kind"),
            ),
        ),
        "figures": Folder("figures", "pictures"),
    },
    run=run,
    headline=("total_ms",),
    plots=(Plot("rows", "row", "value_ms", "values", where={"kind": "a"}),),
    check=check,
)
