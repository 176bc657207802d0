import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.journal import Journal, wave_document, wave_of
from ranloom.federated.update import Counted, Stored
from tests.federated.builders import CONFIG, chunks_of, update


class Durable:
    """An aggregator whose every event is committed, and that can be lost and found again."""

    def __init__(self, path, config):
        self.path, self.config = path, config
        self.open()

    def open(self):
        self.journal = Journal(self.path, self.config, power_loss_safe=False)
        self.machine = self.journal.load()

    def crash(self):
        self.journal.close()
        self.open()

    def do(self, event):
        self.journal.begin()
        answer = event(self.machine)
        self.journal.commit(self.machine)
        return answer

    def chunk(self, update_id, index, data, now_s):
        def event(machine):
            answer = machine.chunk(update_id, index, data, now_s)
            if isinstance(answer, Stored | Counted):
                self.journal.put_chunk(update_id, index, data)
            return answer

        return self.do(event)


@pytest.mark.parametrize("arithmetic", ["float64", "fixed64"])
def test_a_crash_after_every_event_changes_nothing(tmp_path, arithmetic):
    config = replace(CONFIG, arithmetic=arithmetic, wave_max_s=50.0, late="carry_discount")
    results = {}
    for crashes in (False, True):
        node = Durable(tmp_path / f"{crashes}.sqlite", config)
        for ue in "abc":
            node.do(lambda m, ue=ue: m.attach(ue, 0.0))
        node.do(lambda m: m.begin_round(0, 0.0, set("abc")))
        events = [
            (ue, index, 10.0 + 60.0 * number + index)
            for number, ue in enumerate("abc")
            for index in range(6)
        ]
        for ue, index, now_s in events:
            header, payload = update(ue, 0, 7, "fp32")
            node.do(lambda m, h=header, t=now_s: m.offer(h, t))
            node.chunk(header.update_id, index, chunks_of(payload)[index], now_s)
            if crashes:
                node.crash()
        node.do(lambda m: m.begin_round(1, 200.0, {"a"}))
        if crashes:
            node.crash()
        node.do(lambda m: m.tick(400.0))
        waves = []
        while (stored := node.journal.oldest_wave()) is not None:
            waves.append(wave_of(stored.document, stored.sums))
            assert node.journal.ship(waves[-1].round, waves[-1].index)
            assert not node.journal.ship(waves[-1].round, waves[-1].index)
        results[crashes] = (waves, node.machine.state())
    (plain, plain_state), (crashed, crashed_state) = results[False], results[True]
    assert len(plain) == 3
    assert plain_state == crashed_state
    for one, two in zip(plain, crashed, strict=True):
        assert wave_document(one) == wave_document(two)
        assert np.array_equal(one.sums.total, two.sums.total)


def test_what_was_not_committed_is_gone(tmp_path):
    node = Durable(tmp_path / "gnb.sqlite", CONFIG)
    node.do(lambda m: m.attach("a", 0.0))
    node.do(lambda m: m.begin_round(0, 0.0, {"a"}))
    header, payload = update("a")
    node.do(lambda m: m.offer(header, 1.0))
    node.journal.begin()
    node.machine.chunk(header.update_id, 0, chunks_of(payload)[0], 2.0)
    node.journal.put_chunk(header.update_id, 0, chunks_of(payload)[0])
    node.crash()
    assert node.do(lambda m: m.offer(header, 3.0)).missing == (0, 1, 2, 3, 4, 5)


def test_payloads_leave_the_database_with_their_wave(tmp_path):
    node = Durable(tmp_path / "gnb.sqlite", CONFIG)
    node.do(lambda m: m.attach("a", 0.0))
    node.do(lambda m: m.attach("b", 0.0))
    node.do(lambda m: m.begin_round(0, 0.0, {"a", "b"}))
    header, payload = update("a")
    node.do(lambda m: m.offer(header, 1.0))
    for index, data in enumerate(chunks_of(payload)):
        node.chunk(header.update_id, index, data, 2.0)

    def chunks():
        with sqlite3.connect(node.path) as db:
            return db.execute("SELECT COUNT(*) FROM chunks").fetchone()[0]

    assert chunks() == 6
    node.do(lambda m: m.tick(1e3))
    assert chunks() == 0
    assert node.journal.waves_waiting() == 1


def test_other_databases_are_refused(tmp_path):
    path = tmp_path / "gnb.sqlite"
    Journal(path, CONFIG, power_loss_safe=True).close()
    with pytest.raises(InputError, match=r"gnb\.sqlite: config"):
        Journal(path, replace(CONFIG, alpha=0.25), power_loss_safe=True)
    (tmp_path / "text.sqlite").write_text("no database, but long enough to be read as one" * 50)
    with pytest.raises(InputError, match=r"text\.sqlite"):
        Journal(tmp_path / "text.sqlite", CONFIG, power_loss_safe=True)
    with pytest.raises(InputError, match="absent"):
        Journal(tmp_path / "absent" / "gnb.sqlite", CONFIG, power_loss_safe=True)
