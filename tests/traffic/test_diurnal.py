from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.traffic import diurnal


def test_the_committed_file_is_what_the_formula_gives(root):
    path = root / "data" / "traffic" / "diurnal.csv"
    assert path.read_text() == diurnal.to_csv(diurnal.default_loads())
    assert np.array_equal(diurnal.read_loads(path), diurnal.default_loads())


def test_the_default_day_has_the_properties_that_the_paper_states():
    loads = diurnal.default_loads()
    assert loads.shape == (6, 24)
    peak_hours = loads.argmax(axis=1)
    assert np.unique(peak_hours).size >= 5  # staggered
    assert loads[3:].mean() > 2 * loads[:3].mean()  # Zone II carries more than Zone I
    night = loads[:, 2:6].mean(axis=1)
    assert np.all(night < 0.25 * loads.max(axis=1))
    assert loads.max() == 1.0


def test_a_profile_peaks_at_one_and_wraps_around_midnight():
    use = diurnal.LandUse("test", ((0.0, 1.0, 2.0),), night=0.1)
    shape = diurnal.profile(use)
    assert shape[0] == pytest.approx(1.0)
    assert shape[23] == pytest.approx(shape[1])
    # One standard deviation from the peak a bump has fallen to about exp(-1/2).
    assert (shape[2] - 0.1) / 0.9 == pytest.approx(np.exp(-0.5), abs=0.02)
    assert shape[12] == pytest.approx(0.1, abs=1e-3)


@pytest.fixture
def day(tmp_path):
    rows = [f"{hour},{cell},0.5" for hour in range(24) for cell in range(2)]

    def write(change):
        path = tmp_path / "loads.csv"
        path.write_text("\n".join(["hour,cell,load", *change(list(rows))]) + "\n")
        return path

    return write


def test_reads_any_number_of_cells_in_any_order(day):
    loads = diurnal.read_loads(day(lambda rows: rows[::-1]))
    assert loads.shape == (2, 24)
    assert np.all(loads == 0.5)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda rows: ["24,0,0.5", *rows], ": row 2, hour"),
        (lambda rows: [*rows[:-1], "23,1,-0.1"], ": row 49, load"),
        (lambda rows: [*rows[:-1], "23,1,nan"], ": row 49, load"),
        (lambda rows: [*rows[:-1], "23,1,85"], ": row 49, load"),
        (lambda rows: [*rows[:-1], "23,7,0.5"], ": row 49, cell"),
        (lambda rows: [*rows, "0,0,0.5"], ": row 50, hour"),
        (lambda rows: rows[:-1], ": cell 1"),
        (lambda rows: [*rows[:-1], "23,one,0.5"], ": row 49, cell"),
    ],
)
def test_refuses_a_bad_day(day, change, where):
    path = day(change)
    with pytest.raises(InputError) as caught:
        diurnal.read_loads(path)
    assert caught.value.where == f"{path}{where}"
