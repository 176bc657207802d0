"""The stage on a small hand-made table of rates: tables, metrics, determinism, bad input."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from pipeline import params as parameters
from pipeline.io import Inputs, Outputs
from ranloom.errors import InputError
from stages.aggregate_updates import STAGE, check


def document(root: Path, **changes: Any) -> dict[str, Any]:
    """The repository's parameters, shrunk; changes by dotted key."""
    values = copy.deepcopy(parameters.load(root / "params.yaml"))
    small = {"n_gnbs": 6, "history_rounds": 3, "jobs.0.ues_per_gnb": 6}
    small |= {
        "quality.gnbs": 2,
        "quality.rounds": 3,
        "quality.seeds": 1,
        "quality.pretrain_steps": 9,
    }
    for key, value in (small | changes).items():
        *path, last = key.split(".")
        node: Any = values["aggregate_updates"]
        for part in path:
            node = node[int(part)] if part.isdigit() else node[part]
        node[last] = value
    return values


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(2)
    cell, ue, second = (g.ravel() for g in np.meshgrid(range(6), range(4), range(240)))
    table = {
        "scenario": ["macro"] * cell.size,
        "cell": cell,
        "ue": ue,
        "second": second,
        "capacity_mbps": rng.uniform(2.0, 20.0, cell.size),
        "served_mbps": np.ones(cell.size),
    }
    path = tmp_path_factory.mktemp("rates") / "ue_rates.parquet"
    pq.write_table(pa.table(table), path)
    return path


def run(root: Path, rates: Path, folder: Path, **changes: Any):
    values = parameters.build(STAGE, document(root, **changes))
    files = {
        "rates": rates,
        "topology": root / values.topology_path,
        "text": root / values.quality.text_path,
        "walk": root / values.ue.walk_path,
        "trace": root / values.rates.trace_path,
    }
    assert list(check(values, files)) == []
    return STAGE.run(values, Inputs(files), Outputs(STAGE, folder))


