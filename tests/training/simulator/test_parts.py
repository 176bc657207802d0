"""Virtual time, links and capacity, each against a computation of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.training.links import Links
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.engine import Engine
from ranloom.training.simulator.network import CircuitWindow, Network, Plane


def test_things_happen_in_order_of_time_and_then_of_scheduling():
    engine = Engine()
    seen = []
    engine.at(2.0, seen.append, "c")
    engine.at(1.0, seen.append, "a")
    engine.at(1.0, seen.append, "b")
    assert engine.next_time_s() == 1.0
    while engine.step():
        pass
    assert seen == ["a", "b", "c"]
    engine.at(0.5, seen.append, "late")
    engine.step()
    assert engine.now_s == 2.0
    assert engine.next_time_s() == float("inf")


@settings(deadline=None)
@given(
    tflops=st.lists(st.just(0.0) | st.floats(0.01, 5.0), min_size=1, max_size=6).filter(any),
    start=st.floats(0.0, 30.0),
    work=st.floats(0.01, 40.0),
)
@example([1.0, 0.0], 0.0, 0.5)
@example([1.0, 0.0], 0.5, 0.5)
@example([0.1, 0.0, 0.0], 0.0, 0.35)
@example([0.0, 3.0, 0.0], 2.75, 1.5)
def test_work_is_done_as_soon_as_the_integral_of_capacity_reaches_it(tflops, start, work):
    interval = 0.5
    end = Capacity(np.array([tflops]), interval).finish_s(0, start, work * 1e12)

    def done(until):
        edges = np.arange(np.floor(start / interval), np.ceil(until / interval) + 1) * interval
        rate = np.array([tflops[int(k) % len(tflops)] for k in np.round(edges[:-1] / interval)])
        return float(rate @ np.diff(np.clip(edges, start, until)))

    assert done(end) == pytest.approx(work, rel=1e-9)
    assert done(end - 1e-6) < work * (1.0 - 1e-10)


def test_work_that_ends_with_an_interval_does_not_wait_through_the_idle_ones():
    on_off = Capacity(np.array([[1.0, 0.0]]), 0.5)
    assert [on_off.finish_s(0, 0.0, work) for work in (0.5e12, 1e12, 3e12)] == [0.5, 1.5, 5.5]
    assert on_off.finish_s(0, 0.5, 0.5e12) == 1.5
    # 0.1 and 0.7 are no binary fractions: their sums miss the end of an interval by rounding
    assert Capacity(np.array([[0.1] * 7 + [0.0]]), 1.0).finish_s(0, 0.0, 0.7e12) == 7.0
    assert Capacity(np.array([[0.1, 0.0]]), 1.0).finish_s(0, 0.0, 1e5 * 1e12) == 1999999.0


def test_a_trace_repeats_and_bad_ones_are_refused():
    capacity = Capacity(np.array([[1.0, 3.0]]), 2.0)
    assert [capacity.at(0, t) for t in (0.0, 2.0, 4.0, 6.5)] == [1.0, 3.0, 1.0, 3.0]
    for bad in ([[1.0, -1.0]], [[np.nan]], [[]]):
        with pytest.raises(InputError, match="usable_tflops"):
            Capacity(np.array(bad), 1.0)
    with pytest.raises(InputError, match="some compute"):
        Capacity(np.array([[1.0], [0.0]]), 1.0)


def links(gbps: float = 8.0, latency_s: float = 0.1) -> Links:
    rate = np.full((2, 2), gbps)
    np.fill_diagonal(rate, np.inf)
    delay = np.full((2, 2), latency_s)
    np.fill_diagonal(delay, 0.0)
    return Links("two", rate, delay, np.array([0.01, 0.02]))


def test_a_link_serves_one_transfer_after_the_other_and_planes_do_not_mix():
    network = Network(links(), links(gbps=4.0))
    gigabyte = 1e9
    assert network.send(0, 1, gigabyte, Plane.ACTIVATION, 0.0) == pytest.approx(1.1)
    assert network.send(0, 1, gigabyte, Plane.ACTIVATION, 0.5) == pytest.approx(2.1)
    assert network.send(1, 0, gigabyte, Plane.ACTIVATION, 0.5) == pytest.approx(1.6)
    assert network.send(0, 1, gigabyte, Plane.SYNC, 0.0) == pytest.approx(2.1)
    assert network.send(0, 0, gigabyte, Plane.SYNC, 3.0) == 3.0
    assert network.coordinator_s(1) == 0.02


def test_a_circuit_adds_its_rate_while_it_is_lit():
    window = CircuitWindow(0, 1, start_s=1.0, end_s=2.0, gbps=8.0)
    network = Network(links(), links(), [window])
    # 8 Gbit in the first second, 16 in the second, 8 in the third: 28 Gbit take 2.5 s
    assert network.send(0, 1, 3.5e9, Plane.SYNC, 0.0) == pytest.approx(2.6)
    assert network.send(0, 1, 1e9, Plane.ACTIVATION, 1.0) == pytest.approx(2.1)


def test_a_stream_leaves_before_its_last_byte_is_there():
    network = Network(links(), links(), chunks=4)
    # the first part was there at 0, the last one at 0.9: only the last quarter is still to be sent
    assert network.send(0, 1, 1e9, Plane.SYNC, 0.9, 0.0) == pytest.approx(0.9 + 0.25 + 0.1)
    # a slow link is still busy with the first parts
    slow = Network(links(), links(gbps=2.0), chunks=4)
    assert slow.send(0, 1, 1e9, Plane.SYNC, 0.9, 0.0) == pytest.approx(4.1)
