from dataclasses import replace

import numpy as np
import pytest
import torch

from ranloom.errors import InputError
from ranloom.federated.cutoff import CutOff
from ranloom.federated.experiment import JobSetup, Network
from ranloom.federated.lora_model import SmallOpt, SmallShape
from ranloom.federated.quality import (
    STRATEGIES,
    Training,
    pretrained,
    run_strategy,
    summary,
)
from ranloom.federated.radio import CellRates
from ranloom.federated.rounds import Job, UeClass
from ranloom.federated.text_task import (
    TOPICS,
    generate,
    read_texts,
    split_by_class,
    write_texts,
)
from ranloom.federated.transfers import Shipping
from tests.federated.builders import CONFIG
from tests.federated.test_rounds import BEHAVIOUR


@pytest.fixture(scope="module")
def task(root):
    return read_texts(root / "data" / "text" / "topics.tsv", 64, 8, 240)


@pytest.fixture(scope="module")
def model(task):
    return pretrained(task, 2, 24, 2, 4, 150, 5)


def test_the_file_in_the_repository_is_what_the_generator_writes(root, tmp_path):
    write_texts(tmp_path / "topics.tsv", generate(**TOPICS))
    assert (tmp_path / "topics.tsv").read_bytes() == (root / "data/text/topics.tsv").read_bytes()


def test_texts_as_read(task, tmp_path):
    assert (task.labels, task.train.shape, task.test.shape) == (6, (3000, 8), (240, 8))
    assert task.vocabulary == 6 + 2 + 64
    assert task.train.min() == 8  # no padding, no unknown word in the training rows
    rows = "sentence\tlabel\n" + "b a a\t0\nc b a a a a\t1\n" * 40 + "zz a\t0\na\t1\n"
    (tmp_path / "t.tsv").write_text(rows)
    tiny = read_texts(tmp_path / "t.tsv", 2, 4, 2)
    # labels 0 1, padding 2, unknown 3, then a (most frequent) 4, b 5
    assert tiny.train[0].tolist() == [2, 5, 4, 4]
    assert tiny.train[1].tolist() == [4, 4, 4, 4]
    assert tiny.test.tolist() == [[2, 2, 3, 4], [2, 2, 2, 4]]


def test_sst2_rows_are_read(shared_data):
    sst2 = read_texts(shared_data / "text" / "sst2_alps_dev.tsv", 2000, 24, 500)
    assert sst2.labels == 2
    assert len(sst2.train) > 6000
    assert 0.4 < sst2.test_labels.mean() < 0.6


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "No such file"),
        ("", "row 1"),
        ("text\tlabel\n", "row 1"),
        ("sentence\tlabel\na b\t0\na b\n", "row 3"),
        ("sentence\tlabel\na b\tgood\n", "row 2"),
        ("sentence\tlabel\na b\t-1\n", "row 2"),
        ("sentence\tlabel\na b\t999\n", "row 2"),
        ("sentence\tlabel\n" + "a\t0\nb\t1\n" * 10, "20 rows"),
        ("sentence\tlabel\n" + "a\t0\n" * 100, "label"),
        ("sentence\tlabel\n" + "a\t0\na\t2\n" * 50, "label"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_unusable_texts_are_refused_by_name(tmp_path, content, named):
    path = tmp_path / "texts.tsv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=named) as refused:
        read_texts(path, 16, 4, 10)
    assert "texts.tsv" in str(refused.value)


def test_slow_devices_hold_the_last_labels(task):
    slow = np.array([True, False] * 20)
    shares = split_by_class(task, np.full(40, 500), slow, 2, 0.9, [1])
    again = split_by_class(task, np.full(40, 500), slow, 2, 0.9, [1])
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))
    for is_slow in (True, False):
        mine = np.concatenate([s for s, k in zip(shares, slow, strict=True) if k == is_slow])
        own = (task.train_labels[mine] >= 4) == is_slow
        assert own.mean() == pytest.approx(0.9, abs=0.01)


def test_batched_training_is_each_ue_by_itself(task, model):
    rng = np.random.default_rng(3)
    picked = rng.integers(0, 3000, (3, 4, 5))
    factors = model.initial_factors(1)
    together = model.train(factors, task.train[picked], task.train_labels[picked], 6, 0.03)
    for ue in range(4):
        alone = model.train(
            factors,
            task.train[picked][:, ue : ue + 1],
            task.train_labels[picked][:, ue : ue + 1],
            6,
            0.03,
        )
        assert np.max(np.abs(together[ue] - alone[0])) < 1e-9
    assert np.abs(together).max() > 1e-3


