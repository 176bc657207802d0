"""Utilisation by MCS and PRB against hand computations and the published ranges."""

import numpy as np
import pytest

from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.characterise import Allocation, characterise, decoder_edges
from ranloom.nr.segmentation import work_table

ALLOCATION = Allocation(table=1, n_layers=1, n_symbols=14, n_dmrs_per_prb=12, n_oh=0)


@pytest.fixture(scope="module")
def usage(root):
    return characterise(
        work_table(273),
        ALLOCATION,
        load_card(root / "data" / "cards" / "dgx_spark.yaml"),
        LatencyModel(200.0, 2.332, 0.0084, 1.13),
        iterations=10,
        deadline_us=1000.0,
        instructions_per_op=12.3,
    )


def row(usage, mcs, prb):
    at = np.flatnonzero((usage.mcs == mcs) & (usage.prb == prb))
    assert len(at) == 1
    return at[0]


def test_one_cell_by_hand(usage):
    # MCS 15, 162 PRB: 156 x 162 x 4 = 101088 coded bits in 8 blocks of 12636; K = 7744,
    # K' = 7584, so 160 filler bits: (12636 + 160) / 352 = 36.4, 39 columns, 17 rows. Those hold
    # 4 x 19 + 3 + 8 + 9 + 7 + 10 + 9 + 7 + 8 + 7 + 6 + 7 + 7 + 6 = 170 entries.
    at = row(usage, 15, 162)
    edges = 8 * 352 * 170
    assert decoder_edges(ALLOCATION, 273)[15, 162] == edges
    assert usage.work[at] == 2816
    assert usage.ops[at] == edges * 10 * 12
    assert usage.bytes[at] == edges * 10 * 14
    assert usage.gbu_pct[at] == pytest.approx(100 * edges * 140 / 273e6)
    assert usage.smu_pct[at] == pytest.approx(100 * 2.332 * 2816 / 1.13 / 48_000)
    assert usage.acu_useful_pct[at] == pytest.approx(100 * edges * 120 / (31e12 / 2 * 1e-3))
    p99 = 200 + 2.332 * 2816 / 48 + 0.0084 * 2816
    assert usage.slack_pct[at] == pytest.approx(100 - p99 / 1.13 / 10)


def test_low_rates_need_the_whole_base_graph():
    edges = decoder_edges(ALLOCATION, 273)
    # MCS 0 at rate 120/1024 is below 1/5: all 197 entries of base graph 2
    assert edges[0, 273] == 197 * work_table(273)[0, 273]
    # MCS 10 at rate 340/1024: the parity columns of base graph 1 are just not all sent
    assert 0.97 * 316 < edges[10, 273] / work_table(273)[10, 273] <= 316


def test_published_ranges(usage):
    """Section 3.1 says 30 to 70 % slack, GBU 10 to 60 %, SMU below 20 % up to MCS 20, 200 PRB.

    The bounds here are what the model gives, which is near; the report shows both.
    """
    wide = usage.prb >= 50
    feasible = wide & (usage.mcs <= 27)
    assert usage.slack_pct[feasible].min() == pytest.approx(30.0, abs=0.1)
    assert 55 < usage.gbu_pct[wide].max() < 70
    typical = wide & (usage.mcs <= 20) & (usage.prb <= 200)
    assert usage.smu_pct[typical].max() < 22
    assert usage.acu_pct[wide].max() == pytest.approx(12.0, abs=0.05)  # fitted
    # memory-bound everywhere: the bandwidth share exceeds the arithmetic share
    assert (usage.gbu_pct > usage.acu_pct).all()


def test_shares_grow_with_iterations_and_shrink_with_the_deadline(root):
    card = load_card(root / "data" / "cards" / "dgx_spark.yaml")
    model = LatencyModel(200.0, 2.332, 0.0084, 1.13)
    options = {"iterations": 5, "deadline_us": 2000.0, "instructions_per_op": 12.3}
    less = characterise(work_table(106), ALLOCATION, card, model, **options)
    more = characterise(work_table(106), ALLOCATION, card, model, **(options | {"iterations": 10}))
    np.testing.assert_allclose(more.gbu_pct, 2 * less.gbu_pct)
    np.testing.assert_allclose(more.smu_pct, less.smu_pct)
    sooner = characterise(
        work_table(106), ALLOCATION, card, model, **(options | {"deadline_us": 1000.0})
    )
    np.testing.assert_allclose(sooner.gbu_pct, 2 * less.gbu_pct)
