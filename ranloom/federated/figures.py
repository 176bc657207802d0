"""Key figures of a finished simulation: times, forecasts, burstiness, rounding errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ranloom.federated.bursts import coefficient_of_variation, spread_bursts
from ranloom.federated.experiment import JobSetup, Simulation
from ranloom.federated.payload import encoding_error
from ranloom.federated.radio import ARRIVED, SAT_OUT
from ranloom.federated.transfers import AGGREGATE, PER_UE, Transfer


def moved_while_uploading(simulation: Simulation) -> int:
    """Uploads that arrived at another gNB than the one where they began."""
    uploads = simulation.uploads
    tasks, stretches = np.unique(uploads.segment_task, return_counts=True)
    rounds = simulation.population.rounds
    arrived = uploads.outcome[tasks // rounds, tasks % rounds] == ARRIVED
    return int(np.sum(arrived & (stretches > 1)))


def payload_errors(
    values: Sequence[NDArray[np.float64]], dtypes: Sequence[str]
) -> dict[str, float]:
    """Mean over updates of the RMS rounding error of each wire format, relative to their RMS."""
    return {
        f"{dtype}_rms_rel_error": float(np.mean([encoding_error(v, dtype) for v in values]))
        for dtype in dtypes
    }


def update_sizes(setups: Sequence[JobSetup]) -> dict[str, dict[str, int]]:
    """Sizes of an update by job: of the model in the tables, and of the tensors added up."""
    return {
        setup.job.name: {
            "parameters": setup.shipping.elements,
            "bytes": setup.job.update_bytes,
            "aggregate_bytes": sum(setup.shipping.part_bytes()),
            "tensor_parameters": setup.config.layout.elements,
        }
        for setup in setups
    }


def round_times(simulation: Simulation) -> dict[str, float]:
    """When updates arrive and waves close, in seconds after the begin of their round."""
    uploads, plan = simulation.uploads, simulation.population.plan
    took_part = uploads.outcome != SAT_OUT
    arrived = uploads.outcome == ARRIVED
    offset_s = (uploads.arrival_s - uploads.begin_s[plan.job])[arrived]
    closed_s = [
        wave.closed_s - float(uploads.begin_s[job, wave.round])
        for job, replay in enumerate(simulation.replays)
        for wave in replay.waves
    ]
    figures: dict[str, float] = {
        "took_part": int(took_part.sum()),
        "sat_out": int(np.isfinite(uploads.begin_s[plan.job]).sum() - took_part.sum()),
        "waves": len(closed_s),
    }
    if closed_s:
        figures |= {
            "upload_mean_s": float(np.mean((uploads.arrival_s - uploads.start_s)[arrived])),
            "arrival_p50_s": float(np.quantile(offset_s, 0.5)),
            "arrival_p95_s": float(np.quantile(offset_s, 0.95)),
            "wave_close_p50_s": float(np.quantile(closed_s, 0.5)),
            "wave_close_p95_s": float(np.quantile(closed_s, 0.95)),
        }
    return figures


def forecast_quality(rows: Sequence[Transfer]) -> dict[str, float]:
    """Share of releases no later than forecast, and how much earlier than P95 on average."""
    release_s = np.array([r.release_s for r in rows])
    p50_s = np.array([r.release_p50_s for r in rows])
    p95_s = np.array([r.release_p95_s for r in rows])
    return {
        "p50_coverage": float(np.mean(release_s <= p50_s + 1e-9)),
        "p95_coverage": float(np.mean(release_s <= p95_s + 1e-9)),
        "p95_margin_mean_s": float(np.mean(p95_s - release_s)),
    }


def burstiness(
    simulation: Simulation,
    rows: Mapping[str, Sequence[Transfer]],
    bins_s: Sequence[int],
    burst_gbps: float,
) -> dict[str, float]:
    """Coefficient of variation of offered bytes, at a gNB (mean) and at the hub.

    Per-UE traffic leaves a gNB as it comes in from the radio; a wave leaves at ``burst_gbps``.

    Args:
        simulation: what happened.
        rows: demands by strategy.
        bins_s: bin widths.
        burst_gbps: line rate of a gNB.
    """
    per_ue = simulation.uploads.offered_bits / 8.0
    waves = np.zeros_like(per_ue)
    for gnb in range(per_ue.shape[0]):
        mine = [r for r in rows[AGGREGATE] if r.gnb == gnb]
        start_s = np.array([r.release_s for r in mine])
        size = np.array([float(r.bytes) for r in mine])
        waves[gnb] = spread_bursts(start_s, size, burst_gbps, per_ue.shape[1])
    figures = {}
    for bin_s in bins_s:
        for strategy, offered in ((PER_UE, per_ue), (AGGREGATE, waves)):
            stem = f"{strategy}_{{}}_bin_{bin_s}s_cov"
            together = offered.sum(axis=0)
            figures[stem.format("gnb")] = coefficient_of_variation(offered, bin_s)
            figures[stem.format("hub")] = coefficient_of_variation(together, bin_s)
    return figures


def dropped_by_reason(simulation: Simulation) -> dict[str, int]:
    """Samples that were dropped, by reason."""
    reasons: dict[str, int] = {}
    for replay in simulation.replays:
        for fate in replay.fates:
            if fate.fate == "dropped":
                n_k = int(simulation.population.n_k[fate.ue])
                reasons[fate.reason] = reasons.get(fate.reason, 0) + n_k
    return dict(sorted(reasons.items()))
