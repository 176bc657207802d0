"""The budget channel over ZeroMQ sockets of this host."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.channel import MAX_MESSAGE_BYTES, BudgetPublisher, BudgetView
from ranloom.spare.channel_zmq import ZmqPublisher, ZmqSubscriber

LOOPBACK = "tcp://127.0.0.1:*"
LONG_S = 60.0  # a lease or a silence that no test outlasts


@pytest.fixture(scope="module")
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def open_publisher(stack: ExitStack, card: Card, session: int = 1, **kw) -> ZmqPublisher:
    publisher = ZmqPublisher(
        BudgetPublisher("cell-0", session, card), **{"address": LOOPBACK, "repeat_s": LONG_S} | kw
    )
    return stack.enter_context(closing(publisher))


def open_subscriber(stack: ExitStack, address: str, lease_s: float = LONG_S, **kw) -> ZmqSubscriber:
    return stack.enter_context(closing(ZmqSubscriber(BudgetView(lease_s, 48), address, **kw)))


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not done():
        assert time.monotonic() < deadline, "not within 20 s"
        time.sleep(0.001)


def hears(publisher: ZmqPublisher, subscriber: ZmqSubscriber) -> Callable[[], bool]:
    def heard() -> bool:
        publisher.tick()
        return subscriber.poll(0.0)

    return heard


def test_late_joiners_get_the_current_value(stack: ExitStack, card: Card) -> None:
    publisher = open_publisher(stack, card)
    publisher.reserve(0, 8, 0)
    publisher.reserve(4, 24, 2)
    for _ in range(2):  # the second one is a repeated subscription of the same topic
        subscriber = open_subscriber(stack, publisher.address)
        until(hears(publisher, subscriber))
        assert [subscriber.budget(slot) for slot in (0, 3, 4, 9)] == [40, 40, 24, 24]
        assert subscriber.view.missed == 0


def test_slow_subscriber_blocks_nobody_and_reads_the_present(stack: ExitStack, card: Card) -> None:
    publisher = open_publisher(stack, card, repeat_s=0.05)
    slow, quick = (open_subscriber(stack, publisher.address) for _ in range(2))
    publisher.reserve(0, 8, 0)
    until(hears(publisher, slow))
    until(hears(publisher, quick))
    heard = 0
    for slot in range(1, 20_001):  # far more than any queue holds
        publisher.reserve(slot, 8 + 16 * (slot % 2), slot)
        heard += quick.poll(0.0)
    publisher.reserve(20_001, 48, 20_001)
    # Even if its queue was full for the last change, a sign of life tells it.
    until(lambda: hears(publisher, slow)() and slow.budget(20_001) == 0)
    assert slow.view.missed > 10_000
    assert heard > 0


def test_silence_ends_the_budget(stack: ExitStack, card: Card) -> None:
    """Clocks are given: nothing here waits for a lease."""
    now_s = [100.0]
    publisher = open_publisher(stack, card, repeat_s=0.1, clock=lambda: now_s[0])
    subscriber = open_subscriber(stack, publisher.address, lease_s=0.5, clock=lambda: now_s[0])
    publisher.reserve(0, 8, 0)
    until(hears(publisher, subscriber))
    for _ in range(20):  # signs of life extend the lease
        now_s[0] += 0.2
        until(hears(publisher, subscriber))
        assert subscriber.budget(0) == 40
    publisher.close()
    now_s[0] += 0.499
    assert subscriber.budget(0) == 40
    now_s[0] += 0.001
    assert subscriber.budget(0) == 0


PUBLISH = """
import sys, time
from pathlib import Path
from ranloom.gpu.card import load_card
from ranloom.spare.channel import BudgetPublisher
from ranloom.spare.channel_zmq import ZmqPublisher
publisher = ZmqPublisher(
    BudgetPublisher("cell-0", time.time_ns(), load_card(Path(sys.argv[1]))), sys.argv[2], 0.05
)
publisher.reserve(0, 8, 0)
while True:
    publisher.tick()
    time.sleep(0.005)
"""


def test_killed_publisher_and_its_successor(stack: ExitStack, root: Path, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/budget"
    subscriber = open_subscriber(stack, address, lease_s=1.0)
    for _ in range(2):
        command = [sys.executable, "-c", PUBLISH, str(root / "data/cards/dgx_spark.yaml"), address]
        with subprocess.Popen(command, cwd=root) as process:
            try:
                until(lambda: subscriber.poll(0.0) and subscriber.budget(0) == 40)
            finally:
                process.kill()
        until(lambda: not subscriber.poll(0.0) and subscriber.budget(0) == 0)
    assert not subscriber.view.refused


def test_strangers_are_ignored_and_bounded(stack: ExitStack) -> None:
    context = stack.enter_context(zmq.Context())
    stranger = stack.enter_context(context.socket(zmq.PUB))
    stranger.linger = 0
    port = stranger.bind_to_random_port("tcp://127.0.0.1")
    subscriber = open_subscriber(stack, f"tcp://127.0.0.1:{port}")

    def refused() -> bool:
        stranger.send(b"budget!")
        subscriber.poll(0.001)
        return subscriber.view.refused["json"] > 0

    until(refused)
    for _ in range(50):  # the connection is cut each time; the view never sees it
        stranger.send(b"x" * (MAX_MESSAGE_BYTES + 1))
        subscriber.poll(0.001)
    assert subscriber.view.refused["size"] == 0
    assert subscriber.budget(0) == 0


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5555", "tcp://*:5555", "udp://127.0.0.1:1", ""])
def test_only_this_host(card: Card, address: str) -> None:
    with pytest.raises(InputError, match="budget channel: address"):
        ZmqPublisher(BudgetPublisher("cell-0", 1, card), address, 0.1)
    with pytest.raises(InputError, match="budget channel: address"):
        ZmqSubscriber(BudgetView(1.0, 48), address)


def test_taken_address_is_named(stack: ExitStack, card: Card) -> None:
    first = open_publisher(stack, card)
    with pytest.raises(InputError, match="an address to bind"):
        open_publisher(stack, card, address=first.address)
