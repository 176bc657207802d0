"""Utilisation by MCS and PRB against hand computations and the published ranges."""

import numpy as np
import pytest

from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.characterise import Assumptions, characterise, decoder_edges, reserve
from ranloom.nr.segmentation import work_table
from ranloom.nr.tbs import Allocation

ALLOCATION = Allocation(table=1, n_layers=1, n_symbols=14, n_dmrs_per_prb=12, n_oh=0)


MODEL = LatencyModel(200.0, 2.332, 0.0084, 1.13)
ASSUMED = Assumptions(iterations=10, deadline_us=1000.0, instructions_per_op=12.3)


@pytest.fixture(scope="module")
def spark(root):
    return load_card(root / "data" / "cards" / "dgx_spark.yaml")


@pytest.fixture(scope="module")
def usage(spark):
    return characterise(ALLOCATION, 273, spark, MODEL, ASSUMED)


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


def test_shares_grow_with_iterations_and_shrink_with_the_deadline(spark):
    def usage(iterations, deadline_us):
        return characterise(
            ALLOCATION, 106, spark, MODEL, Assumptions(iterations, deadline_us, 12.3)
        )

    less, more, sooner = usage(5, 2000.0), usage(10, 2000.0), usage(5, 1000.0)
    np.testing.assert_allclose(more.gbu_pct, 2 * less.gbu_pct)
    np.testing.assert_allclose(more.smu_pct, less.smu_pct)
    np.testing.assert_allclose(sooner.gbu_pct, 2 * less.gbu_pct)


def test_reservation_spreads_the_same_work(usage, spark):
    found = reserve(usage, 15, 162, spark, MODEL, ASSUMED, slot_overhead_us=245.0)
    assert found.sm.tolist() == [8, 16, 24, 32, 40, 48]
    # 200 + 2.332 x 2816 / s + 0.0084 x 2816 us on 16 and 48 SMs
    np.testing.assert_allclose(found.p99_us[[1, 5]], [634.0864, 360.4651], atol=1e-3)
    np.testing.assert_allclose(found.slot_us, found.p99_us / 1.13 + 245.0)
    np.testing.assert_allclose(found.smu_pct[[1, 5]], [100 / 3, 100.0])
    # operations and bytes do not depend on the SMs
    at = row(usage, 15, 162)
    np.testing.assert_allclose(found.gbu_pct * found.decode_us, usage.gbu_pct[at] * 1000.0)
    np.testing.assert_allclose(found.acu_pct * found.decode_us, usage.acu_pct[at] * 1000.0)
    # 67.0 MB at 273 GB/s are 245 us of the median decode on all SMs (appendix A.2 says 65 %)
    assert found.gbu_pct[5] == pytest.approx(100 * 67.0208 / 0.273 / (360.4651 / 1.13), rel=1e-5)
