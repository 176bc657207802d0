"""Who may join a run: driver and site on loopback, turn by turn in one process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranloom.training.messages import (
    Assign,
    Fence,
    Inventory,
    Merge,
    NoteKind,
    Reduce,
    RequestInventory,
    SiteJoined,
    TaskCompleted,
)
from ranloom.training.opt_model import ModelConfig
from ranloom.training.runtime.chaos import SMALL_SETUP as SETUP
from ranloom.training.runtime.coordinator_process import (
    CoordinatorProcess,
    logged_events,
    new_core,
    replay,
)
from ranloom.training.runtime.event_log import LogWriteError
from ranloom.training.runtime.pacing import Budget, BudgetCut, PacedTask
from ranloom.training.runtime.peer_messages import CODEC, COORDINATOR, Channel, Hello, Stop
from ranloom.training.runtime.setup import difference
from ranloom.training.runtime.site_process import RefusedError
from ranloom.training.runtime.transport import Endpoint, Identity, KeyPair
from ranloom.training.tokens import Direction
from tests.training.runtime.loops import turns


def notes(config):
    return [note.kind for _, note in replay(config)]


def test_two_sites_train_to_the_end(run):
    coordinator, site, config, pairs, admitted = run
    turns(coordinator, site(0), site(1), count=400, until=lambda: coordinator.finished)
    assert coordinator.finished
    assert notes(config).count(NoteKind.COMMITTED) == 12
    # A process that starts at this moment is told to stop, too.
    late = Endpoint(Identity("site-1", pairs["site-1"], admitted), CODEC, "tcp://127.0.0.1:*")
    late.connect(COORDINATOR, (config.folder / "coordinator.address").read_text())
    late.send(COORDINATOR, [Hello(1, late.address, SETUP.facts(SETUP.corpus()))])
    coordinator._config = replace(config, stop_patience_s=0.4)
    coordinator._stop_sites()
    assert Stop() in [m for packet in late.poll(1.0) for m in packet.messages]
    late.close()


def test_merges_travel_with_what_a_site_waits_for(run, monkeypatch):
    coordinator, site, config, *_ = run
    coordinator._config = replace(config, heartbeat_s=60.0)
    packets = []
    send = coordinator._endpoint.send

    def recorded(peer, messages, tensors=None):
        packets.append([type(message) for message in messages])
        return send(peer, messages, tensors)

    monkeypatch.setattr(coordinator._endpoint, "send", recorded)
    turns(coordinator, site(0), site(1), count=400, until=lambda: coordinator.finished)
    assert coordinator.finished
    merging = [kinds for kinds in packets if Merge in kinds]
    assert sum(kinds.count(Merge) for kinds in merging) == 12
    # Alone they go only when they take up more than half of the window of 6.
    assert all({*kinds} != {Channel, Merge} or kinds.count(Merge) > 3 for kinds in merging)
    # A sum is complete before it is asked for.
    for kinds in (kinds for kinds in merging if Reduce in kinds):
        assert max(n for n, kind in enumerate(kinds) if kind is Merge) < kinds.index(Reduce)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": replace(SETUP.model, dtype="float32")}, "model.dtype: 'float32'"),
        ({"model": ModelConfig(4, 8, 2, 16, 512, 12, 0.1)}, "model.vocabulary: 512"),
        ({"generated_samples": 95}, "text"),
        ({"seed": 6}, "seed: 6"),
    ],
)
def test_a_site_with_another_setup_is_refused_in_one_line(run, change, named):
    coordinator, site, *_ = run
    other = site(0, replace(SETUP, **change))
    with pytest.raises(RefusedError) as caught:
        turns(coordinator, other)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_site_with_a_wrong_key_never_joins(run):
    coordinator, site, config, *_ = run
    turns(coordinator, site(0, keys=KeyPair.generate()), count=15)
    assert notes(config) == []
    assert coordinator.rejected["key"] > 0


def test_a_lost_control_packet_costs_the_incarnation_and_nothing_else(run):
    coordinator, site, config, *_ = run
    first, second = site(0), site(1)
    turns(coordinator, first, until=lambda: first.incarnation == 1)
    coordinator._lines[0].sent += 1
    turns(coordinator, first, second, count=400, until=lambda: coordinator.finished)
    assert coordinator.finished
    assert first.incarnation == 2
    assert NoteKind.SITE_LOST in notes(config)


def test_what_does_not_belong_to_a_channel_is_not_looked_into(run):
    coordinator, _, config, pairs, admitted = run
    stranger = Endpoint(Identity("site-1", pairs["site-1"], admitted), CODEC, "tcp://127.0.0.1:*")
    stranger.connect(COORDINATOR, (config.folder / "coordinator.address").read_text())
    facts = config.setup.facts(SETUP.corpus())
    joined = SiteJoined(1, 3, 1 << 30, 1.0)
    stranger.send(COORDINATOR, [Hello(0, stranger.address, facts), joined])
    stranger.send(COORDINATOR, [Hello(1, "tcp:/nowhere", facts), joined])
    stranger.send(COORDINATOR, [joined])
    stranger.send(COORDINATOR, [Channel(1, 9, 5), joined])
    turns(coordinator, count=10)
    assert notes(config) == []
    assert coordinator.rejected["foreign hello"] == 1
    assert coordinator.rejected["bad address"] == 1
    # Known by now, but not under that incarnation: it is told so.
    stranger.send(COORDINATOR, [Hello(1, stranger.address, facts)])
    stranger.send(COORDINATOR, [Channel(1, 9, 6), joined])
    turns(coordinator, count=10)
    answers = [m for packet in stranger.poll(1.0) for m in packet.messages]
    assert answers == [Fence(1, 9)]
    stranger.close()


def test_a_site_at_another_model_version_is_turned_down_and_the_run_goes_on(run):
    coordinator, site, config, pairs, admitted = run
    liar = Endpoint(Identity("site-1", pairs["site-1"], admitted), CODEC, "tcp://127.0.0.1:*")
    liar.connect(COORDINATOR, (config.folder / "coordinator.address").read_text())
    hello = Hello(1, liar.address, SETUP.facts(SETUP.corpus()))
    liar.send(COORDINATOR, [hello, SiteJoined(1, 3, 1 << 30, 1.0)])
    first = site(0)

    def told(process, kind):
        """(session, action) of the first action of a kind that the liar is told."""
        for _ in range(100):
            turns(process, first, count=1)
            for packet in liar.poll(0.05):
                for message in packet.messages:
                    if isinstance(message, kind):
                        return packet.messages[0].session, message
        return pytest.fail(f"no {kind.__name__}")

    def reasons():
        return [(n.kind, n.reason) for _, n in replay(config) if n.site == 1 and n.reason]

    session, task = told(coordinator, Assign)
    ahead = replace(task.token, model_version=task.token.model_version + 1)
    result = TaskCompleted(1, 1, task.key, Direction.BACKWARD, ahead, 0.1)
    liar.send(COORDINATOR, [Channel(session, 1, 1), result])
    turns(coordinator, count=20, until=lambda: reasons())
    assert reasons() == [(NoteKind.REJECTED, "stale_version")]
    coordinator.close()

    again = CoordinatorProcess(config)
    session, _ = told(again, RequestInventory)
    stale = Inventory(1, 1, 0, ahead.model_version, (), (), -1, (), ())
    liar.send(COORDINATOR, [Channel(session, 1, 1), stale])
    turns(again, first, count=20, until=lambda: len(reasons()) > 1)
    assert reasons()[1:] == [(NoteKind.SITE_LOST, "stale_inventory")]
    liar.close()
    turns(again, first, site(1), count=600, until=lambda: again.finished)
    assert again.finished
    again.close()


def test_with_a_full_log_nothing_is_sent_that_it_does_not_hold_and_a_restart_goes_on(run):
    coordinator, site, config, *_ = run
    first, second = site(0), site(1)
    sent = []
    send = coordinator._endpoint.send

    def watched(peer, messages, *rest):
        sent.extend(m for m in messages if isinstance(m, Assign | Merge))
        return send(peer, messages, *rest)

    coordinator._endpoint.send = watched
    # No page more than the log has: it is full within a few events.
    coordinator._log._database.execute("pragma max_page_count = 1")
    with pytest.raises(LogWriteError, match=r"coordinator\.sqlite: .* full"):
        turns(coordinator, first, second, count=400)
    coordinator.close()
    core = new_core(config)
    logged = [a for at_s, event in logged_events(config) for a in core.handle(event, at_s)]
    assert all(action in logged for action in sent)
    seen = []
    again = CoordinatorProcess(config, seen.append)
    turns(again, first, second, count=600, until=lambda: again.finished)
    assert again.finished
    again.close()
    assert seen[-1]["kind"] == NoteKind.FINISHED


def test_setups_are_compared_fact_by_fact():
    facts = SETUP.facts(SETUP.corpus())
    assert difference(facts, facts) == ""
    assert difference(facts, "garbage") == "setup: no JSON"
    assert difference(facts, "[]") == "setup: no JSON object"
    changed = replace(SETUP, optimizer=replace(SETUP.optimizer, clip_norm=None))
    assert difference(facts, changed.facts(SETUP.corpus())) == (
        "optimizer.clip_norm: None, allowed: 0.5"
    )


def test_budget_and_pace():
    budget = Budget((2.0, 1.0), interval_s=10.0, cuts=(BudgetCut(3, 5, 0.25),))
    assert [budget.at(t, 0) for t in (0.0, 9.9, 10.0, 20.0)] == [2.0, 2.0, 1.0, 2.0]
    assert [budget.at(0.0, step) for step in (2, 3, 4, 5)] == [2.0, 0.5, 0.5, 2.0]
    task = PacedTask(flop=4e12, now_s=100.0)
    task.advance(101.0, tflops=1.0)
    assert not task.done
    assert task.remaining_s(1.0) == pytest.approx(3.0)
    assert task.remaining_s(0.0) == float("inf")
    task.advance(101.5, tflops=6.0)
    assert task.done
