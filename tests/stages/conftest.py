"""Parameters and inputs of ``train_sites`` in small."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import params as parameters

SHARED = (("weaver", "green_context"), ("yinyangran", "mps"), ("noctrl", "green_context"))

TINY: dict[str, Any] = {
    "sim": {
        "models": ["opt-125m"],
        "systems": [
            "weaver",
            "static",
            "dtfm",
            "asteroid",
            "confidant",
            "confidant_star",
            "diloco",
        ],
        "duration_s": {"opt-125m": 8},
        "micro_batch_samples": [4],
        "unmerged_limits": [4],
        "scenarios": ["busy"],
        "plan_seconds": 5,
        "timeline_steps": 2,
    },
    "orderings": {
        "model": "opt-125m",
        "systems": ["weaver", "static"],
        "bandwidth_factor": [0.1, 1],
        "added_latency_ms": [],
        "spare_share": [],
    },
    "dynamic": {
        "model": "opt-350m",
        "systems": ["static"],
        "duration_s": 20,
        "drops": 12,
        "failures": 6,
        "repair_s": [5, 10],  # at least a quarter of the run: more than a step at its end
        "air_slacks": [],
        "mlr_thresholds": [0.3, 0.9],
        "halves": [{"controller": "weaver", "mechanism": "green_context"}],
    },
    "reconciled": {"step_samples": 64, "duration_s": {"opt-125m": 30}},
    "baselines": {"trials": 5, "population": 5, "epoch_steps": 4},
    "scaling": {
        "sites": [64],
        "large_models": ["opt-30b"],
        "stages": [8, 16],
        "micro_batch_samples": [1],
    },
    "live": {"steps": 2},
}


def overlaid(block: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(block)
    for key, value in changes.items():
        replace_whole = key == "duration_s" or not isinstance(value, dict)
        merged[key] = value if replace_whole else overlaid(merged[key], value)
    return merged


@pytest.fixture
def block(root: Path) -> dict[str, Any]:
    document = parameters.load(root / "params.yaml")
    base = {"base": {"seed": document["base"]["seed"]}}
    return overlaid({**document["train_sites"], **base}, TINY)


@pytest.fixture
def paths(root: Path, tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(1)
    seconds = 30
    rows = [
        ("busy", controller, mechanism, site)
        for controller, mechanism in SHARED
        for site in range(3)
        for _ in range(seconds)
    ]
    spare = {
        name: [row[index] for row in rows]
        for index, name in enumerate(("scenario", "controller", "mechanism", "site"))
    }
    spare["second"] = list(range(seconds)) * 3 * len(SHARED)
    spare["spare_sm"] = [100.0] * len(rows)
    spare["usable_tflops"] = rng.uniform(40.0, 120.0, len(rows)).tolist()
    pq.write_table(pa.table(spare), tmp_path / "spare.parquet")
    windows = {
        "strategy": ["per_ue_static_circuits"] * 2,
        "source": ["gnb-1", "gnb-2"],
        "start_s": [0.0, 1.0],
        "end_s": [9.0, 8.0],
        "setup_s": [0.5, 0.5],
    }
    pq.write_table(pa.table(windows), tmp_path / "windows.parquet")
    return {
        "spare": tmp_path / "spare.parquet",
        "windows": tmp_path / "windows.parquet",
        "card": root / "data/cards/l40s.yaml",
        "links": root / "data/links/testbed.yaml",
        "published": root / "data/published/weaver.yaml",
        "real_change": root / "data/measured/real_change.json",
        "text": root / "data/text/example.txt",
        "layer_profile": root / "docs/examples/layer_profile.csv",
    }
