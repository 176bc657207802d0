"""Backends: every one covers the grid, carries provenance, and keeps what it was given."""

import dataclasses

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.profile import BACKENDS, ProfileRequest, read_published_cells
from ranloom.lut.table import INFEASIBLE, PROVENANCES
from ranloom.nr.segmentation import work_table


@pytest.fixture(scope="module")
def wanted(root):
    return ProfileRequest(
        work=work_table(273),
        card=load_card(root / "data" / "cards" / "dgx_spark.yaml"),
        budget_us=800.0,
        percentile=99,
        model=LatencyModel(200.0, 2.332, 0.0084, 1.13),
        published_path=root / "data" / "published" / "weaver.yaml",
    )


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend(wanted, name):
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
    with pytest.raises(InputError, match="backend published: card: 'H200'"):
        BACKENDS["published"](other)


def test_damaged_published_file_is_refused(wanted, tmp_path):
    path = tmp_path / "weaver.yaml"
    path.write_text(
        "min_sm_lut: {prb: [25], mcs: [0, 5], min_sm: [[8]]}\nran_cell: {sm_count: 48}\n"
    )
    with pytest.raises(InputError, match="needed: min_sm_lut"):
        read_published_cells(path)
