import math

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import payload_bytes
from ranloom.federated.shapes import ALL_LINEAR, MODEL_SHAPES, lora_layout, model_shape


@pytest.mark.parametrize(
    ("rank", "targets", "million_parameters", "fp16_mb"),
    [
        (16, ["q_proj", "v_proj"], 8.39, 16.8),
        (16, [ALL_LINEAR], 40.0, 80),
        (64, [ALL_LINEAR], 160, 320),
    ],
)
def test_llama_2_7b_update_sizes(rank, targets, million_parameters, fp16_mb):
    layout = lora_layout(model_shape("llama-2-7b"), rank, targets)
    assert layout.elements / 1e6 == pytest.approx(million_parameters, rel=1e-3)
    assert payload_bytes("fp16", layout.elements) / 1e6 == pytest.approx(fp16_mb, rel=2e-3)
    assert payload_bytes("fp32", layout.elements) == 4 * layout.elements


@pytest.mark.parametrize(
    ("name", "billion_parameters"),
    [
        ("opt-125m", 0.125),
        ("opt-1.3b", 1.316),
        ("opt-2.7b", 2.65),
        ("opt-6.7b", 6.66),
        ("opt-13b", 12.85),
        ("opt-30b", 30.0),
        ("opt-66b", 65.7),
    ],
)
def test_opt_dimensions_give_the_named_size(name, billion_parameters):
    shape = model_shape(name)
    blocks = shape.layers * sum(math.prod(linear) for linear in shape.linears().values())
    embedding = (50272 + 2048) * shape.hidden
    assert (blocks + embedding) / 1e9 == pytest.approx(billion_parameters, rel=0.01)


def test_opt_125m_query_value_by_hand():
    layout = lora_layout(model_shape("opt-125m"), 8, ["q_proj", "v_proj"])
    assert layout.elements == 12 * 2 * (8 * 768 + 768 * 8)
    first = layout.tensors[0]
    assert first.name == "model.decoder.layers.0.self_attn.q_proj.lora_A.weight"
    assert first.shape == (8, 768)
    assert layout.tensors[1].shape == (768, 8)


@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_every_model_has_a_layout_that_grows_with_rank(name):
    shape = model_shape(name)
    one, two = (lora_layout(shape, r, [ALL_LINEAR]).elements for r in (1, 2))
    assert two == 2 * one
    assert one == shape.layers * sum(map(sum, shape.linears().values()))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: model_shape("opt-3b"), "opt-3b"),
        (lambda: lora_layout(model_shape("toy"), 0, ["q_proj"]), "rank"),
        (lambda: lora_layout(model_shape("toy"), 65, ["q_proj"]), "rank"),
        (lambda: lora_layout(model_shape("toy"), 4, []), "targets"),
        (lambda: lora_layout(model_shape("toy"), 4, ["gate_proj"]), "gate_proj"),
        (lambda: lora_layout(model_shape("toy"), 4, ["q_proj", "q_proj"]), "targets"),
        (lambda: lora_layout(model_shape("toy"), 4, ["q_proj", ALL_LINEAR]), ALL_LINEAR),
        (lambda: TensorLayout.of([]), "layout"),
        (lambda: TensorLayout.of([("a", (2,)), ("a", (3,))]), "each tensor name once"),
        (lambda: TensorLayout.of([("a", (2, 0))]), "layout.a"),
    ],
)
def test_wrong_shapes_are_refused_by_name(call, named):
    with pytest.raises(InputError, match=named):
        call()


def test_layout_round_trip_and_digest():
    layout = TensorLayout.of([("a", (2, 3)), ("b", (4,))])
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": -np.arange(4.0)}
    back = layout.unflatten(layout.flatten(arrays))
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
    assert layout.digest != TensorLayout.of([("b", (4,)), ("a", (2, 3))]).digest
    assert layout.digest != TensorLayout.of([("a", (3, 2)), ("b", (4,))]).digest


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.zeros((2, 3))},
        {"a": np.zeros((3, 2)), "b": np.zeros(4)},
        {"a": np.zeros((2, 3)), "b": np.zeros(4), "c": np.zeros(1)},
    ],
)
def test_flatten_refuses_other_tensors(arrays):
    with pytest.raises(InputError):
        TensorLayout.of([("a", (2, 3)), ("b", (4,))]).flatten(arrays)
