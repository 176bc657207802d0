"""A preset runs beside the main results, with the same code, data and cache."""

from __future__ import annotations

import json
import shutil

import pytest

from pipeline import workspace
from pipeline.params import RefusedError, load
from pipeline.registry import Registry
from pipeline.stage import File, FromParam, Result, Stage, StageParams
from pipeline.store import store_folder
from pipeline.tracking import git_tags


class Params(StageParams):
    path: str
    size: int


REGISTRY = Registry(
    [
        Stage(
            name="one",
            title="one",
            params=Params,
            inputs={"file": FromParam("one.path")},
            outputs={"o": File("o", "o")},
            run=lambda params, inputs, outputs: Result({}),
        )
    ]
)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "main"
    for folder in ("presets", "data", ".dvc", "outs", ".hidden"):
        (root / folder).mkdir(parents=True)
    (root / "params.yaml").write_text("one:\n  path: data/in.txt  # mine\n  size: 10\n")
    (root / "presets" / "small.yaml").write_text("one:\n  size: 2\n")
    (root / "data" / "in.txt").write_text("1\n")
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / ".dvcignore").write_text("")
    (root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    return root


def params(place) -> dict:
    return load(place / "params.yaml")["one"]


def test_without_changes_it_is_the_main_one(tree) -> None:
    assert workspace.place(tree, REGISTRY, None, {}) == tree
    assert not (tree / ".ranloom").exists()


def test_a_preset_overlays_the_parameters(tree) -> None:
    place = workspace.place(tree, REGISTRY, "small", {})
    assert place == tree / ".ranloom" / "small"
    assert params(place) == {"path": "data/in.txt", "size": 2}
    assert (place / "data" / "in.txt").read_text() == "1\n"
    assert "# mine" in (place / "params.yaml").read_text()
    assert params(tree)["size"] == 10
    names = {entry.name for entry in place.iterdir()}
    assert names == {".dvc", ".dvcignore", "params.yaml", "dvc.yaml", "data", "presets", "mlruns"}
    assert not (place / "outs").exists()


def test_overrides_go_over_the_preset(tree) -> None:
    place = workspace.place(tree, REGISTRY, "small", {"one.size": 3})
    assert params(place)["size"] == 3
    other = workspace.place(tree, REGISTRY, "small", {"one.size": 4})
    assert len({place, other, tree / ".ranloom" / "small"}) == 3
    assert workspace.place(tree, REGISTRY, None, {"one.size": 3}).name.startswith("main-")
    named = workspace.place(tree, REGISTRY, None, {"one.size": 5}, tree / ".ranloom" / "mine")
    assert params(named)["size"] == 5


def test_overrides_are_told_in_words(tree) -> None:
    """The folder's name is a hash; the parent run in MLflow is named by this."""
    place = workspace.place(tree, REGISTRY, "small", {"one.size": 3, "one.path": "data/in.txt"})
    assert workspace.title(place) == "small: one.path=data/in.txt, one.size=3"
    assert workspace.title(workspace.place(tree, REGISTRY, None, {"one.size": 3})) == (
        "main: one.size=3"
    )
    assert workspace.title(workspace.place(tree, REGISTRY, "small", {})) is None
    digits = "1" * 300
    long = workspace.place(tree, REGISTRY, None, {"one.size": int(digits)})
    assert workspace.title(long) == f"main: one.size={digits}"[:199] + "…"


@pytest.mark.parametrize(
    ("preset", "overrides", "line"),
    [
        ("smal", {}, "preset: 'smal' is not usable; known: small, wrong"),
        ("../small", {}, "preset: '../small' is not usable; known: small, wrong"),
        ("wrong", {}, "presets/wrong.yaml: one.sise: unknown key; only what params.yaml has"),
        (None, {"one.sise": 3}, "override: one.sise: unknown key; only what params.yaml has"),
        (None, {"two.size": 3}, "override: two.size: unknown key; only what params.yaml has"),
        (None, {"sise": 3}, "override: sise: unknown key; only what params.yaml has"),
    ],
)
def test_unknown_names_are_refused(tree, preset, overrides, line) -> None:
    (tree / "presets" / "wrong.yaml").write_text("one:\n  sise: 2\n")
    with pytest.raises(RefusedError) as caught:
        workspace.place(tree, REGISTRY, preset, overrides)
    assert str(caught.value).startswith(line)
    assert not (tree / ".ranloom").exists()


@pytest.mark.parametrize("kept", ["../mine.txt", ".hidden/mine.txt", "ABSOLUTE"])
def test_users_relative_paths_still_lead_to_their_files(tree, kept: str) -> None:
    path = str(tree.parent / "far.txt") if kept == "ABSOLUTE" else kept
    (tree / path).write_text("5\n")
    (tree / "params.yaml").write_text(f"one:\n  path: {path}\n  size: 10\n")
    place = workspace.place(tree, REGISTRY, "small", {})
    assert (place / params(place)["path"]).read_text() == "5\n"


def test_the_cache_is_the_main_one(tree) -> None:
    def config(place) -> str:
        return (place / ".dvc" / "config").read_text()

    assert f"dir = {tree / '.dvc' / 'cache'}\n" in config(
        workspace.place(tree, REGISTRY, "small", {})
    )
    (tree / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {tree.parent / 'elsewhere'}\n")
    place = workspace.place(tree, REGISTRY, "small", {})
    assert f"dir = {tree.parent / 'elsewhere'}\n" in config(place)


def test_the_store_is_the_main_one(tree, monkeypatch) -> None:
    """Its path must not lead through the workspace, which may be removed."""
    monkeypatch.delenv("RANLOOM_STORE", raising=False)
    (tree / "mlruns").mkdir()
    place = workspace.place(tree, REGISTRY, "small", {})
    assert store_folder(place) == tree.resolve() / "mlruns"


def test_it_is_refreshed_and_keeps_its_results(tree) -> None:
    place = workspace.place(tree, REGISTRY, "small", {})
    (place / "outs").mkdir()
    (place / "outs" / "result").write_text("kept")
    (place / "dvc.lock").write_text("kept")
    (tree / "more").mkdir()
    before = (place / "params.yaml").stat().st_mtime_ns
    workspace.place(tree, REGISTRY, "small", {})
    assert (place / "params.yaml").stat().st_mtime_ns == before
    assert (place / "more").is_symlink()
    (tree / "more").rmdir()
    (tree / "presets" / "small.yaml").write_text("one:\n  size: 3\n")
    workspace.place(tree, REGISTRY, "small", {})
    assert not (place / "more").is_symlink()
    assert params(place)["size"] == 3
    assert (place / "outs" / "result").read_text() == "kept"
    assert (place / "dvc.lock").read_text() == "kept"


def test_running_a_preset_leaves_the_main_results(built) -> None:
    """And running it again does nothing."""
    before = built.outs()
    lock = (built.root / "dvc.lock").read_bytes()
    said = built.ranloom("run", "--preset", "quick").stdout
    assert "Running stage 'draw'" in said
    assert "total_ms" in said
    quick = type(built)(built.root / ".ranloom" / "quick")
    rows = json.loads((quick.root / "outs" / "draw" / "metrics.json").read_text())["deep"]["rows"]
    assert rows == 2
    assert built.outs() == before
    assert (built.root / "dvc.lock").read_bytes() == lock
    assert built.run("git", "status", "--porcelain").stdout == ""
    assert quick.reproduced() == []


def test_edited_sources_show_in_a_workspace(built) -> None:
    """Its files are links into the main tree, where git sees the edit."""
    built.ranloom("run", "--preset", "quick")
    quick = built.root / ".ranloom" / "quick"
    assert git_tags(quick)["ranloom.git.dirty"] == "false"
    built.edit("ranloom/unused.py", '"""', '"""Edited. ')
    assert git_tags(quick)["ranloom.git.dirty"] == "true"


def test_a_preset_shares_the_store_also_when_that_was_deleted(tree) -> None:
    shutil.rmtree(tree / "mlruns", ignore_errors=True)
    place = workspace.place(tree, REGISTRY, "small", {})
    assert (place / "mlruns").resolve() == (tree / "mlruns").resolve()
    (place / "mlruns").unlink()
    (place / "mlruns").mkdir()
    with pytest.raises(RefusedError, match="mlruns"):
        workspace.place(tree, REGISTRY, "small", {})


def test_a_new_workspace_begins_with_the_results_of_another(tree) -> None:
    source = workspace.place(tree, REGISTRY, "small", {})
    target = workspace.place(tree, REGISTRY, "small", {"one.size": 3})
    workspace.seed(source, target, ["one"])
    assert not (target / "outs").exists(), "there is nothing to begin with"

    for text in ("theirs", "newer"):
        for name in ("one", "two"):
            (source / "outs" / name).mkdir(parents=True, exist_ok=True)
            (source / "outs" / name / "o").write_text(text)
        lock = f"schema: '2.0'\nstages:\n  one: {{cmd: {text}}}\n  two: {{cmd: b}}\n"
        (source / "dvc.lock").write_text(lock)
        workspace.seed(source, target, ["one", "none"])
        assert (target / "outs" / "one" / "o").read_text() == "theirs"
        assert not (target / "outs" / "two").exists(), "what a change reaches is not taken over"
        begun = {"schema": "2.0", "stages": {"one": {"cmd": "theirs"}}}
        assert load(target / "dvc.lock") == begun, "what it has it keeps"
