"""A finished simulation as columns of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ranloom.federated.experiment import Simulation
from ranloom.federated.transfers import Transfer

if TYPE_CHECKING:  # its module loads torch
    from ranloom.federated.quality import Curve

Columns = dict[str, list[Any]]


def _columns(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Columns:
    return {name: [row[name] for row in rows] for name in names}


def transfer_columns(
    rows: Sequence[Transfer], gnb_names: Sequence[str], destination: str
) -> Columns:
    """Demands: the fields of :class:`Transfer`, with node names ``source`` and ``destination``."""
    columns: Columns = {name: [] for name in Transfer.__dataclass_fields__}
    for row in rows:
        for name, value in asdict(row).items():
            columns[name].append(value)
    columns["source"] = [gnb_names[gnb] for gnb in columns.pop("gnb")]
    columns["destination"] = [destination] * len(rows)
    return columns


UPDATE_COLUMNS = (
    *("job", "round", "ue", "ue_class", "gnb", "n_k", "compute_s", "upload_start_s", "upload_s"),
    *("arrival_s", "fate", "reason", "counted_round", "wave"),
)


def update_columns(
    simulation: Simulation, gnb_names: Sequence[str], class_names: Sequence[str]
) -> Columns:
    """A row for each round that a UE took part in, and a ``duplicate`` for a retransmission."""
    population, uploads = simulation.population, simulation.uploads
    rows = []
    for job, replay in zip(population.jobs, simulation.replays, strict=True):
        for fate in replay.fates:
            key = (fate.ue, fate.round)
            start_s, arrival_s = float(uploads.start_s[key]), float(uploads.arrival_s[key])
            row = {
                "job": job.name,
                "round": fate.round,
                "ue": population.names[fate.ue],
                "ue_class": class_names[population.ue_class[fate.ue]],
                "gnb": gnb_names[fate.gnb],
                "n_k": int(population.n_k[fate.ue]),
                "compute_s": float(population.plan.compute_s[key]),
                "upload_start_s": None if math.isnan(start_s) else start_s,
                "upload_s": None if math.isnan(arrival_s) else arrival_s - start_s,
                "arrival_s": None if math.isnan(arrival_s) else arrival_s,
                "fate": fate.fate,
                "reason": fate.reason or None,
                "counted_round": fate.counted_round if fate.counted_round >= 0 else None,
                "wave": fate.wave if fate.wave >= 0 else None,
            }
            rows.append(row)
            if fate.retransmitted:
                rows.append(row | {"fate": "duplicate", "counted_round": None, "wave": None})
    return _columns(rows, UPDATE_COLUMNS)


WAVE_COLUMNS = (
    *("job", "round", "gnb", "wave", "closed_s", "closed_by", "updates", "sum_n", "weight"),
)


def wave_columns(simulation: Simulation) -> Columns:
    """A row for each wave."""
    rows = [
        {
            "job": job.name,
            "round": wave.round,
            "gnb": wave.gnb,
            "wave": wave.index,
            "closed_s": wave.closed_s,
            "closed_by": wave.closed_by,
            "updates": len(wave.manifest),
            "sum_n": wave.samples,
            "weight": wave.weight,
        }
        for job, replay in zip(simulation.population.jobs, simulation.replays, strict=True)
        for wave in replay.waves
    ]
    return _columns(rows, WAVE_COLUMNS)


CURVE_COLUMNS = (
    *("strategy", "seed", "round", "time_s", "accuracy", "slow_class_accuracy", "updates"),
)


def curve_columns(curves: Sequence[Curve]) -> Columns:
    """A row for each model of each run."""
    rows = [
        {
            "strategy": curve.strategy,
            "seed": curve.seed,
            "round": index,
            "time_s": curve.time_s[index],
            "accuracy": curve.accuracy[index],
            "slow_class_accuracy": curve.slow_accuracy[index],
            "updates": curve.updates[index],
        }
        for curve in curves
        for index in range(len(curve.time_s))
    ]
    return _columns(rows, CURVE_COLUMNS)
