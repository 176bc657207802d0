"""Key figures of a run, from its packets, its counters and its reservation.

Delays are those of delivered packets, pooled over UEs, from arrival in the UE's buffer to the
end of the decode that completes them. Jitter is the mean absolute difference of the delays of
successive packets of a UE (as D-ITG reports it). Loss counts packets, dropped or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.recorder import COUNTERS, SECOND_COLUMNS
from ranloom.mac.rlc import DELAY_DROPPED, DELAY_LOST
from ranloom.mac.simulate import CellRun

P95 = 95.0


@dataclass(frozen=True, eq=False)
class UeKpis:
    """Figures of each UE, float64[n_ue]; a UE without delivered packets has delay and jitter 0."""

    throughput_mbps: NDArray[np.float64]
    delay_mean_ms: NDArray[np.float64]
    delay_p95_ms: NDArray[np.float64]
    jitter_ms: NDArray[np.float64]
    loss_pct: NDArray[np.float64]


@dataclass(frozen=True)
class CellKpis:
    """Figures of a run.

    Attributes:
        mean_sm: mean reservation over UL slots.
        transitions: changes of the reservation from one UL slot to the next.
        harq_met_pct: 100 x (1 - blocks with overdue HARQ feedback / initial blocks).
        decode_over_1ms_pct: share of decodes longer than 1 ms.
        throughput_mbps: delivered bytes over the duration.
        delay_mean_ms: mean packet delay.
        delay_p95_ms: 95th percentile of it.
        jitter_ms: mean over UEs that delivered at least two packets.
        loss_pct: share of packets dropped or lost.
        passes_1_to_3_pct: share of scheduled slots with at most three allocation passes.
        prb_used_pct: share of the PRBs of all UL slots.
        smu_pct: SM time that decoding keeps busy over all SM time: ``k W`` per decode, the part
            of its latency that spreads over SMs.
        bler_pct: failed first transmissions over first transmissions.
        byte_balance_error: bytes unaccounted for.
    """

    mean_sm: float
    transitions: int
    harq_met_pct: float
    decode_over_1ms_pct: float
    throughput_mbps: float
    delay_mean_ms: float
    delay_p95_ms: float
    jitter_ms: float
    loss_pct: float
    passes_1_to_3_pct: float
    prb_used_pct: float
    smu_pct: float
    bler_pct: float
    byte_balance_error: int


def _share_pct(part: float, whole: float, empty: float = 0.0) -> float:
    return 100.0 * float(part) / float(whole) if whole else empty


def _jitter_ms(delay_us: NDArray[np.float64]) -> float:
    return float(np.abs(np.diff(delay_us)).mean() / 1e3) if len(delay_us) > 1 else 0.0


def ue_kpis(run: CellRun) -> UeKpis:
    """Figures of each UE of a run."""
    n_ue = len(run.ledger.offered)
    columns = np.zeros((4, n_ue))
    order = np.argsort(run.packet_ue, kind="stable")
    bounds = np.searchsorted(run.packet_ue[order], np.arange(n_ue + 1))
    for u in range(n_ue):
        delay_us = run.packet_delay_us[order[bounds[u] : bounds[u + 1]]]
        delivered = delay_us[delay_us >= 0]
        gone = np.count_nonzero((delay_us == DELAY_LOST) | (delay_us == DELAY_DROPPED))
        if len(delivered):
            columns[0, u] = delivered.mean() / 1e3
            columns[1, u] = np.percentile(delivered, P95) / 1e3
            columns[2, u] = _jitter_ms(delivered)
        columns[3, u] = _share_pct(int(gone), len(delay_us))
    return UeKpis(8.0 * run.ledger.delivered / run.duration_us, *columns)


def cell_kpis(runs: Sequence[CellRun], k_us_sm: float) -> CellKpis:
    """Figures of one run, or of several cells together.

    Counts, throughput and transitions are sums over the cells, all else is pooled or a mean.

    Args:
        runs: runs of one controller, of equal length and on equal devices.
        k_us_sm: us x SM per unit of decoder work, for the SM utilisation.
    """
    first = runs[0]
    delay_us = np.concatenate([run.packet_delay_us for run in runs])
    delivered = delay_us[delay_us >= 0]
    gone = np.count_nonzero((delay_us == DELAY_LOST) | (delay_us == DELAY_DROPPED))
    count = {name: sum(int(r.counters[name]) for r in runs) for name in COUNTERS.names or ()}
    total = {
        name: sum(int(r.seconds[:, i].sum()) for r in runs) for i, name in enumerate(SECOND_COLUMNS)
    }
    jitter = np.concatenate([ue_kpis(run).jitter_ms for run in runs])
    passes = np.sum([run.passes for run in runs], axis=0)
    delivered_bytes = sum(int(run.ledger.delivered.sum()) for run in runs)
    cell_us = len(runs) * float(first.duration_us)
    return CellKpis(
        mean_sm=float(np.mean([run.mean_sm for run in runs])),
        transitions=sum(run.changes.transitions for run in runs),
        harq_met_pct=100.0 - _share_pct(count["overdue_blocks"], count["initial_blocks"]),
        decode_over_1ms_pct=_share_pct(count["long_decodes"], count["decodes"]),
        throughput_mbps=8.0 * delivered_bytes / first.duration_us,
        delay_mean_ms=float(delivered.mean()) / 1e3 if len(delivered) else 0.0,
        delay_p95_ms=float(np.percentile(delivered, P95)) / 1e3 if len(delivered) else 0.0,
        jitter_ms=float(jitter[jitter > 0].mean()) if (jitter > 0).any() else 0.0,
        loss_pct=_share_pct(int(gone), len(delay_us)),
        passes_1_to_3_pct=_share_pct(passes[1:4].sum(), passes.sum(), 100.0),
        prb_used_pct=_share_pct(total["used_prb"], len(runs) * first.ul_slots * first.config.n_prb),
        smu_pct=_share_pct(k_us_sm * total["work"], first.sm_max * cell_us),
        bler_pct=_share_pct(count["first_errors"], count["initial_blocks"]),
        byte_balance_error=max(run.ledger.error_bytes for run in runs),
    )
