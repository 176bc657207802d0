"""Any list of layers can be trained: whole, cut, moved, and on sites that fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from ranloom.errors import InputError
from ranloom.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ranloom.training.data import generate_text
from ranloom.training.layer_list import LayerListConfig, measure, model_of
from ranloom.training.runtime.chaos import HEAVY, SETTINGS, SMALL_SETUP, virtual_schedule
from ranloom.training.runtime.setup import layer_costs
from ranloom.training.runtime.virtual import VirtualRun

HERE = "tests.training.user_layers"
MODEL = LayerListConfig(f"{HERE}:recurrent", json.dumps({"width": 8, "blocks": 2}), layers=5)
SETUP = replace(SMALL_SETUP, model=MODEL)


def test_cut_layers_give_the_losses_of_the_whole():
    batch = generate_text(3, 8, 12).micro_batch([1, 4], step=2)
    whole = MODEL.stage(0, 5, seed=3)(None, batch)
    hidden = None
    for first, end in ((0, 1), (1, 4), (4, 5)):
        hidden = MODEL.stage(first, end, seed=3)(hidden, batch)
    assert torch.equal(hidden, whole)
    assert not torch.equal(MODEL.stage(0, 5, seed=3)(None, replace(batch, step=3)), whole)


def test_sizes_are_those_of_the_layers():
    sizes = measure(MODEL, 2, 12)
    assert sizes.shapes == ((2, 12, 8), (2, 12, 8), (2, 12, 8), (2, 12, 4), (2, 12, 256))
    assert sizes.forward_flop[-1] == 2 * 2 * 12 * 4 * 256
    assert MODEL.boundary_shapes(2, 12) == {(2, 12, 8), (2, 12, 4)}
    costs = layer_costs(SETUP)
    assert costs.gradient_bytes[-1] == 8 * (4 * 256 + 256)
    assert MODEL.parameter_shapes(4, 5) == {"layers.4.weight": (256, 4), "layers.4.bias": (256,)}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_trains_exactly_through_every_kind_of_fault(tmp_path, optimizer):
    setup = replace(SETUP, optimizer=replace(SETUP.optimizer, name=optimizer, learning_rate=0.01))
    settings = replace(SETTINGS, tied_embeddings=False, micro_batch_limit=24)
    config = virtual_schedule(3, tmp_path, HEAVY, setup, settings)
    result = VirtualRun(config, setup.workload("cpu")).run()
    assert result.proof.holds, result.proof
    assert result.happened["coordinator_crash"] + result.happened["death_with_work"] > 0


def test_its_checkpoint_comes_back(tmp_path):
    path = tmp_path / "list.safetensors"
    weights = {name: p.detach() for name, p in MODEL.stage(0, 5, seed=1).named_parameters()}
    save_checkpoint(path, Checkpoint(MODEL, 4, (0, 5), weights, {}))
    found = load_checkpoint(path)
    assert (found.model, found.version) == (MODEL, 4)
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"factory": "no_colon"}, "model.factory"),
        ({"factory": "no.such.module:build"}, "model.factory"),
        ({"factory": f"{HERE}:missing"}, "model.factory"),
        ({"arguments": "[]"}, "model.arguments"),
        ({"arguments": '{"depth": 3}'}, "model.factory"),
        ({"layers": 4}, "model.factory"),
        ({"layers": 0}, "model.layers"),
        ({"dtype": "int8"}, "model.dtype"),
        ({"factory": f"{HERE}:sharing", "arguments": '{"width": 8}', "layers": 3}, "model.factory"),
        ({"factory": f"{HERE}:unfitting", "arguments": '{"width": 8}', "layers": 2}, "layer 1"),
        ({"factory": f"{HERE}:without_logits", "arguments": '{"width": 8}', "layers": 2}, "last"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(change, where):
    with pytest.raises(InputError, match="allowed") as caught:
        measure(replace(MODEL, **change), 2, 12)
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_fields_of_a_model_are_refused():
    with pytest.raises(InputError, match="model"):
        model_of({"factory": "a:b", "width": 3})
