"""Published values are found, and a moved input moves the reproduced value."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranloom.errors import InputError
from ranloom.report.data import ReportData, load_published, lookup
from ranloom.report.fidelity import COMPARISONS, Comparison, compare, metrics


@pytest.fixture
def published(root: Path) -> dict:
    return load_published(root / "data/published/weaver.yaml")


def data(published: dict, transitions: float) -> ReportData:
    runs = {"scenario_1": {"weaver": {"transitions": transitions, "mean_sm": 14.4}}}
    return ReportData({"generate_traces": runs}, {}, {}, published)


def test_every_comparison_has_a_published_value(published: dict) -> None:
    rows = compare(ReportData({}, {}, {}, published), COMPARISONS)
    assert len(rows) == len(COMPARISONS) > 40
    assert all(row.reproduced is None and row.ratio is None for row in rows)
    keys = [row.comparison.key for row in rows]
    assert len(set(keys)) == len(keys)


def test_values_of_table_4_and_of_lists(published: dict) -> None:
    by_key = {r.comparison.key: r for r in compare(data(published, 178.0), COMPARISONS)}
    row = by_key["stability.scenario_1.weaver.transitions"]
    assert (row.published, row.reproduced, row.ratio) == (89.0, 178.0, 2.0)
    # Table 3 prints two columns; the first is WEAVER.
    assert by_key["application_kpis.d_itg_three_ues.delay_mean_ms[0]"].published == 18.4
    assert by_key["application_kpis.d_itg_three_ues.delay_mean_ms[1]"].published == 19.0


def test_a_moved_input_moves_the_reproduced_value(published: dict) -> None:
    key = "stability.scenario_1.weaver.transitions"
    moved = [metrics(compare(data(published, t), COMPARISONS))[key] for t in (89.0, 90.0)]
    assert moved[0]["ratio"] == 1.0
    assert moved[1]["reproduced"] == 90.0
    assert moved[1]["ratio"] == pytest.approx(90 / 89)


def test_unknown_published_name_is_an_error(published: dict) -> None:
    wrong = Comparison("Table 4", "x", "stability.scenario_9.weaver.mean_sm", "s", "m", "SM")
    with pytest.raises(KeyError, match="scenario_9"):
        compare(data(published, 1.0), [wrong])


def test_lookup_with_dots_in_keys() -> None:
    tree = {"sim": {"opt-1.3b": {"weaver": {"tokens_per_s": 3}}}}
    assert lookup(tree, "sim.opt-1.3b.weaver.tokens_per_s") == 3
    assert lookup(tree, "sim.opt-1.3b.dtfm.tokens_per_s") is None
    assert lookup(tree, "sim.opt-1") is None


def test_published_file_must_be_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match="mapping of figures"):
        load_published(tmp_path / "p.yaml")
