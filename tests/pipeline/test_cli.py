"""The ``ranloom`` command."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
import zc.lockfile
from typer.testing import CliRunner

from pipeline import cli, dvc, tracking
from pipeline.hold import is_held
from pipeline.store import store_folder
from ranloom.errors import InputError
from tests.pipeline.workbench import CLI, wait_until


@pytest.fixture
def ranloom(built, toy_registry, monkeypatch):
    """The command line over the built project, in this process, without a check of its code."""
    monkeypatch.setattr(cli, "check", lambda *_: [])
    app = cli.application(built.root, toy_registry, InputError)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_run_shows_the_headline_numbers_and_where_to_look(project) -> None:
    said = project.ranloom("run").stdout
    numbers = {
        stage: json.loads((project.root / "outs" / stage / "metrics.json").read_text())["total_ms"]
        for stage in ("draw", "total")
    }
    assert numbers["total"] == pytest.approx(4 * numbers["draw"], rel=1e-9)
    assert [line.split() for line in said.splitlines() if line.startswith(("draw ", "total "))] == [
        [stage, "total_ms", f"{number:.6g}"] for stage, number in numbers.items()
    ]
    assert "make ui" in said
    assert "Report" not in said


def test_bad_input_has_exit_code_2_and_runs_nothing(project) -> None:
    project.set("total.factor", -1)
    done = project.ranloom("run", code=2)
    assert done.stderr.splitlines() == [
        "params.yaml: total.factor: -1 is not usable; number at least 0 (factor on the sum)"
    ]
    assert done.stdout == ""
    assert not (project.root / "outs").exists()


def test_of_two_runs_at_once_the_second_says_so_and_both_end_well(project) -> None:
    project.set("draw.behave", "hang")
    first = project.start(sys.executable, "-c", CLI, "run")
    try:
        wait_until(lambda: (project.root / "hanging").exists())
        second = project.ranloom("run", code=255)
        assert "is busy, it is being blocked by" in second.stderr
        assert first.poll() is None
        (project.root / "go_on").touch()
        assert first.wait(120) == 0
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    made = project.outs()
    assert {"draw/metrics.json", "total/metrics.json"} <= made.keys()
    assert "Running stage" not in project.ranloom("run").stdout
    assert project.outs() == made


def test_a_run_waits_for_the_records_of_dvc(built) -> None:
    """As docs/pipeline.md promises; DVC by itself gives up after 3 s."""
    built.set("total.factor", 3)
    lock = zc.lockfile.LockFile(str(built.root / ".dvc" / "tmp" / "lock"))
    run = built.start(sys.executable, "-c", CLI, "run")
    try:
        given_up_s = time.monotonic() + 8
        while run.poll() is None and time.monotonic() < given_up_s:
            time.sleep(0.1)
        waited = run.poll() is None
        lock.close()
        assert run.wait(120) == 0
        assert waited
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    assert "Running stage" not in built.ranloom("run").stdout


def test_the_report_is_pointed_to_where_there_is_one(built, toy_registry, capsys) -> None:
    page = built.root / "outs" / "report" / "index.html"
    page.parent.mkdir()
    page.write_text("<html></html>")
    cli.show_headline(built.root, toy_registry, 1.0)
    assert f"Report    {page}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "drew"], "stage: 'drew' is not usable; known: draw, total"),
        (["run", "--preset", "slow"], "preset: 'slow' is not usable; known: quick"),
    ],
)
def test_unknown_names(ranloom, arguments, line) -> None:
    done = ranloom(*arguments)
    assert done.exit_code == 2
    assert done.stderr == f"{line}\n"


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ([], []),
        (["draw"], ["draw"]),
        (["--force", "draw", "total"], ["--force", "draw", "total"]),
    ],
)
def test_what_dvc_is_asked(ranloom, built, monkeypatch, arguments, passed) -> None:
    asked = []
    monkeypatch.setattr(dvc, "repro", lambda *call: asked.append(call) or dvc.Outcome(0, ()))
    assert ranloom("run", *arguments).exit_code == 0
    assert asked == [(built.root, passed)]


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (dvc.Outcome(255, ()), 255, ""),
        (dvc.Outcome(2, ("in.txt: row 2: bad",)), 2, "in.txt: row 2: bad\n"),
    ],
)
def test_failures_keep_their_exit_code(ranloom, monkeypatch, outcome, code, said) -> None:
    monkeypatch.setattr(dvc, "repro", lambda *_: outcome)
    done = ranloom("run")
    assert (done.exit_code, done.stderr) == (code, said)
    assert "Up to date" not in done.stdout


@pytest.mark.parametrize("ended", [0, 255, None])
def test_the_parent_is_open_while_dvc_works_and_ended_then(
    ranloom, built, monkeypatch, ended
) -> None:
    calls = []

    def repro(place, _):
        calls.append(("repro", is_held(place)))
        if ended is None:
            raise KeyboardInterrupt
        (place / "dvc.lock").write_text("changed")
        return dvc.Outcome(ended, ())

    report = tracking.SyncReport((), (), {}, (), None)
    monkeypatch.setenv("RANLOOM_TRACKING", "on")
    monkeypatch.setattr(dvc, "repro", repro)
    monkeypatch.setattr(tracking, "settle", lambda place: calls.append(("settle", is_held(place))))
    monkeypatch.setattr(
        tracking, "sync", lambda place, _: calls.append(("sync", is_held(place))) or report
    )
    assert ranloom("run").exit_code == (130 if ended is None else ended)
    assert calls == [("repro", True), ("settle" if ended != 0 else "sync", False)]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_repetition_with_the_same_result_ends_the_parent(
    ranloom, built, monkeypatch, repeats
) -> None:
    """It opened the parent, and there is nothing new to sync."""
    calls = []

    def repro(place, _):
        if repeats:
            (place / "outs" / "draw" / "metrics.json").write_text("{}")
        return dvc.Outcome(0, ())

    database = store_folder(built.root) / "mlflow.db"
    database.parent.mkdir(exist_ok=True)
    database.touch()
    monkeypatch.setattr(dvc, "repro", repro)
    monkeypatch.setattr(tracking, "settle", lambda _: calls.append("settle"))
    monkeypatch.setattr(tracking, "sync", lambda *_: calls.append("sync"))
    assert ranloom("run").exit_code == 0
    assert calls == (["settle"] if repeats else [])


@pytest.mark.parametrize(("skipped", "code"), [({}, 0), ({"total": "it has not run"}, 1)])
def test_sync_says_what_it_did(ranloom, monkeypatch, skipped, code) -> None:
    report = tracking.SyncReport(("draw",), ("other",), skipped, (), None)
    monkeypatch.setattr(tracking, "sync", lambda *_: report)
    done = ranloom("sync")
    assert done.exit_code == code
    lines = ["draw: run made", "other: run present"]
    assert done.stdout.splitlines() == lines + [f"{k}: skipped, {v}" for k, v in skipped.items()]


def test_sync_refuses_a_lock_with_conflicts(ranloom, built) -> None:
    lock = built.root / "dvc.lock"
    lock.write_text("stages:\n<<<<<<< HEAD\n  draw: {cmd: a}\n=======\n>>>>>>> other\n")
    done = ranloom("sync")
    assert done.exit_code == 2
    assert done.stderr.startswith("dvc.lock: line ")
    lock.write_text("stages: [1]\n")
    assert ranloom("sync").stderr == "dvc.lock: stages: [1] is not usable; a mapping of stages\n"


def test_sync_names_a_store_that_cannot_be_opened(ranloom, monkeypatch) -> None:
    def broken(*_):
        raise OSError("no database\n[SQL: ...]")

    monkeypatch.setattr(tracking, "sync", broken)
    done = ranloom("sync")
    assert done.exit_code == 1
    assert done.stderr.endswith("mlflow.db: OSError: no database\n")


@pytest.mark.parametrize(
    ("stored", "rebuilt", "tracked", "syncs"),
    [
        (True, True, "on", 1),
        (True, False, "on", 0),
        (False, False, "on", 1),
        (True, True, "off", 0),
    ],
)
def test_a_run_that_did_something_ends_with_a_sync(
    ranloom, built, monkeypatch, stored, rebuilt, tracked, syncs
) -> None:
    def repro(place, _):
        if rebuilt:
            (place / "dvc.lock").write_text("changed")
        return dvc.Outcome(0, ())

    synced = []
    report = tracking.SyncReport((), (), {}, (), None)
    monkeypatch.setenv("RANLOOM_TRACKING", tracked)
    monkeypatch.delenv("RANLOOM_STORE", raising=False)
    monkeypatch.setattr(tracking, "sync", lambda place, _: synced.append(place) or report)
    monkeypatch.setattr(dvc, "repro", repro)
    if stored:
        (built.root / "mlruns" / "mlflow.db").write_text("")
    assert ranloom("run").exit_code == 0
    assert synced == [built.root] * syncs


def test_a_broken_store_costs_no_result(ranloom, monkeypatch) -> None:
    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setenv("RANLOOM_TRACKING", "on")
    monkeypatch.delenv("RANLOOM_STORE", raising=False)
    monkeypatch.setattr(tracking, "sync", broken)
    monkeypatch.setattr(dvc, "repro", lambda *_: dvc.Outcome(0, ()))
    done = ranloom("run")
    assert done.exit_code == 0
    assert done.stderr == "MLflow: OSError: disk full; try `ranloom sync`\n"
    assert "total_ms" in done.stdout
