"""The stage on small hand-made traces: schema, ordering of mechanisms, metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import params as parameters
from pipeline.io import Inputs, Outputs
from ranloom.errors import InputError
from stages import replay_spare
from stages.replay_spare import STAGE


@pytest.fixture
def paths(root: Path, tmp_path: Path) -> dict[str, Path]:
    """Two controllers, 4 s each: one that changes every 20 ms and one that never does."""
    slots = 8000
    busy = np.arange(0, slots, 40)
    tables = {
        "reservations": {
            "scenario": ["scenario_1"] * (busy.size + 1),
            "controller": ["noctrl"] * busy.size + ["weaver"],
            "cell": np.zeros(busy.size + 1, int),
            "slot": np.append(busy, 0),
            "sm": np.append(np.where(np.arange(busy.size) % 2, 24, 8), 16),
        },
        "scenarios": {
            "scenario": ["scenario_1"],
            "cell": [0],
            "slots": [slots],
            "slot_us": [500.0],
        },
        "cells": {
            "scenario": ["scenario_1"] * 2,
            "controller": ["noctrl", "weaver"],
            "cell": [0, 0],
            "decode_starts": [1600, 1600],
        },
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    found = {name: tmp_path / f"{name}.parquet" for name in tables}
    cards = {
        "card": root / "data/cards/dgx_spark.yaml",
        "training_card": root / "data/cards/l40s.yaml",
    }
    return found | cards


def run(root: Path, paths: dict[str, Path], folder: Path, **changed: dict):
    document = parameters.load(root / "params.yaml")
    block = document["replay_spare"]
    block["checks"]["trials"] = 200
    block["synthetic"]["traces"] = 1
    for name, values in changed.items():
        block[name].update(values)
    values = parameters.build(STAGE, document)
    return STAGE.run(values, Inputs(paths), Outputs(STAGE, folder))


def test_rows_and_metrics(root: Path, paths: dict[str, Path], tmp_path: Path) -> None:
    metrics = run(root, paths, tmp_path / "out").metrics
    rows = pq.read_table(tmp_path / "out" / "coexistence.parquet").to_pylist()
    own = {(r["controller"], r["workload"]): r for r in rows if r["own"]}
    assert set(own) == {
        (c, w) for c in ("noctrl", "weaver") for w in ("gemm_chain", "training_step")
    }
    noctrl, weaver = own["noctrl", "training_step"], own["weaver", "training_step"]
    assert noctrl["transitions"] == 199
    assert weaver["transitions"] == weaver["violations"] == 0
    assert weaver["violation_pct"] == 0.0
    assert noctrl["violation_pct"] == 100 * noctrl["violations"] / 1600
    assert weaver["efficiency_pct"] > noctrl["efficiency_pct"]
    # 8 of 48 is 23.7 of 142, so 24; 24 of 48 is 71, so 72.
    assert noctrl["reservation_mean_sm"] == pytest.approx((24 + 72) / 2)
    # A chain of 2.75 TFLOP never fits between two changes 20 ms apart.
    assert own["noctrl", "gemm_chain"]["useful_tflops"] == 0.0
    assert own["weaver", "gemm_chain"]["useful_tflops"] > 0.0
    assert metrics["scenario_1"]["weaver"]["tokens_per_s"] == weaver["tokens_per_s"]
    # The compared controller has a row under every mechanism.
    mechanisms = {r["mechanism"] for r in rows if r["controller"] == "weaver"}
    assert mechanisms == {"green_context", "mps", "mps_checkpoint", "mig", "context_switch"}


def test_power_is_that_of_the_spare_sms(root: Path, paths: dict[str, Path], tmp_path: Path) -> None:
    run(root, paths, tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "coexistence.parquet").to_pylist()
    own = {(r["controller"], r["workload"]): r for r in rows if r["own"]}
    weaver = own["weaver", "training_step"]
    # 94 of 142 SMs of a card of 350 W, whatever they get done.
    assert weaver["w_per_tflops"] * weaver["useful_tflops"] == pytest.approx(350 * 94 / 142)
    assert own["noctrl", "gemm_chain"]["w_per_tflops"] == np.inf


def test_second_reading_reproduces_published_ratios(
    root: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    """One set of constants: within 25 % of 2.91 and 1.76, four times over yinyangran."""
    metrics = run(root, paths, tmp_path / "out", synthetic={"traces": 5}).metrics["synthetic"]
    published = {"scenario_1": 2.91, "scenario_2": 1.76}
    for scenario, ratio in published.items():
        found = metrics[scenario]
        assert found["useful_ratio_weaver_over_noctrl"] == pytest.approx(ratio, rel=0.25)
        assert found["useful_ratio_weaver_over_yinyangran"] >= 4.0
        tflops = [found[c]["useful_tflops"] for c in ("weaver", "noctrl", "yinyangran")]
        assert tflops == sorted(tflops, reverse=True)
        assert found["weaver"]["efficiency_pct"] >= 80.0
        assert found["weaver"]["with_loss_efficiency_pct"] >= 80.0
        assert found["weaver"]["violations"] <= found["noctrl"]["violations"]
        for constant in ("relaunch", "checkpoint"):
            without = metrics[f"without_{constant}"][scenario]
            name = {"relaunch": "noctrl", "checkpoint": "yinyangran"}[constant]
            key = f"useful_ratio_weaver_over_{name}"
            assert without[key] < 0.75 * found[key]


def test_checks_are_measured_on_both_types(
    root: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    checks = run(root, paths, tmp_path / "out").metrics["checks"]
    assert checks["trials"] == 400
    assert checks["detected_pct"] == 100.0
    assert checks["false_alarm_pct"] == 0.0
    small = run(root, paths, tmp_path / "small", checks={"corruption_rms": 0.05}).metrics["checks"]
    assert small["float32"]["detected_pct"] == 100.0
    assert small["detected_pct"] == small["bfloat16"]["detected_pct"] < 10.0


def test_spare_per_second(root: Path, paths: dict[str, Path], tmp_path: Path) -> None:
    run(root, paths, tmp_path / "out")
    spare = pq.read_table(tmp_path / "out" / "spare.parquet").to_pydict()
    assert spare["second"] == [0, 1, 2, 3] * 2
    assert spare["spare_sm"] == pytest.approx([142 - 48] * 4 + [142 - 48] * 4)
    rows = pq.read_table(tmp_path / "out" / "coexistence.parquet").to_pylist()
    for controller, mean in zip(
        ("noctrl", "weaver"), (spare["usable_tflops"][:4], spare["usable_tflops"][4:]), strict=True
    ):
        total = next(
            r["useful_tflops"]
            for r in rows
            if r["own"] and r["controller"] == controller and r["workload"] == "training_step"
        )
        assert np.mean(mean) == pytest.approx(total)


def test_broken_traces_are_named(root: Path, paths: dict[str, Path], tmp_path: Path) -> None:
    table = pq.read_table(paths["reservations"]).to_pydict()
    table["sm"][3] = 56
    pq.write_table(pa.table(table), paths["reservations"])
    with pytest.raises(InputError, match="of scenario_1, noctrl, cell 0: row 3: sm: 56"):
        run(root, paths, tmp_path / "out")


def test_unknown_mechanism_is_found_by_check(root: Path) -> None:
    document = parameters.load(root / "params.yaml")
    document["replay_spare"]["mechanism_of"] = {"weaver": "magic"}
    values = parameters.build(STAGE, document)
    (fault,) = replay_spare.check(values, {})
    assert fault.where == "params.yaml: replay_spare.mechanism_of.weaver"
    assert fault.value == "magic"
