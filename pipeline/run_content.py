"""What a stage run shows in MLflow: parameters, metrics, series, tables, figures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.documents import flattened
from pipeline.registry import METRICS
from pipeline.stage import Folder, Plot, Stage, Table

if TYPE_CHECKING:
    from pipeline.fingerprint import Entry
    from pipeline.store import Store

_PARAM_CHARACTERS = 500  # longer values are unreadable in the UI; the artifact holds them whole
_PARAM_BATCH = 100  # MLflow's limit for one log_batch call
_SERIES_POINTS = 1000
_PREVIEW_ROWS = 200
_ARTIFACT_BYTES = 32 * 2**20


def logged_metrics(folder: Path) -> dict[str, float]:
    """Dotted name to number of ``metrics.json`` in a folder; booleans become 0 or 1."""
    path = folder / METRICS
    if not path.exists():
        return {}
    values = flattened(json.loads(path.read_text(encoding="utf-8")))
    return {name: float(v) for name, v in values if isinstance(v, bool | int | float)}


def log_execution(store: Store, run_id: str, entry: Entry) -> None:
    """Log what identifies an execution: parameters, command and dependencies."""
    log_params(store, run_id, entry.params)
    store.client.log_dict(run_id, {"cmd": entry.command, "deps": dict(entry.deps)}, "deps.json")


def log_params(store: Store, run_id: str, values: Mapping[str, Any]) -> None:
    """Log parameters one by one (cut where long) and whole as an artifact."""
    from mlflow.entities import Param

    flat = _flat_params(dict(values))
    params = [Param(key, value[:_PARAM_CHARACTERS]) for key, value in flat.items()]
    for i in range(0, len(params), _PARAM_BATCH):
        store.client.log_batch(run_id, params=params[i : i + _PARAM_BATCH])
    store.client.log_dict(run_id, dict(values), "params.json")


def log_content(store: Store, run_id: str, stage: Stage, root: Path) -> None:
    """Log the outs of a finished stage: metrics, series by batch, tables and figures."""
    folder = root / "outs" / stage.name
    for subfolder in (None, "measured"):
        file = folder / (subfolder or "") / METRICS
        if file.exists():
            store.log_latest(run_id, logged_metrics(file.parent))
            store.client.log_artifact(run_id, str(file), subfolder)
    for output in stage.outputs.values():
        path = folder / output.file
        if isinstance(output, Folder):
            store.client.log_artifacts(run_id, str(path), output.file)
            continue
        if path.stat().st_size <= _ARTIFACT_BYTES:
            store.client.log_artifact(run_id, str(path))
        if isinstance(output, Table):
            preview = next(pq.ParquetFile(path).iter_batches(_PREVIEW_ROWS), None)
            if preview is not None:
                data = {n: preview.column(n).to_pylist() for n in preview.schema.names}
                store.client.log_table(run_id, data, f"preview/{path.stem}.json")
    for plot in stage.plots:
        _log_series(store, run_id, stage, plot, folder)


def _log_series(store: Store, run_id: str, stage: Stage, plot: Plot, folder: Path) -> None:
    declared = stage.outputs[plot.output]
    assert isinstance(declared, Table)
    types = {c.name: c.type for c in declared.columns}
    if types[plot.x] == "string":  # a bar chart: a metric series needs a number as its step
        return
    labels = [n for n, kind in types.items() if kind == "string" and n not in plot.where]
    columns = dict.fromkeys([*labels, *plot.where, plot.x, plot.y])
    table = pq.read_table(folder / declared.file, columns=list(columns))
    for name, value in plot.where.items():
        table = table.filter(pc.equal(table.column(name).cast(pa.scalar(value).type), value))
    now_ms = int(time.time() * 1000)
    points = []
    for label, group in _groups(table, labels):
        stride = max(1, -(-group.num_rows // _SERIES_POINTS))
        shown = (str(value) for value in plot.where.values())
        name = "/".join(["series", plot.output, plot.y, *shown, *(part or "-" for part in label)])
        steps = group.column(plot.x).to_pylist()[::stride]
        values = group.column(plot.y).to_pylist()[::stride]
        points += [
            (name, float(v), now_ms, round(float(s)))
            for s, v in zip(steps, values, strict=True)
            if v is not None and s is not None
        ]
    store.log_metrics(run_id, points)


def _groups(table: pa.Table, labels: list[str]) -> list[tuple[tuple[str, ...], pa.Table]]:
    if not labels:
        return [((), table)]
    columns = [table.column(label).to_pylist() for label in labels]
    rows: dict[tuple[str, ...], list[int]] = {}
    for i, label in enumerate(zip(*columns, strict=True)):
        rows.setdefault(label, []).append(i)
    return [(label, table.take(indices)) for label, indices in rows.items()]


def _flat_params(tree: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(tree, Mapping) and tree:
        flat: dict[str, str] = {}
        for key, value in tree.items():
            flat.update(_flat_params(value, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    return {prefix: tree if isinstance(tree, str) else json.dumps(tree)}
