"""``check`` finds everything in one go and says it in one line a fault."""

from __future__ import annotations

import pytest

from pipeline import render
from pipeline.check import check
from pipeline.registry import Registry
from pipeline.stage import Fault, FromParam, FromRepo, Result, Stage, StageParams
from ranloom.errors import InputError


def test_all_in_order(project) -> None:
    assert project.stages("check").stdout.startswith("2 stages checked")


def test_every_fault_at_once(project) -> None:
    for key, value in (
        ("draw.rows", 0),
        ("draw.taps", ["a"]),
        ("draw.source_path", "nowhere"),
        ("total.factor", "2"),
    ):
        project.set(key, value)
    project.edit("params.yaml", "  level_db: 3", "  levle_db: 3")
    project.edit("params.yaml", "  seed: 7", "  sead: 7")
    (project.root / "data" / "unit.txt").unlink()
    done = project.stages("check", code=2)
    assert done.stdout == ""
    assert done.stderr.replace(f"{project.root}/", "").splitlines() == [
        "params.yaml: base.sead: unknown key; did you mean 'seed'?",
        "params.yaml: draw.source_path: 'nowhere' is not usable; an existing file or folder is "
        "expected",
        "params.yaml: base.seed: missing; integer at least 0 (root of every random stream)",
        "params.yaml: draw.rows: 0 is not usable; integer from 1 to 100 (rows to draw)",
        "params.yaml: draw.taps.0: 'a' is not usable; number",
        "params.yaml: draw.taps: ['a'] is not usable; list (at least 1 entries) of number "
        "(filter taps)",
        "params.yaml: draw.noise.level_db: missing; number from -30 to 30 (noise level)",
        "params.yaml: draw.noise.levle_db: unknown key; did you mean 'level_db'?",
        "data/unit.txt: missing; a file of the repository",
        "params.yaml: total.factor: '2' is not usable; number at least 0 (factor on the sum)",
    ]
    assert project.ranloom("check", code=2).stderr == done.stderr
    assert not (project.root / "outs").exists()


def test_a_merge_conflict_in_the_lock_is_one_line(project) -> None:
    lock = project.root / "dvc.lock"
    lock.write_text("stages:\n<<<<<<< HEAD\n  draw: {cmd: a}\n=======\n>>>>>>> other\n")
    assert project.stages("check", code=2).stderr.splitlines() == [
        "dvc.lock: line 2: merge conflict; take either side, then run again"
    ]


@pytest.mark.usefixtures("rendered")
def test_a_missing_block(project, toy_registry) -> None:
    project.edit("params.yaml", "total:\n  factor: 2\n", "")
    (line,) = check(project.root, toy_registry, InputError)
    assert line == "params.yaml: total: missing; the block of stage total, a mapping"


@pytest.mark.usefixtures("rendered")
def test_hooks_see_parameters_and_user_files(project, toy_registry) -> None:
    (project.root / "data" / "in.txt").write_text("1\n" * 51)
    (line,) = check(project.root, toy_registry, InputError)
    assert line == "source: 51 is not usable; at most 50 numbers"
    (project.root / "data" / "in.txt").write_text("1\nx\n")
    (line,) = check(project.root, toy_registry, InputError)
    assert line == "in.txt: row 2: 'x' is not usable; a number is expected"


def test_faults_of_declarations_are_found(project) -> None:
    project.edit("stages/total.py", 'FromStage("draw", "rows")', 'FromStage("draw", "cols")')
    (line,) = project.stages("check", code=2).stderr.splitlines()
    assert line.startswith("stages/total.py: input rows: stage draw has no output 'cols'")
    for command in ("total", "render"):
        assert project.stages(command, code=2).stderr == f"{line}\n"


@pytest.fixture
def rendered(monkeypatch) -> None:
    """For checks in this process, where the toy stages are no package of their own."""
    monkeypatch.setattr(render, "stale", lambda *_: [])


class Params(StageParams):
    path: str


@pytest.mark.parametrize("source", [FromParam("one.path"), FromRepo("x.txt")])
def test_a_hook_is_not_asked_about_files_that_are_not_there(source, tmp_path) -> None:
    def hook(params, paths):
        yield Fault("hook", paths["file"].name, "asked")

    one = Stage("one", "one", Params, {"file": source}, {}, lambda p, i, o: Result({}), check=hook)
    (tmp_path / "params.yaml").write_text("one:\n  path: x.txt\n")
    first, *_ = check(tmp_path, Registry([one]), InputError)
    assert "asked" not in first
    (tmp_path / "x.txt").write_text("")
    first, *_ = check(tmp_path, Registry([one]), InputError)
    assert first == "hook: 'x.txt' is not usable; asked"


def test_what_the_system_does_not_let_us_read_is_one_line(tmp_path) -> None:
    def hook(params, paths):
        raise PermissionError(13, "Permission denied", str(paths["file"] / "part.csv"))

    source = FromParam("one.path", folder=True)
    one = Stage("one", "one", Params, {"file": source}, {}, lambda p, i, o: Result({}), check=hook)
    (tmp_path / "params.yaml").write_text("one:\n  path: data\n")
    (tmp_path / "data").mkdir()
    first, *_ = check(tmp_path, Registry([one]), InputError)
    assert (
        first == f"{tmp_path}/data/part.csv: Permission denied; a file that can be read is expected"
    )
    (tmp_path / "params.yaml").write_text(f"one:\n  path: {'x' * 300}\n")
    first, *_ = check(tmp_path, Registry([one]), InputError)
    assert first.endswith("is not usable; an existing file or folder is expected")
