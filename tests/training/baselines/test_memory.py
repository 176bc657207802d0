"""What weight copies cost: Confidant's memory, and who fits in Table 8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline import params as parameters
from ranloom.gpu.card import load_card
from ranloom.report.data import load_published
from ranloom.training.baselines.confidant import copy_bytes
from ranloom.training.layout import regular_layout
from ranloom.training.links import read_links
from ranloom.training.model_shapes import layer_costs, model_shape
from stages._train_sim import Sites, both, scale
from stages.train_sites import STAGE


def test_the_first_stage_holds_two_bytes_of_the_whole_model_in_copies():
    shape = model_shape("opt-30b")
    costs = layer_costs(shape, 1, 512)
    for stages in (16, 48):
        layout = regular_layout(tuple(range(0, 49, 48 // stages)), 1)
        grown = copy_bytes(costs, layout, stages) - copy_bytes(costs, layout, 1)
        weights = 2.0 * (stages - 1) * 48 / stages * shape.block_parameters
        kept = (stages - 1) * costs.activation_bytes[0] * 48 / stages
        transit = (stages - 1) * costs.transit_bytes(1)
        ends = 2.0 * (stages - 1) * shape.embedding_parameters
        assert grown[0] == pytest.approx(weights + kept + transit + ends, rel=1e-9)
        assert grown[-1] == 0.0, "the last stage works on one micro-batch at a time"


@pytest.fixture(scope="module")
def points(root: Path) -> dict[str, list[dict]]:
    document = parameters.load(root / "params.yaml")
    block = document["train_sites"]
    params = STAGE.params(**block, base={"seed": document["base"]["seed"]})
    scaling = params.scaling.model_copy(
        update={"sites": (96,), "model": "opt-30b", "large_models": ("opt-70b",)}
    )
    params = params.model_copy(update={"scaling": scaling.model_copy(update={"stages": (48, 80)})})
    rows = [
        (scenario, own.controller, own.mechanism, second)
        for scenario in params.sim.scenarios
        for own in (params.sim.weaver, params.sim.baselines)
        for second in range(60)
    ]
    names = ("scenario", "controller", "mechanism", "second")
    spare = {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}
    spare["site"] = np.zeros(len(rows), dtype=int)
    spare["usable_tflops"] = np.full(len(rows), 100.0)
    sites = Sites(load_card(root / block["card"]), read_links(root / block["links"]), spare)
    return {name: scale(params, one, sites) for name, one in both(params).items()}


def test_the_pattern_of_table_8_holds_under_both_sets(points, root):
    published = load_published(root / "data/published/weaver.yaml")["large_models_512_sites"]
    for rows in points.values():
        for row in rows:
            assert row["oom"] == published[row["model"]][row["system"]].get("oom", False), row


def test_confidants_peak_is_near_the_published_one_where_the_ends_lie_on_the_host(points, root):
    published = load_published(root / "data/published/weaver.yaml")["large_models_512_sites"]
    peaks = {
        row["model"]: row["peak_gb"] for row in points["reconciled"] if row["system"] == "confidant"
    }
    for model in ("opt-30b", "opt-70b"):
        assert peaks[model] == pytest.approx(published[model]["confidant"]["peak_gb"], rel=0.2)
