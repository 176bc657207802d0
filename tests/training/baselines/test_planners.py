"""Planners of the baselines against brute force on small cases."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.baselines.asteroid import Asteroid, plan_rounds, round_latency
from ranloom.training.baselines.confidant import (
    Confidant,
    ConfidantStar,
    bottleneck_cut,
    linked_chain,
)
from ranloom.training.baselines.diloco import Diloco
from ranloom.training.baselines.dtfm import (
    Dtfm,
    bottleneck_matching,
    communication_cost,
    shortest_path,
)
from ranloom.training.baselines.policy import Baseline, Reaction
from ranloom.training.baselines.static import StaticPipeline
from ranloom.training.costs import LayerCosts
from ranloom.training.links import Links
from ranloom.training.placement import PlacementProblem
from ranloom.training.simulator.comparison import BASELINES

REACTION = Reaction(slowdown=1.3, detect_s=2.0, plan_s=1.0, quiet_s=10.0)


def costs(layers: int, rng: np.random.Generator) -> LayerCosts:
    work = rng.uniform(1.0, 3.0, layers)
    one = np.ones(layers)
    return LayerCosts(work, 2 * work, one * 100, one * 10, one * 5, 1e8, unmerged_limit=0)


def problem(sites: int, rng: np.random.Generator, **changes) -> PlacementProblem:
    gbps = rng.uniform(0.5, 5.0, (sites, sites))
    latency = rng.uniform(0.0, 0.05, (sites, sites))
    np.fill_diagonal(gbps, np.inf)
    np.fill_diagonal(latency, 0.0)
    links = Links("random", gbps, latency, np.full(sites, 0.01))
    fields = {
        "sites": tuple(range(sites)),
        "seconds_per_flop": rng.uniform(0.1, 1.0, sites),
        "memory_bytes": np.full(sites, 10**9),
        "activation": links,
        "sync": links,
        "step_samples": 8,
        "tied": False,
        "fanout": 2,
        "chunks": 1,
    }
    return PlacementProblem(**{**fields, **changes})


@pytest.mark.parametrize("seed", range(12))
def test_confidant_cut_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    layers, sites = int(rng.integers(3, 9)), int(rng.integers(1, 4))
    model, case = costs(layers, rng), problem(sites, rng)
    work = model.forward_flop + model.backward_flop

    def slowest(cut):
        parts = [
            work[a:b].sum() * case.seconds_per_flop[stage]
            for stage, (a, b) in enumerate(pairwise(cut))
        ]
        hops = [
            2 * model.boundary_bytes * 8e-9 / case.activation.bandwidth_gbps[s - 1, s]
            for s in range(1, sites)
        ]
        return max(parts + hops), max(parts)

    cuts = [(0, *inner, layers) for inner in combinations(range(1, layers), sites - 1)]
    found_s, found = bottleneck_cut(case, model, case.sites)
    best, _ = min(slowest(cut) for cut in cuts)
    assert found_s == pytest.approx(best)
    assert slowest(found)[0] == pytest.approx(best)


def test_a_chain_follows_the_best_links():
    rng = np.random.default_rng(0)
    case = problem(4, rng)
    gbps = np.ones((4, 4))
    gbps[0, 2] = gbps[2, 0] = 9.0
    gbps[2, 1] = gbps[1, 2] = 5.0
    fast = Links("given", gbps, case.activation.latency_s, np.zeros(4))
    case = problem(4, rng, activation=fast)
    assert linked_chain(case, 0, 4) == (0, 2, 1, 3)
    assert linked_chain(case, 3, 2)[0] == 3


@pytest.mark.parametrize("seed", range(10))
def test_bottleneck_matching_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    case = problem(6, rng)
    first, second = (0, 1, 2), (3, 4, 5)

    def slowest(order):
        return max(
            max(case.activation.seconds(a, b, 1e8), case.activation.seconds(b, a, 1e8))
            for a, b in zip(first, order, strict=True)
        )

    found_s, partner = bottleneck_matching(first, second, case, 1e8)
    assert found_s == pytest.approx(min(slowest(order) for order in permutations(second)))
    assert slowest([second[column] for column in partner]) == pytest.approx(found_s)


@pytest.mark.parametrize("count", [2, 5, 7, 9])
def test_open_path_is_shortest_or_near_it(count):
    rng = np.random.default_rng(count)
    edge = rng.uniform(1.0, 5.0, (count, count))
    edge = (edge + edge.T) / 2
    path = shortest_path(edge)
    assert sorted(path) == list(range(count))

    def length(order):
        return sum(edge[a, b] for a, b in pairwise(order))

    if count <= 7:
        assert length(path) == pytest.approx(min(length(p) for p in permutations(range(count))))
    else:
        assert length(path) <= length(range(count))


def test_dtfm_finds_the_best_partition_of_a_small_case():
    rng = np.random.default_rng(5)
    case, model = problem(4, rng), costs(4, rng)
    dtfm = Dtfm([8], REACTION, 10.0, population=20, trials=200, seed=1)
    plan = dtfm.plan(case, lambda _: model)
    assert plan.forward_first

    def cost(groups):
        gradient = float(model.gradient_bytes.sum()) / len(groups)
        return communication_cost(groups, case, gradient, model.boundary_bytes)[0]

    if plan.layout.stages == 2:
        found = tuple(plan.layout.pool(stage) for stage in range(2))
        everything = [
            (group, tuple(sorted(set(range(4)) - set(group))))
            for group in combinations(range(4), 2)
        ]
        assert cost(found) == pytest.approx(min(cost(groups) for groups in everything))
    used = sorted(site for lane in plan.layout.lanes for site in lane)
    assert used == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(8))
def test_asteroid_is_never_worse_than_any_plan_its_recursion_can_build(seed):
    rng = np.random.default_rng(seed)
    layers, devices, rounds = 4, 3, 6
    work = rng.uniform(1.0, 3.0, layers)
    flops = rng.uniform(0.5, 2.0, devices)
    link = np.append(rng.uniform(0.1, 1.0, devices - 1), 0.0)
    found, splits = plan_rounds(
        work,
        2 * work,
        np.ones(layers),
        np.zeros(layers),
        flops,
        np.full(devices, 1e9),
        link,
        np.ones(devices),
        rounds,
    )
    assert splits[:, 0].sum() == layers
    assert splits[:, 1].sum() == devices
    single = 3 * work.sum() / flops.sum() * rounds
    assert found <= single * (1 + 1e-9)
    chain = [
        _chain_latency(work, flops, link, cut, rounds)
        for cut in combinations(range(1, layers), devices - 1)
    ]
    assert found <= 1.3 * min(chain)


def _chain_latency(work, flops, link, cut, rounds):
    bounds = (0, *cut, len(work))
    forward, both = [], []
    for stage, (a, b) in enumerate(pairwise(bounds)):
        forward.append(work[a:b].sum() / flops[stage])
        both.append(3 * work[a:b].sum() / flops[stage])
        if stage + 2 < len(bounds):
            forward.append(link[stage])
            both.append(2 * link[stage])
    zero = np.zeros(len(both))
    return round_latency(np.array(forward), np.array(both), zero, rounds)


def test_round_latency_by_hand():
    forward = np.array([1.0, 0.5, 2.0])
    both = np.array([3.0, 1.0, 6.0])
    reduce_s = np.array([0.0, 0.0, 4.0])
    # dominant step: the last one, 5 x 6 = 30; it still waits 1.5 for its first input and reduces
    assert round_latency(forward, both, reduce_s, 5) == pytest.approx(1.5 + 30.0 + 4.0)


def make(name: str) -> Baseline:
    if name == "static":
        return StaticPipeline([2, 4])
    if name == "dtfm":
        return Dtfm([2, 4], REACTION, 10.0, 10, 20, 1)
    if name == "asteroid":
        return Asteroid([2, 4], REACTION)
    if name == "diloco":
        return Diloco([2, 4], 2)
    kind = Confidant if name == "confidant" else ConfidantStar
    return kind([2, 4], 32, 0.8, REACTION)


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_plans_a_layout_that_fits_and_is_deterministic(name):
    rng = np.random.default_rng(3)
    case, model = problem(4, rng), costs(6, rng)
    plans = [make(name).plan(case, lambda _: model) for _ in range(2)]
    assert plans[0] == plans[1]
    plan = plans[0]
    assert plan.layout.boundaries[-1] == 6
    assert plan.layout.vacant_stages() == ()
    assert plan.window >= 1
    assert plan.unmerged_limit == 0
    assert (model.stage_bytes(plan.layout, plan.window) <= 1e9).all()
    assert make(name).name == name


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_refuses_what_fits_nowhere(name):
    rng = np.random.default_rng(3)
    case = problem(4, rng, memory_bytes=np.full(4, 10))
    with pytest.raises(InputError):
        make(name).plan(case, lambda _: costs(6, rng))


def test_answers_to_a_slow_site():
    rng = np.random.default_rng(4)
    case, model = problem(3, rng, step_samples=4), costs(9, rng)
    slow = case.seconds_per_flop.copy()
    slow[1] *= 20
    assert StaticPipeline([2]).adapt(None, case, model, slow) is None
    dtfm = make("dtfm")
    restart = dtfm.adapt(dtfm.plan(case, lambda _: model), case, model, slow)
    assert restart.loses_step
    assert restart.boundaries is None
    assert restart.stall_s > REACTION.detect_s + REACTION.plan_s
    chain = problem(3, rng, least_sites=3)
    confidant = make("confidant")
    plan = confidant.plan(chain, lambda _: model)
    moved = confidant.adapt(plan, chain, model, slow)
    assert not moved.loses_step
    old, new = plan.layout, plan.layout.with_boundaries(0, moved.boundaries)
    stage = old.place_of(1)[1]
    assert len(new.layers(stage)) < len(old.layers(stage)) or len(old.layers(stage)) == 1
