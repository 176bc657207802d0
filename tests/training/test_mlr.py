"""Rebalancing: the trigger, the boundaries, what has to be copied."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import NO_SITE, Layout, regular_layout
from ranloom.training.layout_change import transfers
from ranloom.training.mlr import DeferralTrigger, plan_boundaries, smallest_bottleneck
from ranloom.training.refill import fill_vacancies, rebuild
from ranloom.training.timing import stage_timing


def costs(layers: int, rng: np.random.Generator | None = None) -> LayerCosts:
    work = np.ones(layers) if rng is None else rng.uniform(0.5, 2.0, layers)
    one = np.ones(layers)
    return LayerCosts(work * 1e9, work * 2e9, one * 100.0, one * 10.0, one * 5.0, 1.0)


def all_cuts(layers: int, stages: int):
    for inner in combinations(range(1, layers), stages - 1):
        yield (0, *inner, layers)


def test_a_spike_does_not_fire_but_sustained_deferral_does():
    trigger = DeferralTrigger(threshold=0.3, weight=0.2, patience_steps=3)
    assert not trigger.observe(8, 10)
    assert not any(trigger.observe(0, 10) for _ in range(20))
    fired = [trigger.observe(6, 10) for _ in range(10)]
    assert fired.index(True) >= 3
    trigger.reset()
    assert trigger.average == 0.0
    assert not trigger.observe(6, 10)


def test_the_average_follows_its_recursion():
    trigger = DeferralTrigger(threshold=1.0, weight=0.25, patience_steps=1)
    expected = 0.0
    for deferred in (0, 4, 2, 8, 0):
        trigger.observe(deferred, 8)
        expected = 0.75 * expected + 0.25 * deferred / 8
        assert trigger.average == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(15))
def test_smallest_bottleneck_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    layers, stages = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    if stages > layers:
        stages = layers
    model = costs(layers, rng)
    rates = rng.uniform(0.5, 2.0, stages)
    room = rng.uniform(150.0, 900.0, stages)
    work = model.forward_flop + model.backward_flop
    size = model.layer_bytes(2)

    def bottleneck(cut):
        parts = [range(a, b) for a, b in pairwise(cut)]
        if any(
            size[list(part)].sum() + model.transit_bytes(2) > limit
            for part, limit in zip(parts, room, strict=True)
        ):
            return np.inf
        return max(work[list(p)].sum() / r for p, r in zip(parts, rates, strict=True))

    best = min(bottleneck(cut) for cut in all_cuts(layers, stages))
    found = smallest_bottleneck(model, rates, room, window=2)
    if np.isinf(best):
        assert found is None
    else:
        assert found is not None
        assert bottleneck(found) == pytest.approx(best)


@pytest.mark.parametrize(("layers", "tolerance"), [(8, 1.0), (26, 1.1)])
@pytest.mark.parametrize("seed", range(8))
def test_planned_boundaries_against_all_cuts(seed, layers, tolerance):
    """Few cuts: the best. Many (2,300 here): a local optimum close to it."""
    rng = np.random.default_rng(seed)
    model = costs(layers, rng)
    stages = 3 if layers == 8 else 4
    even = tuple(round(stage * layers / stages) for stage in range(stages + 1))
    layout = regular_layout(even, 2)
    pace = 1.0 / rng.uniform(1e9, 4e9, 2 * stages)
    memory = np.full(2 * stages, 10**6)

    def step_s(cut):
        moved = layout.with_boundaries(0, cut)
        return stage_timing(moved, *model.stage_flop(moved), pace, 6, 0.01).step_s

    found = plan_boundaries(layout, model, pace, memory, 6, 2, 0.01)
    best = min(step_s(cut) for cut in all_cuts(layers, stages))
    assert step_s(found) <= tolerance * best * (1 + 1e-12)


def test_no_cut_fits_small_memories():
    layout = regular_layout((0, 2, 4), 1)
    with pytest.raises(InputError, match="enough memory for 4 layers on 2 stages"):
        plan_boundaries(layout, costs(4), np.full(2, 1e-9), np.full(2, 50), 4, 2, 0.0)


def test_only_layers_that_cross_a_boundary_are_copied_from_the_own_replica():
    old = regular_layout((0, 3, 6), 2)
    new = old.with_boundaries(1, (0, 2, 6))
    found = [(t.target, t.source, t.stage, t.first_layer, t.end_layer) for t in transfers(old, new)]
    assert found == [(1, 0, 0, 2, 3), (3, 2, 0, 2, 3)]


def test_a_joining_site_copies_its_whole_stage_from_a_holder():
    old = Layout(0, (0, 3, 6), ((0, 1), (2, NO_SITE)))
    new = Layout(1, (0, 3, 6), ((0, 1), (2, 7)))
    found = [(t.target, t.source, t.first_layer, t.end_layer) for t in transfers(old, new)]
    assert found == [(7, 1, 3, 6)]


def test_spare_sites_fill_the_emptiest_stage_first_if_they_have_room():
    layout = Layout(4, (0, 3, 6), ((0, 1), (2, NO_SITE), (NO_SITE, NO_SITE)))
    need = np.array([100.0, 100.0])
    memory = np.full(12, 200)
    memory[9] = 50
    filled = fill_vacancies(layout, [9, 10, 11], need, memory)
    assert filled.lanes == ((0, 1), (2, 10), (11, NO_SITE))
    assert filled.epoch == 5


@pytest.mark.parametrize(
    ("alive", "stages"), [([0, 2, 3], 2), ([0, 4], 2), ([3], 1), ([1, 3, 5], 2), ([], None)]
)
def test_survivors_form_a_complete_layout(alive, stages):
    layout = regular_layout((0, 3, 6), 3)
    rebuilt = rebuild(layout, alive, costs(6), np.full(6, 1e-9), np.full(6, 10**6), 4, 2, 0.0)
    if stages is None:
        assert rebuilt is None
        return
    assert rebuilt is not None
    assert rebuilt.stages == stages
    assert rebuilt.vacant_stages() == ()
    assert list(rebuilt.sites()) == alive


def test_survivors_that_are_too_small_stall():
    layout = regular_layout((0, 3, 6), 1)
    assert rebuild(layout, [0], costs(6), np.full(2, 1e-9), np.full(2, 300), 4, 2, 0.0) is None
