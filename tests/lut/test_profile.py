"""Backends: every one covers the grid, carries provenance, and keeps what it was given."""

import dataclasses

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.backends import BACKENDS, measured_cells, read_published_cells
from ranloom.lut.importers import ImportOptions
from ranloom.lut.measurements import from_cells, write_measurements
from ranloom.lut.profile import ProfileRequest
from ranloom.lut.table import INFEASIBLE, PROVENANCES
from ranloom.nr.tbs import Allocation


@pytest.fixture(scope="module")
def wanted(root):
    return ProfileRequest(
        allocation=Allocation(1, 1, 14, 12, 0),
        max_prb=273,
        card=load_card(root / "data" / "cards" / "dgx_spark.yaml"),
        budget_us=800.0,
        percentile=99,
        model=LatencyModel(200.0, 2.332, 0.0084, 1.13),
        published_path=root / "data" / "published" / "weaver.yaml",
        source_path=root / "none.csv",
        source_options=ImportOptions(sm=48, p99_over_mean=1.13),
    )


@pytest.fixture(scope="module")
def with_source(wanted, tmp_path_factory):
    """A profile file of what the model says at some points."""
    path = tmp_path_factory.mktemp("profile") / "profile.csv"
    cells = {}
    for mcs, prb, sm in [(m, p, s) for m in (5, 27) for p in (52, 106, 217) for s in (16, 32, 48)]:
        p99 = float(wanted.model.p99_us(wanted.work[mcs, prb], sm))
        cells[mcs, prb, sm] = (p99 / 1.13, p99, 100)
    write_measurements(path, from_cells(cells, "measured", {"device": "made up"}))
    return dataclasses.replace(wanted, source_path=path)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend(with_source, name):
    wanted = with_source
    profile = BACKENDS[name](wanted)
    again = BACKENDS[name](wanted)
    columns = profile.latencies.to_columns()
    assert len({len(c) for c in columns.values()}) == 1
    for key, values in columns.items():
        np.testing.assert_array_equal(values, again.latencies.to_columns()[key])
    assert set(columns["provenance"]) <= set(PROVENANCES)
    assert (profile.latencies.p50_us <= profile.latencies.p99_us).all()
    lut = profile.lut(wanted)
    assert lut.min_sm.shape == (29, 274)
    assert lut.sm_count == 48
    reachable = set(np.unique(lut.min_sm)) - {0, INFEASIBLE}
    assert reachable <= set(wanted.card.levels.tolist())


def test_model_over_the_full_grid(wanted):
    profile = BACKENDS["model"](wanted)
    assert len(profile.latencies.p99_us) == 29 * 273 * 6
    lut = profile.lut(wanted)
    cells, sm_count = read_published_cells(wanted.published_path)
    assert sm_count == 48
    assert (lut.min_sm_raw[cells.mcs, cells.prb] == cells.min_sm).sum() == 41
    assert (lut.min_sm[cells.mcs, cells.prb] == cells.min_sm).sum() == 40
    assert lut.lut_sm(28, 262) == 48
    assert lut.lut_sm(28, 263) is None
    assert lut.lut_prb(28, 48) == 262


def test_table_agrees_with_its_latencies(wanted):
    profile = BACKENDS["model"](wanted)
    lut, rows = profile.lut(wanted), profile.latencies
    meets = rows.p99_us <= wanted.budget_us
    raw = lut.min_sm_raw[rows.mcs, rows.prb]
    np.testing.assert_array_equal(meets, rows.sm >= raw)


def test_published_backend_keeps_all_42_cells(wanted):
    lut = BACKENDS["published"](wanted).lut(wanted)
    cells, _ = read_published_cells(wanted.published_path)
    assert len(cells.mcs) == 42
    np.testing.assert_array_equal(lut.min_sm_raw[cells.mcs, cells.prb], cells.min_sm)
    kinds = {k: int((lut.provenance[:, 1:] == i).sum()) for i, k in enumerate(PROVENANCES)}
    # 29 MCS x 6 PRB, of which 7 x 6 are printed
    assert kinds == {
        "published": 42,
        "model": 132,
        "measured": 0,
        "imported": 0,
        "ceiling": 29 * 273 - 174,
    }
    # between printed PRBs the next one counts
    assert lut.lut_sm(15, 107) == lut.lut_sm(15, 162)
    assert lut.lut_prb(15, 8) == 106


def test_median_budget_is_looser(wanted):
    median = dataclasses.replace(wanted, percentile=50)
    tight, loose = (BACKENDS["model"](w).lut(w) for w in (wanted, median))
    assert (loose.min_sm <= tight.min_sm).all()
    assert (loose.min_sm < tight.min_sm).any()
    rows = BACKENDS["model"](median).latencies
    np.testing.assert_array_equal(
        rows.p50_us <= 800.0 * (1 + 1e-12), rows.sm >= loose.min_sm_raw[rows.mcs, rows.prb]
    )


