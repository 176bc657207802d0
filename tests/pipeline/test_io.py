"""What a stage reads and writes: schemas, types, plots, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.documents import flattened, normalised, write_metrics
from pipeline.io import Inputs, Outputs, arrow_schema, write_plots
from pipeline.stage import Column, File, Folder, Plot, Result, Stage, StageParams, Table

TABLE = Table(
    "deep/t.parquet",
    "table",
    (
        Column("n", "int16", "number"),
        Column("x_ms", "float64", "value"),
        Column("kind", "string", "kind"),
        Column("gap", "int32", "may be null", nullable=True),
        Column("on", "bool", "flag"),
    ),
)
STAGE = Stage(
    name="one",
    title="one",
    params=StageParams,
    inputs={},
    outputs={"t": TABLE, "doc": File("doc.json", "document"), "pics": Folder("pics", "pictures")},
    run=lambda params, inputs, outputs: Result({}),
    plots=(
        Plot("t", "n", "x_ms", "values"),
        Plot("t", "n", "x_ms", "of b", {"kind": "b"}),
        Plot("t", "kind", "x_ms", "by kind"),
    ),
)


def columns(**changes) -> dict:
    rows = {
        "n": np.arange(3),
        "x_ms": [0.5, 1, 2],
        "kind": ["a", "b", "a"],
        "gap": [None, 2, None],
        "on": np.array([True, False, True]),
    }
    return {**rows, **changes}


def test_a_table_comes_back_as_declared(tmp_path: Path) -> None:
    outputs = Outputs(STAGE, tmp_path)
    outputs.table("t", columns())
    inputs = Inputs({"t": tmp_path / "deep" / "t.parquet"})
    table = inputs.table("t")
    assert table.schema.equals(arrow_schema(TABLE))
    found = inputs.columns("t")
    assert found["n"].dtype == np.int16
    assert found["x_ms"].tolist() == [0.5, 1.0, 2.0]
    assert found["kind"].tolist() == ["a", "b", "a"]
    assert table["gap"].to_pylist() == [None, 2, None]
    assert found["on"].tolist() == [True, False, True]
    first = (tmp_path / "deep" / "t.parquet").read_bytes()
    again = {name: table[name] for name in table.column_names}
    for same in (columns(kind=np.array(["a", "b", "a"])), pa.table(again), again):
        outputs.table("t", same)
        assert (tmp_path / "deep" / "t.parquet").read_bytes() == first


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"extra": [1, 2, 3]}, ValueError, r"unknown \['extra'\]"),
        ({"n": [1, 2, 70_000]}, pa.ArrowInvalid, "70000"),
        ({"n": [1.0, 2.0, 2.5]}, pa.ArrowInvalid, "truncated"),
        ({"n": [1, None, 2]}, ValueError, "one.t.n: unexpected nulls"),
        ({"n": [1, 2]}, (ValueError, pa.ArrowInvalid), "length"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(changes, error, message, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        Outputs(STAGE, tmp_path).table("t", columns(**changes))
    assert not (tmp_path / "deep" / "t.parquet").exists()


def test_only_what_is_declared_can_be_written(tmp_path: Path) -> None:
    outputs = Outputs(STAGE, tmp_path)
    short = columns()
    del short["on"]
    with pytest.raises(ValueError, match=r"missing \['on'\]"):
        outputs.table("t", short)
    with pytest.raises(KeyError, match="no output 'u'"):
        outputs.table("u", columns())
    with pytest.raises(TypeError, match="no table"):
        outputs.table("doc", columns())
    with pytest.raises(TypeError, match="no file"):
        outputs.json("t", {})
    with pytest.raises(KeyError, match="no measured"):
        outputs.measured("x")
    assert outputs.path("pics").is_dir()
    outputs.json("doc", {"b": 1, "a": [0.1]})
    assert Inputs({"doc": tmp_path / "doc.json"}).json("doc") == {"b": 1, "a": [0.1]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        outputs.json("doc", {"a": float("nan")})


def test_live_values_reach_their_receiver(tmp_path: Path) -> None:
    seen = []
    Outputs(STAGE, tmp_path, lambda *value: seen.append(value)).live("loss", np.float32(0.5), 3)
    Outputs(STAGE, tmp_path).live("loss", 1, 4)
    assert seen == [("loss", 0.5, 3)]


def test_plots_are_thinned_tables(tmp_path: Path) -> None:
    outputs = Outputs(STAGE, tmp_path)
    n = 12_000
    rows = {"n": np.arange(n), "x_ms": np.arange(n) / 4, "kind": ["b", "a"] * (n // 2)}
    outputs.table("t", columns(**rows, gap=[None] * n, on=[True] * n))
    write_plots(STAGE, tmp_path)
    all_rows = (tmp_path / "plots" / "t-x_ms-by-n.csv").read_text().splitlines()
    assert all_rows[:3] == ['"n","x_ms"', "0,0", "3,0.75"]
    assert len(all_rows) == 1 + 4000
    of_b = (tmp_path / "plots" / "t-b-x_ms-by-n.csv").read_text().splitlines()
    assert of_b[1:3] == ["0,0", "4,1"]
    assert len(of_b) == 1 + 3000
    by_kind = (tmp_path / "plots" / "t-x_ms-by-kind.csv").read_text().splitlines()
    assert by_kind[:3] == ['"kind","x_ms"', '"b",0', '"a",0.75']
    outputs.table("t", columns(kind=["a", "a", "a"]))
    write_plots(STAGE, tmp_path)
    nothing = (tmp_path / "plots" / "t-b-x_ms-by-n.csv").read_text()
    assert nothing == '"n","x_ms"\n'


def test_metrics_have_ten_digits_and_plain_types(tmp_path: Path) -> None:
    metrics = {
        "third": 1 / 3,
        "large": 123456789.123456789,
        "count": np.int64(3),
        "deep": {"ok": np.bool_(True), "single": np.float32(0.1), "zero": -0.0},
    }
    write_metrics(tmp_path / "a" / "metrics.json", metrics)
    document = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert document["third"] == 0.3333333333
    assert document["large"] == 123456789.1
    assert document["count"] == 3
    assert document["deep"]["ok"] is True
    assert document["deep"]["single"] == 0.1000000015
    assert dict(flattened(document))["deep.single"] == 0.1000000015
    assert list(document) == list(metrics)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan")])
def test_metrics_must_be_finite(value) -> None:
    with pytest.raises(ValueError, match=r"metric deep\.x is"):
        normalised({"deep": {"x": value}})


@pytest.mark.parametrize("value", ["3", None, [1], np.arange(3)])
def test_metrics_must_be_numbers(value) -> None:
    with pytest.raises((TypeError, ValueError)):
        normalised({"x": value})
    with pytest.raises(TypeError, match="metric name"):
        normalised({3: 1})
