from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.traffic.diurnal import read_loads
from ranloom.traffic.macro import MacroCell, macro

CELL = {
    "n_ue": 4,
    "busy_hour_mbps": 8.0,
    "file_bytes": 20_000,
    "background_reports_per_s": 0.5,
    "sinr_mean_db": 20.0,
    "sinr_spread_db": 4.0,
    "sinr_std_db": 2.0,
    "sinr_coherence_s": 1.0,
}


def test_macro_offers_the_busy_hour_rate_times_the_load(root):
    loads = read_loads(root / "data" / "traffic" / "diurnal.csv")
    day = macro(loads, MacroCell(**CELL), seed=1, seconds_per_hour=60)
    assert [s.cell for s in day] == list(range(6))
    background = CELL["n_ue"] * CELL["background_reports_per_s"] * 8e-6 * 33  # Pareto mean, cut
    for s, load in zip(day, loads, strict=True):
        assert s.duration_us == 24 * 60_000_000
        assert s.channel.n_ue == CELL["n_ue"]
        per_hour = np.bincount(
            s.arrivals.time_us // 60_000_000, weights=s.arrivals.size_bytes, minlength=24
        )
        mbps = per_hour * 8 / 60e6 - background
        files = np.maximum(load * 8e6 / 8 / 20_000 * 60, 1.0)  # Poisson number of files an hour
        assert np.all(np.abs(mbps - 8.0 * load) <= 5 * 8.0 * load / np.sqrt(files) + 0.002)
    offered = [s.arrivals.offered_mbps for s in day]
    assert offered == pytest.approx(8.0 * loads.mean(axis=1), rel=0.1)


def test_macro_cells_are_independent_of_one_another(root):
    loads = read_loads(root / "data" / "traffic" / "diurnal.csv")
    six = macro(loads, MacroCell(**CELL), seed=1, seconds_per_hour=2)
    one = macro(loads[:1], MacroCell(**CELL), seed=1, seconds_per_hour=2)
    assert np.array_equal(six[0].arrivals.time_us, one[0].arrivals.time_us)
    assert not np.array_equal(six[0].channel.sinr_db, six[1].channel.sinr_db)


def test_macro_hours_without_load_keep_their_background():
    (cell,) = macro(np.zeros((1, 24)), MacroCell(**CELL), seed=1, seconds_per_hour=10)
    assert 0 < cell.arrivals.offered_mbps < 0.001
    assert cell.arrivals.size_bytes.max() <= 200


@pytest.mark.parametrize(
    "change",
    [
        {"n_ue": 0},
        {"busy_hour_mbps": -1.0},
        {"file_bytes": 0},
        {"background_reports_per_s": 0.0},
        {"sinr_spread_db": -1.0},
        {"sinr_coherence_s": np.nan},
    ],
)
def test_macro_refuses(change):
    with pytest.raises(InputError, match="macro"):
        MacroCell(**(CELL | change))


def test_macro_refuses_loads_that_are_no_day():
    for loads in (np.zeros((2, 23)), np.zeros(24), np.full((1, 24), np.nan), -np.ones((1, 24))):
        with pytest.raises(InputError, match="loads"):
            macro(loads, MacroCell(**CELL), seed=1, seconds_per_hour=1)
