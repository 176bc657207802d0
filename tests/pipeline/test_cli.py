"""The ``ranloom`` command."""

from __future__ import annotations

import json

import pytest


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
    (project.root / "outs" / "report").mkdir()
    (project.root / "outs" / "report" / "index.html").write_text("<html></html>")
    project.set("total.factor", 3)
    said = project.ranloom("run", "draw").stdout
    assert "Running stage" not in said
    assert f"Report    {project.root}/outs/report/index.html" in said
    assert "Running stage 'draw'" in project.ranloom("run", "draw", "--force").stdout


def test_bad_input_has_exit_code_2_and_runs_nothing(project) -> None:
    project.set("total.factor", -1)
    done = project.ranloom("run", code=2)
    assert done.stderr.splitlines() == [
        "params.yaml: total.factor: -1 is not usable; number at least 0 (factor on the sum)"
    ]
    assert done.stdout == ""
    assert not (project.root / "outs").exists()
    (line,) = project.ranloom("run", "drew", code=2).stderr.splitlines()
    assert line == "stage: 'drew' is not usable; known: draw, total"
    (line,) = project.ranloom("run", "--preset", "slow", code=2).stderr.splitlines()
    assert line == "preset: 'slow' is not usable; known: quick"


def test_a_bug_in_a_stage_is_not_bad_input(project) -> None:
    project.set("draw.behave", "crash")
    done = project.ranloom("run", code=255)
    assert "ZeroDivisionError: the stage has a bug" in done.stderr


def test_sync_makes_the_runs_of_what_was_not_tracked(built) -> None:
    del built.env["RANLOOM_TRACKING"]
    assert built.ranloom("sync").stdout.splitlines() == ["draw: run made", "total: run made"]
