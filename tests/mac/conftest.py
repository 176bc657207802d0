"""A cell on the default device, and small traffic for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ranloom.gpu.card import Card, load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.table import PROVENANCES, Cells, Lut
from ranloom.mac.config import CellConfig, PlantConfig
from ranloom.mac.model import CellModel, cell_model
from ranloom.mac.proportional_fair import SchedulerRules
from ranloom.nr.bler import BlerCurves, bler_curves
from ranloom.nr.segmentation import work_table
from ranloom.traffic.arrivals import Arrivals, from_unsorted

LATENCY = LatencyModel(200.0, 2.332, 0.0084, 1.13)
BUDGET_US = 800.0
S = 1_000_000


@pytest.fixture(scope="session")
def card(root: Path) -> Card:
    """48 SMs in steps of 8."""
    return load_card(root / "data/cards/dgx_spark.yaml")


@pytest.fixture(scope="session")
def curves(root: Path) -> BlerCurves:
    return bler_curves(root / "data/bler/table1.csv")


@pytest.fixture(scope="session")
def lut(card: Card) -> Lut:
    """The table that the latency model gives for a budget of 800 us."""
    work = work_table(273)
    mcs, prb = (a.ravel() for a in np.meshgrid(range(29), range(1, 274), indexing="ij"))
    sm = LATENCY.min_sm(work[mcs, prb], card.levels, BUDGET_US, np.iinfo(np.int16).max)
    source = np.full(len(mcs), PROVENANCES.index("model"), np.int8)
    return Lut.from_cells(Cells(mcs, prb, sm, source), 29, 273, card.sm_count)


ModelOf = Callable[..., CellModel]


@pytest.fixture(scope="session")
def model_of(lut: Lut, card: Card, curves: BlerCurves) -> ModelOf:
    """Build a cell: keywords of ``CellConfig``, and ``plant`` and ``rounding``."""

    def build(
        plant: PlantConfig | None = None, rounding: str = "ceil", **cell: object
    ) -> CellModel:
        config = CellConfig(**cell)  # type: ignore[arg-type]
        return cell_model(config, plant or PlantConfig(), lut, card, curves, rounding)

    return build


@pytest.fixture(scope="session")
def model(model_of: ModelOf) -> CellModel:
    return model_of()


@pytest.fixture
def rules(model: CellModel) -> SchedulerRules:
    return model.scheduler


def bursts(n_ue: int, duration_us: int, *, seed: int, bytes_each: int, every_us: int) -> Arrivals:
    """Bursts of 1500-byte packets 100 us apart, at exponential distances."""
    rng = np.random.default_rng(seed)
    times, ues = [], []
    for ue in range(n_ue):
        at = 0.0
        while True:
            at += rng.exponential(every_us)
            burst = at + 100.0 * np.arange(max(1, bytes_each // 1500))
            if burst[-1] >= duration_us:
                break
            times.append(burst)
            ues.append(np.full(len(burst), ue))
            at = burst[-1]
    time_us = np.concatenate(times).astype(np.int64)
    return from_unsorted(
        time_us, np.concatenate(ues), np.full(len(time_us), 1500), n_ue, duration_us
    )
