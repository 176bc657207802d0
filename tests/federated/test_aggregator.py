import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.aggregator import Aggregator
from ranloom.federated.hub import Hub, flat_average, relative_error
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import Payload, decode
from ranloom.federated.update import (
    Accepted,
    Counted,
    Deferred,
    Duplicate,
    Refused,
    Stored,
)
from tests.federated.builders import (
    CONFIG,
    LAYOUT,
    WAIT,
    chunks_of,
    header_of,
    send,
    started,
    update,
)


def test_a_round_gives_one_wave_with_the_weighted_sum():
    machine = started("a", "b")
    one, two = update("a", n_k=3), update("b", n_k=7)
    assert send(machine, *one, 10.0) == Counted("job/0/a", 0, 0)
    assert machine.take_waves() == []
    send(machine, *two, 20.0)
    machine.tick(21.0)
    (wave,) = machine.take_waves()
    assert (wave.closed_s, wave.closed_by) == (20.0, "complete")
    assert (wave.samples, wave.weight, wave.manifest) == (10, 10.0, ("job/0/a", "job/0/b"))
    expected = 3 * decode(one[1]) + 7 * decode(two[1])
    assert np.array_equal(wave.sums.sums(), expected)


def test_the_cut_off_is_kept_however_late_the_clock_ticks():
    machine = started("a", "b")
    send(machine, *update("a"), 10.0)
    answer = send(machine, *update("b"), 5000.0)
    assert answer == Counted("job/0/b", 1, 1)
    (wave,) = machine.take_waves()
    assert (wave.closed_s, wave.closed_by, wave.manifest) == (100.0, "cut_off", ("job/0/a",))
    assert machine.waiting_samples() == 10


def test_an_empty_gnb_ships_nothing():
    machine = started()
    machine.tick(1e5)
    assert machine.take_waves() == []
    machine.begin_round(1, 2e5, set())
    machine.tick(3e5)
    assert machine.take_waves() == []


def test_wave_time_bounds_how_long_an_update_waits():
    machine = started("a", "b", "c", wave_max_s=15.0)
    send(machine, *update("a"), 10.0)
    assert machine.due_s() == 25.0
    send(machine, *update("b"), 30.0)
    machine.tick(99.0)
    waves = machine.take_waves()
    assert [(w.index, w.closed_s, w.closed_by) for w in waves] == [
        (0, 25.0, "wave_time"),
        (1, 45.0, "wave_time"),
    ]
    assert machine.collecting


def test_chunks_in_any_order_twice_and_interrupted():
    machine = started("a")
    header, payload = update("a")
    chunks = chunks_of(payload)
    assert machine.offer(header, 1.0) == Accepted(header.update_id, tuple(range(len(chunks))))
    assert machine.chunk(header.update_id, 2, chunks[2], 2.0) == Stored(header.update_id, 5)
    assert machine.chunk(header.update_id, 2, chunks[2], 2.5) == Stored(header.update_id, 5)
    assert machine.offer(header, 3.0).missing == (0, 1, 3, 4, 5)
    for index in (5, 4, 3, 1):
        machine.chunk(header.update_id, index, chunks[index], 4.0)
    assert machine.chunk(header.update_id, 0, chunks[0], 5.0) == Counted(header.update_id, 0, 0)
    assert machine.chunk(header.update_id, 0, chunks[0], 5.0) == Duplicate(header.update_id)
    assert machine.offer(header, 6.0) == Duplicate(header.update_id)
    assert machine.ledger.account.delivered == 10


@pytest.mark.parametrize("after", ["staged", "counted"])
def test_the_same_id_with_other_content_is_refused_and_changes_nothing(after):
    machine = started("a", "b")
    header, payload = update("a")
    if after == "staged":
        machine.offer(header, 1.0)
        machine.chunk(header.update_id, 0, chunks_of(payload)[0], 1.0)
        other = machine.chunk(header.update_id, 0, bytes(100), 2.0)
        assert other == Refused(header.update_id, "conflicting_content")
    else:
        send(machine, header, payload, 1.0)
    changed, _ = update("a", n_k=11)
    assert machine.offer(changed, 3.0) == Refused(header.update_id, "conflicting_content")
    send(machine, header, payload, 4.0)
    machine.tick(1e3)
    (wave,) = machine.take_waves()
    assert wave.samples == 10
    assert machine.refusals["conflicting_content"] == (2 if after == "staged" else 1)


