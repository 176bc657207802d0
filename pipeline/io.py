"""What a running stage reads from and writes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.stage import File, Folder, Output, Plot, Stage, Table

_PLOT_ROWS = 5000

_ARROW = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.dictionary(pa.int32(), pa.string()),
}


def arrow_schema(table: Table) -> pa.Schema:
    """Arrow schema of a declared table."""
    return pa.schema([pa.field(c.name, _ARROW[c.type], nullable=c.nullable) for c in table.columns])


class Inputs:
    """Resolved inputs of a stage: logical name to path."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def path(self, name: str) -> Path:
        """Path of an input."""
        return self._paths[name]

    def table(self, name: str) -> pa.Table:
        """An input table; string columns come back dictionary-encoded."""
        return pq.read_table(self._paths[name], partitioning=None)

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """An input table as NumPy columns; strings as object arrays."""
        table = self.table(name)
        return {c: table.column(c).to_numpy(zero_copy_only=False) for c in table.column_names}

    def json(self, name: str) -> Any:
        """An input JSON document."""
        return json.loads(self._paths[name].read_text(encoding="utf-8"))


class Outputs:
    """Where a stage writes: temporary names that are renamed when the stage succeeds.

    Args:
        stage: the declaration; only its outputs can be written.
        folder: temporary folder that mirrors ``outs/<stage>``.
        live: receiver of advisory live metrics ``(name, value, step)``.
    """

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        live: Callable[[str, float, int], None] | None = None,
    ) -> None:
        self._stage = stage
        self._folder = folder
        self._live = live

    def _declared(self, name: str) -> Output:
        if name not in self._stage.outputs:
            raise KeyError(f"stage {self._stage.name} declares no output {name!r}")
        return self._stage.outputs[name]

    def path(self, name: str) -> Path:
        """Path to write a declared file to, or a declared folder (created)."""
        output = self._declared(name)
        path = self._folder / output.file
        if isinstance(output, Folder):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def table(self, name: str, columns: Mapping[str, Any] | pa.Table) -> None:
        """Write a declared table; columns are checked and cast to its schema.

        Args:
            name: logical output name.
            columns: column name to NumPy array, list or Arrow array (or an Arrow table).

        Raises:
            ValueError: a column is missing, unknown, or does not fit its type.
        """
        output = self._declared(name)
        if not isinstance(output, Table):
            raise TypeError(f"{name!r} of stage {self._stage.name} is no table")
        schema = arrow_schema(output)
        given = set(columns.column_names if isinstance(columns, pa.Table) else columns)
        if given != set(schema.names):
            missing, unknown = set(schema.names) - given, given - set(schema.names)
            raise ValueError(
                f"{self._stage.name}.{name}: missing {sorted(missing)}, unknown {sorted(unknown)}"
            )
        arrays = []
        for column in schema:
            values = columns[column.name]
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            if pa.types.is_dictionary(column.type):
                plain = (
                    values if isinstance(values, pa.Array) else pa.array(list(values), pa.string())
                )
                array = plain.cast(pa.string()).dictionary_encode().cast(column.type)
            else:
                array = pa.array(values) if not isinstance(values, pa.Array) else values
                array = array.cast(column.type)
            if array.null_count and not column.nullable:
                raise ValueError(f"{self._stage.name}.{name}.{column.name}: unexpected nulls")
            arrays.append(array)
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=schema), self.path(name), compression="zstd"
        )

    def json(self, name: str, document: Any) -> None:
        """Write a declared JSON file, keys in the given order."""
        if not isinstance(self._declared(name), File):
            raise TypeError(f"{name!r} of stage {self._stage.name} is no file")
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        self.path(name).write_text(text, encoding="utf-8")

    def measured(self, file: str) -> Path:
        """Path of a further file in ``measured/`` (what depends on wall time)."""
        if not self._stage.measured:
            raise KeyError(f"stage {self._stage.name} declares no measured outputs")
        path = self._folder / "measured" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def live(self, name: str, value: float, step: int) -> None:
        """Stream one advisory value while the stage runs."""
        if self._live is not None:
            self._live(name, float(value), int(step))


def write_plots(stage: Stage, folder: Path) -> None:
    """Write the columns of every declared plot as CSV, long tables thinned out evenly.

    Args:
        stage: the declaration.
        folder: folder with the stage's tables; the plots go to its ``plots/``.
    """
    for plot in stage.plots:
        path = folder / plot_file(plot)
        path.parent.mkdir(exist_ok=True)
        output = stage.outputs[plot.output]
        table = pq.read_table(
            folder / output.file,
            columns=list({plot.x: 0, plot.y: 0, **plot.where}),
            partitioning=None,
        )
        for column, value in plot.where.items():
            table = table.filter(pc.equal(table[column], value))
        stride = max(1, -(-table.num_rows // _PLOT_ROWS))
        table = table.take(np.arange(0, table.num_rows, stride))
        table = table.select([plot.x, plot.y])
        plain = pa.schema([(f.name, _plain(f.type)) for f in table.schema])
        pyarrow.csv.write_csv(table.cast(plain), path)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def plot_file(plot: Plot) -> str:
    """File of a plot, relative to the stage's outputs."""
    return f"plots/{plot.name}.csv"
