"""What the report is made of: metrics and tables of every stage, and the published figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from ruamel.yaml import YAML

from ranloom.errors import InputError

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ReportData:
    """Inputs of the report.

    Args:
        metrics: stage name to its metrics, nested by name.
        measured: the same for what depended on wall time.
        tables: ``stage.output`` to the path of a Parquet file.
        published: figures of the papers, nested as in ``data/published``.
    """

    metrics: Mapping[str, Mapping[str, Any]]
    measured: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, Path]
    published: Mapping[str, Any]

    def table(self, name: str, **where: object) -> dict[str, np.ndarray]:
        """Columns of a table, restricted to rows that equal the given values.

        Args:
            name: ``stage.output``.
            where: column to value.
        """
        table = pq.read_table(self.tables[name])
        columns = {c: table.column(c).to_numpy(zero_copy_only=False) for c in table.column_names}
        keep = np.ones(table.num_rows, dtype=bool)
        for column, value in where.items():
            keep &= columns[column] == value
        return {c: v[keep] for c, v in columns.items()}

    def metric(self, stage: str, name: str) -> float | None:
        """A metric by dotted name, from the measured ones if it is not in the others."""
        for tree in (self.metrics.get(stage, {}), self.measured.get(stage, {})):
            value = lookup(tree, name)
            if isinstance(value, bool | int | float):
                return float(value)
        return None


def lookup(tree: Any, name: str) -> Any:
    """Value at a dotted name in a nested mapping; keys may contain dots; ``None`` if absent."""
    if not name:
        return tree
    if not isinstance(tree, Mapping):
        return None
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        key = ".".join(parts[:i])
        if key in tree:
            found = lookup(tree[key], ".".join(parts[i:]))
            if found is not None:
                return found
    return None


def load_published(path: Path) -> dict[str, Any]:
    """Read the published figures.

    Raises:
        InputError: the file is no YAML mapping.
    """
    document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise InputError(str(path), document, "allowed: a YAML mapping of figures")
    return document
