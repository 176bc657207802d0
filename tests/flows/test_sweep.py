"""A sweep covers its grid and keeps what succeeded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stages
from flows import sweep
from pipeline import params as parameters
from pipeline import workspace
from pipeline.io import Inputs, Outputs
from pipeline.registry import discover
from stages import train_sites
from tests.flows.conftest import StandIns
from tests.stages.conftest import overlaid


def test_points_cover_the_grid() -> None:
    found = list(sweep.points({"b.y": [1, 2], "a.x": ["u", "v"]}))
    assert found == [
        {"a.x": "u", "b.y": 1},
        {"a.x": "u", "b.y": 2},
        {"a.x": "v", "b.y": 1},
        {"a.x": "v", "b.y": 2},
    ]
    assert list(sweep.points({})) == [{}]


@pytest.mark.parametrize("name", sweep.READY)
def test_ready_sweeps_name_parameters_that_exist(name: str, root: Path) -> None:
    document = parameters.load(root / "params.yaml")
    for key, values in sweep.READY[name].grid.items():
        place = document
        for part in key.split("."):
            assert part in place, key
            place = place[part]
        for value in values:
            assert isinstance(value, list) == isinstance(place, list), key


@pytest.mark.parametrize("name", sweep.READY)
def test_ready_sweeps_have_an_answer_at_the_quick_preset(
    name: str,
    root: Path,
    tmp_path: Path,
    paths: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first point's metrics, from a run of the stage on a synthetic trace, made short."""
    question = sweep.READY[name]
    first = next(iter(sweep.points(question.grid)))
    place = workspace.place(root, discover(stages), "quick", first, tmp_path / "place")
    document = parameters.load(place / "params.yaml")
    block = {**document["train_sites"], "base": {"seed": document["base"]["seed"]}}
    params = train_sites.STAGE.params(**overlaid(block, shortened(block)))
    assert list(train_sites.check(params, paths)) == []
    monkeypatch.setattr("stages._train_live.measure_live", lambda *_: {})
    monkeypatch.setattr(train_sites, "_reference", lambda *_: {})
    monkeypatch.setattr(train_sites, "agree", lambda *_: {})
    outputs = Outputs(train_sites.STAGE, tmp_path)
    metrics = train_sites.run(params, Inputs(paths), outputs).metrics
    folder = place / "outs" / "train_sites"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    for pattern in question.answers:
        assert sweep.matching(place, [pattern]), pattern


def shortened(block: dict[str, Any]) -> dict[str, Any]:
    """Changes that keep the names of the metrics."""
    seconds = {"duration_s": dict.fromkeys(block["sim"]["models"], 5)}
    return {
        "sim": {**seconds, "scenarios": ["busy"], "plan_seconds": 5},
        "reconciled": seconds,
        "dynamic": {"duration_s": 5},
        "baselines": {"trials": 1, "population": 5},
        "scaling": {"stages": [8], "micro_batch_samples": [1]},
    }


def test_only_metrics_that_are_asked_for_are_answers(tmp_path: Path) -> None:
    folder = tmp_path / "outs" / "train"
    folder.mkdir(parents=True)
    metrics = {"rate": {"a": 1, "b": 2.5}, "loss": 3}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert sweep.matching(tmp_path, ["train.rate.*"]) == {"train.rate.a": 1.0, "train.rate.b": 2.5}
    assert sweep.matching(tmp_path, ["rate.*"]) == {}


def test_answers_are_a_table_of_metrics_by_what_varies() -> None:
    grid = {"a.x": [1, 2], "b.models": [["opt"]]}
    labels = [sweep.label_of(grid, overrides) for overrides in sweep.points(grid)]
    assert labels == ["x=1", "x=2"]
    assert sweep.label_of({"b.models": [["opt"]]}, {"b.models": ["opt"]}) == "models=['opt']"
    rows = {"x=1": {"a.x": 1, "s.rate": 10.0}, "x=2": {"a.x": 2, "s.rate": 20.5, "s.loss": 3.0}}
    assert list(sweep.answer_lines(rows, ["s.*"])) == [
        "        x=1  x=2",
        "s.rate   10  20.5",
        "s.loss         3",
    ]
    assert list(sweep.answer_lines(rows, [])) == []


@pytest.mark.usefixtures("prefect_server")
def test_a_failed_point_does_not_lose_the_others(tmp_path: Path, stand_ins: StandIns) -> None:
    done: list[dict] = []
    stand_ins(done.append)
    state = sweep.sweep({"a.x": [1, 2, 3]}, preset=None, root=tmp_path, return_state=True)
    assert sorted(o["a.x"] for o in done) == [1, 2, 3]
    assert state.is_failed()
    assert "1 of 3 points failed" in state.message
    assert "this point fails" in state.message

    from prefect.artifacts import Artifact

    artifact = Artifact.get("ranloom-sweep")
    assert artifact is not None
    assert '"s.m": 1.5' in artifact.data
    assert '"a.x": 3' in artifact.data
    assert '"a.x": 2' not in artifact.data
