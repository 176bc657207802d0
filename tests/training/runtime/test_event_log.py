"""The coordinator's log: what is synced survives, what is not never happened, faults are named."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3

import pytest

from ranloom.errors import InputError
from ranloom.training.messages import SiteJoined, TaskCompleted, Tick
from ranloom.training.runtime.event_log import EventLog, LogWriteError
from ranloom.training.runtime.peer_messages import LOG_CODEC
from ranloom.training.tokens import Direction, TaskKey, Token

JOINED = SiteJoined(2, 77, 1 << 30, 0.1)
DONE = TaskCompleted(
    2, 1, TaskKey(0, 1, 0), Direction.BACKWARD, Token(1, 0, 0, 0, 5), 0.1 + 0.2, 1e-300
)


def test_only_what_was_synced_survives(tmp_path):
    path = tmp_path / "log.sqlite"
    log = EventLog(path, LOG_CODEC)
    log.set_fact("address", "tcp://127.0.0.1:5555")
    log.append(1.25, JOINED)
    log.append(1.5, Tick())
    log.set_site(2, "tcp://127.0.0.1:6666")
    log.sync()
    log.append(2.0, DONE)
    log.close()

    again = EventLog(path, LOG_CODEC)
    assert list(again.events()) == [(1.25, JOINED), (1.5, Tick())]
    assert again.sites() == {2: "tcp://127.0.0.1:6666"}
    assert again.fact("address") == "tcp://127.0.0.1:5555"
    again.append(0.1 + 0.2, DONE)
    again.sync()
    again.sync()
    again.close()
    # Floats come back bit by bit.
    assert list(EventLog(path, LOG_CODEC).events())[-1] == (0.1 + 0.2, DONE)


def test_commits_are_synced_to_the_disk(tmp_path):
    path = tmp_path / "log.sqlite"
    log = EventLog(path, LOG_CODEC)
    modes = [
        log._database.execute(f"pragma {m}").fetchone()[0] for m in ("journal_mode", "synchronous")
    ]
    assert modes == ["wal", 2]


def test_a_full_disk_is_reported_before_anything_is_sent(tmp_path):
    log = EventLog(tmp_path / "log.sqlite", LOG_CODEC)
    log._database.execute("pragma max_page_count = 8")

    def write_on():
        for number in range(10_000):
            log.append(float(number), DONE)
            log.sync()

    with pytest.raises(LogWriteError, match="full"):
        write_on()


def test_a_disk_that_is_really_full(tmp_path):
    path = tmp_path / "log.sqlite"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Files of this process may not grow beyond 256 KiB: a full disk, to SQLite.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        words = "no fault"
        log = EventLog(path, LOG_CODEC)
        number = 0
        try:
            for number in range(100_000):
                log.append(float(number), DONE)
                log.sync()
        except LogWriteError as error:
            words = f"{number} {error}"
        os.write(writing, words.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    synced, words = os.read(reading, 10_000).decode().split(" ", 1)
    os.close(reading)
    assert str(path) in words
    assert "\n" not in words
    # What had been synced is there, in order, and with room again the log goes on.
    again = EventLog(path, LOG_CODEC)
    events = list(again.events())
    assert [now_s for now_s, _ in events] == [float(number) for number in range(int(synced))]
    again.append(1e6, DONE)
    again.sync()
    again.close()


def test_a_replica_takes_the_place_of_a_lost_log(tmp_path):
    path, replica = tmp_path / "log.sqlite", tmp_path / "elsewhere.sqlite"
    log = EventLog(path, LOG_CODEC, replica)
    log.set_fact("address", "tcp://127.0.0.1:5555")
    log.append(1.0, JOINED)
    log.set_site(2, "tcp://127.0.0.1:6666")
    log.sync()
    log.append(2.0, DONE)
    log.close()
    for lost in (path, replica):
        for file in tmp_path.glob(f"{lost.name}*"):
            file.unlink()
        again = EventLog(path, LOG_CODEC, replica)
        assert list(again.events()) == [(1.0, JOINED)]
        assert again.sites() == {2: "tcp://127.0.0.1:6666"}
        assert again.fact("address") == "tcp://127.0.0.1:5555"
        again.close()
    # A crash between the two syncs leaves one ahead of the other.
    ahead = EventLog(replica, LOG_CODEC)
    ahead.append(2.0, DONE)
    ahead.sync()
    ahead.close()
    both = EventLog(path, LOG_CODEC, replica)
    assert list(both.events()) == [(1.0, JOINED), (2.0, DONE)]
    both.close()
    other = EventLog(tmp_path / "other.sqlite", LOG_CODEC)
    other.append(9.0, Tick())
    other.sync()
    other.close()
    with pytest.raises(InputError, match="replica of this log"):
        EventLog(tmp_path / "other.sqlite", LOG_CODEC, replica)


def test_other_files_and_formats_are_refused(tmp_path):
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_bytes(b"no database at all" * 100)
    with pytest.raises(InputError, match="log of a run"):
        EventLog(garbage, LOG_CODEC)
    old = tmp_path / "old.sqlite"
    EventLog(old, LOG_CODEC).close()
    with sqlite3.connect(old) as database:
        database.execute("update facts set value = '0' where name = 'schema'")
    with pytest.raises(InputError, match="schema"):
        EventLog(old, LOG_CODEC)
