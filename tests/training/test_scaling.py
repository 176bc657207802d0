"""Networks and rates of large deployments."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.baselines.confidant import Confidant
from ranloom.training.baselines.policy import Reaction
from ranloom.training.capacity_traces import draw_traces, trace_pool, with_drops
from ranloom.training.links import read_links
from ranloom.training.model_shapes import layer_costs, model_shape
from ranloom.training.placement import PlacementProblem
from ranloom.training.scaling import (
    StarTopology,
    replicated,
    rescaled_links,
    single_pipeline,
)

STAR = StarTopology(32, 25.0, 1.0, 400.0, 20.0, 10.0)


def test_the_star_has_peers_near_and_cores_between_the_rest():
    links = STAR.links(70)
    assert links.bandwidth_gbps[0, 31] == 10.0
    assert links.bandwidth_gbps[0, 32] == 25.0
    assert links.latency_s[0, 31] == pytest.approx(0.002)
    assert links.latency_s[0, 69] == pytest.approx(0.022)
    assert links.coordinator_latency_s == pytest.approx(np.full(70, 0.001))


def test_rescaling_keeps_the_measured_links(root):
    testbed = read_links(root / "data/links/testbed.yaml")
    links = rescaled_links(testbed, 24)
    assert links.bandwidth_gbps[0, 1] == links.bandwidth_gbps[8, 9] == 11.0
    assert links.bandwidth_gbps[0, 9] == 11.0
    assert links.bandwidth_gbps[3, 11] == pytest.approx(1.0)
    assert np.isinf(np.diag(links.bandwidth_gbps)).all()


def case(sites: int, memory: float = 43e9) -> PlacementProblem:
    links = STAR.links(sites)
    return PlacementProblem(
        sites=tuple(range(sites)),
        seconds_per_flop=np.full(sites, 1.0 / 150e12),
        memory_bytes=np.full(sites, int(memory)),
        activation=links,
        sync=links,
        step_samples=2048,
        tied=True,
        fanout=2,
        chunks=16,
    )


def costs_of(samples: int):
    return layer_costs(model_shape("opt-13b"), samples, 512, unmerged_limit=8)


def test_more_sites_train_faster_but_less_than_in_proportion():
    rates = [replicated(case(n), costs_of, 512, [8, 16, 40], [1, 4]) for n in (64, 128, 256)]
    assert not any(point.oom for point in rates)
    speeds = [point.tokens_per_s for point in rates]
    assert speeds[0] < speeds[1] < speeds[2]
    assert speeds[2] < 4.0 * speeds[0]
    compute = 256 * 150e12 / model_shape("opt-13b").step_flop(1, 512)
    assert speeds[2] < compute


def test_small_memories_are_reported_as_such():
    point = replicated(case(64, memory=1e9), costs_of, 512, [8, 16, 40], [1])
    assert point.oom
    assert point.tokens_per_s == 0.0
    assert point.peak_bytes > 1e9
    confidant = Confidant([1], 2048, 0.8, Reaction(1.3, 1.0, 1.0, 1.0))
    assert single_pipeline(case(64, memory=1e9), costs_of, 512, [8, 40], confidant).oom
    with pytest.raises(InputError, match="up to 4"):
        replicated(case(4), costs_of, 512, [8], [1])


def spare_columns() -> dict[str, np.ndarray]:
    rows = [
        (scenario, controller, "mps" if controller == "yinyangran" else "green_context", site, s)
        for scenario in ("a", "b")
        for controller in ("weaver", "yinyangran")
        for site in (0, 1)
        for s in range(10)
    ]
    names = ("scenario", "controller", "mechanism", "site", "second")
    columns = {n: np.array([row[i] for row in rows]) for i, n in enumerate(names)}
    columns["usable_tflops"] = np.arange(len(rows), dtype=np.float64)
    return columns


def test_traces_are_drawn_independently_and_alike_for_every_system():
    spare = spare_columns()
    weaver = trace_pool(spare, ["a", "b"], "weaver", "green_context")
    other = trace_pool(spare, ["a", "b"], "yinyangran", "mps")
    assert [len(t) for t in weaver] == [10] * 4
    drawn = draw_traces(weaver, 6, 25, seed=4)
    assert drawn.shape == (6, 25)
    assert (drawn[:, :5] == drawn[:, 10:15]).all(), "a short trace is repeated"
    assert len({tuple(row) for row in drawn}) > 1
    assert (draw_traces(weaver, 6, 25, seed=4) == drawn).all()
    assert (draw_traces(weaver, 4, 25, seed=4) == drawn[:4]).all()
    shifted = draw_traces(other, 6, 25, seed=4) - drawn
    assert (shifted == 20.0).all(), "same sites, same seconds, other system"


def test_missing_and_impossible_traces_are_named():
    spare = spare_columns()
    with pytest.raises(InputError, match="occur together"):
        trace_pool(spare, ["a"], "weaver", "mps")
    spare["usable_tflops"][3] = np.nan
    with pytest.raises(InputError, match="site 0"):
        trace_pool(spare, ["a"], "weaver", "green_context")


def test_drops_only_take_away():
    base = np.full((4, 50), 10.0)
    dropped = with_drops(base, 7, (0.1, 0.5), (2, 6), seed=1)
    assert (dropped <= base).all()
    assert (dropped >= 0.0).all()
    assert (dropped < base).any()
    assert (base == 10.0).all()
