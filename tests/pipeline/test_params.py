"""Parameters: one loader, strict types, one line a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, model_validator

from pipeline.params import RefusedError, build, load, lookup, unknown_blocks
from pipeline.registry import Registry
from pipeline.stage import File, Result, Stage, StageParams


class Base(StageParams):
    seed: int = Field(ge=0, description="root of random streams")


class Ramp(StageParams):
    low: float = Field(ge=0, le=1, description="start")
    high: float = Field(ge=0, le=1, description="end")

    @model_validator(mode="after")
    def rises(self) -> Ramp:
        if self.high < self.low:
            raise ValueError("high must be at least low")
        return self


class Params(StageParams):
    base: Base
    seconds: int = Field(ge=1, le=600, description="simulated time, s")
    step: float = Field(gt=0, description="step")
    on: bool = Field(description="switch")
    mode: Literal["fast", "slow"] = Field(description="mode")
    taps: tuple[float, ...] = Field(min_length=1, max_length=3, description="taps")
    limit: int | None = Field(ge=1, description="limit, or none")
    ramps: dict[str, Ramp] = Field(description="ramps by name")


STAGE = Stage(
    name="walk",
    title="Walks",
    params=Params,
    inputs={},
    outputs={"out": File("out.json", "out")},
    run=lambda params, inputs, outputs: Result({}),
)

GOOD = {
    "seconds": 5,
    "step": 1,
    "on": True,
    "mode": "fast",
    "taps": [0.5, 1],
    "limit": None,
    "ramps": {"a": {"low": 0.1, "high": 0.2}},
}


def document(**changes) -> dict:
    block = {k: v for k, v in {**GOOD, **changes}.items() if v != "absent"}
    return {"base": {"seed": 1, "card": "x"}, "walk": block}


def lines(tree: dict) -> list[str]:
    with pytest.raises(RefusedError) as caught:
        build(STAGE, tree)
    return [fault.line() for fault in caught.value.faults]


def test_a_stage_sees_its_block_and_its_base_values() -> None:
    params = build(STAGE, document())
    assert isinstance(params, Params)
    assert params.base == Base(seed=1)
    assert params.step == 1.0
    assert params.taps == (0.5, 1.0)
    assert params.ramps["a"].high == 0.2
    with pytest.raises(Exception, match="frozen"):
        params.seconds = 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seconds": -3}, "seconds: -3 is not usable; integer from 1 to 600 (simulated time, s)"),
        ({"seconds": 601}, "seconds: 601 is not usable; integer from 1 to 600 (simulated time, s)"),
        ({"seconds": "5"}, "seconds: '5' is not usable; integer from 1 to 600 (simulated time, s)"),
        ({"seconds": 5.5}, "seconds: 5.5 is not usable; integer from 1 to 600 (simulated time, s)"),
        (
            {"seconds": True},
            "seconds: True is not usable; integer from 1 to 600 (simulated time, s)",
        ),
        ({"seconds": "absent"}, "seconds: missing; integer from 1 to 600 (simulated time, s)"),
        ({"step": 0}, "step: 0 is not usable; number above 0 (step)"),
        ({"step": float("nan")}, "step: nan is not usable; number above 0 (step)"),
        ({"step": float("inf")}, "step: inf is not usable; number above 0 (step)"),
        ({"step": 1e308}, "step: 1e+308 is not usable; 0 or from 1e-09 to 1e+12 in size"),
        ({"step": 1e-300}, "step: 1e-300 is not usable; 0 or from 1e-09 to 1e+12 in size"),
        ({"taps": [1, -(10**16)]}, "taps.1: -10000000000000000 is not usable; 0 or from 1e-09"),
        ({"mode": "x" * 5000}, "mode: 'xxx"),
        ({"on": 1}, "on: 1 is not usable; true or false (switch)"),
        ({"mode": "fastt"}, "mode: 'fastt' is not usable; one of fast, slow (mode)"),
        ({"taps": [1, "x"]}, "taps.1: 'x' is not usable; number"),
        (
            {"taps": []},
            "taps: [] is not usable; list (at least 1, at most 3 entries) of number (taps)",
        ),
        ({"limit": 0}, "limit: 0 is not usable; integer at least 1 or null (limit, or none)"),
        ({"secondz": 4}, "secondz: unknown key; did you mean 'seconds'?"),
        (
            {"zzz": 4},
            "zzz: unknown key; known here: seconds, step, on, mode, taps, limit, ramps",
        ),
        ({"ramps": {"a": {"low": 0.1}}}, "ramps.a.high: missing; number from 0 to 1 (end)"),
        (
            {"ramps": {"a": {"low": 0.5, "high": 0.1}}},
            "ramps.a: {'low': 0.5, 'high': 0.1} is not usable; high must be at least low",
        ),
        (
            {"base": {"seed": 3}},
            "base: {'seed': 3} is not usable; shared values stand in the block",
        ),
    ],
)
def test_each_fault_is_one_line(changes: dict, line: str) -> None:
    (found,) = lines(document(**changes))
    assert found.startswith(f"params.yaml: walk.{line}")
    assert "\n" not in found


def test_all_faults_are_reported_at_once() -> None:
    assert len(lines(document(seconds=0, on="yes", mode="absent", extra=1))) == 4


def test_base_values_are_named_as_such() -> None:
    tree = document()
    tree["base"] = {"seed": "7"}
    assert lines(tree) == [
        "params.yaml: base.seed: '7' is not usable; integer at least 0 (root of random streams)"
    ]
    tree["base"] = {}
    assert lines(tree)[0].startswith("params.yaml: base.seed: missing;")
    del tree["base"]
    assert lines(tree)[0].startswith("params.yaml: base: missing;")


@pytest.mark.parametrize("block", [None, [1], "x"])
def test_a_block_must_be_a_mapping(block) -> None:
    (line,) = lines({"base": {"seed": 1}, "walk": block})
    assert line.startswith("params.yaml: walk: ")
    assert "a mapping" in line


def test_long_values_are_cut() -> None:
    (line,) = lines(document(mode="x" * 500))
    assert len(line) < 200


def test_unknown_blocks_and_base_keys() -> None:
    tree = {"base": {"seed": 1, "sead": 2}, "walk": GOOD, "wallk": {}}
    assert [fault.line() for fault in unknown_blocks(tree, Registry([STAGE]))] == [
        "params.yaml: wallk: unknown block; did you mean 'walk'?",
        "params.yaml: base.sead: unknown key; did you mean 'seed'?",
    ]


def test_the_loader_reads_numbers_as_dvc_does(tmp_path: Path) -> None:
    from dvc.utils.serialize import load_yaml

    path = tmp_path / "params.yaml"
    path.write_text("a: 1e-3\nb: 010\nc: yes\nd: 1_000\ne: .5\nf: 0x1f\ng: 1:30\nh: ~\n")
    document = load(path)
    assert document == load_yaml(str(path))
    assert document["a"] == 1e-3
    assert document["c"] == "yes"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: 'c' is not usable; each key may stand only once"),
        ("a: 1\nb: [1\n", "line 3: "),
        ("a: \tx: 1\n", "line 1: "),
        ("- 1\n", "[1] is not usable; a mapping of blocks is expected"),
        ("", "None is not usable; a mapping of blocks is expected"),
    ],
)
def test_broken_files_get_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(RefusedError) as caught:
        load(path)
    (fault,) = caught.value.faults
    assert fault.line().startswith(f"params.yaml: {line}")
    assert "\n" not in fault.line()


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"params\.yaml: missing"):
        load(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RefusedError, match=r"params\.yaml: binary data"):
        load(tmp_path / "params.yaml")


def test_lookup() -> None:
    assert lookup({"a": {"b": 3}}, "a.b") == 3
    for key in ("a.c", "a.b.c", "x"):
        with pytest.raises(KeyError):
            lookup({"a": {"b": 3}}, key)
