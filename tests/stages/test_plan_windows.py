"""The stage on a small table of transfers: tables, metrics, determinism, bad input."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import params as parameters
from pipeline.io import Inputs, Outputs
from pipeline.stage import Result
from ranloom.errors import InputError
from ranloom.transport.baselines import AGGREGATE_STRATEGIES, STRATEGIES
from ranloom.transport.tapi_model import TapiDocument
from stages.plan_windows import STAGE, check


def transfers(**changes: Any) -> dict[str, list[Any]]:
    """Two rounds at six gNBs: an aggregate each, and three per-UE flows each."""
    rng = np.random.default_rng(4)
    columns: dict[str, list[Any]] = {}
    for turn in range(2):
        for site in range(6):
            median = 300 * turn + float(rng.uniform(60, 120))
            for strategy, count, size in (("per_ue", 3, 16_777_216), ("aggregate", 1, 33_554_432)):
                for k in range(count):
                    row = {
                        "demand_id": f"{strategy}/{turn}/{site}/{k}",
                        "job": "chat",
                        "round": turn,
                        "strategy": strategy,
                        "source": f"gnb_{site:02d}",
                        "destination": "core",
                        "bytes": size,
                        "release_p50_s": median,
                        "release_p95_s": median + 60,
                        "release_s": median + float(rng.normal(0, 20)),
                        "deadline_s": 300.0 * turn + 200,
                    }
                    for name, value in row.items():
                        columns.setdefault(name, []).append(value)
    return columns | changes


def document(root: Path, **changes: Any) -> dict[str, Any]:
    """The repository's parameters with a small sweep; changes by dotted key."""
    values = copy.deepcopy(parameters.load(root / "params.yaml"))
    small = {
        "sweep.setup_s": [0.02, 10],
        "sweep.packet_share": [0.001, 0.1],
        "sweep.jobs": [1],
        "sweep.rank_factor": [1, 4],
        "sweep.gnbs": [3],
        "jitter.sd_s": [20],
        "jitter.draws": 1,
        "training.sync_s": 20,
        "training.period_s": 100,
        "packet_share": 0.0005,
    }
    for key, value in (small | changes).items():
        *path, last = key.split(".")
        node: Any = values["plan_windows"]
        for part in path:
            node = node[part]
        node[last] = value
    return values


def files(root: Path, folder: Path, table: dict[str, list[Any]]) -> dict[str, Path]:
    pq.write_table(pa.table(table), folder / "transfers.parquet")
    return {
        "transfers": folder / "transfers.parquet",
        "topology": root / "data/topologies/metro.json",
        "others": root / "data/calendars/none.json",
    }


def run(root: Path, paths: dict[str, Path], folder: Path, **changes: Any) -> Result:
    values = parameters.build(STAGE, document(root, **changes))
    assert list(check(values, paths)) == []
    return STAGE.run(values, Inputs(paths), Outputs(STAGE, folder))


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("plan")
    return run(root, files(root, folder, transfers()), folder / "outs"), folder / "outs"


def test_metrics_of_every_strategy_and_the_headline(done: tuple[Result, Path]) -> None:
    metrics = done[0].metrics
    for strategy in STRATEGIES:
        for name in (
            "missed_bytes",
            "setups",
            "circuit_seconds",
            "utilisation_pct",
            "last_finish_s",
            "background_delay_p99_ms",
            "energy_kj",
        ):
            assert np.isfinite(metrics[strategy][name]), (strategy, name)
    assert metrics["validator_errors"] == 0
    assert metrics["validator_catches"] == 1.0
    assert metrics["broken_calendars"] > 40
    for name in STAGE.headline:
        value: Any = metrics
        for part in name.split("."):
            value = value[part]
        assert value is not None
    assert metrics["per_ue_packet"]["flows"] == 36
    assert metrics["aggregate_selective"]["flows"] == 12
    selective, packet = metrics["aggregate_selective"], metrics["aggregate_packet"]
    assert 0 < selective["setups"] <= metrics["aggregate_always_window"]["setups"]
    assert selective["planned_missed_bytes"] < packet["planned_missed_bytes"]
    assert metrics["bound"]["missed_bytes"] <= selective["planned_missed_bytes"]
    assert metrics["sweep"]["break_even_max_error_pct"] < 0.1
    parts = metrics["sweep"]
    assert (
        parts["pays_deadline"] + parts["pays_speed"] + parts["pays_nothing"] == parts["points"] == 8
    )


