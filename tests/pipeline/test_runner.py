"""A stage changes its outputs as a whole, on success, or not at all."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.runner import run
from ranloom.errors import InputError
from tests.pipeline.workbench import end, wait_until


def stage_process(project):
    return project.start(sys.executable, "-m", "stages", "draw")


def partial(project) -> list[str]:
    folder = project.root / "outs" / ".partial"
    return sorted(p.name.partition(".")[0] for p in folder.iterdir()) if folder.exists() else []


def test_a_stage_writes_what_it_declares(built) -> None:
    outs = built.root / "outs"
    assert set(built.outs()) == {
        "draw/figures/one.txt",
        "draw/metrics.json",
        "draw/plots/rows-a-value_ms-by-row.csv",
        "draw/rows.parquet",
        "total/measured/events.txt",
        "total/measured/metrics.json",
        "total/metrics.json",
        "total/total.json",
    }
    metrics = json.loads((outs / "draw" / "metrics.json").read_text())
    assert metrics["third"] == 0.3333333333
    assert metrics["deep"] == {"fine": True, "rows": 5}
    total = json.loads((outs / "total" / "total.json").read_text())
    assert total["total_ms"] == pytest.approx(4 * metrics["total_ms"], rel=1e-9)
    assert partial(built) == []


def test_outputs_are_byte_identical(built) -> None:
    """In another process, with other hash seeds and thread counts."""
    first = built.outs()
    built.stages("draw", PYTHONHASHSEED="2", OMP_NUM_THREADS="2")
    assert built.outs() == first
    built.set("base.seed", 8)
    built.stages("draw")
    assert built.outs() != first


def test_files_are_replaced_not_written_over(built, toy_registry) -> None:
    """A reader that has a file open keeps the old one whole."""
    rows = built.root / "outs" / "draw" / "rows.parquet"
    old = rows.read_bytes()
    with rows.open("rb") as reader:
        built.set("draw.rows", 50)
        assert run(built.root, toy_registry, "draw", InputError) == 0
        assert reader.read() == old
    assert rows.read_bytes() != old


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("draw.rows", -3, "params.yaml: draw.rows: -3 is not usable; integer from 1 to 100"),
        ("draw.rows", "x", "params.yaml: draw.rows: 'x' is not usable; integer from 1 to 100"),
        ("draw.rowz", 3, "params.yaml: draw.rowz: unknown key; did you mean 'rows'?"),
        ("draw.source_path", "none", "params.yaml: draw.source_path: "),
        ("draw.source_path", "data/bad.txt", "bad.txt: row 2: 'x' is not usable; a number"),
        ("draw.source_path", "data/empty.txt", "data/empty.txt: '' is not usable; at least one"),
    ],
)
def test_bad_input_gets_one_line_and_changes_nothing(
    built, toy_registry, capfd, key, value, line
) -> None:
    before = built.outs()
    (built.root / "data" / "bad.txt").write_text("1\nx\n")
    (built.root / "data" / "empty.txt").write_text("")
    built.set(key, value)
    assert run(built.root, toy_registry, "draw", InputError) == 2
    said = capfd.readouterr()
    (refused,) = said.err.splitlines()
    assert refused.replace(f"{built.root}/", "").startswith(line)
    assert said.out == ""
    assert built.outs() == before


def test_bad_input_as_a_program_sees_it(built) -> None:
    before = built.outs()
    built.set("draw.rows", 0)
    done = built.stages("draw", code=2)
    assert done.stdout == ""
    assert done.stderr == (
        "params.yaml: draw.rows: 0 is not usable; integer from 1 to 100 (rows to draw)\n"
    )
    assert built.outs() == before


def test_missing_upstream_gets_one_line(project, toy_registry, capfd) -> None:
    assert run(project.root, toy_registry, "total", InputError) == 2
    expected = "outs/draw/rows.parquet: missing; output of stage draw, which must run first\n"
    assert capfd.readouterr().err == expected
    assert not (project.root / "outs").exists()


@pytest.mark.parametrize(
    ("behave", "error", "said"),
    [
        ("crash", ZeroDivisionError, "the stage has a bug"),
        ("nan", ValueError, "metric total_ms is nan"),
        ("forget", RuntimeError, "stage draw did not write figures"),
    ],
)
def test_a_bug_leaves_the_previous_outputs(built, toy_registry, behave, error, said) -> None:
    before = built.outs()
    built.set("draw.behave", behave)
    built.set("draw.rows", 7)
    with pytest.raises(error, match=said):
        run(built.root, toy_registry, "draw", InputError)
    assert built.outs() == before


def test_a_killed_stage_leaves_the_previous_outputs(built) -> None:
    """Its unfinished work goes when the stage runs again."""
    project = built
    before = project.outs()
    project.set("draw.behave", "hang")
    project.set("draw.rows", 7)
    process = stage_process(project)
    wait_until((project.root / "hanging").exists)
    end(process, signal.SIGKILL)
    assert partial(project) == ["draw"]
    done = {k: v for k, v in project.outs().items() if not k.startswith(".partial")}
    assert done == before
    project.set("draw.behave", "well")
    project.stages("draw")
    assert partial(project) == []
    assert project.outs() != before


def test_a_stage_that_is_asked_to_stop_clears_its_work(project) -> None:
    project.set("draw.behave", "hang")
    process = stage_process(project)
    wait_until((project.root / "hanging").exists)
    end(process, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert project.outs() == {}


def test_work_of_a_running_stage_is_left_alone(project, toy_registry) -> None:
    project.set("draw.behave", "hang")
    process = stage_process(project)
    wait_until((project.root / "hanging").exists)
    try:
        project.set("draw.behave", "well")
        assert run(project.root, toy_registry, "draw", InputError) == 0
        assert partial(project) == ["draw"]
    finally:
        end(process)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_stage_ends_with_the_dvc_that_started_it(project, shell: str) -> None:
    """Also when DVC is killed and can tell nobody, whichever shell DVC starts it through."""
    if not Path(shell).exists():
        pytest.skip(f"no {shell} here")
    project.env["SHELL"] = shell
    project.set("draw.behave", "hang")
    dvc = project.start(sys.executable, "-m", "dvc", "repro")
    hanging = project.root / "hanging"
    wait_until(lambda: hanging.exists() and hanging.read_text() != "")
    stage = int(hanging.read_text())
    assert psutil.pid_exists(stage)
    end(dvc, signal.SIGKILL)
    wait_until(lambda: not alive(stage))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_stage_ends_with_a_dvc_that_is_killed_during_its_imports(built) -> None:
    before = built.outs()
    built.edit(
        "stages/draw.py",
        "from ranloom.errors import InputError",
        "from ranloom.errors import InputError\n"
        "Path('hanging').write_text(str(os.getpid()))\ntime.sleep(3)",
    )
    dvc = built.start(sys.executable, "-m", "dvc", "repro")
    hanging = built.root / "hanging"
    wait_until(lambda: hanging.exists() and hanging.read_text() != "")
    end(dvc, signal.SIGKILL)
    wait_until(lambda: not alive(int(hanging.read_text())), 2.5)
    assert built.outs() == before


def test_stray_files_among_unfinished_work_do_no_harm(built) -> None:
    folder = built.root / "outs" / ".partial"
    (folder / ".DS_Store").write_text("")
    (folder / "notes").mkdir()
    built.stages("draw")
    assert {p.name for p in folder.iterdir()} == {".DS_Store", "notes"}


def test_a_request_to_stop_waits_for_the_move(built, toy_registry, monkeypatch) -> None:
    """Half of the outputs would be of one run, half of another."""
    rename = Path.rename
    before = built.outs()
    built.set("draw.rows", 7)

    def interrupted(path: Path, target: Path) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    assert run(built.root, toy_registry, "draw", InputError) == 0
    moved = [name for name in before if name.startswith("draw/") and "metrics" not in name]
    after = built.outs()
    assert all(after[name] != before[name] for name in moved)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_stage_started_by_hand_outlives_its_shell(project) -> None:
    project.set("draw.behave", "hang")
    shell = project.start("sh", "-c", f"{sys.executable} -m stages draw & wait")
    hanging = project.root / "hanging"
    wait_until(lambda: hanging.exists() and hanging.read_text() != "")
    stage = int(hanging.read_text())
    try:
        end(shell)
        assert alive(stage)
    finally:
        os.kill(stage, signal.SIGKILL)


@pytest.mark.parametrize("arguments", [["drew"], ["draw", "now"]])
def test_unknown_commands(project, arguments) -> None:
    done = project.stages(*arguments, code=2)
    assert len(done.stderr.splitlines()) == 1


def test_list_and_help(project) -> None:
    assert project.stages("list").stdout.split("\n")[0].split() == ["draw", "Draws", "rows"]
    assert "ast-commit" in project.stages("--help").stdout
