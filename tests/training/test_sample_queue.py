"""The global queue: deferred numbers first, each number in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranloom.training.sample_queue import MicroBatchQueue


def test_deferred_numbers_come_first_and_keep_their_number():
    queue = MicroBatchQueue(limit=-1)
    assert queue.draw(4) == (0, 1, 2, 3)
    queue.put_back([2, 1])
    assert queue.draw(3) == (1, 2, 4)


def test_without_fresh_numbers_only_the_deferred_are_drained():
    queue = MicroBatchQueue(limit=-1)
    queue.draw(3)
    queue.put_back([1])
    assert queue.draw(5, fresh=False) == (1,)
    assert queue.draw(5, fresh=False) == ()


def test_the_queue_ends_at_its_limit():
    queue = MicroBatchQueue(limit=3)
    assert queue.draw(2) == (0, 1)
    assert queue.draw(2) == (2,)
    assert queue.draw(2) == ()


def test_a_number_cannot_return_twice_or_before_it_was_drawn():
    queue = MicroBatchQueue(limit=-1)
    queue.draw(2)
    queue.put_back([0])
    for number in (0, 2, -1):
        with pytest.raises(ValueError, match="not out of the queue"):
            queue.put_back([number])


def test_roll_back_returns_what_no_checkpoint_covers():
    queue = MicroBatchQueue(limit=-1)
    for version in (1, 2, 3):
        queue.applied(version, queue.draw(2))
    queue.checkpointed(1)
    returned = queue.roll_back()
    assert (returned.steps, returned.micro_batches) == (2, 4)
    assert queue.draw(5) == (2, 3, 4, 5, 6)
    assert queue.roll_back().steps == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=30))
def test_every_number_is_in_exactly_one_place(moves):
    queue = MicroBatchQueue(limit=20)
    outside: set[int] = set()
    applied: set[int] = set()
    for version, (count, back, apply) in enumerate(moves, start=1):
        drawn = queue.draw(count)
        assert not outside & set(drawn)
        assert not applied & set(drawn)
        outside |= set(drawn)
        returned = sorted(outside)[:back]
        queue.put_back(returned)
        outside -= set(returned)
        if apply and outside:
            queue.applied(version, sorted(outside))
            applied |= outside
            outside = set()
    assert queue.deferred + len(outside) + len(applied) == queue.drawn
