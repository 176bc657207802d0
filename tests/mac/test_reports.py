"""28.552 measurements and srsRAN's JSON Lines against the counts of the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.model import CellModel
from ranloom.mac.reports import CELL, json_lines, performance
from ranloom.mac.simulate import CellRun, simulate
from ranloom.traffic.channel import constant
from tests.mac.conftest import S, bursts

SECONDS = 4


@pytest.fixture(scope="module")
def run(model: CellModel) -> CellRun:
    arrivals = bursts(2, SECONDS * S, seed=9, bytes_each=60_000, every_us=150_000)
    channel = constant([24.0, 14.0], SECONDS * S)
    return simulate(
        model, arrivals, channel, ControllerSpec("noctrl"), 3, trace=(0, 400 * SECONDS)
    )  # fmt: skip


def test_measurements(run: CellRun) -> None:
    rows = {(name, ue): value for name, ue, value, _ in performance(run)}
    delivered = run.ledger.delivered
    for ue in range(2):
        assert rows["DRB.UEThpUl", ue] == pytest.approx(8e-3 * delivered[ue] / SECONDS)
        delay_us = run.packet_delay_us[(run.packet_ue == ue) & (run.packet_delay_us >= 0)]
        assert rows["DRB.RlcDelayUl", ue] == pytest.approx(delay_us.mean() / 100)
    blocks = sum(rows["TB.TotNbrUl", ue] for ue in range(2))
    in_flight = run.counters["initial_blocks"] + run.counters["retransmissions"] - blocks
    assert 0 <= in_flight <= 4  # feedback that had not come by the last slot
    errors = sum(rows["TB.ErrTotNbrUl", ue] for ue in range(2))
    assert errors >= run.counters["first_errors"] > 0
    assert rows["RRU.PrbTotUl", CELL] == pytest.approx(100 * run.trace[:, 3].mean() / 106)
    assert rows["X-RANLOOM.SmReservedMean", CELL] == run.mean_sm


def test_json_lines(run: CellRun) -> None:
    reports = [json.loads(line) for line in json_lines(run, cell=7)]
    assert [r["timestamp"] for r in reports] == [1.0, 2.0, 3.0, 4.0]
    cells = [r["cells"][0] for r in reports]
    reserved = run.trace[:, 2].reshape(SECONDS, 400).mean(axis=1)
    np.testing.assert_allclose(
        [c["cell_metrics"]["x_sm_reserved"] for c in cells], reserved, atol=1e-3
    )
    for ue in range(2):
        rows = [c["ue_list"][ue] for c in cells]
        assert {r["pci"] for r in rows} == {7}
        assert {r["rnti"] for r in rows} == {0x4601 + ue}
        carried = sum(r["ul_brate"] for r in rows) / 8
        assert run.ledger.delivered[ue] <= carried <= run.ledger.offered[ue]
        snr = np.average(
            [r["pusch_snr_db"] for r in rows],
            weights=[r["ul_nof_ok"] + r["ul_nof_nok"] for r in rows],
        )
        assert snr == pytest.approx((24.0, 14.0)[ue], abs=0.02)
        assert all(0 <= r["ul_mcs"] <= 28 for r in rows)
