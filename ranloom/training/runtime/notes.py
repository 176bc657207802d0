"""The notes of a run as they happen: lines of JSON in a file, and whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from ranloom.training.messages import Note

Watch = Callable[[dict[str, object]], None]
"""Takes the fields of a note."""


class NoteFile:
    """Gathers notes and writes them together.

    Args:
        path: file to append to.
        watch: called with the fields of every note as it is written.
    """

    def __init__(self, path: Path, watch: Watch | None = None) -> None:
        self._file = path.open("ab")
        self._watch = watch
        self._new: list[dict[str, object]] = []

    def add(self, note: Note, now_s: float) -> None:
        """Keep a note for the next ``flush``.

        Args:
            note: what happened.
            now_s: time of the coordinator's clock.
        """
        self._new.append({"now_s": now_s, "wall_s": time.time()} | note_fields(note))

    def flush(self) -> None:
        """Hand what was added to the operating system."""
        if not self._new:
            return
        self._file.write(b"".join(to_json(fields) + b"\n" for fields in self._new))
        self._file.flush()
        if self._watch is not None:
            for fields in self._new:
                self._watch(fields)
        self._new.clear()

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
        self._file.close()


def note_fields(note: Note) -> dict[str, Any]:
    """Fields of a note, ready for JSON."""
    return {
        "kind": note.kind.value,
        "step": note.step,
        "site": note.site,
        "stage": note.stage,
        "micro_batch": note.micro_batch,
        "value": note.value,
        "reason": note.reason,
    }
