"""A sweep covers its grid and keeps what succeeded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows import sweep
from pipeline import params as parameters
from tests.flows.conftest import StandIns


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
def test_ready_sweeps_name_metrics_that_the_chain_has(name: str, root: Path) -> None:
    for pattern in sweep.READY[name].answers:
        assert sweep.matching(root, [pattern]), pattern


def test_only_metrics_that_are_asked_for_are_answers(tmp_path: Path) -> None:
    folder = tmp_path / "outs" / "train"
    folder.mkdir(parents=True)
    metrics = {"rate": {"a": 1, "b": 2.5}, "loss": 3}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert sweep.matching(tmp_path, ["train.rate.*"]) == {"train.rate.a": 1.0, "train.rate.b": 2.5}
    assert sweep.matching(tmp_path, ["rate.*"]) == {}


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