def bad_values(bad):
    _, payload = update("a")
    values = np.frombuffer(bytes(payload.data), "<f4").copy()
    values[17] = bad
    return Payload("fp32", LAYOUT.elements, values.tobytes())


def test_content_faults_are_named_and_the_round_goes_on():
    machine = started("a", "b", "c", "d", arithmetic="fixed64")
    for ue, bad in (("a", math.nan), ("b", math.inf)):
        payload = bad_values(bad)
        answer = send(machine, header_of(ue, 0, 5, payload), payload, 1.0)
        assert answer == Refused(f"job/0/{ue}", "not_finite")
    payload = bad_values(3e38)
    answer = send(machine, header_of("c", 0, 5, payload), payload, 2.0)
    assert answer == Refused("job/0/c", "overflow")
    good = update("d", n_k=9)
    wrong = replace(good[0], payload_sha256="0" * 64)
    assert send(machine, wrong, good[1], 3.0) == Refused("job/0/d", "payload_hash")
    assert send(machine, *good, 4.0) == Counted("job/0/d", 0, 0)
    machine.tick(5.0)
    (wave,) = machine.take_waves()
    assert (wave.manifest, wave.samples, wave.closed_by) == (("job/0/d",), 9, "complete")
    assert asdict(machine.ledger.account) == {
        "offered": 24,
        "staged": 0,
        "delivered": 9,
        "carried": 0,
        "dropped": 15,
        "handed_over": 0,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_k": 0}, "sample_count"),
        ({"n_k": -4}, "sample_count"),
        ({"layout_digest": TensorLayout.of([("x", (2,))]).digest}, "shape_mismatch"),
        ({"dtype": "bf16"}, "dtype"),
        ({"dtype": "fix64"}, "dtype"),
        ({"exponent": 3}, "exponent"),
        ({"ue": "stranger"}, "not_attached"),
        ({"round": 1}, "unknown_round"),
        ({"round": -1}, "unknown_round"),
        ({"update_id": "a b"}, "malformed_id"),
        ({"payload_sha256": "xyz"}, "malformed_hash"),
    ],
)
def test_header_faults_are_named_and_nothing_is_staged(changes, reason):
    machine = started("a")
    header = replace(update("a")[0], **changes)
    assert machine.offer(header, 1.0) == Refused(header.update_id, reason)
    assert machine.ledger.staged_bytes == 0
    assert machine.ledger.account.offered == 0
    assert machine.refusals == {reason: 1}


def test_chunk_faults_are_named():
    machine = started("a")
    header, payload = update("a")
    assert machine.chunk(header.update_id, 0, b"", 0.0).reason == "not_offered"
    machine.offer(header, 1.0)
    chunks = chunks_of(payload)
    assert machine.chunk(header.update_id, 6, chunks[0], 1.0).reason == "chunk_index"
    assert machine.chunk(header.update_id, -1, chunks[0], 1.0).reason == "chunk_index"
    assert machine.chunk(header.update_id, 5, chunks[0], 1.0).reason == "chunk_size"
    assert machine.chunk(header.update_id, 0, chunks[0][:-1], 1.0).reason == "chunk_size"


def test_staging_is_bounded():
    header, payload = update("a")
    size = len(payload.data)
    machine = started("a", "b", "c", staging_bytes=2 * size)
    machine.offer(header, 1.0)
    machine.offer(update("b")[0], 1.0)
    assert machine.offer(update("c")[0], 1.0) == Deferred("job/0/c")
    send(machine, header, payload, 2.0)
    assert isinstance(machine.offer(update("c")[0], 3.0), Accepted)
    small = started("a", staging_bytes=size - 1)
    assert small.offer(header, 1.0).reason == "staging_size"


