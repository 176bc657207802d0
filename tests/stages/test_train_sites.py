"""The stage on synthetic traces: schemas, determinism, metric names, faults of parameters."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from pipeline import params as parameters
from pipeline.io import Inputs, Outputs
from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.training.layer_profile import card_profile, write_profile
from ranloom.training.model_shapes import model_shape
from stages import train_sites
from stages._train_sim import both, compare
from stages.train_sites import STAGE
from tests.stages.conftest import TINY, overlaid


def run(block, paths, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stages._train_live.measure_live", lambda *_: {"sites": 4})
    folder.mkdir()
    outputs = Outputs(STAGE, folder)
    return train_sites.run(STAGE.params(**block), Inputs(paths), outputs)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def test_tables_metrics_and_determinism(block, paths, tmp_path, monkeypatch):
    first = run(block, paths, tmp_path / "one", monkeypatch)
    second = run(block, paths, tmp_path / "two", monkeypatch)
    assert first.metrics == second.metrics
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert set(digests(tmp_path / "one")) == {output.file for output in STAGE.outputs.values()}

    sim = first.metrics["sim"]["opt-125m"]
    assert set(sim) == set(TINY["sim"]["systems"])
    for figures in sim.values():
        assert figures["tokens_per_s"] > 0.0
        assert 0.0 < figures["peak_share_pct"] < 100.0
    dynamic = first.metrics["dynamic"]
    assert dynamic["capacity_shifts"] > 0
    assert 0.0 <= dynamic["air_handled_pct"] <= 100.0
    assert dynamic["weaver"]["tokens_per_s"] > 0.0
    assert first.metrics["scale"]["typical"]["64"]["weaver"]["ktokens_per_s"] > 0.0
    assert first.metrics["scale"]["large"]["opt-30b"]["weaver"]["peak_gb"] > 0.0
    second = first.metrics["reconciled"]
    assert set(second["sim"]["opt-125m"]) == set(TINY["sim"]["systems"])
    for name in ("scale", "flips", "dynamic", "fitted_constants"):
        assert name in second
    assert 0.0 <= first.metrics["heldout_within_20pct_share"] <= 1.0
    failing = second["dynamic"]["weaver_failures"]
    assert 0.0 < failing["tokens_per_s"] < failing["unfailing_tokens_per_s"]
    assert 0.0 <= second["heldout_within_20pct_share"] <= 1.0
    assert first.metrics["fitted_constants"] == 0
    assert first.metrics["agreement"]["event_vs_closed_max_pct"] < 3.0
    assert first.metrics["agreement"]["real_change_max_pct"] > 0.0
    assert set(second["dynamic"]["halves"]) == {"elastic", "static"}
    events = [v["mlr_events"] for v in second["dynamic"]["by_mlr_threshold"].values()]
    assert events == sorted(events, reverse=True)
    assert first.measured == {"real": {"sites": 4}}

    steps = pq.read_table(tmp_path / "one/steps.parquet").to_pandas()
    weaver = steps[(steps.experiment == "dynamic") & (steps.system == "weaver")]
    assert (weaver.end_s > weaver.start_s).all()
    assert (weaver.tokens == weaver.b_step * 512).all()
    assert weaver.reroutes.sum() > 0
    timeline = pq.read_table(tmp_path / "one/timeline.parquet").to_pandas()
    assert timeline.rerouted.any()
    for _, tasks in timeline.groupby(["system", "site"], observed=True):
        ordered = tasks.sort_values("start_s")
        assert (ordered.start_s.to_numpy()[1:] >= ordered.end_s.to_numpy()[:-1] - 1e-9).all()
    weights = load_file(tmp_path / "one/checkpoint.safetensors")
    assert all(np.isfinite(tensor).all() for tensor in weights.values())


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"sim": {"sites": 9}}, "sim.sites"),
        ({"sim": {"duration_s": {"opt-13b": 5}}}, "sim.duration_s"),
        ({"reconciled": {"duration_s": {"opt-13b": 5}}}, "reconciled.duration_s"),
        ({"sim": {"micro_batch_samples": [5, 7]}}, "sim.micro_batch_samples"),
        ({"dynamic": {"drop_left": [0.9, 0.1]}}, "dynamic.drop_left"),
        ({"orderings": {"systems": ["static"]}}, "orderings.systems"),
        ({"orderings": {"systems": ["weaver", "static", "static"]}}, "orderings.systems"),
        ({"orderings": {"spare_share": [0.5, 1, 0.5]}}, "orderings.spare_share"),
        ({"live": {"budget_shares": [1.0, 1.0, 1.0]}}, "live.budget_shares"),
        ({"live": {"cut_site": 4}}, "live.cut_site"),
        ({"live": {"faults": {"kill_site": 4}}}, "live.faults.kill_site"),
        ({"live": {"stages": 5}}, "live.stages"),
        ({"live": {"heads": 3}}, "live.heads"),
    ],
)
def test_faults_that_span_parameters_are_named(block, paths, changes, where):
    faults = list(train_sites.check(STAGE.params(**overlaid(block, changes)), paths))
    assert any(fault.where.endswith(where) for fault in faults)


def test_the_committed_parameters_have_no_fault(root, paths):
    document = parameters.load(root / "params.yaml")
    base = {"base": {"seed": document["base"]["seed"]}}
    params = STAGE.params(**document["train_sites"], **base)
    assert list(train_sites.check(params, paths)) == []


def test_a_broken_card_or_text_is_refused(block, paths, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\xff")
    from_file = STAGE.params(**overlaid(block, {"live": {"text_source": "file"}}))
    for params, name in ((STAGE.params(**block), "card"), (from_file, "text")):
        with pytest.raises(InputError, match="broken"):
            list(train_sites.check(params, {**paths, name: broken}))


def test_a_broken_links_file_is_a_fault(block, paths, tmp_path):
    broken = tmp_path / "links.yaml"
    broken.write_text("name: x\nsites: 2\n")
    found = list(train_sites.check(STAGE.params(**block), {**paths, "links": broken}))
    assert any(str(broken) in fault.where for fault in found)


def test_the_simulator_takes_the_times_of_a_profile(block, paths, tmp_path, monkeypatch):
    """Written from the card it changes nothing; twice as slow, training is slower."""
    shapes = [model_shape(name) for name in ("opt-125m", "opt-350m", "opt-13b", "opt-30b")]
    tflops = 0.6 * load_card(paths["card"]).fp16_tensor_tflops
    found, asked = {}, (("opt-125m",), ("weaver",))
    for name, rate in (("alike", tflops), ("slow", tflops / 2.0)):
        path = tmp_path / f"{name}.csv"
        write_profile(path, card_profile(shapes, (1, 4), (512,), rate, {}))
        params = STAGE.params(**overlaid(block, {"layers": {"source": "profile"}}))
        mine = {**paths, "layer_profile": path}
        assert list(train_sites.check(params, mine)) == []
        sites = train_sites.sites_of(params, Inputs(mine))
        found[name] = [
            done for _, done in compare(params, both(params)["published"], sites, *asked)
        ]
    plain = train_sites.sites_of(STAGE.params(**block), Inputs(paths))
    params = STAGE.params(**block)
    (expected,) = (done for _, done in compare(params, both(params)["published"], plain, *asked))
    (alike,), (slow,) = found["alike"], found["slow"]
    assert alike.plan == expected.plan
    np.testing.assert_allclose(alike.completions_s, expected.completions_s, rtol=1e-9)
    assert slow.completions_s[0] > expected.completions_s[0]


def test_micro_batches_that_a_profile_lacks_are_named(block, paths, tmp_path):
    path = tmp_path / "layers.csv"
    write_profile(path, card_profile([model_shape("opt-125m")], (1, 2), (512,), 1.0, {}))
    params = STAGE.params(**overlaid(block, {"layers": {"source": "profile"}}))
    faults = list(train_sites.check(params, {**paths, "layer_profile": path}))
    assert [(fault.where, fault.value) for fault in faults] == [
        (f"{path}: opt-125m", [4]),
        (f"{path}: opt-350m", [4]),
        (f"{path}: opt-13b", [1]),
        (f"{path}: opt-30b", [1]),
    ]