def test_tables_agree_with_the_metrics(done: tuple[Result, Path]) -> None:
    metrics, folder = done[0].metrics, done[1]
    rows = pq.read_table(folder / "assignments.parquet").to_pylist()
    windows = pq.read_table(folder / "windows.parquet").to_pylist()
    for strategy in STRATEGIES:
        mine = [row for row in rows if row["strategy"] == strategy]
        lit = [row for row in windows if row["strategy"] == strategy]
        assert sum(row["missed_bytes"] for row in mine) == metrics[strategy]["missed_bytes"]
        assert len(lit) == metrics[strategy]["setups"]
        held = sum(row["end_s"] - row["start_s"] for row in lit)
        assert held == pytest.approx(metrics[strategy]["circuit_seconds"])
        riding = sum(row["bytes"] for row in mine if row["window_id"] is not None)
        assert riding == sum(row["bytes"] for row in lit)
        assert len(mine) == metrics[strategy]["flows"]
    rates = pq.read_table(folder / "rates.parquet").to_pylist()
    assert {row["strategy"] for row in rates} <= set(AGGREGATE_STRATEGIES)
    table = pq.read_table(folder / "strategies.parquet").to_pylist()
    assert [row["strategy"] for row in table] == list(STRATEGIES)
    assert table[0]["energy_kj"] == metrics["per_ue_packet"]["energy_kj"]


def test_calendar_is_a_tapi_document_of_both_workloads(done: tuple[Result, Path]) -> None:
    parsed = TapiDocument.model_validate(json.loads((done[1] / "calendar.json").read_text()))
    services = parsed.context.connectivity.connectivity_service
    metrics = done[0].metrics["both_workloads"]
    assert len(services) == metrics["setups"]
    lit = pq.read_table(done[1] / "windows.parquet").to_pylist()
    assert sum(row["strategy"] == "both_workloads" for row in lit) == metrics["setups"]


def test_training_shares_the_calendar(done: tuple[Result, Path]) -> None:
    metrics = done[0].metrics["both_workloads"]
    rows = pq.read_table(done[1] / "training.parquet").to_pylist()
    # Five batches end before 500 s less the sum; four stages, up and down; one copy of layers.
    assert len(rows) == metrics["training_demands"] == 4 * 4 * 2 + 1
    # Eight gNBs train, two more than send aggregates.
    assert len({row["source"] for row in rows}) == 8
    # OPT-1.3B: 24 layers of 50,358,272 parameters; two layers at 14 bytes move.
    assert rows[-1]["demand_id"] == "copy/0"
    assert rows[-1]["bytes"] == 2 * 50_358_272 * 14
    middle = [row for row in rows if row["demand_id"].startswith("sync/0/1/")]
    assert {row["bytes"] for row in middle} == {6 * 50_358_272 * 2}
    assert metrics["flows"] == len(rows) + 12
    missed = sum(row["bytes"] for row in rows if row["mode"] == "missed")
    assert missed == metrics["training_missed_bytes"] == 0
    # The simulation carries the plan out beside the background, as it does the strategies.
    assert metrics["simulated_missed_bytes"] == metrics["missed_bytes"]
    assert metrics["simulated_last_finish_s"] == pytest.approx(metrics["last_finish_s"], rel=0.01)
    assert set(metrics) >= set(done[0].metrics["aggregate_selective"]) - {"planned_missed_bytes"}


def test_replanning_and_jitter_are_reported(done: tuple[Result, Path]) -> None:
    metrics, folder = done[0].metrics, done[1]
    for event in ("slip", "setup_failure", "fibre_cut"):
        found = metrics["replan"][event]
        assert found["never_worse"]
        assert found["missed_bytes"] <= found["kept_missed_bytes"]
    assert metrics["replan"]["setup_failure"]["replannings"] > 0
    (row,) = pq.read_table(folder / "jitter.parquet").to_pylist()
    assert 0 <= row["replanned_missed_pct"] <= row["kept_missed_pct"] <= row["kept_worst_pct"]
    assert row["kept_missed_pct"] == metrics["jitter"]["kept_missed_pct"] > 0


def test_the_map_has_every_fibre_and_the_light_on_it(done: tuple[Result, Path]) -> None:
    rows = pq.read_table(done[1] / "links.parquet").to_pylist()
    mine = [row for row in rows if row["strategy"] == "aggregate_selective"]
    assert len(mine) == 46
    lit = pq.read_table(done[1] / "windows.parquet").to_pylist()
    hops = sum(row["path"].count("|") for row in lit if row["strategy"] == "aggregate_selective")
    assert sum(row["windows"] for row in mine) == hops > 0