def test_a_stalled_update_is_dropped_and_may_come_anew():
    machine = started("a", stall_s=5.0)
    header, payload = update("a", n_k=4)
    machine.offer(header, 1.0)
    machine.chunk(header.update_id, 0, chunks_of(payload)[0], 3.0)
    machine.tick(8.0)
    assert machine.ledger.account.dropped == 4
    assert machine.chunk(header.update_id, 1, chunks_of(payload)[1], 9.0).reason == "stalled"
    assert send(machine, header, payload, 10.0) == Counted(header.update_id, 0, 0)
    account = machine.ledger.account
    assert (account.offered, account.dropped, account.delivered) == (4, 0, 4)


@pytest.mark.parametrize(
    ("late", "weight"), [("carry_over", 10.0), ("carry_discount", 10 * 2**-0.5), ("drop", None)]
)
def test_late_updates(late, weight):
    machine = started("a", "b", late=late)
    send(machine, *update("a"), 10.0)
    header, payload = update("b")
    machine.offer(header, 90.0)
    answer = send(machine, header, payload, 150.0)
    assert len(machine.take_waves()) == 1
    machine.begin_round(1, 200.0, {"a", "b"})
    machine.tick(400.0)
    waves = machine.take_waves()
    account = machine.ledger.account
    if late == "drop":
        assert answer.reason == "late"
        assert waves == []
        assert (account.delivered, account.carried, account.dropped) == (10, 0, 10)
    else:
        assert answer == Counted(header.update_id, 1, 1)
        assert waves[0].weight == pytest.approx(weight, abs=2**-20)
        assert waves[0].weight * 2**20 == int(waves[0].weight * 2**20)
        assert waves[0].samples == 10
        assert (account.delivered, account.carried, account.dropped) == (10, 10, 0)
        expected = waves[0].weight * decode(payload)
        assert np.array_equal(waves[0].sums.sums(), expected)


def test_too_stale_an_update_is_dropped():
    machine = started("a", "b", max_staleness=1)
    machine.offer(update("b")[0], 10.0)
    machine.begin_round(1, 200.0, {"a"})
    assert machine.ledger.account.staged == 10
    machine.begin_round(2, 400.0, {"a"})
    assert machine.ledger.account.dropped == 10
    assert machine.offer(update("b")[0], 410.0).reason == "stale"
    assert machine.ledger.account.offered == 10


@pytest.mark.parametrize("keep", [True, False])
def test_hand_over_in_mid_upload_counts_once_at_the_new_gnb(keep):
    old, new = started("a", "b"), Aggregator(replace(CONFIG, gnb="gnb_01"))
    new.begin_round(0, 0.0, set())
    header, payload = update("a", n_k=6)
    chunks = chunks_of(payload)
    old.offer(header, 1.0)
    for index in (0, 1):
        old.chunk(header.update_id, index, chunks[index], 2.0)
    context = old.detach("a", 3.0, keep_chunks=keep)
    new.attach("a", 3.0, context)
    assert old.offer(header, 4.0).reason == "not_attached"
    assert old.chunk(header.update_id, 2, chunks[2], 4.0).reason == "not_offered"
    assert new.offer(header, 4.0).missing == ((2, 3, 4, 5) if keep else (0, 1, 2, 3, 4, 5))
    assert send(new, header, payload, 5.0) == Counted(header.update_id, 0, 0)
    new.tick(6.0)
    (wave,) = new.take_waves()
    assert (wave.closed_by, wave.samples) == ("complete", 6)
    assert old.ledger.account.handed_over == 6
    send(old, *update("b"), 7.0)
    old.tick(8.0)
    assert old.take_waves()[0].closed_by == "complete"


