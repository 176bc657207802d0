"""MCS rules: thresholds, outer loop, and OAI's steps every ten frames."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.mac.link_adaptation import LinkRules, link_state, measured, required_snr_db, select_mcs
from ranloom.mac.model import CellModel
from ranloom.nr.bler import block_error_rate, transport_block_curves

OAI = LinkRules(0, 28, 0.0, 0.0, np.zeros(29))


def test_the_threshold_meets_the_target(model: CellModel) -> None:
    curves = transport_block_curves(model.curves, 106)
    for target in (0.01, 0.1):
        needed = required_snr_db(curves, 106, target)
        assert (np.diff(needed) >= 0).all()
        rates = [
            block_error_rate(
                needed[m], curves.snr50_db[m, 106], curves.slope_db[m, 106],
                curves.n_code_blocks[m, 106],
            )
            for m in range(29)
        ]  # fmt: skip
        assert max(rates) <= target * 1.001
        assert rates[28] == pytest.approx(target, rel=1e-6)


def test_the_outer_loop_takes_the_highest_mcs_that_fits(model: CellModel) -> None:
    rules, link = model.link_rules, link_state(1, 9)
    assert select_mcs(0, 0, rules, link) == 9  # not measured yet
    for mcs in (28, 3, 17, 0):
        link.offset_db[0] = 0.0
        measured(0, rules.required_snr_db[mcs] + 1e-9, True, False, rules, link)
        assert select_mcs(0, 0, rules, link) == mcs
    measured(0, -30.0, True, False, rules, link)
    assert select_mcs(0, 0, rules, link) == 0


def test_the_outer_loop_settles_at_its_target(model: CellModel) -> None:
    rules, link = model.link_rules, link_state(1, 9)
    curves = transport_block_curves(model.curves, 106)
    rng = np.random.default_rng(1)
    errors = 0
    for k in range(40_000):
        sinr = 18.0 + rng.normal(0.0, 1.0)  # stale by one block
        mcs = select_mcs(0, 0, rules, link)
        rate = block_error_rate(sinr, curves.snr50_db[mcs, 106], curves.slope_db[mcs, 106], 10)
        ok = bool(rng.random() >= rate)
        errors += (not ok) and k >= 20_000
        measured(0, sinr, ok, True, rules, link)
    assert errors / 20_000 == pytest.approx(0.01, abs=0.003)


def _window(link, first: int, second: int) -> None:
    link.first_blocks[0], link.second_blocks[0] = first, second


@pytest.mark.parametrize(
    ("mcs", "bler", "first", "second", "expected"),
    [
        (9, 0.0, 10, 0, 10),  # clean traffic climbs
        (28, 0.0, 10, 0, 28),  # up to the highest
        (12, 0.0, 3, 0, 11),  # too few blocks: back towards 9
        (9, 0.0, 3, 0, 9),
        (8, 0.0, 0, 0, 8),  # ... but never up without traffic
        (12, 0.2, 10, 5, 11),  # errors
        (6, 0.2, 10, 5, 6),  # not below 6
        (12, 0.1, 10, 1, 12),  # in between: hold
    ],
)
def test_one_window_of_oai(mcs: int, bler: float, first: int, second: int, expected: int) -> None:
    link = link_state(1, mcs)
    link.bler[0] = bler
    _window(link, first, second)
    assert select_mcs(0, 99_999, OAI, link) == mcs  # the window is 100 ms
    assert select_mcs(0, 100_000, OAI, link) == expected
    assert link.first_blocks[0] == 0
    if first:
        assert link.bler[0] == pytest.approx(0.9 * bler + 0.1 * second / first)


def test_many_silent_windows_at_once_equal_one_by_one() -> None:
    for mcs, bler in ((20, 0.0), (20, 0.3), (7, 0.3), (5, 0.0), (10, 0.16)):
        at_once, stepwise = link_state(1, mcs), link_state(1, mcs)
        for link in (at_once, stepwise):
            link.bler[0] = bler
            _window(link, 8, 0)
        for k in range(1, 13):
            last = select_mcs(0, 100_000 * k, OAI, stepwise)
        assert select_mcs(0, 1_200_000, OAI, at_once) == last