def test_published_backend_refuses_another_card(wanted, root):
    other = dataclasses.replace(wanted, card=load_card(root / "data" / "cards" / "h200.yaml"))
    with pytest.raises(InputError, match=r"backend published: card, MCS table: \('H200', 1\)"):
        BACKENDS["published"](other)
    table2 = dataclasses.replace(wanted, allocation=Allocation(2, 1, 14, 12, 0))
    with pytest.raises(InputError, match=r"\('DGX Spark', 2\)"):
        BACKENDS["published"](table2)


def test_damaged_published_file_is_refused(wanted, tmp_path):
    path = tmp_path / "weaver.yaml"
    path.write_text(
        "min_sm_lut: {prb: [25], mcs: [0, 5], min_sm: [[8]]}\nran_cell: {sm_count: 48}\n"
    )
    with pytest.raises(InputError, match="needed: min_sm_lut"):
        read_published_cells(path)


def test_import_backend_keeps_measured_points_and_fills_beyond(with_source):
    profile = BACKENDS["import"](with_source)
    lut = profile.lut(with_source)
    kinds = {k: int((lut.provenance[:, 1:] == i).sum()) for i, k in enumerate(PROVENANCES)}
    assert kinds["measured"] == 6
    # MCS 28, and more than 217 PRB, lie above every measured point
    assert kinds["model"] == 273 + 28 * (273 - 217)
    assert kinds["measured"] + kinds["model"] + kinds["ceiling"] == 29 * 273
    model = BACKENDS["model"](with_source).lut(with_source)
    for mcs, prb in [(5, 106), (27, 52), (27, 217)]:
        # 8 SMs were not measured: 16 is the least that is known
        assert lut.min_sm_raw[mcs, prb] >= max(16, model.min_sm_raw[mcs, prb])
    assert lut.lut_sm(20, 60) == lut.lut_sm(27, 106)
    assert lut.lut_sm(28, 273) is None


def test_a_lucky_measurement_makes_no_promise(wanted):
    cells = {
        (0, 10, 8): (700.0, 790.0, 50),  # meets the budget, but more SMs do not
        (0, 10, 16): (700.0, 810.0, 50),
        (0, 10, 24): (700.0, 780.0, 50),
        (0, 10, 32): (600.0, 700.0, 50),
        (1, 10, 48): (900.0, 950.0, 50),
        (2, 10, 48): (700.0, 800.0, 50),  # exactly the budget
    }
    found = measured_cells(from_cells(cells, "measured", {}), wanted.card, 29, 800.0)
    assert found.mcs.tolist() == [0, 1, 2]
    assert found.min_sm.tolist() == [24, INFEASIBLE, 48]


@pytest.mark.parametrize(
    ("cell", "message"),
    [((0, 10, 12), "profile: sm: 12"), ((29, 10, 8), r"\(29, 10\)"), ((0, 276, 8), "275 PRB")],
)
def test_points_that_do_not_fit_are_refused(wanted, cell, message):
    with pytest.raises(InputError, match=message):
        measured_cells(from_cells({cell: (1.0, 2.0, 1)}, "measured", {}), wanted.card, 29, 800.0)


def test_a_simulated_profile_is_no_measurement(wanted, tmp_path):
    path = tmp_path / "simulated.csv"
    how = {"device": "numba CUDA simulator: no measurement of any GPU"}
    write_measurements(path, from_cells({(0, 10, 8): (9.0, 9.0, 1)}, "measured", how))
    with pytest.raises(InputError, match=r"device: 'numba CUDA simulator.*needed: a measurement"):
        BACKENDS["import"](dataclasses.replace(wanted, source_path=path))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("card", "H200", "DGX Spark"),
        ("allocation", Allocation(1, 2, 14, 12, 0).describe(), r"MCS table 1, 1 layer\(s\)"),
    ],
)
def test_a_profile_of_something_else_is_refused(wanted, tmp_path, key, value, allowed):
    path = tmp_path / "other.csv"
    cells = {(0, 10, 8): (9.0, 9.0, 1)}
    write_measurements(path, from_cells(cells, "measured", {key: value}))
    with pytest.raises(InputError, match=f"{key}: '.*needed: {allowed}"):
        BACKENDS["import"](dataclasses.replace(wanted, source_path=path))


def test_what_a_log_lacks_is_carried_along(wanted, tmp_path):
    log = tmp_path / "run.log"
    log.write_text(
        "[ULSIM]: num_rbs: 25\n[ULSIM]: MCS: 9, mod order: 2, code_rate: 6790\n"
        "|__ ULSCH total decoding time  0.00 us (0 trials)\n"
        "|__ ULSCH total decoding time  300.00 us (10 trials)\n"
    )
    profile = BACKENDS["import"](dataclasses.replace(wanted, source_path=log))
    assert profile.how == {"source": "run.log", "sm": "48", "p99_over_mean": "1.13 (assumed)"}
    assert profile.skipped == (
        "1 x zero trials, first: |__ ULSCH total decoding time  0.00 us (0 trials)",
    )