def test_an_update_that_counted_is_a_duplicate_at_every_later_gnb():
    machines = [Aggregator(replace(CONFIG, gnb=f"gnb_0{i}")) for i in range(3)]
    machines[0].attach("a", 0.0)
    for machine in machines:
        machine.begin_round(0, 0.0, {"a"} if machine is machines[0] else set())
    header, payload = update("a")
    send(machines[0], header, payload, 1.0)
    for old, new in ((0, 1), (1, 2), (2, 0)):
        machines[new].attach("a", 2.0, machines[old].detach("a", 2.0, keep_chunks=True))
        assert send(machines[new], header, payload, 3.0 - 1.0) == Duplicate(header.update_id)
    assert sum(m.ledger.account.delivered for m in machines) == 10


def test_a_hand_over_without_room_asks_for_the_update_again():
    header, payload = update("a")
    size = len(payload.data)
    old = started("a")
    old.offer(header, 1.0)
    new = Aggregator(replace(CONFIG, gnb="gnb_01", staging_bytes=size))
    new.attach("x", 0.0)
    new.begin_round(0, 0.0, {"x"})
    new.offer(update("x")[0], 1.0)
    new.attach("a", 2.0, old.detach("a", 2.0, keep_chunks=True))
    assert new.offer(header, 3.0) == Deferred(header.update_id)
    send(new, *update("x"), 4.0)
    assert send(new, header, payload, 5.0) == Counted(header.update_id, 0, 0)


def test_quorum_closes_and_the_rest_is_carried():
    rule = replace(WAIT, policy="quorum", quorum=0.5, max_s=100.0)
    machine = started("a", "b", "c", cut_off=rule)
    send(machine, *update("a"), 10.0)
    send(machine, *update("b"), 12.0)
    assert send(machine, *update("c"), 13.0) == Counted("job/0/c", 1, 1)
    assert machine.take_waves()[0].closed_s == 12.0


def test_a_new_round_cuts_the_last_one_off():
    machine = started("a", "b", cut_off=WAIT)
    send(machine, *update("a"), 10.0)
    machine.begin_round(1, 50.0, {"a", "b"})
    (wave,) = machine.take_waves()
    assert (wave.closed_by, wave.closed_s, wave.round) == ("next_round", 50.0, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.tick(-5.0),
        lambda m: m.tick(math.nan),
        lambda m: m.begin_round(2, 10.0, set()),
        lambda m: m.begin_round(1, 10.0, {"stranger"}),
        lambda m: m.attach("b", 1.0, started("a").detach("a", 1.0, keep_chunks=True)),
    ],
)
def test_wrong_events_are_refused(call):
    with pytest.raises(InputError):
        call(started("a"))


@pytest.mark.parametrize(
    "changes",
    [
        {"late": "never"},
        {"chunk_bytes": 0},
        {"staging_bytes": 0},
        {"max_staleness": 0},
        {"stall_s": 0.0},
        {"wave_max_s": math.nan},
        {"alpha": -1.0},
    ],
)
def test_wrong_configurations_are_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        replace(CONFIG, **changes)


def test_memory_does_not_grow_with_the_number_of_updates():
    peak = {}
    for count in (10, 1000):
        ues = [f"u{i}" for i in range(count)]
        machine = started(*ues)
        most = 0
        for ue in ues:
            header, payload = update(ue)
            machine.offer(header, 1.0)
            most = max(most, machine.ledger.staged_bytes)
            send(machine, header, payload, 1.0)
        assert not any(entry.chunks for entry in machine.ledger)
        peak[count] = most
    assert peak[10] == peak[1000] == len(payload.data)


def test_hub_refuses_what_would_count_twice():
    machine = started("a")
    send(machine, *update("a"), 1.0)
    machine.tick(2.0)
    (wave,) = machine.take_waves()
    hub = Hub(LAYOUT.elements, "float64")
    assert hub.merge(wave)
    assert not hub.merge(wave)
    with pytest.raises(InputError, match="gnb_00/0/0"):
        hub.merge(replace(wave, manifest=("job/0/z",)))
    with pytest.raises(InputError, match="job/0/a"):
        hub.merge(replace(wave, gnb="gnb_07"))
    assert hub.samples(0) == 10
    assert relative_error(hub.average(0), flat_average([decode(update("a")[1])], [10.0])) < 1e-15
