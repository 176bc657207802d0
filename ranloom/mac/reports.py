"""Figures of a run under the names and in the shapes that RAN engineers know.

``performance``: measurements of 3GPP TS 28.552, as 28.552 and E2SM-KPM spell them. SMs have no
counter there; those carry the vendor prefix ``X-RANLOOM``.
``json_lines``: the metrics report of srsRAN, one JSON object a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from ranloom.mac.recorder import SECOND_COLUMNS, UE_SECOND_COLUMNS
from ranloom.mac.rlc import DELAY_DROPPED, DELAY_LOST
from ranloom.mac.simulate import CellRun

FIRST_RNTI = 0x4601  # srsRAN counts C-RNTIs from here
CELL = -1  # UE of a measurement of the whole cell
_UE = {name: i for i, name in enumerate(UE_SECOND_COLUMNS)}


def performance(run: CellRun) -> list[tuple[str, int, float, str]]:
    """Measurements of a run: (name, UE or ``CELL``, value, unit).

    Throughput is that of the whole duration, not only of seconds with data. Delay on the air
    (``AirIfDelayUl``) is not told apart from the wait in the UE: ``RlcDelayUl`` is both, from the
    arrival in the buffer to the end of the decode.
    """
    rows: list[tuple[str, int, float, str]] = []
    sums = run.ue_seconds.sum(axis=0)
    duration_s = run.duration_us / 1e6
    for ue in range(len(run.ledger.offered)):
        delay_us = run.packet_delay_us[run.packet_ue == ue]
        delivered = delay_us[delay_us >= 0]
        gone = int(np.count_nonzero((delay_us == DELAY_LOST) | (delay_us == DELAY_DROPPED)))
        rows += [
            ("DRB.UEThpUl", ue, 8e-3 * int(run.ledger.delivered[ue]) / duration_s, "kbit/s"),
            ("DRB.RlcDelayUl", ue, float(delivered.mean()) / 100 if len(delivered) else 0.0,
             "0.1 ms"),
            ("DRB.PacketLossRateUl", ue, 1e6 * gone / max(len(delay_us), 1), "1e-6"),
            ("TB.TotNbrUl", ue, float(sums[ue, 0] + sums[ue, 1]), "1"),
            ("TB.ErrTotNbrUl", ue, float(sums[ue, 1]), "1"),
        ]  # fmt: skip
    used = int(run.seconds[:, SECOND_COLUMNS.index("used_prb")].sum())
    available = run.ul_slots * run.config.n_prb
    rows += [
        ("RRU.PrbTotUl", CELL, 100.0 * used / available, "%"),
        ("RRU.PrbUsedUl", CELL, used / run.ul_slots, "1"),
        ("RRU.PrbAvailUl", CELL, float(run.config.n_prb), "1"),
        ("TB.ResidualErrNbrUl", CELL, float(run.counters["failed_blocks"]), "1"),
        ("X-RANLOOM.SmReservedMean", CELL, run.mean_sm, "1"),
        ("X-RANLOOM.SmTransitions", CELL, float(run.changes.transitions), "1"),
        ("X-RANLOOM.LateUlHarq", CELL, float(run.counters["overdue_blocks"]), "1"),
    ]
    return rows


def json_lines(run: CellRun, cell: int = 0) -> Iterator[str]:
    """The run as srsRAN would report it each second; time stamps are seconds of the simulation.

    Args:
        run: the run.
        cell: becomes the physical cell id.
    """
    reserved = np.zeros(len(run.seconds))
    edges = [run.config.ul_slots_in(k * 1_000_000) for k in range(len(run.seconds))]
    held = np.repeat(run.changes.sm, np.diff(run.changes.ul_index, append=run.ul_slots))
    for k, (begin, end) in enumerate(zip(edges, [*edges[1:], run.ul_slots], strict=True)):
        reserved[k] = held[begin:end].mean() if end > begin else held[-1]
    for second, ues in enumerate(run.ue_seconds):
        length_s = min(1.0, run.duration_us / 1e6 - second)
        report: dict[str, Any] = {
            "timestamp": second + length_s,
            "cells": [
                {
                    "pci": cell,
                    "cell_metrics": {
                        "late_ul_harqs": int(ues[:, _UE["overdue_blocks"]].sum()),
                        "x_sm_reserved": round(float(reserved[second]), 3),
                    },
                    "ue_list": [_ue(row, ue, cell, length_s) for ue, row in enumerate(ues)],
                }
            ],
        }
        yield json.dumps(report, separators=(",", ":"))


def _ue(row: np.ndarray, ue: int, cell: int, length_s: float) -> dict[str, Any]:
    blocks = int(row[_UE["decoded_blocks"]] + row[_UE["failed_blocks"]])
    mean = 1.0 / max(blocks, 1)
    return {
        "ue": ue,
        "pci": cell,
        "rnti": FIRST_RNTI + ue,
        "ul_mcs": round(float(row[_UE["mcs"]]) * mean),
        "ul_brate": 8.0 * int(row[_UE["bytes"]]) / length_s,
        "ul_nof_ok": int(row[_UE["decoded_blocks"]]),
        "ul_nof_nok": int(row[_UE["failed_blocks"]]),
        "bsr": int(row[_UE["report_bytes"]]),
        "pusch_snr_db": round(0.01 * float(row[_UE["snr_centi_db"]]) * mean, 2),
    }
