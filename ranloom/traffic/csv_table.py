"""Reading CSV files of numbers so that every fault is one line with its file and row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
from numpy.typing import NDArray

from ranloom.errors import InputError

FIRST_ROW = 2  # file line of the first record: line 1 is the header


def existing(path: Path, kind: str) -> Path:
    """The path itself, if it is there as a ``file`` or a ``folder``.

    Raises:
        InputError: it is not.
    """
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        raise InputError(str(path), "missing", f"needed: an existing {kind}")
    return path


def read_columns(
    path: Path, columns: Mapping[str, type | np.dtype], *, may_be_empty: bool = False
) -> dict[str, NDArray]:
    """Named columns of a CSV file with a header line; further columns are ignored.

    Args:
        path: the file, UTF-8, comma-separated; blanks around names and cells do not matter.
        columns: name to type: ``float``, ``int`` or ``str``. Numbers must be finite.
        may_be_empty: accept a file without records.

    Returns:
        name to array, in the order asked for: float64, int64 or object arrays.

    Raises:
        InputError: no such file, empty file, missing column, a row with too few or too many cells
            (a truncated file), or a cell that is no number of that type.
    """
    table = _read_text(existing(path, "file"))
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        allowed = "needed: columns " + ", ".join(columns)
        raise InputError(f"{path}: header", ", ".join(table.column_names), allowed)
    if table.num_rows == 0 and not may_be_empty:
        raise InputError(str(path), "no records", "needed: at least one row after the header")
    return {name: _cast(path, name, table.column(name), kind) for name, kind in columns.items()}


def refuse_rows(
    path: Path, column: str, values: NDArray, bad: NDArray[np.bool_], allowed: str
) -> None:
    """Raise for the first bad record of a column.

    Raises:
        InputError: any element of ``bad`` is set; names file, row and column.
    """
    if np.any(bad):
        row = int(np.argmax(bad))
        value = values[row].item() if isinstance(values[row], np.generic) else values[row]
        raise InputError(f"{path}: row {row + FIRST_ROW}, {column}", value, f"needed: {allowed}")


def _read_text(path: Path) -> pa.Table:
    faults: list[tuple[int | None, str, int, int]] = []

    def wrong_width(row: Any) -> str:
        faults.append((row.number, row.text, row.expected_columns, row.actual_columns))
        return "skip"

    try:
        header = path.read_bytes().split(b"\n", 1)[0].decode("utf-8-sig")
        names = [name.strip() for name in header.rstrip("\r").split(",")]
        if not header.strip():
            raise InputError(str(path), "empty file", "needed: a header line and records")
        if path.stat().st_size <= len(header.encode()) + 2:
            return pa.table({name: pa.array([], pa.string()) for name in dict.fromkeys(names)})
        table = pv.read_csv(
            path,
            # One thread: only then does the parser know row numbers.
            read_options=pv.ReadOptions(
                use_threads=False, column_names=_unique(names), skip_rows=1
            ),
            parse_options=pv.ParseOptions(
                invalid_row_handler=wrong_width, ignore_empty_lines=False
            ),
            convert_options=pv.ConvertOptions(
                column_types={name: pa.string() for name in _unique(names)},
                strings_can_be_null=False,
            ),
        )
    except UnicodeDecodeError as error:
        raise InputError(str(path), str(error), "needed: UTF-8 text") from error
    except pa.ArrowInvalid as error:
        raise InputError(str(path), str(error).splitlines()[0], "needed: a CSV file") from error
    if faults:
        number, text, expected, actual = faults[0]
        where = str(path) if number is None else f"{path}: row {number}"
        raise InputError(where, text, f"needed: {expected} cells, not {actual}")
    return table


def _unique(names: Sequence[str]) -> list[str]:
    """Names with repeated (or blank) ones made distinct, so that the parser takes them."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 and name else f"{name}#{seen[name]}")
    return unique


def _cast(path: Path, name: str, column: pa.ChunkedArray, kind: type | np.dtype) -> NDArray:
    text = pc.utf8_trim_whitespace(column.combine_chunks())
    if kind is str:
        return np.asarray(text.to_numpy(zero_copy_only=False))
    arrow, wanted = (pa.int64(), "an integer") if kind is int else (pa.float64(), "a number")
    try:
        values = np.asarray(text.cast(arrow).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        cells = text.to_pylist()
        row = next(i for i, cell in enumerate(cells) if not _parses(cell, arrow))
        where = f"{path}: row {row + FIRST_ROW}, {name}"
        raise InputError(where, cells[row], f"needed: {wanted}") from None
    refuse_rows(path, name, values, ~np.isfinite(values), "a finite number")
    return values


def _parses(cell: str, kind: pa.DataType) -> bool:
    try:
        pa.scalar(cell).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
