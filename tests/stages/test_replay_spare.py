"""The stage on small hand-made traces: schema, ordering of mechanisms, metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import params as parameters
from pipeline.io import Inputs, Outputs
from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from stages import replay_spare
from stages._spare_params import Params
from stages._spare_reading import second_reading
from stages.replay_spare import STAGE


def make_paths(root: Path, tmp_path: Path) -> dict[str, Path]:
    """Two controllers, 4 s each: one that changes every 20 ms and one that never does."""
    slots = 8000
    busy = np.arange(0, slots, 40)
    tables = {
        "reservations": {
            "scenario": ["scenario_1"] * (busy.size + 1),
            "controller": ["noctrl"] * busy.size + ["weaver"],
            "cell": np.zeros(busy.size + 1, int),
            "slot": np.append(busy, 0),
            "sm": np.append(np.where(np.arange(busy.size) % 2, 24, 8), 16),
        },
        "scenarios": {
            "scenario": ["scenario_1"],
            "cell": [0],
            "slots": [slots],
            "slot_us": [500.0],
        },
        "cells": {
            "scenario": ["scenario_1"] * 2,
            "controller": ["noctrl", "weaver"],
            "cell": [0, 0],
            "decode_starts": [1600, 1600],
        },
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    found = {name: tmp_path / f"{name}.parquet" for name in tables}
    cards = {
        "card": root / "data/cards/dgx_spark.yaml",
        "training_card": root / "data/cards/l40s.yaml",
    }
    return found | cards


def parameters_with(root: Path, **changed: dict) -> Params:
    document = parameters.load(root / "params.yaml")
    block = document["replay_spare"]
    block["checks"]["trials"] = 200
    block["synthetic"] |= {"traces": 1, "sensitivity_traces": 1}
    block["steadiness"] |= {"duration_s": 2}
    block["steadiness"]["bursty"]["transitions"] = 480
    for name, values in changed.items():
        block[name].update(values)
    return parameters.build(STAGE, document)


def two_minutes_of_scenario_1(root: Path) -> dict:
    block = parameters.load(root / "params.yaml")["replay_spare"]["synthetic"]
    controllers = block["scenarios"]["scenario_1"]
    for statistics in controllers.values():
        statistics["transitions"] //= 5
    # Few changes are left, of which some shall still be packed into a burst.
    return {"duration_s": 120, "burst_share": 0.3, "scenarios": {"scenario_1": controllers}}


def run(root: Path, paths: dict[str, Path], folder: Path):
    values = parameters_with(root, synthetic=two_minutes_of_scenario_1(root))
    return STAGE.run(values, Inputs(paths), Outputs(STAGE, folder))


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory):
    """Metrics and tables of one run on the hand-made traces."""
    folder = tmp_path_factory.mktemp("replay_spare")
    metrics = run(root, make_paths(root, folder), folder / "out").metrics
    names = ("coexistence", "spare", "sensitivity")
    return metrics, {n: pq.read_table(folder / "out" / f"{n}.parquet") for n in names}


def test_rows_and_metrics(done) -> None:
    metrics, tables = done
    rows = tables["coexistence"].to_pylist()
    own = {(r["controller"], r["workload"]): r for r in rows if r["own"]}
    assert set(own) == {
        (c, w) for c in ("noctrl", "weaver") for w in ("gemm_chain", "training_step")
    }
    noctrl, weaver = own["noctrl", "training_step"], own["weaver", "training_step"]
    assert noctrl["transitions"] == 199
    assert weaver["transitions"] == weaver["violations"] == 0
    assert weaver["violation_pct"] == 0.0
    assert noctrl["violation_pct"] == 100 * noctrl["violations"] / 1600
    assert weaver["efficiency_pct"] > noctrl["efficiency_pct"]
    # 8 of 48 is 23.7 of 142, so 24; 24 of 48 is 71, so 72.
    assert noctrl["reservation_mean_sm"] == pytest.approx((24 + 72) / 2)
    # A chain of 2.75 TFLOP never fits between two changes 20 ms apart, though it runs in vain.
    assert own["noctrl", "gemm_chain"]["useful_tflops"] == 0.0
    assert own["weaver", "gemm_chain"]["useful_tflops"] > 0.0
    # So there is no ratio of chains, but one of training steps, whose tiles fit.
    assert {k: v for k, v in metrics["scenario_1"].items() if "_over_" in k} == {
        "training_ratio_weaver_over_noctrl": pytest.approx(
            weaver["useful_tflops"] / noctrl["useful_tflops"]
        )
    }
    assert weaver["executed_tflops"] == pytest.approx(weaver["useful_tflops"])
    assert metrics["scenario_1"]["weaver"]["tokens_per_s"] == weaver["tokens_per_s"]
    # The compared controller has a row under every mechanism.
    mechanisms = {r["mechanism"] for r in rows if r["controller"] == "weaver"}
    temporal, spatial = {"context_switch", "preemption"}, {"green_context", "mps", "mig"}
    assert mechanisms == temporal | spatial | {"mps_checkpoint"}


def test_power_is_that_of_the_spare_sms(done) -> None:
    own = {
        (r["controller"], r["workload"]): r for r in done[1]["coexistence"].to_pylist() if r["own"]
    }
    weaver = own["weaver", "training_step"]
    # 94 of 142 SMs of a card of 350 W, whatever they get done.
    assert weaver["power_w"] == pytest.approx(350 * 94 / 142)
    assert weaver["w_per_tflops"] * weaver["useful_tflops"] == pytest.approx(weaver["power_w"])
    assert own["noctrl", "gemm_chain"]["w_per_tflops"] == np.inf


@pytest.fixture(scope="module")
def cards(root: Path) -> tuple[Card, Card]:
    return load_card(root / "data/cards/dgx_spark.yaml"), load_card(root / "data/cards/l40s.yaml")


def test_second_reading_reproduces_published_ratios(root: Path, cards: tuple[Card, Card]) -> None:
    """One set of constants: within 25 % of 2.91 and 1.76, four times over yinyangran."""
    metrics = second_reading(parameters_with(root, synthetic={"traces": 5}), *cards)
    published = {"scenario_1": 2.91, "scenario_2": 1.76}
    for scenario, ratio in published.items():
        found = metrics[scenario]
        assert found["useful_ratio_weaver_over_noctrl"] == pytest.approx(ratio, rel=0.25)
        assert found["useful_ratio_weaver_over_yinyangran"] >= 4.0
        for name in ("useful_tflops", "with_loss_tokens_per_s"):
            ordered = [found[c][name] for c in ("weaver", "noctrl", "yinyangran")]
            assert ordered == sorted(ordered, reverse=True)
        assert found["weaver"]["efficiency_pct"] >= 80.0
        assert found["weaver"]["with_loss_efficiency_pct"] >= 80.0
        assert found["weaver"]["violations"] <= found["noctrl"]["violations"]
        # Without admission by the slot's end, about every growth meets a tile in flight.
        for controller in ("weaver", "noctrl"):
            growths = found[controller]["transitions"] / 2
            assert found[controller]["unbounded_violations"] == pytest.approx(growths, rel=0.06)
        assert found["noctrl"]["violations"] < 0.05 * found["noctrl"]["unbounded_violations"]
        assert found["noctrl"]["executed_tflops"] > 1.2 * found["noctrl"]["useful_tflops"]


def test_each_fitted_constant_matters(done) -> None:
    """What each of them is for: without it the ratio that it explains falls."""
    rows = {
        (r["constant"], r["setting"], r["workload"]): r for r in done[1]["sensitivity"].to_pylist()
    }
    as_set = rows["none", "as set", "gemm_chain"]
    for constant, ratio in (
        ("relaunch_us", "weaver_over_noctrl"),
        ("gemm_chain.tile_efficiency", "weaver_over_noctrl"),
        ("checkpoint_us", "weaver_over_yinyangran"),
    ):
        assert rows[constant, "without", "gemm_chain"][ratio] < 0.75 * as_set[ratio]
    assert (
        rows["burst_share", "without", "gemm_chain"]["weaver_over_noctrl"]
        != as_set["weaver_over_noctrl"]
    )
    step = rows["none", "as set", "training_step"]
    for constant in ("bandwidth_share", "dispatch_us", "jitter_sigma"):
        halved, doubled = (rows[constant, s, "training_step"] for s in ("halved", "doubled"))
        name = "noctrl_violations" if constant == "jitter_sigma" else "weaver_efficiency_pct"
        values = [halved[name], step[name], doubled[name]]
        assert values in (sorted(values), sorted(values, reverse=True))
        assert values[0] != values[2]


def test_steadiness_pays_for_what_is_not_tiled(done) -> None:
    found = done[0]["steadiness"]
    assert found["bursty"]["mean_sm"] == pytest.approx(16.9, rel=0.02)
    assert found["stable"] == found["stable"] | {"mean_sm": 16.0, "transitions": 0}
    ratio = {
        k: found["bursty"][f"{k}_tflops"] / found["stable"][f"{k}_tflops"]
        for k in ("whole_products", "tiles")
    }
    assert ratio["whole_products"] < 0.7
    assert 0.9 < ratio["tiles"] < 1.0


def test_checks_are_measured_on_both_types(root: Path, done) -> None:
    checks = done[0]["checks"]
    assert checks["trials"] == 400
    assert checks["detected_pct"] == 100.0
    assert checks["false_alarm_pct"] == 0.0
    small = replay_spare._checks(parameters_with(root, checks={"corruption_rms": 0.05}))
    assert small["float32"]["detected_pct"] == 100.0
    assert small["detected_pct"] == small["bfloat16"]["detected_pct"] < 10.0


def test_spare_per_second(done) -> None:
    spare = done[1]["spare"].to_pydict()
    assert spare["second"] == [0, 1, 2, 3] * 2
    assert spare["spare_sm"] == pytest.approx([142 - 48] * 4 + [142 - 48] * 4)
    rows = done[1]["coexistence"].to_pylist()
    for controller, mean in zip(
        ("noctrl", "weaver"), (spare["usable_tflops"][:4], spare["usable_tflops"][4:]), strict=True
    ):
        total = next(
            r["useful_tflops"]
            for r in rows
            if r["own"] and r["controller"] == controller and r["workload"] == "training_step"
        )
        assert np.mean(mean) == pytest.approx(total)


def test_broken_traces_are_named(root: Path, tmp_path: Path) -> None:
    paths = make_paths(root, tmp_path)
    table = pq.read_table(paths["reservations"]).to_pydict()
    table["sm"][3] = 56
    pq.write_table(pa.table(table), paths["reservations"])
    with pytest.raises(InputError, match="of scenario_1, noctrl, cell 0: row 3: sm: 56"):
        run(root, paths, tmp_path / "out")


def card_files(root: Path) -> dict[str, Path]:
    return {
        "card": root / "data/cards/dgx_spark.yaml",
        "training_card": root / "data/cards/l40s.yaml",
    }


def test_a_broken_card_is_found_by_check(root: Path, tmp_path: Path) -> None:
    values = parameters.build(STAGE, parameters.load(root / "params.yaml"))
    broken = tmp_path / "card.yaml"
    broken.write_text("name: x\n")
    for name in card_files(root):
        with pytest.raises(InputError, match=r"card\.yaml"):
            list(replay_spare.check(values, {**card_files(root), name: broken}))


def test_unknown_mechanism_is_found_by_check(root: Path) -> None:
    document = parameters.load(root / "params.yaml")
    document["replay_spare"]["mechanism_of"] = {"weaver": "magic"}
    values = parameters.build(STAGE, document)
    (fault,) = replay_spare.check(values, card_files(root))
    assert fault.where == "params.yaml: replay_spare.mechanism_of.weaver"
    assert fault.value == "magic"


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("tiling.tile_k", 1 << 20, ("tiling", "wave takes")),
        ("gemm_chain.tiling.tile_n", 1024, ("gemm_chain.tiling", "a slot 500 us")),
        ("synthetic.scenarios.scenario_1.noctrl.peak_sm", 56, ("noctrl.peak_sm", "0 to 48 SMs")),
        ("steadiness.bursty.quiet_sm", 50, ("steadiness.bursty.quiet_sm", "0 to 48 SMs")),
        ("synthetic.slot_us", 1e12, ("replay_spare.synthetic.slot_us", "the whole trace")),
        ("steadiness.stable_sm", 49, ("steadiness.stable_sm", "0 to 48 SMs")),
    ],
)
def test_what_no_device_can_have_is_found_by_check(
    root: Path, key: str, value: float, found: tuple[str, str]
) -> None:
    document = parameters.load(root / "params.yaml")
    *path, last = key.split(".")
    place = document["replay_spare"]
    for part in path:
        place = place[part]
    place[last] = value
    if key == "tiling.tile_k":
        document["replay_spare"]["tiling"] |= {"tile_m": 4096, "tile_n": 4096}
    faults = list(replay_spare.check(parameters.build(STAGE, document), card_files(root)))
    assert any(f.where.endswith(found[0]) and found[1] in f.allowed for f in faults)
    assert all(f.where.startswith("params.yaml: replay_spare.") for f in faults)


def test_scenario_without_its_comparison_is_found_by_check(root: Path) -> None:
    document = parameters.load(root / "params.yaml")
    del document["replay_spare"]["synthetic"]["scenarios"]["scenario_2"]["noctrl"]
    (fault,) = replay_spare.check(parameters.build(STAGE, document), card_files(root))
    assert fault.where == "params.yaml: replay_spare.synthetic.scenarios.scenario_2"
    assert "noctrl" in fault.allowed
