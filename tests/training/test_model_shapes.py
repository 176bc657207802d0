"""OPT shapes against published parameter counts, costs against a second count."""

from __future__ import annotations

import pytest

from ranloom.errors import InputError
from ranloom.training.layout import regular_layout
from ranloom.training.model_shapes import layer_costs, model_shape


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # Hugging Face checkpoints of OPT, tied embedding once
        ("opt-125m", 125_239_296),
        ("opt-1.3b", 1_315_758_080),
        ("opt-2.7b", 2_651_596_800),
        ("opt-6.7b", 6_658_473_984),
        ("opt-13b", 12_853_473_280),
        ("opt-30b", 29_974_540_288),
    ],
)
def test_parameters_equal_the_released_models(name, parameters):
    assert model_shape(name).parameters == parameters


def test_operations_are_six_a_parameter_and_token_plus_attention():
    shape = model_shape("opt-1.3b")
    tokens, sequence = 1024, 512
    matrices = shape.layers * 12 * shape.width**2 + shape.vocabulary * shape.width
    attention = 12.0 * shape.layers * sequence * shape.width
    assert shape.step_flop(tokens, sequence) == pytest.approx(tokens * (6 * matrices + attention))


def test_layer_costs_add_up_to_the_model():
    shape = model_shape("opt-125m")
    costs = layer_costs(shape, samples=2, sequence=64)
    work = costs.forward_flop.sum() + costs.backward_flop.sum()
    assert work == pytest.approx(shape.step_flop(128, 64))
    tied_copy = shape.vocabulary * shape.width
    assert costs.gradient_bytes.sum() == 2 * (shape.parameters + tied_copy)
    assert costs.tied_bytes == 2 * tied_copy
    assert costs.boundary_bytes == 2 * 128 * 768


def test_stage_work_moves_the_last_forward_pass_into_its_backward_task():
    costs = layer_costs(model_shape("opt-125m"), samples=1, sequence=64)
    forward, backward = costs.stage_flop(regular_layout((0, 6, 12), 1))
    assert forward[1] == 0.0
    assert forward.sum() + backward.sum() == pytest.approx(
        costs.forward_flop.sum() + costs.backward_flop.sum()
    )


def test_memory_counts_unmerged_gradients_up_to_the_limit():
    layout = regular_layout((0, 6, 12), 1)
    shape = model_shape("opt-125m")
    at_once = layer_costs(shape, 1, 64, unmerged_limit=0).stage_bytes(layout, 8)
    limited = layer_costs(shape, 1, 64, unmerged_limit=3).stage_bytes(layout, 8)
    free = layer_costs(shape, 1, 64).stage_bytes(layout, 8)
    gradient = layer_costs(shape, 1, 64).gradient_bytes
    assert limited - at_once == pytest.approx([3 * gradient[:6].sum(), 3 * gradient[6:].sum()])
    assert free - at_once == pytest.approx([8 * gradient[:6].sum(), 8 * gradient[6:].sum()])


def test_unknown_models_are_refused():
    with pytest.raises(InputError, match=r"opt-125m"):
        model_shape("opt-1t")
