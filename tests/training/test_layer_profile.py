"""Times of layers: by a card, from a file, measured; and what the simulator makes of them."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training import layer_profile, layer_timing
from ranloom.training.__main__ import main
from ranloom.training.layer_profile import (
    COLUMNS,
    LAYERS,
    LayerProfile,
    ProfiledLayers,
    card_profile,
    read_profile,
    write_profile,
)
from ranloom.training.layer_timing import Repetitions, measure_layers
from ranloom.training.model_shapes import ModelShape, layer_costs, model_shape
from ranloom.training.opt_model import ModelConfig

HEADER = ",".join(COLUMNS)
GOOD = "opt-125m,block,2,64,3.0,6.0"


def test_a_file_written_from_a_card_gives_the_costs_of_the_card(tmp_path):
    names, rate = ("opt-125m", "opt-1.3b"), 217.23
    shapes = [model_shape(name) for name in names]
    path = tmp_path / "layers.csv"
    write_profile(path, card_profile(shapes, (1, 4), (64, 512), rate, {"device": "some card"}))
    read = read_profile(path)
    assert read.how == {"device": "some card"}
    for shape in shapes:
        for samples, sequence in ((1, 64), (4, 512)):
            plain = layer_costs(shape, samples, sequence)
            found = ProfiledLayers(read, rate).costs(plain, shape, samples, sequence)
            np.testing.assert_allclose(found.forward_flop, plain.forward_flop, rtol=1e-14)
            np.testing.assert_allclose(found.backward_flop, plain.backward_flop, rtol=1e-14)
            assert found.weight_bytes is plain.weight_bytes


def test_layers_take_the_time_of_the_profile_on_a_free_device():
    times = {
        ("opt-125m", "embedding", 2, 64): (0.001, 0.002),
        ("opt-125m", "block", 2, 64): (0.010, 0.025),
        ("opt-125m", "head", 2, 64): (0.100, 0.150),
    }
    shape = model_shape("opt-125m")
    profiled = ProfiledLayers(LayerProfile(times, "here"), usable_tflops=50.0)
    costs = profiled.costs(layer_costs(shape, 2, 64), shape, 2, 64)
    forward_s, backward_s = costs.forward_flop / 50e12, costs.backward_flop / 50e12
    np.testing.assert_allclose(forward_s, [0.011, *[0.010] * 10, 0.110])
    np.testing.assert_allclose(backward_s, [0.027, *[0.025] * 10, 0.175])
    with pytest.raises(InputError, match=r"here: \('opt-125m', 'embedding', 4, 64\)"):
        profiled.costs(layer_costs(shape, 4, 64), shape, 4, 64)


def test_a_profile_says_for_which_micro_batches_it_is_complete(tmp_path):
    path = tmp_path / "layers.csv"
    row = GOOD.replace("block", "embedding").replace("3.0", "0")
    path.write_text(f"{HEADER}\n{GOOD}\n{row}\n\n{GOOD}\n")  # twice, but alike
    incomplete = read_profile(path)
    assert len(incomplete.times) == 2
    assert not incomplete.has("opt-125m", 2, 64)
    whole = card_profile([model_shape("opt-125m")], [2], [64], 1.0, {})
    assert whole.has("opt-125m", 2, 64)
    assert not whole.has("opt-125m", 2, 128)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER.replace(",sequence", ""), "['sequence']"),
        (HEADER.replace("forward_ms", "forward_us"), "needed: forward_ms, in milliseconds"),
        (HEADER.replace("backward_ms", "backward"), "needed: backward_ms, in milliseconds"),
        (HEADER, "no data row"),
        ("", "needed columns"),
        (f"{HEADER}\n{GOOD.replace('3.0', 'fast')}", "(data row 1): "),
        (f"{HEADER}\n{GOOD.replace(',6.0', '')}", "(data row 1): "),
        (f"{HEADER}\n{GOOD.replace('opt-125m', 'gpt')}", "model: 'gpt'"),
        (f"{HEADER}\n{GOOD.replace('block', 'attention')}", "layer: 'attention'"),
        (f"{HEADER}\n{GOOD.replace(',2,', ',0,')}", "from 1"),
        (f"{HEADER}\n{GOOD.replace('6.0', '-6.0')}", "above 0"),
        (f"{HEADER}\n{GOOD.replace('3.0', 'nan')}", "above 0"),
        (f"{HEADER}\n{GOOD.replace('3.0', '0')}", "above 0"),
        (f"{HEADER}\n{GOOD}\n{GOOD.replace('3.0', '4.0')}", "(data row 2): model, layer"),
        (f"{HEADER}\n{GOOD.replace('3.0', '0.0001')}", "would be 1.84e+04 TFLOPS"),
    ],
)
def test_bad_files_are_one_line(tmp_path, text, said):
    path = tmp_path / "layers.csv"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_profile(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_file_and_binary_data_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_profile(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="binary data"):
        read_profile(tmp_path / "binary.csv")


TINY = ModelShape("tiny", layers=2, width=64, heads=2, vocabulary=4096, positions=64)


def stages_that_take(embedding_s: float, block_s: float, head_s: float):
    """Times of a stage by its ends and depth; a backward pass takes twice as long."""

    def times(_model, first, end, *_):
        whole_s = (end - first) * block_s + (embedding_s if first == 0 else head_s)
        return whole_s, 2.0 * whole_s

    return times


def test_the_difference_of_two_depths_is_a_block(monkeypatch):
    monkeypatch.setattr(layer_timing, "_stage_times", stages_that_take(0.5, 2.0, 7.0))
    found = measure_layers(TINY, 2, 64, "float32", Repetitions())
    assert tuple(found) == LAYERS
    assert np.allclose(list(found.values()), [(0.5, 1.0), (2.0, 4.0), (7.0, 14.0)])


def test_an_embedding_within_the_scatter_counts_nothing_but_no_block_does(monkeypatch):
    monkeypatch.setattr(layer_timing, "_stage_times", stages_that_take(-0.1, 2.0, 7.0))
    assert measure_layers(TINY, 2, 64, "float32", Repetitions())["embedding"] == (0.0, 0.0)
    monkeypatch.setattr(layer_timing, "_stage_times", stages_that_take(0.5, -0.1, 7.0))
    with pytest.raises(InputError, match=r"tiny, 2 x 64: 'block -0.2 s.*needed: more runs"):
        measure_layers(TINY, 2, 64, "float32", Repetitions())


def test_each_stage_warms_up_and_runs_forward_and_backward(monkeypatch):
    """Every call of the clock is a second later, so that each pass takes one."""
    seconds = itertools.count()
    monkeypatch.setattr(layer_timing.time, "process_time", lambda: float(next(seconds)))
    model = ModelConfig(4, 64, 2, 256, 4096, 64, dtype="float32")
    for first, end in ((0, 1), (0, 3), (3, 4)):
        assert layer_timing._stage_times(model, first, end, 2, 8, Repetitions(2, 3)) == (1.0, 1.0)
    assert next(seconds) == 3 * 4 * (2 + 3)


@pytest.mark.parametrize(("sequence", "dtype"), [(1, "float32"), (65, "float32"), (64, "int8")])
def test_what_cannot_be_measured_is_refused(sequence, dtype):
    with pytest.raises(InputError, match="allowed"):
        measure_layers(TINY, 1, sequence, dtype, Repetitions())


@pytest.fixture
def profile_command(root, monkeypatch, capsys):
    """Runs the command in this process; returns exit code, output and error output."""
    monkeypatch.chdir(root)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["training", "profile", *args])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return left.value.code, shown.out, shown.err

    return run


POINT = ("--model", "opt-125m", "--micro-batch", "2", "--sequence", "64")


def test_the_command_writes_what_it_measured(profile_command, monkeypatch, tmp_path):
    monkeypatch.setattr("ranloom.training.__main__.model_shape", lambda _: TINY)
    monkeypatch.setitem(layer_profile.SHAPES, "tiny", TINY)
    out = tmp_path / "new" / "layers.csv"
    code, shown, error = profile_command("--out", str(out), *POINT, "--repetitions", "7")
    assert code == 0, error
    read = read_profile(out)
    assert read.has("tiny", 2, 64)
    assert "float32" in read.how["device"]
    assert "median of 7 runs after 5" in read.how["times"]
    assert shown.count("\n") == 3


def test_the_command_writes_times_by_a_card(profile_command, tmp_path):
    out = tmp_path / "layers.csv"
    code, _, error = profile_command("--out", str(out), "--card", "data/cards/l40s.yaml", *POINT)
    assert code == 0, error
    shape = model_shape("opt-125m")
    found = read_profile(out).times["opt-125m", "block", 2, 64]
    assert found[0] == pytest.approx(shape.block_flop(128, 64) / (0.6 * 362.05e12))
    assert found[1] == pytest.approx(2.0 * found[0])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--model", "gpt"), "model: 'gpt'"),
        (("--card", "data/cards/l40s.yaml", "--efficiency", "1.5"), "--efficiency: 1.5"),
        (("--dtype", "int8"), "dtype: 'int8'"),
        (("--sequence", "4096"), "sequence: 4096"),
    ],
)
def test_bad_input_of_the_command_is_one_line(profile_command, tmp_path, more, said):
    point = POINT[:4] if more[0] == "--sequence" else POINT
    code, _, error = profile_command("--out", str(tmp_path / "x.csv"), *point, *more)
    assert code == 2
    assert error.startswith(said)
    assert error.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()