def test_lora_is_a_low_rank_change_of_the_weights(task, model):
    """Answers with factors equal those of a model whose weights are W + B A."""
    layout = model.shape.layout()
    factors = np.random.default_rng(2).standard_normal(layout.elements) * 0.1
    arrays = layout.unflatten(factors)
    merged = SmallOpt(model.shape, 0)
    merged.base = dict(model.base)
    for layer in range(model.shape.layers):
        for name in model.shape.linears():
            change = arrays[f"{layer}.{name}.lora_B"] @ arrays[f"{layer}.{name}.lora_A"]
            key = f"{layer}.{name}"
            merged.base[key] = model.base[key] + torch.from_numpy(change)
    ids = torch.from_numpy(task.test)[None]
    own = {n: torch.from_numpy(a)[None] for n, a in arrays.items()}
    with torch.no_grad():
        low_rank = model._answers(ids, own, 6)
        zeros = {n: torch.zeros_like(a) for n, a in own.items()}
        dense = merged._answers(ids, zeros, 6)
        plain = model._answers(ids, zeros, 6)
    assert torch.allclose(low_rank, dense, atol=1e-10)
    assert not torch.allclose(low_rank, plain, atol=1e-3)


def test_a_token_does_not_see_the_future():
    model = SmallOpt(SmallShape(2, 8, 2, 20, 6, 2), 1)
    ids = torch.arange(6)[None, None]
    other = ids.clone()
    other[..., -1] = 19
    with torch.no_grad():
        one, two = (model._hidden(x, None) for x in (ids, other))
    assert torch.equal(one[..., :-1, :], two[..., :-1, :])
    assert not torch.equal(one[..., -1, :], two[..., -1, :])


def run_all(task, model, rounds, period_s, strategies=STRATEGIES):
    gnbs = 2
    network = Network(
        ("gnb_00", "gnb_01"),
        ((1,), (0,)),
        CellRates(np.full((gnbs, 2, 5), 25.0), np.full(gnbs, 2), np.zeros(gnbs, np.int64)),
    )
    behaviour = replace(
        BEHAVIOUR,
        classes=(UeClass("fast", 0.5, 20.0, 0.1), UeClass("slow", 0.5, 80.0, 0.1)),
        samples=replace(BEHAVIOUR.samples, sigma=0.2),
    )
    job = Job("quality", rounds, 0.0, period_s, period_s, 4, 4_000_000, 4_000_000)
    config = replace(CONFIG, cut_off=CutOff("fixed", 0.0, period_s, 1.0, 0.0))
    setup = JobSetup(job, config, "fp32", Shipping("fp32", 4, 10**6, 1.0, period_s, 8))
    training = Training(steps=5, rows=6, rate=0.05, skew=1.0, slow_labels=2)
    return [
        run_strategy(s, setup, network, behaviour, training, task, model, [9, 1, 1], 0)
        for s in strategies
    ]


@pytest.fixture(scope="module")
def curves(task, model):
    return run_all(task, model, 10, 45.0)


def test_without_late_updates_dropping_and_carrying_over_coincide(task, model):
    drop, carry, discount = run_all(task, model, 2, 150.0, STRATEGIES[1:])
    assert drop.accuracy == carry.accuracy == discount.accuracy
    assert drop.updates == carry.updates == discount.updates


def test_every_round_equals_flat_averaging(curves):
    assert all(c.worst_error < 1e-12 for c in curves)
    assert any(c.worst_error > 0.0 for c in curves)


def test_dropping_late_updates_costs_the_labels_of_slow_devices(curves):
    final = {c.strategy: c.at(450.0) for c in curves}
    rounds = {c.strategy: c.round_s for c in curves}
    assert rounds["drop"] == rounds["carry_over"] == 45.0 < rounds["wait"]
    assert final["drop"][1] < 0.05  # no slow update ever counts
    assert final["carry_over"][1] > final["drop"][1] + 0.1
    assert final["carry_over"][1] >= final["carry_discount"][1]
    assert final["carry_over"][0] > final["drop"][0]


def test_curves_run_over_the_whole_horizon(curves):
    for curve in curves:
        assert curve.time_s[0] == 0.0
        assert list(curve.time_s) == sorted(curve.time_s)
        assert curve.time_s[-1] >= 450.0 or curve.strategy == "wait"
        assert curve.updates[0] == 0
    waits = curves[0]
    assert len(waits.time_s) < len(curves[1].time_s)
    assert waits.accuracy[-1] > waits.accuracy[0]


def test_summary_is_the_mean_over_seeds(curves):
    other = [replace(c, accuracy=tuple(a / 2 for a in c.accuracy), seed=1) for c in curves]
    figures = summary([*curves, *other], 450.0)
    for curve in curves:
        mine = figures[curve.strategy]
        assert mine["accuracy"] == pytest.approx(0.75 * curve.at(450.0)[0])
        assert mine["slow_class_accuracy"] == pytest.approx(curve.at(450.0)[1])
        assert mine["accuracy_sd"] == pytest.approx(0.25 * curve.at(450.0)[0])


def test_an_unknown_strategy_is_refused(curves, task, model):
    with pytest.raises(InputError, match="never"):
        run_strategy("never", None, None, None, None, task, model, [1], 0)
