"""The doctor names what is missing, stale or broken, and touches nothing."""

from __future__ import annotations

import importlib.metadata
import json
import sqlite3

import pytest

from pipeline import doctor
from pipeline.registry import Registry
from ranloom.errors import InputError

DEAD_PID = 2**22 + 1  # above the largest process id of Linux


@pytest.fixture
def findings(tmp_path):
    def examine() -> dict[str, list[doctor.Finding]]:
        found: dict[str, list[doctor.Finding]] = {}
        for finding in doctor.examine(tmp_path, Registry([]), InputError):
            found.setdefault(finding.subject, []).append(finding)
        return found

    return examine


def test_packages_against_the_lock(tmp_path, findings) -> None:
    version = importlib.metadata.version("numpy")
    (tmp_path / "requirements.lock").write_text(
        f"# comment\nnumpy=={version}\npyarrow==0.0.1\nno-such-package==1.0\n"
        "no-such-either==1.0 ; sys_platform == 'nowhere'\n"
    )
    faults = [f.detail for f in findings()["package"]]
    assert len(faults) == 2
    assert "pyarrow" in faults[0]
    assert "locked ==0.0.1" in faults[0]
    assert faults[1].startswith("no-such-package is missing")
    (tmp_path / "requirements.lock").write_text(f"numpy=={version}\n")
    assert findings()["packages"] == [doctor.Finding("ok", "packages", "1 as locked")]


def test_the_installed_packages_are_those_of_the_lock(root) -> None:
    assert [f for f in doctor._packages(root) if f.level == "fault"] == []


def test_locks_of_dead_and_living_processes(tmp_path, findings) -> None:
    import os

    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    rwlock = tmp_path / ".dvc" / "tmp" / "rwlock"
    rwlock.write_text(
        json.dumps(
            {
                "write": {"outs/a": {"pid": DEAD_PID, "cmd": "dvc repro"}},
                "read": {"data/b": [{"pid": os.getpid(), "cmd": "dvc status"}]},
            }
        )
    )
    details = [f.detail for f in findings()["DVC locks"]]
    assert details == [
        f"held by process {os.getpid()}: dvc status",
        f"left by dead process {DEAD_PID}; DVC drops it itself",
    ]
    rwlock.write_text("{")
    assert findings()["DVC locks"][0].level == "fault"
    rwlock.unlink()
    assert findings()["DVC locks"][0].level == "ok"


def test_unfinished_work(tmp_path, findings) -> None:
    assert findings()["unfinished work"][0].level == "ok"
    (tmp_path / "outs" / ".partial" / f"draw.{DEAD_PID}").mkdir(parents=True)
    (finding,) = findings()["unfinished work"]
    assert f"draw.{DEAD_PID}" in finding.detail


def test_the_store(tmp_path, findings, monkeypatch) -> None:
    monkeypatch.delenv("RANLOOM_STORE", raising=False)
    assert "does not exist yet" in findings()["MLflow store"][0].detail
    (tmp_path / "mlruns").mkdir()
    database = tmp_path / "mlruns" / "mlflow.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE runs (id)")
        connection.execute("INSERT INTO runs VALUES (1)")
    assert findings()["MLflow store"][0].detail.endswith("1 runs")
    database.write_text("no database at all, but long enough to be read as a header")
    (finding,) = findings()["MLflow store"]
    assert finding.level == "fault"
    assert "`ranloom sync` rebuilds it" in finding.detail


def test_the_command_line(built) -> None:
    (built.root / "requirements.lock").write_text("")
    (built.root / "outs" / "draw" / "rows.parquet").unlink()
    said = built.ranloom("doctor").stdout
    assert "missing: outs/draw/rows.parquet" in said
    assert "are in order" in said
    built.set("draw.rows", 0)
    lines = built.ranloom("doctor", code=1).stdout.splitlines()
    assert [line for line in lines if line.startswith("fault")] == [
        "fault  check            params.yaml: draw.rows: 0 is not usable; "
        "integer from 1 to 100 (rows to draw)"
    ]


def test_results_that_are_all_there(built, toy_registry) -> None:
    (finding,) = doctor._results(built.root, toy_registry)
    assert finding.level == "ok"
    (built.root / "dvc.lock").unlink()
    (finding,) = doctor._results(built.root, toy_registry)
    assert finding.detail.startswith("not built yet: draw, total")
