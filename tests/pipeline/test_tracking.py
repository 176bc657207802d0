"""MLflow shows what DVC did, once, whatever happened in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import workspace
from pipeline.fingerprint import Pipeline, fingerprint, locked_entries
from pipeline.hold import held
from pipeline.processes import Owner
from pipeline.recorder import stage_run
from pipeline.store import store_folder
from pipeline.tracking import rebuild
from tests.pipeline.conftest import Toy
from tests.pipeline.toy_chain import STAGES


def sync(toy) -> dict:
    # In a process of its own: MLflow keeps a connection to each store that a process used.
    return json.loads(toy.run(sys.executable, "toy_chain.py", "sync").stdout)


def metrics_by_fingerprint(runs) -> dict[str, dict[str, float]]:
    return {
        r.data.tags["ranloom.fingerprint"]: {
            k: v for k, v in r.data.metrics.items() if not k.startswith("live/")
        }
        for r in runs
    }


def by_stage(runs) -> Counter:
    return Counter((r.data.tags["ranloom.stage"], r.info.status) for r in runs)


def eventually(probe: Callable[[], bool]) -> None:
    """Wait for what a recorder does after its stage was killed."""
    deadline_s = time.monotonic() + 60
    while not probe():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_repro_force_and_reverted_params(toy) -> None:
    """A run for each execution, none twice; the parent carries all stages."""
    for hidden in (".git", "__pycache__"):  # a folder that was cloned: DVC leaves these out
        (toy.root / "data" / "cloned" / hidden).mkdir(parents=True)
        (toy.root / "data" / "cloned" / hidden / "x").write_text("x")
    toy.repro()
    first = by_stage(toy.runs("stage"))
    assert first == {("make", "FINISHED"): 1, ("sum", "FINISHED"): 1}
    (parent,) = toy.runs("pipeline")
    assert parent.info.status == "FINISHED"
    assert parent.info.run_name.startswith("chain-")
    assert parent.data.params["sum.factor"] == "2.0"
    assert parent.data.params["make.nested.list"] == "[1, 2.5]"
    assert parent.data.metrics == {"make.total": 0.01, "sum.total": pytest.approx(20.0 / 20 * 6)}

    ids = {r.data.tags["ranloom.stage"]: r.info.run_id for r in toy.runs("stage")}
    for name, run_id in ids.items():
        assert parent.data.tags[f"ranloom.run.{name}"] == run_id
    run = next(r for r in toy.runs("stage") if r.info.run_id == ids["make"])
    assert run.data.tags["ranloom.fingerprint"] == fingerprint(Pipeline(toy.root).live("make"))
    assert run.data.tags["ranloom.fingerprint"] == fingerprint(locked_entries(toy.root)["make"])
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert len(run.data.tags["mlflow.source.git.commit"]) == 40
    assert run.data.tags["ranloom.git.dirty"] == "false"
    assert run.data.params["make.nested.list"] == "[1, 2.5]"
    assert run.data.metrics["nested.ok"] == 1.0
    assert run.data.metrics["live/progress"] == 0.5
    client = toy.store().client
    history = client.get_metric_history(run.info.run_id, "series/series/value_ms")
    assert [(m.step, m.value) for m in history] == [(i, i * 1e-3) for i in range(5)]
    artifacts = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert {"params.json", "deps.json", "series.parquet", "metrics.json", "preview"} <= artifacts

    toy.repro("-f")
    assert by_stage(toy.runs("stage")) == first
    assert len(client.get_metric_history(run.info.run_id, "series/series/value_ms")) == 5

    toy.set_param("sum.factor", 3.0)
    toy.repro()
    changed = toy.runs("pipeline")
    assert len(changed) == 2
    newest = next(p for p in changed if p.info.run_id != parent.info.run_id)
    # The unchanged stage did not run again; its run and headline still stand on the new parent.
    assert newest.data.tags["ranloom.run.make"] == ids["make"]
    assert set(newest.data.metrics) == {"make.total", "sum.total"}
    assert by_stage(toy.runs("stage"))[("sum", "FINISHED")] == 2

    toy.set_param("sum.factor", 2.0)
    toy.repro("-f")
    assert by_stage(toy.runs("stage")) == {("make", "FINISHED"): 1, ("sum", "FINISHED"): 2}
    assert {p.info.status for p in toy.runs("pipeline")} == {"FINISHED"}


def test_killed_and_failed_stage(toy) -> None:
    """The recorder marks the run of a stage that was killed; a fault is told in the run."""
    toy.set_param("sum.behave", "die")
    assert toy.repro(check=False).returncode != 0
    eventually(lambda: by_stage(toy.runs("stage"))[("sum", "KILLED")] == 1)
    eventually(lambda: [p.info.status for p in toy.runs("pipeline")] == ["KILLED"])
    toy.set_param("sum.behave", "fail")
    assert toy.repro(check=False).returncode != 0
    runs = toy.runs("stage")
    assert by_stage(runs) == {
        ("make", "FINISHED"): 1,
        ("sum", "KILLED"): 1,
        ("sum", "FAILED"): 1,
    }
    failed = next(r for r in runs if r.info.status == "FAILED")
    assert failed.data.tags["ranloom.error"] == "ValueError: behaves badly"
    assert Counter(p.info.status for p in toy.runs("pipeline")) == {"KILLED": 1, "FAILED": 1}
    # The same attempt again: a failed execution is tried anew, in a run of its own.
    toy.repro(check=False)
    assert by_stage(toy.runs("stage"))[("sum", "FAILED")] == 2


def test_sync_rebuilds_a_deleted_store(tracked, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    shutil.move(tracked.root / "mlruns", tmp_path / "old" / "mlruns")
    report = sync(tracked)
    assert set(report["created"]) == {"make", "sum"}
    assert (tracked.root / "mlruns" / ".gitignore").exists()
    ended = [run.info.end_time for run in tracked.runs("pipeline")]
    again = sync(tracked)
    assert [run.info.end_time for run in tracked.runs("pipeline")] == ended
    assert again["created"] == []
    assert set(again["present"]) == {"make", "sum"}
    before = Toy(tmp_path / "old").runs("stage")
    rebuilt = tracked.runs("stage")
    assert len(rebuilt) == 2
    # Live metrics are advisory: they are gone with the store.
    assert metrics_by_fingerprint(rebuilt) == metrics_by_fingerprint(before)
    (parent,) = tracked.runs("pipeline")
    assert parent.info.run_id == report["parent"]
    assert set(parent.data.metrics) == {"make.total", "sum.total"}

    # A changed out is not what dvc.lock speaks of: it is not logged under its name.
    tracked.set_param("sum.factor", 9.0)
    tracked.dvc("repro", RANLOOM_TRACKING="off")
    (tracked.root / "outs" / "sum" / "metrics.json").write_text('{"total": 1}')
    report = sync(tracked)
    assert report["present"] == ["make"]
    assert "differs from dvc.lock" in report["skipped"]["sum"]


def test_clone_with_pulled_outs(tracked, tmp_path: Path) -> None:
    """Push to a DVC remote, clone, pull: one command gives the clone its runs."""
    tracked.dvc("remote", "add", "-d", "backup", str(tmp_path / "remote"))
    tracked.dvc("push")
    tracked.commit()
    tracked.run("git", "clone", "-q", str(tracked.root), str(tmp_path / "clone"))
    clone = Toy(tmp_path / "clone")
    assert "outs/make/series.parquet is missing" in sync(clone)["skipped"]["make"]
    clone.dvc("pull")
    assert set(sync(clone)["created"]) == {"make", "sum"}
    assert "up to date" in clone.repro().stdout
    assert metrics_by_fingerprint(clone.runs("stage")) == metrics_by_fingerprint(
        tracked.runs("stage")
    )


def test_experiments_land_in_the_same_store(tracked) -> None:
    """`exp run`, `--temp` and two queued experiments: one parent each, in this store."""
    tracked.commit()
    tracked.dvc("exp", "run", "-S", "sum.factor=3")
    tracked.dvc("exp", "run", "--temp", "-S", "sum.factor=4")
    for factor in (5, 6):
        tracked.dvc("exp", "run", "--queue", "-S", f"sum.factor={factor}")
    tracked.dvc("exp", "run", "--run-all", "--jobs", "2")
    runs = [r for r in tracked.runs("stage") if r.data.tags["ranloom.stage"] == "sum"]
    assert sorted(float(r.data.params["sum.factor"]) for r in runs) == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert {r.info.status for r in tracked.runs("stage")} == {"FINISHED"}
    assert len(tracked.runs("pipeline")) == 5


def test_eight_processes_make_one_store(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.store import Store\n"
        "s = Store.open(Path(sys.argv[1])); s.create('r', {'ranloom.kind': 'stage'})"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    outcomes = [(p.wait(), p.stderr.read().decode()) for p in started if p.stderr]
    assert [rc for rc, _ in outcomes] == [0] * 8, outcomes
    from pipeline.store import Store

    store = Store.open(tmp_path)
    assert len(store.client.search_runs([store.experiment_id])) == 8


def test_store_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANLOOM_STORE", raising=False)
    assert store_folder(tmp_path) == tmp_path / "mlruns"
    assert store_folder(tmp_path / ".dvc" / "tmp" / "exps" / "x1") == tmp_path / "mlruns"
    monkeypatch.setenv("RANLOOM_STORE", str(tmp_path / "s"))
    assert store_folder(tmp_path) == tmp_path / "s"


def test_a_broken_store_costs_no_result(toy) -> None:
    (toy.root / "mlruns").mkdir()
    (toy.root / "mlruns" / "mlflow.db").write_text("this is no database")
    done = toy.repro()
    assert "results are kept" in done.stderr
    assert (toy.root / "outs" / "sum" / "series.parquet").exists()


def test_two_workspaces_that_execute_the_same_log_it_once(
    tracked, tmp_path: Path, monkeypatch
) -> None:
    """A sweep meets it at once: its points share the first stages."""
    twin = tmp_path / "twin"
    shutil.copytree(tracked.root, twin, ignore=shutil.ignore_patterns("mlruns"))
    monkeypatch.setenv("RANLOOM_STORE", str(tracked.root / "mlruns"))
    for root in (tracked.root, twin):
        Toy(root).set_param("sum.factor", 5.0)
    with stage_run(tracked.root, STAGES, "sum") as first:
        eventually(lambda: by_stage(tracked.runs("stage"))[("sum", "RUNNING")] == 1)
        with stage_run(twin, STAGES, "sum") as second:
            second("progress", 1.0, 1)
            second.finish()
        (running,) = [r for r in tracked.runs("stage") if r.info.status == "RUNNING"]
        assert "live/progress" not in running.data.metrics
        first.finish()
    assert by_stage(tracked.runs("stage"))[("sum", "FINISHED")] == 2


def test_a_run_whose_stage_and_recorder_died_is_settled_by_the_next_start(tracked) -> None:
    """As when a whole process group or the machine ends."""
    store = tracked.store()
    (parent,) = tracked.runs("pipeline")
    gone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    owner = Owner.of(gone.pid)
    tags = {"ranloom.kind": "stage", "ranloom.stage": "sum", **owner.tags()}
    run = store.create("sum", {**tags, "mlflow.parentRunId": parent.info.run_id})
    gone.kill()
    gone.wait()
    assert sync(tracked)["killed"] == [run.info.run_id]
    assert store.client.get_run(run.info.run_id).info.status == "KILLED"


def test_a_parent_ends_as_the_worst_of_its_stages(toy) -> None:
    """Also when the stage that failed was not the last to end; a second try makes it good."""
    store = toy.store()
    parent = store.create("chain", {"ranloom.kind": "pipeline"}).info.run_id
    tags = {"mlflow.parentRunId": parent, "ranloom.kind": "stage"}
    a, b = (store.create(n, {**tags, "ranloom.stage": n}) for n in ("make", "sum"))
    store.fail(a, "FAILED", "broke")
    store.close_parent(parent)
    assert store.client.get_run(parent).info.status == "RUNNING"
    store.terminate(b, "FINISHED")
    store.close_parent(parent)
    assert store.client.get_run(parent).info.status == "FAILED"
    again = store.create("make", {**tags, "ranloom.stage": "make"})
    store.terminate(again, "FINISHED")
    store.close_parent(parent)
    assert store.client.get_run(parent).info.status == "FINISHED"


def test_a_parent_is_open_as_long_as_its_workspace_is_rebuilt(tracked, tmp_path: Path) -> None:
    """Also where another workspace executed the same before, and while somebody else syncs."""
    (parent,) = tracked.runs("pipeline")

    def status() -> str:
        return tracked.store().client.get_run(parent.info.run_id).info.status

    tracked.store().tag(parent.info.run_id, "ranloom.workspace", str(tmp_path / "elsewhere"))
    (tracked.root / "outs" / "sum" / "metrics.json").unlink()
    with held(tracked.root):
        tracked.repro()
        assert status() == "RUNNING"
        sync(tracked)
        assert status() == "RUNNING"
    sync(tracked)
    assert status() == "FINISHED"


def test_a_rebuild_that_stops_ends_the_parent(toy) -> None:
    store = toy.store()
    tags = {"ranloom.kind": "pipeline", "ranloom.workspace": str(toy.root)}
    parent = store.create("chain", tags).info.run_id

    @rebuild(toy.root)
    def work() -> None:
        store.close_parent(parent)
        assert store.client.get_run(parent).info.status == "RUNNING"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert store.client.get_run(parent).info.status == "FINISHED"


def test_a_parent_is_named_by_what_was_overridden_and_keeps_the_hash_as_a_tag(
    tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    (known,) = tracked.runs("pipeline")
    key = known.data.tags["ranloom.pipeline"]
    assert known.info.run_name == f"chain-{key[:8]}"
    tracked.store().client.delete_run(known.info.run_id)
    (tracked.root / workspace.TITLE).write_text("quick: sum.factor=2.0")
    sync(tracked)
    (named,) = tracked.runs("pipeline")
    assert named.info.run_name == "quick: sum.factor=2.0"
    assert named.data.tags["ranloom.pipeline"] == key
