"""Declarations: order, places, and everything that can be wrong with them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from pydantic import Field

from pipeline.registry import Registry, discover, discover_for, location, upstream
from pipeline.stage import (
    Column,
    File,
    FromParam,
    FromRepo,
    FromStage,
    MeasuredOf,
    MetricsOf,
    Plot,
    Result,
    Stage,
    StageParams,
    Table,
)


class Base(StageParams):
    card: str = Field(description="card")


class Params(StageParams):
    base: Base
    path: str = Field(description="path")


class Defaulted(StageParams):
    size: int = Field(default=3, description="size")


class Outer(StageParams):
    inner: dict[str, Defaulted] = Field(description="nested")


TABLE = Table("t.parquet", "table", (Column("x", "int32", "x"), Column("y", "float64", "y")))


def stage(name: str = "one", **changes) -> Stage:
    fields = {
        "title": name,
        "params": Params,
        "inputs": {},
        "outputs": {"t": TABLE},
        "run": lambda params, inputs, outputs: Result({}),
        **changes,
    }
    return Stage(name=name, **fields)


def test_order_follows_the_inputs_and_then_the_name() -> None:
    registry = Registry(
        [
            stage("a", inputs={"m": MetricsOf("b")}),
            stage("report", inputs={"t": FromStage("a", "t"), "w": MeasuredOf("d")}),
            stage("b"),
            stage("d", measured=True),
            stage("c"),
        ]
    )
    assert list(registry) == ["b", "c", "d", "a", "report"]
    assert upstream(registry["report"]) == ("a", "d")
    assert registry.faults() == []


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        Registry(
            [stage("a", inputs={"m": MetricsOf("b")}), stage("b", inputs={"m": MetricsOf("a")})]
        )


def test_locations() -> None:
    registry = Registry([stage("a", measured=True)])
    assert location(FromStage("a", "t"), registry) == "outs/a/t.parquet"
    assert location(MetricsOf("a"), registry) == "outs/a/metrics.json"
    assert location(MeasuredOf("a"), registry) == "outs/a/measured"
    assert location(FromRepo("data/x.yaml"), registry) == "data/x.yaml"
    assert location(FromParam("a.path"), registry) == "${a.path}"
    with pytest.raises(KeyError):
        location(MetricsOf("b"), registry)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"outputs": {}}, "declares no output"),
        ({"outputs": {"a": File("../x", "x")}}, "must lie in outs/one/"),
        ({"outputs": {"a": File("/x", "x")}}, "must lie in outs/one/"),
        ({"outputs": {"a": File("metrics.json", "x")}}, "is written by the pipeline"),
        ({"outputs": {"a": File("measured/x", "x")}}, "is written by the pipeline"),
        ({"outputs": {"a": File("x", "x"), "b": File("x", "x")}}, "overlap"),
        ({"outputs": {"a": File("x/y", "x"), "b": File("x", "x")}}, "overlap"),
        ({"outputs": {"t": Table("t", "t", (Column("x", "int", "x"),))}}, "unknown type 'int'"),
        ({"outputs": {"t": Table("t", "t", (Column("x", "int8", "x"),) * 2)}}, "declared twice"),
        ({"inputs": {"i": FromStage("zero", "t")}}, "there is no stage 'zero'"),
        ({"inputs": {"i": FromStage("two", "u")}}, "stage two has no output 'u'; it has t"),
        ({"inputs": {"i": MetricsOf("zero")}}, "there is no stage 'zero'"),
        ({"inputs": {"i": MeasuredOf("two")}}, "only report may read what depends on wall time"),
        ({"inputs": {"i": MeasuredOf("two")}}, "stage two measures nothing"),
        ({"inputs": {"i": FromRepo("../x")}}, "must lie in the repository"),
        ({"inputs": {"i": FromParam("one.pathh")}}, "is no parameter"),
        ({"inputs": {"i": FromParam("three.path")}}, "is no parameter"),
        ({"inputs": {"i": FromParam("base.seed")}}, "is no parameter"),
        ({"inputs": {"i": FromParam("one.path.deep")}}, "is no parameter"),
        ({"plots": (Plot("u", "x", "y", "p"),)}, "is no table of this stage"),
        ({"plots": (Plot("t", "x", "z", "p"),)}, "t has no column 'z'"),
        ({"plots": (Plot("t", "x", "y", "p", {"k": 1}),)}, "t has no column 'k'"),
        ({"plots": (Plot("t", "x", "y", "p"),) * 2}, "the same columns of the same rows"),
        ({"params": Defaulted}, "Defaulted.size has a default"),
        ({"params": Outer}, "Defaulted.size has a default"),
    ],
)
def test_faults_of_a_declaration(changes: dict, fault: str) -> None:
    faults = Registry([stage(**changes), stage("two")]).faults()
    assert any(fault in line for line in faults), faults
    assert all(line.startswith("stages/one.py: ") for line in faults)


def test_parameters_may_name_files() -> None:
    keys = ("one.path", "base.card", "two.path")
    inputs = {key: FromParam(key) for key in keys}
    assert Registry([stage(inputs=inputs), stage("two")]).faults() == []


def test_discovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_stages"
    package.mkdir()
    source = (
        "from pipeline.stage import File, Result, Stage, StageParams\n"
        "class P(StageParams):\n    pass\n"
        "run = lambda params, inputs, outputs: Result({{}})\n"
        "STAGE = Stage('{}', 'title', P, {{}}, {{'o': File('o', 'o')}}, run)\n"
    )
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("raise SystemExit\n")
    (package / "helper.py").write_text("")
    (package / "good.py").write_text(source.format("good"))
    monkeypatch.syspath_prepend(tmp_path)
    import found_stages  # type: ignore[import-not-found]

    assert list(discover(found_stages)) == ["good"]
    assert discover_for(found_stages, "helper") is None
    assert discover_for(found_stages, "nothing") is None
    assert discover_for(found_stages, "../good") is None
    (package / "unneeded.py").write_text("raise RuntimeError('imported without need')\n")
    reader = source.replace("'title', P, {{}}", "'title', P, {{'i': FromStage('good', 'o')}}")
    reader = reader.replace("import File,", "import File, FromStage,")
    (package / "reader.py").write_text(reader.format("reader"))
    importlib.invalidate_caches()
    assert list(discover_for(found_stages, "reader") or ()) == ["good", "reader"]
    (package / "unneeded.py").unlink()
    (package / "bad.py").write_text(source.format("other"))
    with pytest.raises(ValueError, match=r"stages/bad\.py: STAGE is named 'other'"):
        discover(found_stages)
    for name in [name for name in sys.modules if name.startswith("found_stages")]:
        del sys.modules[name]
