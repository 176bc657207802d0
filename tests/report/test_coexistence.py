"""The coexistence section names what does not hold, and leaves no scenario out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ranloom.report.data import ReportData, load_published
from ranloom.report.sections.coexistence import section
from ranloom.report.sections.coexistence_tables import SCENARIOS, statements

# WEAVER leads everywhere but in wideband, where it reserves more and violates more.
_CHAIN = {"weaver": 2.0, "noctrl": 1.0, "yinyangran": 0.25}
_TRAINING = {"weaver": 150.0, "noctrl": 140.0, "yinyangran": 30.0}


def _metrics() -> dict:
    own = {
        s: {
            c: {
                "useful_tflops": _CHAIN[c],
                "training_tflops": _TRAINING[c],
                "violations": 0 if c == "weaver" else 3,
                "violation_pct": 0.0 if c == "weaver" else 0.1,
                "efficiency_pct": 85.0,
            }
            for c in _CHAIN
        }
        for s in SCENARIOS
    }
    own["wideband"]["weaver"] |= {"training_tflops": 130.0, "violations": 4}
    own["stress"]["noctrl"] |= {"useful_tflops": 0.0, "training_tflops": 149.9}
    drawn = {
        s: own["scenario_1"]
        | {"useful_ratio_weaver_over_noctrl": ratio, "useful_ratio_weaver_over_yinyangran": 8.0}
        for s, ratio in (("scenario_1", 2.3), ("scenario_2", 2.3))  # 2.91 and 1.76 are published
    }
    return own | {"synthetic": drawn}


@pytest.fixture
def data(root: Path, tmp_path: Path) -> ReportData:
    runs = [(s, c, w) for s in SCENARIOS for c in _CHAIN for w in ("gemm_chain", "training_step")]
    more = {"wideband": {"weaver": 26.0, "noctrl": 24.0}}
    rows = {
        "scenario": [s for s, _, _ in runs],
        "controller": [c for _, c, _ in runs],
        "workload": [w for _, _, w in runs],
        "mechanism": ["green_context"] * len(runs),
        "own": [True] * len(runs),
        "device": ["a card"] * len(runs),
        "reservation_mean_sm": [more.get(s, {}).get(c, 8.0) for s, c, _ in runs],
        "w_per_tflops": [float("inf") if s == "stress" else 2.0 for s, _, _ in runs],
    }
    zero = ("transitions", "violations")
    rows |= {name: [0] * len(runs) for name in zero}
    real = ("useful_tflops", "executed_tflops", "efficiency_pct", "tokens_per_s", "violation_ms")
    rows |= {name: [1.0] * len(runs) for name in real}
    changed = {"constant": ["none"], "setting": ["as set"], "scenario": ["scenario_1"]}
    values = ("weaver_tflops", "weaver_over_noctrl", "weaver_over_yinyangran")
    shares = ("weaver_efficiency_pct", "noctrl_violations", "weaver_violations")
    changed |= {"workload": ["gemm_chain"]} | {name: [1.0] for name in values + shares}
    tables = {"coexistence": rows, "sensitivity": changed}
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    paths = {f"replay_spare.{name}": tmp_path / f"{name}.parquet" for name in tables}
    published = load_published(root / "data/published/weaver.yaml")
    return ReportData({"replay_spare": _metrics()}, {}, paths, published)


def test_statements_name_where_they_do_not_hold(data: ReportData) -> None:
    found = {(row[0], row[1]): row[2:] for row in statements(data).rows}
    most = "scenario 1, scenario 1 scaled, scenario 2, scenario 2 scaled"
    # 0.07 % apart is equal.
    assert found["training: WEAVER does more than NoCtrl", "own"] == [most, "stress", "wideband"]
    assert found["chain: NoCtrl does more than YinYangRAN", "own"][2] == "stress"
    assert found["WEAVER has fewer violations than NoCtrl", "own"][2] == "wideband"
    near = found["chain: WEAVER over NoCtrl within 25 % of Table 5", "synthetic"]
    assert near == ["scenario 1", "–", "scenario 2"]
    assert found["chain: WEAVER over YinYangRAN at least 4", "synthetic"] == ["all", "–", "–"]


def test_every_scenario_is_shown(data: ReportData) -> None:
    shown = section(data)
    assert "wideband (26.0 SMs against 24.0, 130.0 TFLOPS for training" in shown.text[-1]
    bars = shown.pictures[0].figure
    for axes in bars.axes:
        assert len(axes.get_xticklabels()) == len(SCENARIOS) == len(axes.containers[0])
    training = next(grid for grid in shown.grids if grid.caption.startswith("Training step"))
    assert {row[0] for row in training.rows} == {s.replace("_", " ") for s in SCENARIOS}
    # A quotient by zero is a dash, not an infinity.
    assert all(None in row for row in training.rows if row[0] == "stress")
