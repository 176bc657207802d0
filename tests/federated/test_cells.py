import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.cells import cell_rates


def table(hours=4, per_hour=3, cells=2, ues=2):
    """Rates that tell cell, UE and second; UE 1 of cell 1 has none."""
    rows = [
        (c, u, s, 0.0 if (c, u) == (1, 1) else 1000.0 * c + 100.0 * u + s + 1)
        for c in range(cells)
        for u in range(ues)
        for s in range(hours * per_hour)
    ]
    cell, ue, second, rate = (np.array(column) for column in zip(*rows, strict=True))
    return {
        "scenario": np.array(["macro"] * len(rows), dtype=object),
        "cell": cell,
        "ue": ue,
        "second": second,
        "capacity_mbps": rate,
    }


def rates(columns=None, **changes):
    values = {
        "scenario": "macro",
        "hours": 4,
        "hour": 2,
        "hour_spread": 1,
        "gnbs": 12,
        "seed": [1],
        "where": "ue_rates.parquet",
    }
    return cell_rates(table() if columns is None else columns, **(values | changes))


def test_first_gnbs_are_the_cells_in_the_chosen_hour():
    found = rates()
    assert found.mbps.shape == (12, 2, 3)
    assert found.mbps[0].tolist() == [[7.0, 8.0, 9.0], [107.0, 108.0, 109.0]]
    assert found.mbps[1, 0].tolist() == [1007.0, 1008.0, 1009.0]
    assert found.series_count[:2].tolist() == [2, 1]


def test_further_gnbs_are_drawn_from_neighbouring_hours():
    found = rates()
    hours = {int((found.mbps[g, 0, 0] % 1000 - 1) // 3) for g in range(2, 12)}
    assert hours <= {1, 2, 3}
    assert len(hours) > 1
    assert np.array_equal(found.mbps, rates().mbps)
    assert not np.array_equal(found.phase_s, rates(seed=[2]).phase_s)


def test_hours_wrap_around_midnight():
    found = rates(hour=3, hour_spread=1, gnbs=40)
    hours = {int((found.mbps[g, 0, 0] % 1000 - 1) // 3) for g in range(40)}
    assert hours == {2, 3, 0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scenario": "stress"}, "stress"),
        ({"hours": 5}, "multiple of 5"),
        ({"hour": 4}, "hour"),
        ({"columns": {k: v for k, v in table().items() if k != "ue"}}, "ue"),
        ({"columns": table() | {"capacity_mbps": np.zeros(48)}}, "some rate left"),
    ],
)
def test_unusable_tables_are_refused(changes, named):
    with pytest.raises(InputError, match=named):
        rates(**changes)
