"""Durable state of an aggregator process in SQLite.

What was acknowledged survives a kill: every change is committed before its answer is sent. The
payload of an update stays until the wave that it is in has closed, so that after a restart the
running sum is added up again, in the same order, to the same bits.
"""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ranloom.errors import InputError
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.aggregator import Aggregator
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.ledger import COUNTED, STAGED, Entry, entry_document
from ranloom.federated.update import UpdateHeader
from ranloom.federated.wave import Wave

SCHEMA = 1
_PAGE_BYTES = 32768
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (update_id TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS chunks (
    update_id TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (update_id, number)
);
CREATE TABLE IF NOT EXISTS waves (
    round INTEGER NOT NULL, number INTEGER NOT NULL, document TEXT NOT NULL, sums BLOB NOT NULL,
    PRIMARY KEY (round, number)
);
"""


@dataclass(frozen=True)
class StoredWave:
    """A wave that waits to be shipped.

    Args:
        document: the wave's fields but for the sums, plain values.
        sums: raw little-endian values in the aggregator's arithmetic.
    """

    document: dict[str, Any]
    sums: bytes


def wave_document(wave: Wave) -> dict[str, Any]:
    """Everything of a wave but its sums."""
    return {
        "gnb": wave.gnb,
        "round": wave.round,
        "index": wave.index,
        "closed_s": wave.closed_s,
        "closed_by": wave.closed_by,
        "weight": wave.weight,
        "samples": wave.samples,
        "manifest": list(wave.manifest),
        "arithmetic": wave.sums.arithmetic,
        "fraction_bits": wave.sums.fraction_bits,
        "magnitude_bound": wave.sums.magnitude_bound,
    }


def wave_of(document: dict[str, Any], sums: bytes) -> Wave:
    """The wave of a document and its sums."""
    kind = {"float64": "<f8", "fixed64": "<i8", "float32": "<f4"}[document["arithmetic"]]
    values = np.frombuffer(sums, kind).copy()
    total = Accumulator(values.size, document["arithmetic"], document["fraction_bits"])
    total.total[:] = values
    total.magnitude_bound = document["magnitude_bound"]
    return Wave(
        gnb=document["gnb"],
        round=document["round"],
        index=document["index"],
        closed_s=document["closed_s"],
        closed_by=document["closed_by"],
        sums=total,
        weight=document["weight"],
        samples=document["samples"],
        manifest=tuple(document["manifest"]),
    )


class Journal:
    """The database of one aggregator.

    Args:
        path: file; made if it does not exist.
        config: the aggregator's; a file of another configuration is refused.
        power_loss_safe: whether a commit waits until the disk has it (else it survives a kill
            of the process, not a power cut).

    Raises:
        InputError: the file is no such database, or of another configuration or schema.
    """

    def __init__(self, path: Path, config: AggregatorConfig, *, power_loss_safe: bool) -> None:
        self._config = config
        self._where = str(path)
        identity = {"schema": str(SCHEMA), "config": repr(config)}
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # chunks are large
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={'FULL' if power_loss_safe else 'NORMAL'}")
            self._db.executescript(_TABLES)
            self._db.execute("BEGIN IMMEDIATE")
            for key, value in identity.items():
                known = self._meta(key)
                if known is not None and known != value:
                    self._db.execute("ROLLBACK")
                    raise InputError(f"{path}: {key}", known, f"allowed: {value}")
                self._put_meta(key, value)
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise InputError(str(path), str(error), "allowed: an aggregator's database") from None

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def load(self) -> Aggregator:
        """The aggregator as it was at the last commit; a new one for a new file."""
        stored = self._meta("state")
        if stored is None:
            return Aggregator(self._config)
        state = json.loads(stored)
        if state["wave_open_s"] is None:
            state["wave_open_s"] = math.inf
        entries = []
        for (text,) in self._db.execute("SELECT document FROM entries ORDER BY rowid"):
            document = json.loads(text)
            entry = Entry(
                UpdateHeader(**document["header"]),
                document["state"],
                document["touched_s"],
                document["counted_round"],
                document["reason"],
            )
            if entry.state == STAGED:
                entry.chunks = self._chunks(entry.header.update_id)
            entries.append(entry)
        return Aggregator.restore(
            self._config,
            state,
            entries,
            lambda update_id: b"".join(data for _, data in sorted(self._chunks(update_id).items())),
        )

    def begin(self) -> None:
        """Open a transaction for a group of events."""
        self._db.execute("BEGIN IMMEDIATE")

    def put_chunk(self, update_id: str, number: int, data: bytes) -> None:
        """Keep a chunk that the aggregator has taken."""
        row = (update_id, number, data)
        self._db.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?)", row)

    def forget_chunks(self, update_id: str) -> None:
        """Forget the chunks of an update that starts over."""
        self._db.execute("DELETE FROM chunks WHERE update_id = ?", (update_id,))

    def commit(self, machine: Aggregator) -> None:
        """Write what has changed since the last commit, closed waves too, and commit."""
        ledger = machine.ledger
        for update_id in ledger.changed:
            entry = ledger.get(update_id)
            if entry is None or entry.state not in (STAGED, COUNTED):
                self._db.execute("DELETE FROM chunks WHERE update_id = ?", (update_id,))
            if entry is None:
                self._db.execute("DELETE FROM entries WHERE update_id = ?", (update_id,))
                continue
            self._db.execute(
                "INSERT INTO entries VALUES (?, ?) "
                "ON CONFLICT (update_id) DO UPDATE SET document = excluded.document",
                (update_id, json.dumps(entry_document(entry))),
            )
        ledger.changed.clear()
        for wave in machine.take_waves():
            values = wave.sums.total
            self._db.execute(
                "INSERT INTO waves VALUES (?, ?, ?, ?)",
                (
                    wave.round,
                    wave.index,
                    json.dumps(wave_document(wave)),
                    values.astype(values.dtype.newbyteorder("<")).tobytes(),
                ),
            )
            self._db.executemany(
                "DELETE FROM chunks WHERE update_id = ?", [(u,) for u in wave.manifest]
            )
        state = machine.state()
        if state["wave_open_s"] == math.inf:
            state["wave_open_s"] = None
        self._put_meta("state", json.dumps(state, allow_nan=False))
        self._db.execute("COMMIT")

    def oldest_wave(self) -> StoredWave | None:
        """The oldest wave that has not been shipped."""
        row = self._db.execute(
            "SELECT document, sums FROM waves ORDER BY round, number LIMIT 1"
        ).fetchone()
        return StoredWave(json.loads(row[0]), row[1]) if row else None

    def waves_waiting(self) -> int:
        """Number of waves that have not been shipped."""
        count: int = self._db.execute("SELECT COUNT(*) FROM waves").fetchone()[0]
        return count

    def ship(self, round_index: int, index: int) -> bool:
        """Forget a wave; False when there is none (it was shipped before)."""
        cursor = self._db.execute(
            "DELETE FROM waves WHERE round = ? AND number = ?", (round_index, index)
        )
        return cursor.rowcount == 1

    def _chunks(self, update_id: str) -> dict[int, bytes]:
        rows = self._db.execute(
            "SELECT number, data FROM chunks WHERE update_id = ? ORDER BY number", (update_id,)
        )
        return dict(rows.fetchall())

    def _meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _put_meta(self, key: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )
