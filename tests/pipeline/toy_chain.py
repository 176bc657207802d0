"""A two-stage chain for tests: ``python toy_chain.py NAME`` runs one stage as the real ones run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from pipeline import lifetime, recorder, tracking
from pipeline.io import Outputs
from pipeline.runner import FAULTS_FILE
from pipeline.stage import Column, FromStage, Plot, Result, Stage, StageParams, Table

TABLE = Table(
    "series.parquet",
    "a series",
    (Column("step", "int64", "step"), Column("value_ms", "float64", "value")),
)


class MakeParams(StageParams):
    length: int
    scale: float


class SumParams(StageParams):
    factor: float
    behave: str


STAGES = {
    "make": Stage(
        name="make",
        title="makes a series",
        params=MakeParams,
        inputs={},
        outputs={"series": TABLE},
        run=lambda params, inputs, outputs: Result({}),
        headline=("total",),
        plots=(Plot("series", "step", "value_ms", "series"),),
    ),
    "sum": Stage(
        name="sum",
        title="sums it",
        params=SumParams,
        inputs={"series": FromStage("make", "series")},
        outputs={"series": TABLE},
        run=lambda params, inputs, outputs: Result({}),
        headline=("total",),
    ),
}

DVC_YAML = """\
stages:
  make:
    cmd: exec python toy_chain.py make
    deps:
    - toy_chain.py
    - ${make.source}
    params: [make]
    outs:
    - outs/make/series.parquet: {persist: true}
    metrics:
    - outs/make/metrics.json: {cache: false, persist: true}
  sum:
    cmd: exec python toy_chain.py sum
    deps:
    - toy_chain.py
    - outs/make/series.parquet
    params: [sum, base.seed]
    outs:
    - outs/sum/series.parquet: {persist: true}
    metrics:
    - outs/sum/metrics.json: {cache: false, persist: true}
"""

PARAMS_YAML = """\
base: {seed: 7}
make: {length: 5, scale: 1e-3, source: data, nested: {list: [1, 2.5], flag: true}}
sum: {factor: 2.0, behave: well}
"""


def main(name: str) -> None:
    root = Path.cwd()
    params = YAML(typ="safe", pure=True).load(root / "params.yaml")[name]
    folder = root / "outs" / name
    lifetime.die_with_parent()
    lifetime.exit_on_terminate()
    with recorder.stage_run(root, STAGES, name) as live:
        live("progress", 0.5, 1)
        print(f"{name} is at work", flush=True)
        if params.get("behave") == "fail":
            raise ValueError("behaves badly")
        if params.get("behave") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if params.get("behave") == "refuse":
            Path(os.environ[FAULTS_FILE]).write_text("params.yaml: sum.behave: 'refuse' ...\n")
            sys.exit(2)
        if params.get("behave") == "slow":
            (root / "pid").write_text(str(os.getpid()))
            time.sleep(60)
        length = params.get("length", 3)
        values = np.arange(length) * params.get("scale", 1.0) * params.get("factor", 1.0)
        Outputs(STAGES[name], folder).table(
            "series", {"step": np.arange(length), "value_ms": values}
        )
        metrics = {"total": float(values.sum()), "nested": {"ok": True}}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        live.finish()


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        report = tracking.sync(Path.cwd(), STAGES)
        print(json.dumps({**vars(report), "skipped": dict(report.skipped)}))
    else:
        main(sys.argv[1])
