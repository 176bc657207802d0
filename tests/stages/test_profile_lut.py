"""Stage profile_lut: contract, metrics, determinism, refusal."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from pipeline.io import Inputs, Outputs
from ranloom.lut.table import Lut
from ranloom.mac.plant import decode_latency_us, plant_constants
from stages._cell import Base, plant_config
from stages.profile_lut import STAGE, Params


@pytest.fixture(scope="module")
def document(root):
    return YAML(typ="safe", pure=True).load((root / "params.yaml").read_text())


@pytest.fixture(scope="module")
def whole_base(document):
    return document["base"]


@pytest.fixture(scope="module")
def block(document):
    base = {key: document["base"][key] for key in ("card", "mcs_table", "n_layers")}
    return {**document["profile_lut"], "base": base}


def with_card(block, card):
    return {**block, "base": {**block["base"], "card": str(card)}}


def paths_of(root, block):
    return {
        "card": root / block["base"]["card"],
        "cards": root / "data/cards",
        "published": root / "data/published/weaver.yaml",
        "source": root / block["source_path"],
    }


def run(root, block, folder):
    inputs = Inputs(paths_of(root, block))
    return STAGE.run(Params(**block), inputs, Outputs(STAGE, folder)).metrics


def test_metrics_at_default_parameters(root, block, tmp_path):
    metrics = run(root, block, tmp_path)
    assert metrics["cells_published"] == 42
    assert metrics["model_cells_matched"] == 41
    assert metrics["model_min_margin_us"] >= 5.0
    assert metrics["published_cells_matched"] == 42
    assert metrics["table_cells_matched"] == 41
    assert metrics["envelope_cells_matched"] == 40
    assert metrics["infeasible_pairs"] == 11
    assert metrics["roofline"]["bg1_z128_ops_per_byte"] == pytest.approx(12 / 14)
    assert metrics["reservation"]["slowdown_16_over_48"] == pytest.approx(1.76, abs=0.005)
    # the two published slot times, 550 and 820 us, to which the overhead is fitted
    assert metrics["reservation"]["slot_us_48"] == pytest.approx(550, abs=15)
    assert metrics["reservation"]["slot_us_16"] == pytest.approx(820, abs=15)
    assert metrics["provenance"]["model"] == 29 * 273
    assert {"max_smu_pct", "max_acu_pct", "gbu_pct_min", "gbu_pct_max"} <= set(
        metrics["characterisation"]
    )


def test_tables_are_usable_and_reproducible(root, block, tmp_path):
    run(root, block, tmp_path / "a")
    run(root, block, tmp_path / "b")
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == sorted(output.file for output in STAGE.outputs.values())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    table = pq.read_table(tmp_path / "a" / "lut.parquet")
    model = json.loads((tmp_path / "a" / "model.json").read_text())
    lut = Lut.from_columns(table.to_pydict(), sm_count=model["sm_count"], carrier_prb=106)
    assert lut.lut_sm(15, 106) == 8
    assert model["sm_levels"] == [8, 16, 24, 32, 40, 48]
    # NumPy columns, as stages read them, give the same table
    columns = Inputs({"lut": tmp_path / "a" / "lut.parquet"}).columns("lut")
    again = Lut.from_columns(columns, sm_count=48, carrier_prb=106)
    assert (again.min_sm == lut.min_sm).all()


def test_published_backend(root, block, tmp_path):
    metrics = run(root, {**block, "backend": "published"}, tmp_path)
    assert metrics["table_cells_matched"] == 42
    assert metrics["provenance"]["published"] == 42


def test_another_card_has_no_published_cells(root, block, tmp_path):
    metrics = run(root, with_card(block, "data/cards/h200.yaml"), tmp_path)
    assert metrics["cells_published"] == metrics["model_cells_matched"] == 0
    # 132 SMs, but the ratio is still that of 16 and 48
    assert metrics["reservation"]["slowdown_16_over_48"] == pytest.approx(1.76, abs=0.005)
    ridge = metrics["roofline"]["ridge"]
    assert {name: round(value) for name, value in ridge.items()} == {
        "dgx_spark": 458,
        "gh200": 246,
        "h200": 206,
        "l40": 210,
        "l40s": 419,
    }


def test_the_latency_model_is_that_of_an_imported_profile(root, block, whole_base, tmp_path):
    """The simulated GPU is the one that was profiled; a log of one SM count needs a, k and b."""
    given = tuple(block[key] for key in ("a_us", "k_us_sm", "b_us", "p99_over_mean"))
    card = with_card(block, "docs/examples/gpu_card.yaml")
    imported = {**card, "backend": "import", "source_path": "docs/examples/gpu_profile.csv"}
    model = run(root, imported, tmp_path)["latency_model"]
    # what the example was made up from, rounded to whole microseconds
    tail_sigma = math.log(1.1) / 2.3263
    assert tuple(model.values()) == pytest.approx((180, 2.6, 0.008, 1.1, tail_sigma), rel=0.02)
    written = json.loads((tmp_path / "model.json").read_text())
    assert {key: written[key] for key in model} == model
    base = Base(**{name: whole_base[name] for name in Base.model_fields})
    plant = plant_constants(plant_config(base, written), 500)
    drawn = [decode_latency_us(2816, 32, 7, k, plant) for k in range(40_000)]
    p50, p99 = np.quantile(drawn, [0.5, 0.99])
    assert (p50, p99) == pytest.approx((431.3 / 1.1, 431.3), rel=0.01)  # 180 + 2.6 W / 32 + .008 W
    kept = run(root, {**imported, "fit_source": False}, tmp_path)["latency_model"]
    assert tuple(kept.values()) == given
    written = json.loads((tmp_path / "model.json").read_text())
    assert plant_config(base, written).tail_sigma == base.plant.tail_sigma

    log = tmp_path / "run.log"
    log.write_text(
        "[ULSIM]: num_rbs: 25\n[ULSIM]: MCS: 9, mod order: 2, code_rate: 6790\n"
        "|__ ULSCH total decoding time  300.00 us (10 trials)\n"
    )
    logged = {**block, "backend": "import", "source_path": str(log)}
    (fault,) = STAGE.check(Params(**logged), paths_of(root, logged))
    assert "run.log: latencies: '1 SM count(s), 1 size(s) of work'" in fault.line()
    assert fault.line().endswith("or fit_source: false to keep those of the parameters")
    fixed = {**logged, "fit_source": False}
    assert list(STAGE.check(Params(**fixed), paths_of(root, fixed))) == []


def test_check_finds_faults_without_running(root, block, tmp_path):
    def faults(changed):
        return [f.line() for f in STAGE.check(Params(**changed), paths_of(root, changed))]

    assert faults(block) == []
    bad_card = tmp_path / "card.yaml"
    text = (root / "data/cards/dgx_spark.yaml").read_text()
    bad_card.write_text(text.replace("sm_count: 48", "sm_count: 50"))
    (line,) = faults(with_card(block, bad_card))
    assert "sm_count: 50 is not usable; allowed: a multiple of sm_step (8)" in line
    (line,) = faults({**with_card(block, "data/cards/h200.yaml"), "backend": "published"})
    assert "backend published: card, MCS table: ('H200', 1)" in line
    (line,) = faults({**block, "n_symbols": 1, "n_dmrs_per_prb": 12})
    assert "n_dmrs_per_prb: 12" in line
    (line,) = faults({**block, "max_prb": 20})
    assert "profile_lut.characterise_from_prb: 50 is not usable; allowed: up to" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [("backend", "gpu"), ("budget_us", 0), ("percentile", 95), ("n_oh", 5), ("a_us", "fast")],
)
def test_bad_parameters_are_refused(block, key, value):
    with pytest.raises(ValidationError, match=key):
        Params(**{**block, key: value})
