"""CSV files that say in comment lines how they were made: ``# key: value``, then a table."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ranloom.errors import InputError


@dataclass(frozen=True)
class CommentedTable:
    """What such a file holds.

    Attributes:
        how: comment lines of the form ``# key: value``.
        columns: names of the header, in lower case.
        rows: column to cell, as text.
    """

    how: dict[str, str]
    columns: tuple[str, ...]
    rows: Iterator[dict[str, str]]


def header_names(line: str) -> list[str]:
    """Column names of a header line, without spaces and in lower case."""
    return [name.strip().strip('"').lower() for name in line.split(",")]


def read_commented_csv(path: Path, kind: str) -> CommentedTable:
    """Read a file; comments may stand anywhere, empty lines count nothing.

    Args:
        path: the file.
        kind: what it should be, for messages (``a latency profile``).

    Raises:
        InputError: there is no such file, or it is no text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError:
        raise InputError(str(path), "no such file", f"allowed: {kind} (CSV)") from None
    except UnicodeDecodeError:
        raise InputError(str(path), "binary data", f"allowed: {kind} (CSV)") from None
    comments = [line[1:] for line in text.splitlines() if line.startswith("#")]
    how = dict(pair for c in comments if len(pair := [p.strip() for p in c.split(":", 1)]) == 2)
    rows = csv.DictReader(
        (line for line in text.splitlines() if line.strip() and not line.startswith("#")),
        skipinitialspace=True,
    )
    if rows.fieldnames:
        rows.fieldnames = header_names(",".join(rows.fieldnames))
    return CommentedTable(how, tuple(rows.fieldnames or ()), rows)
