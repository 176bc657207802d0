"""Training transfers: sizes and times by hand, and one calendar for both workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranloom.errors import InputError
from ranloom.transport.calendar import calendar_of
from ranloom.transport.demands import Demands
from ranloom.transport.plan import WINDOW
from ranloom.transport.planner import plan_transfers
from ranloom.transport.training_traffic import Copy, SyncPlan, training_demands
from ranloom.transport.validator import validate

from .networks import demands, network_of, settings, star_of

S = 1_000_000_000
SYNC = SyncPlan(
    lanes=(("gnb_00", "gnb_01"), ("gnb_02", "gnb_03")),
    stage_bytes=(650_000_000, 650_000_000),
    period_s=30.0,
    begin_s=0.0,
    end_s=70.0,
    sync_s=8.0,
    fanout=2,
)


def test_two_holders_exchange_once_up_and_once_down() -> None:
    made = training_demands(SYNC, ())
    assert len(made) == 2 * 2 * 2  # batches, stages, directions
    assert made.ids[:2].tolist() == ["sync/0/0/up/gnb_02-gnb_00", "sync/0/0/down/gnb_00-gnb_02"]
    assert made.release_ns[:2].tolist() == [30 * S, 34 * S]
    assert made.deadline_ns[:2].tolist() == [34 * S, 38 * S]
    assert set(made.bytes.tolist()) == {650_000_000}


def test_a_tree_goes_level_by_level() -> None:
    lanes = tuple((f"n{k}",) for k in range(4))
    made = training_demands(replace(SYNC, lanes=lanes, stage_bytes=(8,), end_s=40.0), ())
    # Holders 1 and 2 hang below 0, holder 3 below 1: two levels of 2 s each way.
    times = {
        i: (r // S, d // S)
        for i, r, d in zip(made.ids, made.release_ns, made.deadline_ns, strict=True)
    }
    assert times == {
        "sync/0/0/up/n3-n1": (30, 32),
        "sync/0/0/up/n1-n0": (32, 34),
        "sync/0/0/up/n2-n0": (32, 34),
        "sync/0/0/down/n0-n1": (34, 36),
        "sync/0/0/down/n0-n2": (34, 36),
        "sync/0/0/down/n1-n3": (36, 38),
    }


def test_one_replica_has_nothing_to_sum_and_copies_stand_alone() -> None:
    alone = replace(SYNC, lanes=SYNC.lanes[:1])
    made = training_demands(alone, (Copy("gnb_00", "gnb_01", 10**9, 5.0, 60.0),))
    assert made.ids.tolist() == ["copy/0"]
    assert (int(made.release_ns[0]), int(made.deadline_ns[0])) == (5 * S, 60 * S)
    assert len(training_demands(alone, ())) == 0


def test_one_calendar_serves_both_workloads() -> None:
    federated = demands([(f"gnb_{k:02d}", 10**8, 25.0, 60.0) for k in range(4)])
    training = training_demands(SYNC, (Copy("gnb_01", "gnb_02", 10**9, 5.0, 60.0),))
    made = Demands.joined((federated, training))
    chosen = settings(packet_share=0.001, setup_s=0.02)
    topology = star_of(4)
    plan = plan_transfers(made, network_of(topology, made, chosen), strategy="both")
    assert validate(calendar_of(plan, shaped=True), made, topology, chosen) == []
    assert plan.missed_bytes == 0
    assert (plan.mode[4:] == WINDOW).all()  # 650 MB within 4 s: not at 10 Mb/s


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lanes": (("a",), ("b",))}, "lanes"),
        ({"lanes": (("a", "b"), ("b", "c"))}, "lanes"),
        ({"stage_bytes": (0, 1)}, "stage_bytes"),
        ({"sync_s": 31.0}, "sync_s"),
        ({"fanout": 0}, "fanout"),
    ],
)
def test_faults_are_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        replace(SYNC, **changes)


def test_a_copy_that_goes_nowhere_is_named() -> None:
    with pytest.raises(InputError, match=r"copies\[0\]"):
        training_demands(SYNC, (Copy("a", "a", 1, 0.0, 1.0),))
