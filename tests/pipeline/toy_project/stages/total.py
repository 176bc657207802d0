"""Adds the rows up."""

from __future__ import annotations

import os

from pydantic import Field

from pipeline.io import Inputs, Outputs
from pipeline.stage import File, FromRepo, FromStage, Result, Stage, StageParams


class Params(StageParams):
    factor: float = Field(ge=0, description="factor on the sum")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    from ranloom.doubling import double

    total = params.factor * double(float(inputs.columns("rows")["value_ms"].sum()))
    outputs.json("total", {"total_ms": total, "unit": inputs.path("unit").read_text().strip()})
    outputs.measured("events.txt").write_text("one\n")
    return Result({"total_ms": total}, {"pid": os.getpid()})


STAGE = Stage(
    name="total",
    title="Adds the rows up",
    params=Params,
    inputs={"rows": FromStage("draw", "rows"), "unit": FromRepo("data/unit.txt")},
    outputs={"total": File("total.json", "the sum")},
    run=run,
    headline=("total_ms",),
    measured=True,
)
