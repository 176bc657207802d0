"""Calibration: budgets tried in the cell, and the rule that picks a setting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.mac.bar import Limits, judge
from ranloom.mac.calibrate import (
    Bench,
    Search,
    Trial,
    choose,
    objectives,
    pareto,
    search,
    settings,
)
from ranloom.mac.cell import run_cell
from ranloom.mac.config import PlantConfig
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.lut_calibration import (
    LoadTest,
    added_misses_pct,
    calibrate_budgets,
    level_budgets,
    with_budgets,
)
from ranloom.mac.model import CellModel
from ranloom.traffic.channel import constant
from ranloom.traffic.scenario import Scenario
from tests.mac.conftest import ModelOf, S, bursts
from tests.mac.test_figures import KPIS

QUICK = LoadTest(duration_s=0.25)


def test_profiled_budgets_rebuild_the_table(model: CellModel) -> None:
    rebuilt = with_budgets(model.tables, level_budgets(model.tables))
    np.testing.assert_array_equal(rebuilt.min_sm, model.tables.min_sm)
    np.testing.assert_array_equal(rebuilt.max_prb[:, 8:], model.tables.max_prb[:, 8:])


def test_a_lower_budget_raises_its_cells(model: CellModel) -> None:
    budgets = level_budgets(model.tables)
    budgets[28, 0] -= 10
    changed = with_budgets(model.tables, budgets)
    old = int(model.tables.max_prb[28, 8])
    assert (changed.min_sm[28, old - 9 : old + 1] == 16).all()
    np.testing.assert_array_equal(changed.min_sm[:28], model.tables.min_sm[:28])
    assert (changed.max_prb[28, 8:16] == old - 10).all()
    # a budget below one of a higher MCS pulls that down as well
    budgets[5, 1] = 40
    monotone = with_budgets(model.tables, budgets)
    assert (monotone.max_prb[5:, 8:24] <= 40).all()
    assert (np.diff(monotone.min_sm, axis=0) >= 0).all()
    assert (np.diff(monotone.min_sm, axis=1) >= 0).all()


def test_budgets_that_hold_are_kept(model: CellModel) -> None:
    compiled = len(run_cell.signatures)
    np.testing.assert_array_equal(calibrate_budgets(model, QUICK, 1), level_budgets(model.tables))
    assert len(run_cell.signatures) <= max(compiled, 1)  # the slot loop compiles once


def test_budgets_that_fail_are_lowered(model_of: ModelOf) -> None:
    """Feedback due after 1 ms: two decodes of 800 us in a row are too much."""
    model = model_of(plant=PlantConfig(grace_slots=2))
    budgets = calibrate_budgets(model, QUICK, 1)
    profiled = level_budgets(model.tables)
    assert (budgets <= profiled).all()
    assert budgets[28, 0] < profiled[28, 0]
    assert budgets[5, 0] == profiled[5, 0] == 106  # light work: nothing to mend
    apart = model_of(plant=PlantConfig(grace_slots=2, overlap="summed"))
    np.testing.assert_array_equal(calibrate_budgets(apart, QUICK, 1), profiled)


def test_misses_under_an_extreme_channel(model_of: ModelOf) -> None:
    """None with a table that holds; many if the table promises more than the GPU does."""
    assert added_misses_pct(model_of(), WeaverParams(), QUICK, 1) == (0.0, 0.0)
    slow = model_of(plant=PlantConfig(k_us_sm=4.0))  # the table was made for 2.332
    overdue, long = added_misses_pct(slow, WeaverParams(), QUICK, 1)
    assert long > 0.0
    budgets = calibrate_budgets(slow, QUICK, 1)
    mended = replace(slow, tables=with_budgets(slow.tables, budgets))
    assert added_misses_pct(mended, WeaverParams(), QUICK, 1)[0] <= max(overdue, 0.05)


def test_bad_load_tests() -> None:
    with pytest.raises(InputError, match=r"lut_test\.n_ue"):
        LoadTest(n_ue=0)


def test_settings_hold_the_published_one() -> None:
    found = settings(WeaverParams(), [8192], [15, 60])
    pairs = [(s.backlog_threshold_bytes, s.patience) for s in found]
    assert pairs == [(8192, 15), (8192, 60), (65536, 30)]


def _trial(params: WeaverParams, load: str, **change: float) -> Trial:
    kpis = replace(KPIS, **{"transitions": 100, **change})
    return Trial(load, params, kpis, KPIS, judge(kpis, KPIS, Limits()))


def test_the_rule() -> None:
    published = WeaverParams()
    calm, costly = replace(published, patience=60), replace(published, patience=240)
    trials = [
        _trial(published, "a", transitions=200),
        _trial(published, "b", transitions=200, mean_sm=10.3),
        _trial(calm, "a", transitions=150),
        _trial(calm, "b", transitions=150),
        _trial(costly, "a", transitions=10, mean_sm=12.0),
        _trial(costly, "b", transitions=10, delay_p95_ms=300.0),
    ]
    choice = choose(trials, published)
    assert choice.params == calm
    assert (choice.missed, choice.transitions) == (0, 300)
    assert "patience 60" in choice.why
    assert "published values miss 1 with 400" in choice.why
    # equal otherwise: the published one, then the nearest
    tie = [_trial(published, "a"), _trial(calm, "a"), _trial(costly, "a")]
    assert choose(tie, published).params == published
    assert choose([*tie[1:], _trial(published, "a", transitions=101)], published).params == calm


def test_the_front() -> None:
    a, b, c, d = (
        (0.1, 2.0, 5.0, 0.0),
        (0.2, 1.0, 5.0, 0.0),
        (0.2, 2.0, 5.0, 0.0),
        (0.3, 0.0, 9.0, 1.0),
    )
    assert pareto([a, b, c, d]) == [True, True, False, True]
    assert pareto([a, a, c]) == [True, True, False]


def test_objectives_are_those_of_the_worst_load() -> None:
    own = [
        _trial(WeaverParams(), "a", transitions=100, mean_sm=10.1, delay_p95_ms=130.0),
        _trial(WeaverParams(), "b", transitions=500, mean_sm=9.0, harq_met_pct=99.7),
    ]
    assert objectives(own) == pytest.approx((0.5, 1.0, 30.0, 0.2))


def test_trials_share_their_reference(model: CellModel) -> None:
    arrivals = bursts(2, 2 * S, seed=4, bytes_each=90_000, every_us=200_000)
    load = Scenario("load", 0, arrivals, constant([28.0, 24.0], 2 * S))
    bench = Bench(model, [("load", load)], Limits(), 1)
    few, many = (
        bench.try_setting(s)[0]
        for s in settings(WeaverParams(patience=15), [8192, 131072], [15])[::2]
    )
    assert few.noctrl == many.noctrl
    assert few.kpis.transitions != many.kpis.transitions
    space = Search(6, (8192, 131072), (5, 60), (8, 16))
    published = WeaverParams(prb_tolerance=9)
    found = search(bench, published, space, 3)
    assert len(found) == 6
    assert all(t.params.prb_tolerance == 9 and t.params.step_sm in (8, 16) for t in found)
    assert all(8192 <= t.params.backlog_threshold_bytes <= 131072 for t in found)
    assert [t.params for t in search(bench, published, space, 3)] == [t.params for t in found]
    assert search(bench, published, Search(0, (1, 2), (1, 2), (8,)), 3) == []


def test_bad_search() -> None:
    with pytest.raises(InputError, match=r"search\.patiences"):
        Search(3, (1, 2), (5, 2), (8,))
