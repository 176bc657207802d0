"""A site's own record of what it computed, merged, sent and applied.

Written line by line to a file of its own, it survives a SIGKILL of the process and owes nothing to
the coordinator's ledger. ``audit.py`` counts from the journals of all sites, sample by sample,
what really went into the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from ranloom.errors import InputError


class Journal:
    """Append-only record; each line reaches the operating system before the next action.

    Args:
        path: file to append to; None keeps the records in memory (``records``) only.
    """

    def __init__(self, path: Path | None) -> None:
        self.records: list[dict[str, Any]] = []
        self._file: TextIO | None = None
        if path is not None:
            self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, what: str, **facts: Any) -> None:
        """Add one record."""
        record = {"what": what, **facts}
        if self._file is None:
            self.records.append(record)
        else:
            self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Records of a journal; the last line may have been cut by a kill and is then left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise InputError(f"{path}:{number}", line, "allowed: one JSON object") from None
    return records