def test_same_input_same_bytes(root: Path, done: tuple[Result, Path], tmp_path: Path) -> None:
    again = run(root, files(root, tmp_path, transfers()), tmp_path / "outs")
    assert again.metrics == done[0].metrics
    for path in sorted((tmp_path / "outs").iterdir()):
        assert path.read_bytes() == (done[1] / path.name).read_bytes(), path.name


def test_refinement_never_makes_the_plan_worse(
    root: Path, done: tuple[Result, Path], tmp_path: Path
) -> None:
    refine = {"deterministic_time": 0.05, "most_demands": 100}
    better = run(root, files(root, tmp_path, transfers()), tmp_path / "outs", refine=refine)
    before, after = done[0].metrics, better.metrics
    key = ("planned_missed_bytes", "setups")
    assert [after["aggregate_selective"][k] for k in key] <= [
        before["aggregate_selective"][k] for k in key
    ]
    assert after["validator_errors"] == 0


def test_calendar_of_others_is_respected(
    root: Path, done: tuple[Result, Path], tmp_path: Path
) -> None:
    paths = files(root, tmp_path, transfers()) | {"others": done[1] / "calendar.json"}
    second = run(root, paths, tmp_path / "outs")
    assert second.metrics["validator_errors"] == 0
    taken = pq.read_table(done[1] / "windows.parquet").to_pylist()
    ours = pq.read_table(tmp_path / "outs/windows.parquet").to_pylist()
    lit = [row for row in ours if row["strategy"] == "aggregate_selective"]
    for theirs in (row for row in taken if row["strategy"] == "both_workloads"):
        for mine in lit:
            if mine["source"] in (theirs["source"], theirs["destination"]):  # one port a site
                assert mine["start_s"] >= theirs["end_s"] or mine["end_s"] <= theirs["start_s"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": ["gnb_99"] * 48}, "gnb_99"),
        ({"deadline_s": [1.0] * 48}, "deadline_s"),
        ({"bytes": [0] * 48}, "bytes"),
        ({"strategy": ["per_ue"] * 48}, "aggregate"),
        ({"demand_id": ["a"] * 48}, "demand_id"),
    ],
)
def test_bad_transfers_are_named(
    root: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    paths = files(root, tmp_path, transfers(**changes))
    with pytest.raises(InputError, match=says):
        run(root, paths, tmp_path / "outs")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epoch": "soon"}, "plan_windows.epoch"),
        ({"spectrum.slot_ghz": 40}, "plan_windows.spectrum.slot_ghz"),
        ({"training.sync_s": 101}, "plan_windows.training.sync_s"),
        ({"training.replicas": 9}, "plan_windows.training.replicas"),  # x 4 stages, 34 gNBs
        ({"training.stages": 2}, "plan_windows.training.copies[0].from_stage"),
    ],
)
def test_check_names_parameters(
    root: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    values = parameters.build(STAGE, document(root, **changes))
    faults = list(check(values, files(root, tmp_path, transfers())))
    assert [fault.where for fault in faults] == [f"params.yaml: {says}"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("packet_share", 2.0),
        ("packet_share", 0.0),
        ("setup_s", -1.0),
        ("setup_s", 4000.0),
        ("rank_factor", 0.0),
        ("jobs", 1001),
        ("gnbs", 0),
    ],
)
def test_values_of_the_sweep_are_bounded(root: Path, key: str, value: float) -> None:
    with pytest.raises(parameters.RefusedError, match=f"plan_windows.sweep.{key}.0: {value} "):
        parameters.build(STAGE, document(root, **{f"sweep.{key}": [value]}))


def test_check_reads_topology_and_calendar(root: Path, tmp_path: Path) -> None:
    values = parameters.build(STAGE, document(root))
    paths = files(root, tmp_path, transfers())
    broken = tmp_path / "broken.json"
    broken.write_text('{"hub": "nowhere", "nodes": [{"name": "a", "kind": "gnb"}], "links": []}')
    with pytest.raises(InputError, match="nowhere"):
        list(check(values, paths | {"topology": broken}))
    with pytest.raises(InputError, match="tapi-common:context"):
        list(check(values, paths | {"others": broken}))