@pytest.fixture(scope="module")
def done(root: Path, rates: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("outs")
    second = {
        **document(root)["aggregate_updates"]["jobs"][0],
        "name": "code",
        "model": "opt-1.3b",
        "targets": ["all_linear"],
        "rank": 4,
        "update_dtype": "int8",
        "first_begin_s": 30,
    }
    jobs = [document(root)["aggregate_updates"]["jobs"][0], second]
    changes = {"jobs": jobs, "aggregator.wave_max_s": 40, "aggregator.wave_max_bytes": 2**24}
    return run(root, rates, folder, **changes), folder


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet", partitioning=None).to_pylist()


def test_metrics_are_what_the_tables_say(done) -> None:
    result, folder = done
    metrics = result.metrics
    transfers, updates = table(folder, "transfers"), table(folder, "updates")
    per_ue = [r for r in transfers if r["strategy"] == "per_ue"]
    waves = [r for r in transfers if r["strategy"] == "aggregate"]
    assert metrics["flows_per_ue"] == len(per_ue) > len(waves) == metrics["flows_aggregated"]
    assert metrics["bytes_per_ue_flows"] == sum(r["bytes"] for r in per_ue)
    assert metrics["bytes_aggregated"] == sum(r["bytes"] for r in waves)
    assert metrics["weight_conserved"] is True
    once = [u for u in updates if u["fate"] != "duplicate"]
    assert metrics["weight"]["in"] == sum(u["n_k"] for u in once)
    for fate in ("delivered", "carried", "dropped"):
        assert metrics["weight"][fate] == sum(u["n_k"] for u in once if u["fate"] == fate)
    assert metrics["duplicates"] == len(updates) - len(once)
    assert metrics["exact_max_rel_error"] < 1e-12
    assert metrics["fixed_point_bit_identical"] is True
    assert metrics["shipped"]["fp64_max_rel_error"] < 1e-12
    assert 1e-9 < metrics["shipped"]["fp32_max_rel_error"] < 1e-6
    assert result.measured["core_gbytes_per_s"] > 0.0
    json.dumps(metrics, allow_nan=False)


def test_transfers_fit_the_topology_and_the_planner(done, root: Path) -> None:
    _, folder = done
    transfers = table(folder, "transfers")
    nodes = json.loads((root / "data/topologies/metro.json").read_text())
    gnbs = {n["name"] for n in nodes["nodes"] if n["kind"] == "gnb"}
    assert {r["source"] for r in transfers} <= gnbs
    assert {r["destination"] for r in transfers} == {nodes["hub"]}
    assert len({r["demand_id"] for r in transfers}) == len(transfers)
    for row in transfers:
        assert 0.0 <= row["release_p50_s"] <= row["release_p95_s"]
        assert row["release_p50_s"] < row["deadline_s"]
        assert row["release_s"] < row["deadline_s"]
        assert len(bytes.fromhex(row["payload_sha256"])) == 32
    # 8,388,608 sums in binary32: two parts of exactly 16 MiB
    assert {r["part"] for r in transfers if r["job"] == "chat"} == {0, 1}
    assert max(r["bytes"] for r in transfers if r["strategy"] == "aggregate") <= 2**24
    assert {(r["bytes"]) for r in transfers if r["strategy"] == "per_ue"} == {
        16_777_216,
        # OPT-1.3B: 24 layers x 4 x (6 x (2048 + 2048) + 2 x 3 x 2048) values, scales of int8
        24 * 4 * (4 * 4096 + 2 * 10240) + 4 * (24 * 4 * (4 * 4096 + 2 * 10240) // 1024),
    }


def test_quality_curves_are_those_of_the_metrics(done) -> None:
    result, folder = done
    rows = table(folder, "quality")
    assert set(result.metrics["quality"]) == {"wait", "drop", "carry_over", "carry_discount"}
    assert result.metrics["quality_exact_max_rel_error"] < 1e-12
    for strategy, figures in result.metrics["quality"].items():
        mine = [r for r in rows if r["strategy"] == strategy and r["time_s"] <= 3 * 60 + 1e-9]
        mine.sort(key=lambda r: r["time_s"])
        last_two = [r["accuracy"] for r in mine[-2:]]
        assert figures["accuracy"] == pytest.approx(np.mean(last_two))
        assert figures["round_s"] >= 60.0


def test_average_of_the_last_round_is_written(done) -> None:
    _, folder = done
    tensors = load_file(folder / "aggregate.safetensors")
    assert {name.split(".")[0] for name in tensors} == {"chat", "code"}
    assert all(t.dtype == np.float64 and np.isfinite(t).all() for t in tensors.values())
    assert any(t.any() for t in tensors.values())


def test_same_input_same_bytes(done, root: Path, rates: Path, tmp_path: Path) -> None:
    one, two = (run(root, rates, tmp_path / name) for name in ("one", "two"))
    assert one.metrics == two.metrics
    for file in (
        *("transfers.parquet", "updates.parquet", "waves.parquet", "quality.parquet"),
        "aggregate.safetensors",
    ):
        digests = {
            hashlib.sha256((tmp_path / name / file).read_bytes()).hexdigest()
            for name in ("one", "two")
        }
        assert len(digests) == 1


def test_dropping_late_updates_loses_weight(root: Path, rates: Path, tmp_path: Path) -> None:
    changes = {"aggregator.late": "drop", "aggregator.cut_off.max_s": 100}
    metrics = run(root, rates, tmp_path, **changes).metrics
    assert metrics["weight"]["carried"] == 0
    assert set(metrics["weight"]["dropped_by"]) > {"left"}
    assert metrics["weight_conserved"] is True


def test_a_walk_moves_more_than_nobody(root: Path, rates: Path, tmp_path: Path) -> None:
    walk = {"ue.mobility": "walk", "ue.moving_share": 1.0}
    moved = run(root, rates, tmp_path / "walk", **walk).metrics["moved_while_uploading"]
    still = run(root, rates, tmp_path / "still", **{"ue.moving_share": 0.0}).metrics
    assert moved > still["moved_while_uploading"] == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ue.classes.0.share": 0.5}, "ue.classes"),
        ({"hour": 24}, "hour"),
        ({"aggregator.cut_off.min_s": 280}, "cut_off.min_s"),
        ({"jobs.0.deadline_s": 270}, "deadline_s"),
        ({"jobs.0.period_s": 200}, "period_s"),
        ({"jobs.0.targets": ["gate"]}, "targets"),
        ({"jobs.0.rank": 0}, "rank"),
        ({"tensors.rank": 500}, "rank"),
        ({"n_gnbs": 35}, "n_gnbs"),
        ({"jobs.0.model": "opt-3b"}, "model"),
        ({"aggregator.late": "never"}, "late"),
        ({"aggregator.shipped_dtype": "fix64"}, "shipped_dtype"),
        ({"ue.leave_probability": 1.5}, "leave_probability"),
        ({"quality.heads": 5}, "quality.heads"),
        ({"quality.slow_labels": 6}, "slow_labels"),
        ({"quality.test_rows": 3230}, "topics.tsv"),
    ],
)
def test_faults_are_found_without_running(root: Path, changes: dict[str, Any], named: str) -> None:
    files = {
        "topology": root / "data/topologies/metro.json",
        "text": root / "data/text/topics.tsv",
    }
    try:
        values = parameters.build(STAGE, document(root, **changes))
    except parameters.RefusedError as refused:
        lines = [fault.line() for fault in refused.faults]
    else:
        lines = [fault.line() for fault in check(values, files)]
    assert any(named in line for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_a_cell_that_carries_nothing_is_named(root: Path, rates: Path, tmp_path: Path) -> None:
    idle = pq.read_table(rates)
    idle = idle.set_column(4, "capacity_mbps", pa.array(np.zeros(idle.num_rows)))
    pq.write_table(idle, tmp_path / "idle.parquet")
    with pytest.raises(InputError, match=r"idle\.parquet: cell 0, hour 20"):
        run(root, tmp_path / "idle.parquet", tmp_path / "out")
    with pytest.raises(InputError, match="no update counted"):
        run(root, rates, tmp_path / "out", **{"jobs.0.model": "opt-66b", "jobs.0.rank": 512})


def test_uploads_may_follow_a_recorded_trace(root: Path, rates: Path, tmp_path: Path) -> None:
    trace = tmp_path / "driving.csv"
    trace.write_text("seq_num,A_throughput_mbps,B_throughput_mbps\n0,100,50\n1,200,50\n")
    changes = {"rates.source": "trace", "rates.trace_share": 0.1}
    values = parameters.build(STAGE, document(root, **changes))
    files = {
        "rates": tmp_path / "not-read.parquet",
        "topology": root / values.topology_path,
        "text": root / values.quality.text_path,
        "walk": root / values.ue.walk_path,
        "trace": trace,
    }
    done = STAGE.run(values, Inputs(files), Outputs(STAGE, tmp_path / "outs"))
    assert done.metrics["weight_conserved"]
    # Six UEs of 16.8 MB share 5 to 20 Mbit/s: none can be done within 16.8 MB / 20 Mbit/s.
    seconds = pq.read_table(tmp_path / "outs/updates.parquet").column("upload_s").to_pylist()
    arrived = [value for value in seconds if value is not None]
    assert arrived
    assert min(arrived) >= 16_777_216 * 8 / 20e6
    trace.write_text("seq_num,A_throughput_mbps\n0,fast\n")
    faults = list(check(values, files))
    assert [str(trace) in fault.where for fault in faults] == [True]
