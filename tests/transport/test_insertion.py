"""One more window among others: where it has a place, and who makes way for it."""

from __future__ import annotations

import numpy as np

from ranloom.transport.calendar import calendar_of
from ranloom.transport.insertion import insertions
from ranloom.transport.plan import MISSED, WINDOW
from ranloom.transport.state import PlanState
from ranloom.transport.validator import validate

from .networks import demands, network_of, settings, star_of


def test_others_make_way_in_sequence_and_return() -> None:
    # One port at the hub. The first site can wait; the second has to begin at once.
    late = ("gnb_01", 10**7, 1.9, 9.0)
    made = demands([("gnb_00", 10**7, 0.0, 9.0), ("gnb_01", 10**7, 0.0, 2.0), late, late])
    chosen = settings(setup_s=1.0, guard_s=0.5, circuit_gbps=1.0, hub_ports=1)
    network = network_of(star_of(2), made, chosen)
    state = PlanState(made, network, now_ns=0, packet=False, windows=True)
    first = state.open(np.array([0]))
    assert first is not None
    urgent = np.flatnonzero(state.points.due_ns == 2 * 10**9)
    assert insertions(state, urgent, push=False).count.tolist() == [0]
    found = insertions(state, urgent, push=True)
    # Each of the second site's demands could ride in it, but all three together would be late.
    assert state.points.riders(int(urgent[0])).tolist() == [1, 2, 3]
    assert (found.count.tolist(), found.missed.tolist()) == ([2], [2 * 10**7])
    back = state.checkpoint()
    second = state.push_in(np.array([1]))
    assert second is not None
    assert state.placed[second][1].start_ns == 0
    assert state.placed[first][1].start_ns == 1_580_000_000  # 1 s, 80 ms of data, the guard
    assert state.mode.tolist() == [WINDOW, WINDOW, MISSED, MISSED]
    assert validate(calendar_of(state.finished("x"), shaped=True), made, star_of(2), chosen) == []
    state.rollback(back)
    assert state.placed[first][1].start_ns == 0
    assert insertions(state, urgent, push=False).count.tolist() == [0]


def test_nobody_makes_way_who_would_be_late() -> None:
    made = demands([("gnb_00", 10**7, 0.0, 2.0), ("gnb_01", 10**7, 0.0, 2.0)])
    chosen = settings(setup_s=1.0, guard_s=0.0, circuit_gbps=1.0, hub_ports=1)
    state = PlanState(
        made, network_of(star_of(2), made, chosen), now_ns=0, packet=False, windows=True
    )
    first = state.open(np.array([0]))
    assert first is not None
    asked = np.arange(len(state.points))
    assert insertions(state, asked, push=True).count.tolist() == [0, 0]
    assert state.push_in(np.array([1])) is None
    assert state.placed[first][1].start_ns == 0
    assert state.mode.tolist() == [WINDOW, MISSED]
