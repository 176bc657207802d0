"""The coordinator's durable log in SQLite: its state is the fold of the events in it.

Events are appended as they are handled and synced in groups; only then may the actions that they
caused leave the process. WAL with ``synchronous=FULL`` makes a commit survive a crash of the
process and of the machine; a replica on the storage of another host makes it survive the loss of
that machine (App. C.1), so that the coordinator can go on elsewhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ranloom.errors import InputError
from ranloom.training.runtime.wire import Codec

SCHEMA_VERSION = 1
_Row = tuple[float, str, str]

_SCHEMA = """
create table if not exists facts (name text primary key, value text not null) strict;
create table if not exists sites (site integer primary key, address text not null) strict;
create table if not exists events (
    number integer primary key, now_s real not null, kind text not null, body text not null
) strict;
"""


class LogWriteError(RuntimeError):
    """The log cannot be written (full disk, lost file): nothing may be sent any more."""


class EventLog:
    """Append-only log of one run.

    Args:
        path: database file; made if there is none.
        codec: turns events to and from JSON.
        replica: second file that every group of events is synced to, too. When one of the two is
            behind (one was lost, or a crash came between the two), it takes over what it lacks.

    Raises:
        InputError: a file that is no log of this format, or a replica of another run.
    """

    def __init__(self, path: Path, codec: Codec, replica: Path | None = None) -> None:
        self._path = path
        self._codec = codec
        self._replica = EventLog(replica, codec) if replica is not None else None
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("pragma journal_mode=wal")
            self._database.execute("pragma synchronous=full")
            self._database.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise InputError(str(path), str(error), "allowed: a log of a run") from None
        found = self.fact("schema")
        if found is None:
            self.set_fact("schema", str(SCHEMA_VERSION))
        elif found != str(SCHEMA_VERSION):
            raise InputError(f"{path}: schema", found, f"allowed: {SCHEMA_VERSION}")
        self._unwritten: list[tuple[float, Any]] = []
        self._new_events: list[_Row] = []
        self._new_sites: dict[int, str] = {}
        if self._replica is not None:
            self._catch_up(self._replica)

    def _catch_up(self, replica: EventLog) -> None:
        """Bring the log and its replica to the longer of the two."""
        ours, theirs = self._rows(0), replica._rows(0)
        common = min(len(ours), len(theirs))
        if ours[:common] != theirs[:common]:
            raise InputError(str(replica._path), "another run", "allowed: a replica of this log")
        behind, ahead = (self, replica) if len(ours) < len(theirs) else (replica, self)
        for name, value in ahead._database.execute("select name, value from facts").fetchall():
            behind.set_fact(name, value)
        behind._new_sites.update(ahead.sites())
        behind._new_events.extend(ahead._rows(common))
        behind._commit()

    def _rows(self, skipped: int) -> list[_Row]:
        query = "select now_s, kind, body from events order by number limit -1 offset ?"
        return self._database.execute(query, (skipped,)).fetchall()

    def fact(self, name: str) -> str | None:
        """A fact of the run (settings, address), None where it was never set."""
        row = self._database.execute("select value from facts where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        """Set a fact; durable when the call returns."""
        try:
            self._database.execute("insert or replace into facts values (?, ?)", (name, value))
        except sqlite3.Error as error:
            raise LogWriteError(f"{self._path}: {error}") from None
        if self._replica is not None:
            self._replica.set_fact(name, value)

    def sites(self) -> dict[int, str]:
        """Last known address of each site."""
        return dict(self._database.execute("select site, address from sites order by site"))

    def set_site(self, site: int, address: str) -> None:
        """Remember where a site listens, with the next ``sync``."""
        self._new_sites[site] = address
        if self._replica is not None:
            self._replica.set_site(site, address)

    def append(self, now_s: float, event: Any) -> None:
        """Add an event to the group that the next ``sync`` makes durable."""
        self._unwritten.append((now_s, event))

    def sync(self) -> None:
        """Make everything appended so far durable.

        Raises:
            LogWriteError: it could not be written; the caller must not send anything.
        """
        rows = [(now_s, *self._codec.dump(event)) for now_s, event in self._unwritten]
        self._unwritten.clear()
        self._new_events.extend(rows)
        if self._replica is not None:
            self._replica._new_events.extend(rows)
            self._replica._commit()
        self._commit()

    def _commit(self) -> None:
        if not (self._new_events or self._new_sites):
            return
        try:
            run = self._database.executemany
            self._database.execute("begin immediate")
            run("insert into events (now_s, kind, body) values (?, ?, ?)", self._new_events)
            run("insert or replace into sites values (?, ?)", self._new_sites.items())
            self._database.execute("commit")
        except sqlite3.Error as error:
            raise LogWriteError(f"{self._path}: {error}") from None
        self._new_events.clear()
        self._new_sites.clear()

    def events(self) -> Iterator[tuple[float, Any]]:
        """(time, event) in the order in which they were handled."""
        rows = self._database.execute("select now_s, kind, body from events order by number")
        for now_s, kind, body in rows:
            yield float(now_s), self._codec.load(kind, body)

    def close(self) -> None:
        """Close the file; what was not synced is gone."""
        self._database.close()
        if self._replica is not None:
            self._replica.close()
