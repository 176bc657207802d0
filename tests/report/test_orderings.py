"""Figure and table of the orderings, on numbers made by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ranloom.report.data import ReportData
from ranloom.report.sections.orderings import TABLE, grid, pictures

RATES = {"weaver": (1.0, 4.0, 8.0), "dtfm": (2.0, 4.0, 4.0)}
COLUMNS = ("assumptions", "condition", "value", "model", "system", "tokens_per_s")


def data(folder: Path, rows: list[tuple]) -> ReportData:
    path = folder / "orderings.parquet"
    types = (pa.string(), pa.string(), pa.float64(), pa.string(), pa.string(), pa.float64())
    columns = {
        name: pa.array([row[i] for row in rows], kind)
        for i, (name, kind) in enumerate(zip(COLUMNS, types, strict=True))
    }
    pq.write_table(pa.table(columns), path)
    flips = {"bandwidth_factor": {"dtfm": 1.0}}
    return ReportData({"train_sites": {"reconciled": {"flips": flips}}}, {}, {TABLE: path}, {})


def test_who_is_first_where(tmp_path: Path) -> None:
    rows = [
        ("reconciled", "bandwidth_factor", value, "opt-1.3b", system, rates[index])
        for system, rates in RATES.items()
        for index, value in enumerate((0.1, 1.0, 10.0))
    ]
    found = data(tmp_path, rows)
    (row,) = grid(found).rows
    assert row == [
        "reconciled",
        "bandwidth between sites, factor",
        "1, 10",
        "DTFM at 0.1, 1",
        "DTFM 1",
    ]
    (picture,) = pictures(found)
    axes = picture.figure.axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["WEAVER"] == [1.0, 1.0, 1.0]
    assert drawn["DTFM"] == [2.0, 1.0, 0.5]
    assert "OPT-1.3B" in picture.caption


def test_without_changed_conditions_there_is_nothing(tmp_path: Path) -> None:
    found = data(tmp_path, [])
    assert pictures(found) == ()
    assert grid(found).rows == []
