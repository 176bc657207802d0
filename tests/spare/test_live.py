"""A trace played in real time and followed, on a clock that the test moves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zmq

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.budget import from_changes
from ranloom.spare.capacity import CapacityReport, CapacityWindow
from ranloom.spare.channel import BudgetPublisher, BudgetView, slot_at
from ranloom.spare.channel_zmq import ZmqPublisher, ZmqSubscriber
from ranloom.spare.live import play, read_reservations, watch


@pytest.fixture(scope="module")
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


def test_what_is_played_is_what_is_followed(card: Card) -> None:
    """Publisher and subscriber take turns on one virtual clock."""
    now_s = [1000.0]
    trace = from_changes(np.array([0, 30, 40]), np.array([8, 40, 16]), 80, 500.0, sm_max=48)
    context = zmq.Context()  # within a process nothing is under way: what was sent is there
    publisher = ZmqPublisher(
        BudgetPublisher("cell-0", 1, card), "inproc://live", 0.002, context, lambda: now_s[0]
    )
    subscriber = ZmqSubscriber(BudgetView(0.01, 48), "inproc://live", context, lambda: now_s[0])
    heard: dict[int, int] = {}
    first = slot_at(1000.0, 500.0) + 4

    def step(seconds: float) -> None:
        """Between two slots of the publisher."""
        publisher.tick()
        subscriber.poll(0.0)
        slot = slot_at(now_s[0], 500.0)
        heard[slot - first] = subscriber.budget(slot)
        now_s[0] += seconds

    with context, closing(publisher), closing(subscriber):
        play(trace, publisher, lead_slots=4, clock=lambda: now_s[0], sleep=step)
        # Changes are announced before they hold, and nothing is believed too early.
        assert sorted(heard) == list(range(-4, 80))
        for begin, end, sm in ((-4, 0, 0), (0, 30, 40), (30, 40, 8), (40, 80, 32)):
            assert {heard[slot] for slot in range(begin, end)} == {sm}
        assert [subscriber.budget(first + s) for s in (40, 79)] == [32, 32]
        follower = watch(
            subscriber, CapacityWindow("site", 60), slot_us=500.0, report_slots=60, slots=10**6,
            clock=lambda: now_s[0],
        )  # fmt: skip
        assert next(follower)[1] == 32
        now_s[0] += 0.015  # the publisher is silent for longer than the lease
        assert next(follower)[1] == 0
        now_s[0] += 0.02
        report = next(follower)
        assert isinstance(report, CapacityReport)
        assert (report.least_sm, report.changes) == (0, 1)
        assert report.mean_sm == pytest.approx(32 * 20 / 60, abs=1.0)  # 20 of the last 60 slots


def write(path: Path, **changed: object) -> Path:
    columns = {
        "scenario": ["a", "a", "b"],
        "controller": ["weaver"] * 3,
        "cell": [0, 0, 0],
        "slot": [0, 10, 0],
        "sm": [8, 16, 24],
    } | changed
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)
    return path


def test_reservations_are_read_and_checked(card: Card, tmp_path: Path) -> None:
    path = write(tmp_path / "r.parquet")
    trace = read_reservations(path, "a", "weaver", 0, 500.0, card)
    assert trace.start_slot.tolist() == [0, 10]
    assert trace.sm.tolist() == [8, 16]
    assert trace.n_slots == 2010
    for arguments, message in (
        ((path, "c", "weaver", 0), "c, weaver, cell 0"),
        ((path, "a", "weaver", 1), "scenarios: a, b"),
        ((tmp_path / "none.parquet", "a", "weaver", 0), "needed: reservations of generate_traces"),
        ((write(tmp_path / "s.parquet", sm=None), "a", "weaver", 0), "needed: reservations"),
        ((write(tmp_path / "m.parquet", sm=[8, 49, 8]), "a", "weaver", 0), "row 1: sm: 49"),
        ((write(tmp_path / "o.parquet", slot=[0, 0, 0]), "a", "weaver", 0), "slots must ascend"),
    ):
        with pytest.raises(InputError, match=message):
            read_reservations(*arguments, 500.0, card)
