"""Sites that take their budget from the spare-budget channel, and what the coordinator hears."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.spare.channel import BudgetPublisher, slot_at
from ranloom.spare.channel_zmq import ZmqPublisher
from ranloom.training.messages import BudgetReport, NoteKind
from ranloom.training.runtime.coordinator_process import logged_events, replay
from ranloom.training.runtime.spare_feed import FollowedBudget, SpareFeed
from tests.training.runtime.loops import turns

SLOT_US = 500.0
TFLOPS_PER_SM = 5e-8  # a task takes 0.05 s on all 48 SMs


class Controller:
    """A cell whose controller publishes the budget as long as its loop turns."""

    def __init__(self, card, address="tcp://127.0.0.1:*", session=1, clock=time.monotonic):
        self.clock = clock
        self.publisher = ZmqPublisher(
            BudgetPublisher("cell-0", session, card), address, 0.02, clock=clock
        )

    def reserve(self, sm):
        slot = slot_at(self.clock(), SLOT_US)
        self.publisher.reserve(slot, sm, slot)

    def turn(self):
        self.publisher.tick()

    def close(self):
        self.publisher.close()


@pytest.fixture
def card(root):
    return load_card(root / "data/cards/dgx_spark.yaml")


def committed(config):
    return sum(note.kind is NoteKind.COMMITTED for _, note in replay(config))


def test_training_follows_the_channel_stops_with_its_publisher_and_goes_on_with_the_next(run, card):
    coordinator, site, config, *_ = run
    controller = Controller(card)
    address = controller.publisher.address
    controller.reserve(32)
    feed = SpareFeed(address, card.sm_count, TFLOPS_PER_SM, SLOT_US, lease_s=0.25, window_s=0.05)
    sites = [site(number, budget=feed) for number in range(2)]
    known = coordinator._core.members

    def heard(sm):
        """Whether the coordinator plans with so many SMs at both sites."""
        return lambda: known.tflops[:2] == pytest.approx(max(sm * TFLOPS_PER_SM, 1e-9), rel=1e-6)

    with closing(controller):
        turns(controller, coordinator, *sites, count=400, until=heard(16))
        assert heard(16)()
        controller.reserve(40)
        turns(controller, coordinator, *sites, count=400, until=heard(8))
        assert heard(8)()
    # Nobody turns the loop of the controller any more: its lease runs out.
    turns(coordinator, *sites, count=400, until=heard(0))
    assert heard(0)()
    done = committed(config)
    turns(coordinator, *sites, count=10)
    assert committed(config) == done < 12
    with closing(Controller(card, address, session=2)) as again:
        again.reserve(0)
        turns(again, coordinator, *sites, count=2000, until=lambda: coordinator.finished)
        assert coordinator.finished
    assert committed(config) == 12
    told = {e.usable_tflops for _, e in logged_events(config) if isinstance(e, BudgetReport)}
    assert {0.0, 8 * TFLOPS_PER_SM, 16 * TFLOPS_PER_SM, 48 * TFLOPS_PER_SM} <= told


def test_the_coordinator_hears_the_mean_of_a_window_and_tasks_feel_the_slot(card):
    now_s = [1000.0]
    controller = Controller(card, clock=lambda: now_s[0])
    feed = SpareFeed(controller.publisher.address, card.sm_count, 1.0, SLOT_US, 0.5, 0.02)
    followed = FollowedBudget(feed, clock=lambda: now_s[0])
    with closing(controller), closing(followed):
        followed.look()
        assert (followed.usable_tflops, followed.smoothed_tflops) == (0.0, 0.0)
        controller.reserve(8)
        wait_until(lambda: followed.usable_tflops == 40.0, controller, followed)
        usable = []
        for slot in range(40):
            now_s[0] += SLOT_US / 1e6
            if slot % 10 == 0:
                controller.reserve(24 if slot % 20 else 8)
                wanted = 24.0 if slot % 20 else 40.0
                wait_until(lambda wanted=wanted: followed.usable_tflops == wanted, followed)
            followed.look()
            usable.append(followed.usable_tflops)
        assert set(usable) == {24.0, 40.0}
        assert followed.smoothed_tflops == pytest.approx(32.0, abs=2.0)
        now_s[0] += 0.5
        followed.look()
        assert (followed.usable_tflops, followed.smoothed_tflops) == (0.0, 0.0)


def wait_until(condition, *loops):
    """Real time passes until the message has arrived; the clock of the test stands still."""
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        for loop in loops:
            (loop.turn if isinstance(loop, Controller) else loop.look)()
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tflops_per_sm": 0.0}, "feed.tflops_per_sm"),
        ({"lease_s": -1.0}, "feed.lease_s"),
        ({"lease_s": float("nan")}, "feed.lease_s"),
        ({"window_s": 0.0001}, "feed.window_s"),
    ],
)
def test_a_feed_that_cannot_be_followed_is_refused(changed, named):
    fields = {
        "address": "tcp://127.0.0.1:1",
        "sm_count": 48,
        "tflops_per_sm": 1.0,
        "slot_us": SLOT_US,
        "lease_s": 0.5,
        "window_s": 1.0,
    }
    with pytest.raises(InputError, match=named):
        SpareFeed(**fields | changed)


def test_a_channel_of_another_host_is_refused(card):
    feed = SpareFeed("tcp://10.0.0.1:5570", card.sm_count, 1.0, SLOT_US, 0.5, 1.0)
    with pytest.raises(InputError, match="budget channel: address"):
        FollowedBudget(feed)


def test_a_device_with_more_sms_than_the_card_of_the_site_is_refused_at_the_first_message(card):
    controller = Controller(card)
    controller.reserve(8)
    feed = SpareFeed(controller.publisher.address, 24, 1.0, SLOT_US, 0.5, 1.0)
    followed = FollowedBudget(feed)
    refusal = pytest.raises(InputError, match=r"'sm' is not usable; allowed: .* at most 24 SMs")
    with closing(controller), closing(followed), refusal:
        wait_until(lambda: False, controller, followed)
