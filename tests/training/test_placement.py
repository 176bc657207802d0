"""Closed form and placement."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.closed_form import estimate_step
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.links import read_links
from ranloom.training.placement import PlacementProblem, place
from ranloom.training.timing import stage_timing
from tests.training.worlds import even_links, layer_costs, run_to_the_end, small_world


def problem(sites: int, **changes) -> PlacementProblem:
    links = even_links(sites)
    fields = {
        "sites": tuple(range(sites)),
        "seconds_per_flop": np.full(sites, 1.0 / 40e12),
        "memory_bytes": np.full(sites, 10**10),
        "activation": links,
        "sync": links,
        "step_samples": 16,
        "tied": False,
        "fanout": 2,
        "chunks": 4,
    }
    return PlacementProblem(**{**fields, **changes})


def test_stage_timing_by_hand():
    layout = Layout(0, (0, 1, 2, 3), ((0, 1, 2), (3, 4, 5)))
    pace = np.array([1.0, 2.0, 1.0, 1.0, 2.0, 0.5])
    timing = stage_timing(
        layout, np.array([1.0, 1.0, 0.0]), np.array([2.0, 2.0, 3.0]), pace, 4, hop_s=0.5
    )
    assert timing.head_s == pytest.approx([0.0, 1.5, 4.0])
    # pools run at 2, 1 and 3 operations a second, 12 operations each
    assert timing.work_s == pytest.approx([6.0, 12.0, 4.0])
    assert timing.tail_s == pytest.approx([0.0, 2.5, 7.0])
    assert timing.step_s == pytest.approx(16.0)
    dead = stage_timing(
        layout, np.ones(3), np.ones(3), np.array([1, np.inf, 1, 1, np.inf, 1.0]), 4, 0.0
    )
    assert np.isinf(dead.step_s)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_closed_form_predicts_the_simulated_step(stages):
    """Even sites, fast links: events and closed form agree within 5 %."""
    world = small_world(stages=stages, replicas=2, layers=8, window=8, steal_gain=9.0)
    costs = layer_costs(8)
    layout = world.coordinator.layout
    links = even_links(2 * stages)
    pace = np.full(2 * stages, 1.0 / 40e12)
    found = estimate_step(
        layout, costs, pace, 8, 8, links, links, tied=stages > 1, fanout=2, chunks=1
    )
    run_to_the_end(world)
    opened = [t for t, n in world.record.notes if n.kind.value == "step_opened"]
    measured = np.diff(opened).mean()
    assert found.step_s == pytest.approx(measured, rel=0.05)


def test_sites_that_synchronise_are_put_where_the_links_are_fast(root):
    """With heavy gradients the pairs of the testbed become the pools of the stages."""
    links = read_links(root / "data/links/testbed.yaml")
    found = place(
        problem(8, activation=links, sync=links, least_replicas=2, least_sites=8),
        lambda _: layer_costs(4),
        [2],
    )
    pools = {frozenset(found.layout.pool(stage)) for stage in range(found.layout.stages)}
    assert pools == {frozenset(pair) for pair in ((0, 1), (2, 5), (3, 4), (6, 7))}


def test_exchanges_find_the_best_order_of_a_small_chain(root):
    links = read_links(root / "data/links/testbed.yaml")
    four = problem(4, activation=links, sync=links, least_sites=4)
    found = place(four, lambda _: layer_costs(4), [16])
    assert found.layout.stages == 4

    def step_s(order):
        layout = Layout(0, found.layout.boundaries, (order,))
        return estimate_step(
            layout, layer_costs(4), four.seconds_per_flop, 1, 1, links, links, False, 2, 4
        ).step_s

    best = min(step_s(order) for order in permutations(range(4)))
    assert found.estimate.step_s == pytest.approx(best, rel=0.02)


def test_shares_follow_the_rates_and_faster_sites_get_more_layers():
    pace = 1.0 / (np.array([40.0, 40.0, 10.0, 10.0]) * 1e12)
    found = place(
        problem(4, seconds_per_flop=pace, least_replicas=2, least_sites=4),
        lambda _: layer_costs(8),
        [2],
    )
    assert found.shares.sum() == pytest.approx(1.0)
    rate = {site: 40.0 if site < 2 else 10.0 for site in range(4)}
    for replica, lane in enumerate(found.layout.lanes):
        expected = np.mean(
            [
                rate[site] / sum(rate[other] for other in found.layout.pool(stage))
                for stage, site in enumerate(lane)
            ]
        )
        assert found.shares[replica] == pytest.approx(expected)


def test_a_model_that_fits_nowhere_is_refused():
    with pytest.raises(InputError, match="4 sites"):
        place(problem(4, memory_bytes=np.full(4, 10**6)), lambda _: layer_costs(4), [2])


def test_memory_narrows_the_window_before_it_rules_a_shape_out():
    costs = layer_costs(4)
    layout = regular_layout((0, 2, 4), 1)
    room = int(costs.stage_bytes(layout, 2).max())
    found = place(problem(2, memory_bytes=np.full(2, room), least_sites=2), lambda _: costs, [2])
    assert found.layout.stages == 2
    assert found.window == 2
