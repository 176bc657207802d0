"""Conditions of the testbed: neutral ones change nothing, others do what they say."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from pipeline import params as parameters
from pipeline.io import Inputs
from stages import train_sites
from stages._train_orderings import NEUTRAL, flip_metrics, order_systems
from stages._train_sim import both, compare
from stages.train_sites import STAGE
from tests.stages.conftest import overlaid


def test_the_conditions_of_the_repository_are_neutral(root) -> None:
    document = parameters.load(root / "params.yaml")
    assert document["train_sites"]["conditions"] == NEUTRAL
    for condition, value in NEUTRAL.items():
        assert value in document["train_sites"]["orderings"][condition]


def test_neutral_conditions_change_nothing(block, paths) -> None:
    sites = train_sites.sites_of(STAGE.params(**block), Inputs(paths))
    for other in (sites, sites.under(**NEUTRAL)):
        plain = Inputs(paths).columns("spare")
        np.testing.assert_array_equal(other.spare["usable_tflops"], plain["usable_tflops"])
        measured = train_sites.read_links(paths["links"])
        np.testing.assert_array_equal(other.links.bandwidth_gbps, measured.bandwidth_gbps)
        np.testing.assert_array_equal(other.links.latency_s, measured.latency_s)
        coordinator_s = measured.coordinator_latency_s
        np.testing.assert_array_equal(other.links.coordinator_latency_s, coordinator_s)


def test_conditions_reach_the_sites(block, paths) -> None:
    asked = {"bandwidth_factor": 2.0, "added_latency_ms": 10.0, "spare_share": 0.5}
    plain = train_sites.sites_of(STAGE.params(**block), Inputs(paths))
    params = STAGE.params(**overlaid(block, {"conditions": asked}))
    sites = train_sites.sites_of(params, Inputs(paths))
    assert sites.links.bandwidth_gbps[0, 1] == 2.0 * plain.links.bandwidth_gbps[0, 1]
    assert sites.links.latency_s[0, 1] == pytest.approx(plain.links.latency_s[0, 1] + 0.01)
    ours, theirs = (one.traces(params, "weaver", 8, 20) for one in (sites, plain.under(**asked)))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(ours, 0.5 * plain.traces(params, "weaver", 8, 20))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bandwidth_factor", 0.0),
        ("bandwidth_factor", 1001.0),
        ("added_latency_ms", -1.0),
        ("added_latency_ms", 10_001.0),
        ("spare_share", 0.0),
        ("spare_share", 1.1),
    ],
)
def test_conditions_out_of_bounds_are_refused(block, key, value) -> None:
    for changes in ({"conditions": {key: value}}, {"orderings": {key: [value]}}):
        with pytest.raises(ValidationError, match=key):
            STAGE.params(**overlaid(block, changes))


def test_the_ordering_at_the_testbed_is_that_of_the_comparison(block, paths) -> None:
    ordered = {
        "model": "opt-125m",
        "systems": ["weaver", "static"],
        "bandwidth_factor": [0.1, 1],
        "added_latency_ms": [],
        "spare_share": [0.5, 1],
    }
    params = STAGE.params(**overlaid(block, {"orderings": ordered}))
    sites = train_sites.sites_of(params, Inputs(paths))
    assumptions = both(params)["published"]
    rows = order_systems(params, assumptions, sites)
    rates = {(r["condition"], r["value"], r["system"]): r["tokens_per_s"] for r in rows}
    assert len(rates) == len(rows) == 2 * 2 * 2
    for experiment, done in compare(
        params, assumptions, sites, ("opt-125m",), ("weaver", "static")
    ):
        expected = done.tokens_per_s(experiment.sequence, experiment.duration_s)
        for condition in ("bandwidth_factor", "spare_share"):
            assert rates[condition, 1.0, done.name] == expected
    for system in ("weaver", "static"):
        assert rates["bandwidth_factor", 0.1, system] < rates["bandwidth_factor", 1.0, system]


def test_flips_are_those_next_to_the_testbed() -> None:
    def rows(system: str, condition: str, rates: dict[float, float]) -> list[dict]:
        row = {"system": system, "condition": condition}
        return [{**row, "value": value, "tokens_per_s": rate} for value, rate in rates.items()]

    found = flip_metrics(
        [
            *rows("weaver", "bandwidth_factor", {0.01: 2, 1: 2, 100: 2}),
            *rows("dtfm", "bandwidth_factor", {0.01: 1, 1: 3, 100: 2.5}),
            *rows("static", "bandwidth_factor", {0.01: 1, 1: 1, 100: 1}),
            *rows("weaver", "added_latency_ms", {0: 4, 10: 2}),
            *rows("dtfm", "added_latency_ms", {0: 3, 10: 3}),
        ]
    )
    assert found == {
        "bandwidth_factor": {"dtfm": pytest.approx(0.1)},
        "added_latency_ms": {"dtfm": pytest.approx(5.0)},
    }
    assert flip_metrics([]) == {}


def test_a_model_without_a_duration_is_named(block, paths) -> None:
    asked = {"orderings": {"model": "opt-30b", "spare_share": [1]}}
    faults = list(train_sites.check(STAGE.params(**overlaid(block, asked)), paths))
    assert [fault.value for fault in faults] == ["opt-30b", "opt-30b"]
