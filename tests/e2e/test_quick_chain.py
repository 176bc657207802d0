"""The whole chain at the quick preset: it runs, stays, repeats to the byte, and is tracked."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import stages
from pipeline import dvc, workspace
from pipeline.documents import flattened, normalised
from pipeline.io import arrow_schema
from pipeline.registry import MEASURED, METRICS, discover
from pipeline.stage import Folder, MeasuredOf, Table
from pipeline.store import Store

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = discover(stages)

# Names that readers of the metrics rely on; a stage may write more.
PROMISED = {
    "profile_lut": ["model_cells_matched", "published_cells_matched", "cells_published"],
    "generate_traces": [
        f"{scenario}.{controller}.{metric}"
        for scenario in ("scenario_1", "scenario_2", "stress", "macro")
        for controller in ("noctrl", "weaver")
        for metric in (
            "mean_sm",
            "transitions",
            "harq_met_pct",
            "decode_over_1ms_pct",
            "throughput_mbps",
            "delay_mean_ms",
            "delay_p95_ms",
            "jitter_ms",
            "loss_pct",
        )
    ],
    "aggregate_updates": [
        "exact_max_rel_error",
        "bytes_per_ue_flows",
        "bytes_aggregated",
        "flows_per_ue",
        "flows_aggregated",
        "weight_conserved",
    ],
    "plan_windows": ["validator_errors", "validator_catches"],
    "train_sites": [
        "real.weights_rel_error",
        "real.samples_lost",
        "real.samples_doubled",
        "real.reroutes",
        "dynamic.air_handled_pct",
    ],
}


LEFT_OUT = {("train_sites", "orderings.parquet")}
"""Tables that the quick preset leaves empty."""


def repro(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        dvc.command("repro", *arguments),
        cwd=place,
        env=dvc.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_of(folder: Path) -> dict:
    found = {}
    for path in (folder / MEASURED / METRICS, folder / METRICS):
        if path.exists():
            found.update(flattened(json.loads(path.read_text(encoding="utf-8"))))
    return found


def hashes(path: Path) -> dict[str, str]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return {
        file.relative_to(path.parent).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def test_a_second_run_does_nothing(quick_chain) -> None:
    assert "Running stage" not in repro(quick_chain.place)


def test_tests_of_the_chain_share_a_worker(quick_chain, request, worker_id) -> None:
    if worker_id == "master":
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@chain")


def test_nothing_reached_the_network(quick_chain) -> None:
    """Neither the stages nor DVC and MLflow around them."""
    assert quick_chain.calls.read_text() == ""


@pytest.mark.parametrize("name", REGISTRY)
def test_a_stage_wrote_what_it_declares(name: str, quick_chain) -> None:
    folder = quick_chain.outs / name
    for output in REGISTRY[name].outputs.values():
        path = folder / output.file
        assert path.exists()
        if isinstance(output, Table):
            assert pq.read_schema(path).equals(arrow_schema(output))
            assert (pq.read_metadata(path).num_rows > 0) == ((name, output.file) not in LEFT_OUT)
        elif isinstance(output, Folder):
            assert any(path.iterdir())
        else:
            assert path.stat().st_size > 0
    document = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    assert document == normalised(document)
    assert document
    found = metrics_of(folder)
    assert found.keys() & set(REGISTRY[name].headline), "a preset may drop some, not all"


@pytest.mark.parametrize("name", [name for name in PROMISED if name in REGISTRY])
def test_promised_metrics_are_there(name: str, quick_chain) -> None:
    found = metrics_of(quick_chain.outs / name)
    assert [metric for metric in PROMISED[name] if metric not in found] == []


def deterministic(name: str) -> bool:
    return not any(isinstance(source, MeasuredOf) for source in REGISTRY[name].inputs.values())


@pytest.fixture(scope="module")
def copy(quick_chain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second workspace with a copy of all outputs."""
    place = tmp_path_factory.mktemp("copy") / "quick"
    workspace.place(ROOT, REGISTRY, "quick", {}, place)
    shutil.copytree(quick_chain.outs, place / "outs")
    return place


@pytest.mark.parametrize("name", [name for name in REGISTRY if deterministic(name)])
def test_a_stage_repeats_to_the_byte(name: str, quick_chain, copy: Path) -> None:
    """In another process and folder, with another hash seed, from the same inputs."""
    subprocess.run(
        [sys.executable, "-m", "stages", name],
        cwd=copy,
        env={**dvc.variables(), "RANLOOM_TRACKING": "off", "PYTHONHASHSEED": "11"},
        check=True,
    )
    names = [output.file for output in REGISTRY[name].outputs.values()]
    for part in [*names, METRICS]:
        first, again = quick_chain.outs / name / part, copy / "outs" / name / part
        assert hashes(again) == hashes(first)


def test_one_parent_with_a_child_for_each_stage(quick_chain, monkeypatch) -> None:
    monkeypatch.setenv("RANLOOM_STORE", str(quick_chain.store))
    store = Store.open(quick_chain.place)
    runs = store.client.search_runs([store.experiment_id])
    parents = [run for run in runs if run.data.tags["ranloom.kind"] == "pipeline"]
    children = [run for run in runs if run.data.tags["ranloom.kind"] == "stage"]
    assert len(parents) == 1
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert sorted(run.data.tags["ranloom.stage"] for run in children) == sorted(REGISTRY)
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    trained = next(r for r in children if r.data.tags["ranloom.stage"] == "train_sites")
    streamed = {name for name in trained.data.metrics if name.startswith("live/")}
    assert {"live/loss", "live/tokens_per_s"} <= streamed
    assert not [name for name in streamed if name.count("live/") > 1]
