"""The events of a run as a table that every decision can be replayed from.

The coordinator's state is the fold of its events, so these and what it was started with are enough:
a new core that is handed them gives the very actions of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from ranloom.errors import InputError
from ranloom.training.coordinator import Coordinator
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.messages import Action
from ranloom.training.runtime.peer_messages import LOG_CODEC
from ranloom.training.settings import CoordinatorSettings

_STARTED_WITH = b"ranloom.started_with"
COLUMNS = pa.schema(
    [
        pa.field("time_s", pa.float64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ]
)
"""Time of the coordinator's clock, kind of the event, its fields as JSON."""


def write_events(
    path: Path,
    events: Sequence[tuple[float, Any]],
    settings: CoordinatorSettings,
    layout: Layout,
    costs: LayerCosts,
) -> None:
    """Write the events of a run (Parquet).

    Args:
        path: file to write.
        events: (time, event) in the order in which they were handled.
        settings: of the coordinator.
        layout: that it started with.
        costs: of the layers.
    """
    bodies = [LOG_CODEC.dump(event) for _, event in events]
    columns = {
        "time_s": [time_s for time_s, _ in events],
        "kind": [kind for kind, _ in bodies],
        "body": [body for _, body in bodies],
    }
    started_with = {
        "settings": asdict(settings),
        "layout": asdict(layout),
        "costs": {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in asdict(costs).items()
        },
    }
    schema = COLUMNS.with_metadata({_STARTED_WITH: json.dumps(started_with).encode()})
    pq.write_table(pa.table(columns, schema=schema), path)


def replay_events(path: Path) -> Iterator[tuple[float, Action]]:
    """Every action of a run, notes included, decided anew from its events.

    Raises:
        InputError: a file that does not hold the events of a run.
    """
    try:
        table = pq.read_table(path)
        found = json.loads((table.schema.metadata or {})[_STARTED_WITH])
        settings = TypeAdapter(CoordinatorSettings).validate_python(found["settings"])
        layout = TypeAdapter(Layout).validate_python(found["layout"])
        costs_found: dict[str, Any] = {
            name: np.array(value) if isinstance(value, list) else value
            for name, value in found["costs"].items()
        }
        costs = LayerCosts(**costs_found)
    except (OSError, pa.ArrowInvalid, KeyError, ValueError, TypeError) as error:
        what = str(error).split("\n")[0]
        raise InputError(str(path), what, "allowed: the events of a run") from None
    core = Coordinator(settings, layout, costs)
    for row in table.to_pylist():
        event = LOG_CODEC.load(row["kind"], row["body"])
        for action in core.handle(event, row["time_s"]):
            yield row["time_s"], action
