"""The promise of a controller, as a test against the uncontrolled scheduler.

Far fewer transitions are worth nothing if they are bought with compute or delay: a constant
reservation has none at all. A controller passes at a load when it meets every limit there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranloom.mac.kpis import CellKpis


@dataclass(frozen=True)
class Limits:
    """What a controller has to meet against ``noctrl`` on the same load.

    Args:
        transitions_ratio: at least this many times fewer transitions.
        mean_sm_pct: mean reservation higher by at most this.
        delay_p95_ms: 95th percentile of packet delay higher by at most this,
        delay_p95_pct: or by at most this share of it, whichever is more.
        throughput_pct: throughput lower by at most this.
        harq_met_pct: HARQ feedback in time less often by at most this (percentage points).
        decode_over_1ms_pct: decodes above 1 ms more often by at most this (percentage points).
    """

    transitions_ratio: float = 4.0
    mean_sm_pct: float = 2.0
    delay_p95_ms: float = 10.0
    delay_p95_pct: float = 1.0
    throughput_pct: float = 1.0
    harq_met_pct: float = 0.01
    decode_over_1ms_pct: float = 0.01


@dataclass(frozen=True)
class Verdict:
    """One controller at one load.

    Attributes:
        transitions_ratio: transitions of ``noctrl`` over those of the controller (at least 1).
        mean_sm_pct: mean reservation against ``noctrl``.
        delay_p95_ms: 95th percentile against ``noctrl``.
        throughput_pct: throughput against ``noctrl``.
        harq_met_pct: against ``noctrl``, percentage points.
        decode_over_1ms_pct: against ``noctrl``, percentage points.
        missed: names of the limits that are not met; empty for a pass.
    """

    transitions_ratio: float
    mean_sm_pct: float
    delay_p95_ms: float
    throughput_pct: float
    harq_met_pct: float
    decode_over_1ms_pct: float
    missed: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether every limit is met."""
        return not self.missed


def judge(kpis: CellKpis, noctrl: CellKpis, limits: Limits) -> Verdict:
    """Compare a controller with the uncontrolled scheduler at one load."""
    ratio = noctrl.transitions / max(kpis.transitions, 1)
    mean_sm_pct = 100.0 * (kpis.mean_sm / noctrl.mean_sm - 1.0)
    delay_ms = kpis.delay_p95_ms - noctrl.delay_p95_ms
    throughput_pct = (
        100.0 * (kpis.throughput_mbps / noctrl.throughput_mbps - 1.0)
        if noctrl.throughput_mbps > 0
        else 0.0
    )
    harq = kpis.harq_met_pct - noctrl.harq_met_pct
    late = kpis.decode_over_1ms_pct - noctrl.decode_over_1ms_pct
    delay_limit = max(limits.delay_p95_ms, 0.01 * limits.delay_p95_pct * noctrl.delay_p95_ms)
    missed = tuple(
        name
        for name, is_missed in (
            ("transitions", ratio < limits.transitions_ratio),
            ("mean_sm", mean_sm_pct > limits.mean_sm_pct),
            ("delay_p95", delay_ms > delay_limit),
            ("throughput", throughput_pct < -limits.throughput_pct),
            ("harq_met", harq < -limits.harq_met_pct),
            ("decode_over_1ms", late > limits.decode_over_1ms_pct),
        )
        if is_missed
    )
    return Verdict(ratio, mean_sm_pct, delay_ms, throughput_pct, harq, late, missed)
