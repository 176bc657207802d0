"""The budget channel: what is published, what is believed, and for how long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.channel import (
    MAX_MESSAGE_BYTES,
    MAX_NAME,
    MAX_SLICES,
    BudgetMessage,
    BudgetPublisher,
    BudgetView,
    LocalChannel,
    MessageError,
    budget_at,
)


@pytest.fixture(scope="module")
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


def message(sequence: int, *slices: tuple[int, int], session: int = 1, sent_s: float = 0.0):
    return BudgetMessage("cell-0", session, sequence, sent_s, slices)


def test_only_changes_are_published_rounded_down(card: Card) -> None:
    publisher = BudgetPublisher("cell-0", 7, card)
    assert publisher.repeat(0.0) is None
    assert publisher.reserve(0, 16, 0, 1.0) == BudgetMessage("cell-0", 7, 1, 1.0, ((0, 32),))
    assert publisher.reserve(2, 12, 0, 1.1) is None  # 36 are free, the partition stays 32
    second = publisher.reserve(4, 41, 0, 1.2)  # 7 are free: no partition is so small
    assert second is not None
    assert second.slices == ((0, 32), (4, 0))
    third = publisher.reserve(9, 0, 5, 1.3)  # slot 0's slice is over
    assert third is not None
    assert third.slices == ((4, 0), (9, 48))
    assert [m.sequence for m in (second, third)] == [2, 3]


def test_impossible_reservations_are_named(card: Card) -> None:
    publisher = BudgetPublisher("cell-0", 7, card)
    with pytest.raises(InputError, match="budget of cell-0: sm: 49"):
        publisher.reserve(0, 49, 0, 0.0)
    publisher.reserve(3, 8, 0, 0.0)
    with pytest.raises(InputError, match="after slot 3"):
        publisher.reserve(3, 16, 0, 0.0)
    for k in range(MAX_SLICES - 1):
        publisher.reserve(4 + k, 8 * (k % 2) + 16, 0, 0.0)
    with pytest.raises(InputError, match="16 slices at a time"):
        publisher.reserve(30, 0, 0, 0.0)
    assert publisher.reserve(30, 0, 5, 0.0) is not None  # what is over makes room
    with pytest.raises(InputError, match="1 to 64 bytes"):
        BudgetPublisher("x" * (MAX_NAME + 1), 1, card)
    with pytest.raises(InputError, match="lease_s: 0"):
        BudgetView(0.0, 48)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 8, 12, 24, 40, 48])), max_size=12),
    st.integers(0, 3),
)
def test_any_last_message_tells_the_present_and_the_announced(
    card: Card, changes: list[tuple[int, int]], lead: int
) -> None:
    """Whatever was lost before it, one message gives the budget of its slot and of all later."""
    publisher = BudgetPublisher("cell-0", 1, card)
    slot, truth = 0, [(0, 40)]
    publisher.reserve(0, 8, 0, 0.0)
    for step, reserved in changes:
        slot += step
        truth.append((slot, (48 - reserved) // 8 * 8))
        now = max(0, slot - lead)
        sent = publisher.reserve(slot, reserved, now, 0.0) or publisher.repeat(0.0)
        assert sent is not None
        assert len(sent.encode()) <= MAX_MESSAGE_BYTES
        view = BudgetView(1.0, 48)
        assert view.receive_bytes(sent.encode(), 0.5)
        for at in range(now, slot + 3):
            assert view.budget(at, 0.5) == budget_at(truth, at)


def test_largest_message_fits() -> None:
    largest = BudgetMessage(
        "\x7f" * MAX_NAME, 2**63 - 1, 2**63 - 1, 1e300,
        tuple((2**62 + k, 10**6) for k in range(MAX_SLICES)),
    )  # fmt: skip
    assert len(largest.encode()) <= MAX_MESSAGE_BYTES
    assert BudgetMessage.decode(largest.encode()) == largest


def test_dead_publisher_means_no_budget() -> None:
    view = BudgetView(lease_s=0.5, sm_count=48)
    assert view.budget(0, 0.0) == 0
    view.receive(message(1, (0, 40), sent_s=10.0), 10.4)
    assert view.alive(10.49)
    assert view.budget(5, 10.49) == 40
    # The lease runs from the sending: time in a queue does not make the value younger.
    assert view.budget(5, 10.5) == 0
    assert not view.alive(10.5)
    late = BudgetView(lease_s=0.5, sm_count=48)
    late.receive(message(1, (0, 40), sent_s=10.0), 19.0)
    assert late.budget(5, 19.0) == 0
    view.receive(message(2, (0, 40), sent_s=11.0), 11.0)
    assert view.budget(5, 11.0) == 40


def test_gaps_are_counted_and_the_past_is_refused() -> None:
    view = BudgetView(10.0, 48)
    assert view.receive(message(5, (0, 8)), 1.0)  # a late joiner has missed nothing
    assert view.receive(message(6, (2, 16)), 1.0)
    assert view.receive(message(9, (3, 24)), 1.0)
    assert view.missed == 2
    assert not view.receive(message(8, (2, 40)), 1.0)
    assert not view.receive(message(9, (3, 40)), 1.0)
    assert view.budget(3, 1.0) == 24
    assert view.receive(message(1, (0, 32), session=2), 1.0)  # it started anew
    assert not view.receive(message(10, (9, 8), session=1), 1.0)
    assert view.missed == 2
    assert view.budget(3, 1.0) == 32
    assert not view.receive(message(2, (4, 49), session=2), 1.0)
    assert not view.receive(message(2, (4, 8), session=2, sent_s=2.0), 1.0)
    other = BudgetMessage("cell-1", 3, 1, 0.0, ((0, 8),))
    assert not view.receive(other, 1.0)
    assert view.refused == {"stale": 3, "sm": 1, "clock": 1, "publisher": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2, "new": 1}, "version"),
        ({"new": 1}, "schema"),
        ({"publisher": ""}, "schema"),
        ({"publisher": "x" * 65}, "schema"),
        ({"session": -1}, "schema"),
        ({"sequence": 1.0}, "schema"),
        ({"sequence": True}, "schema"),
        ({"sent_s": "now"}, "schema"),
        ({"sent_s": float("nan")}, "schema"),
        ({"slices": []}, "schema"),
        ({"slices": [[k, 8] for k in range(MAX_SLICES + 1)]}, "schema"),
        ({"slices": [[0, 8, 1]]}, "schema"),
        ({"slices": [[0, -8]]}, "schema"),
        ({"slices": [[0, 2**63]]}, "schema"),
        ({"slices": [[4, 8], [4, 16]]}, "schema"),  # slices that overlap
        ({"slices": [[4, 8], [3, 16]]}, "schema"),
    ],
)
def test_what_is_no_message_changes_nothing(change: dict, reason: str) -> None:
    fields = json.loads(message(1, (0, 8)).encode()) | change
    raw = json.dumps(fields).encode()
    with pytest.raises(MessageError, match=f"^{reason}: "):
        BudgetMessage.decode(raw)
    view = BudgetView(10.0, 48)
    assert not view.receive_bytes(raw, 1.0)
    assert view.refused == {reason: 1}
    assert view.budget(0, 1.0) == 0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "json"),
        (b"[1]", "json"),
        (b"\xff", "json"),
        (b"[" * 1000, "json"),
        (b" " * 1025, "size"),
    ],
)
def test_garbage_is_counted(raw: bytes, reason: str) -> None:
    view = BudgetView(10.0, 48)
    assert not view.receive_bytes(raw, 1.0)
    assert view.refused == {reason: 1}


def test_local_subscribers_get_the_current_value_at_once(card: Card) -> None:
    channel, publisher = LocalChannel(), BudgetPublisher("cell-0", 1, card)
    early, late = BudgetView(1.0, 48), BudgetView(1.0, 48)
    channel.subscribe(early, 0.0)
    channel.publish(publisher.reserve(0, 8, 0, 0.0), 0.0)
    channel.publish(publisher.reserve(1, 8, 0, 0.0), 0.0)
    channel.subscribe(late, 0.1)
    assert early.budget(0, 0.1) == late.budget(0, 0.1) == 40
    channel.publish(publisher.reserve(2, 24, 1, 0.2), 0.2)
    assert [v.budget(2, 0.2) for v in (early, late)] == [24, 24]
    assert [v.missed for v in (early, late)] == [0, 0]
