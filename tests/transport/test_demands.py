"""Demands from tables: units, rounding, and every fault by row."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.transport.demands import demands_from_columns, require_nodes

from .networks import star_of


def columns(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "demand_id": ["a", "b"],
        "source": ["gnb_00", "gnb_01"],
        "destination": ["core", "core"],
        "bytes": [100, 200],
        "release_p50_s": [1.0, 2.0],
        "release_p95_s": [3.0, 12.0],
        "release_s": [2.0000000001, 2.5],
        "deadline_s": [10.0, 10.0],
    }
    return base | changes


def test_times_are_rounded_against_us() -> None:
    made = demands_from_columns(columns(), "x")
    assert made.realised.release_ns.tolist() == [2_000_000_001, 2_500_000_000]
    late = demands_from_columns(columns(deadline_s=[9.9999999999, 10.0]), "x")
    assert late.realised.deadline_ns.tolist() == [9_999_999_999, 10_000_000_000]


def test_plan_on_p95_unless_that_is_too_late() -> None:
    made = demands_from_columns(columns(), "x")
    assert made.planned("p95").release_ns.tolist() == [3_000_000_000, 2_000_000_000]
    assert made.planned("p50").release_ns.tolist() == [1_000_000_000, 2_000_000_000]
    with pytest.raises(InputError, match="p99"):
        made.planned("p99")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bytes": [100, 0]}, "bytes, row 1"),
        ({"bytes": [100, -5]}, "bytes, row 1"),
        ({"bytes": ["many", 5]}, "bytes"),
        ({"demand_id": ["a", "a"]}, "each id once"),
        ({"deadline_s": [10.0, 1.0]}, "deadline_s, row 1"),
        ({"deadline_s": [10.0, float("nan")]}, "deadline_s, row 1"),
        ({"release_s": [-1.0, 2.0]}, "release_s, row 0"),
        ({"release_s": [float("inf"), 2.0]}, "release_s, row 0"),
        ({"release_p95_s": [0.5, 12.0]}, "release_p95_s, row 0"),
        ({"source": ["gnb_00"]}, "source"),
    ],
)
def test_faults_are_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as error:
        demands_from_columns(columns(**changes), "transfers.parquet")
    assert "transfers.parquet" in str(error.value)
    assert says in str(error.value)


def test_missing_column_is_named() -> None:
    table = columns()
    del table["deadline_s"]
    with pytest.raises(InputError, match="no column deadline_s"):
        demands_from_columns(table, "x")


def test_unknown_and_equal_ends_are_named() -> None:
    topology = star_of(2)
    good = demands_from_columns(columns(), "x").realised
    require_nodes(good, topology, "x")
    unknown = demands_from_columns(columns(source=["gnb_00", "gnb_77"]), "x").realised
    with pytest.raises(InputError, match=r"source, row 1: 'gnb_77'"):
        require_nodes(unknown, topology, "x")
    equal = demands_from_columns(columns(source=["core", "gnb_01"]), "x").realised
    with pytest.raises(InputError, match="destination, row 0"):
        require_nodes(equal, topology, "x")


def test_no_rows_are_no_demands() -> None:
    empty = {name: np.empty(0) for name in columns()}
    assert len(demands_from_columns(empty, "x")) == 0
