"""The validator accepts every calendar of ours and refuses every broken one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ranloom.transport.baselines import per_ue_packet, per_ue_static_circuits
from ranloom.transport.breakers import BREAKERS, Breaker
from ranloom.transport.calendar import calendar_of
from ranloom.transport.planner import plan_transfers
from ranloom.transport.reservation import Reservation
from ranloom.transport.validator import validate

from .networks import demands, network_of, random_instance, settings, star_of

KINDS_OF = {
    "port": {"port"},
    "hub_port": {"port"},
    "guard": {"guard"},
    "channel_clash": {"wavelength"},
    "no_channel": {"wavelength"},
    "gap_in_path": {"path"},
    "wrong_end": {"path"},
    "no_setup": {"setup"},
    "too_short": {"too_short"},
    "late": {"deadline"},
    "before_release": {"release"},
    "window_bytes": {"bytes"},
    "demand_bytes": {"bytes"},
    "hidden_miss": {"bytes"},
    "left_out": {"assignment"},
    "twice": {"assignment"},
    "no_such_window": {"assignment"},
    "rate_lost": {"packet_rate"},
    "too_fast": {"packet_capacity"},
}


def plans(seed: int):
    """Sound calendars of one random instance: three shaped plans and two of per-UE flows."""
    made, topology, chosen = random_instance(seed)
    network = network_of(topology, made, chosen)
    for options in ({}, {"packet": False}, {"windows": False}):
        plan = plan_transfers(made, network, strategy="x", effort=200, **options)
        yield calendar_of(plan, shaped=True), made, topology, chosen
    for plan in (per_ue_packet(made, network), per_ue_static_circuits(made, network)):
        yield calendar_of(plan, shaped=False), made, topology, chosen


def test_every_breaker_is_expected_here() -> None:
    assert set(KINDS_OF) == set(BREAKERS)


def test_own_calendars_pass_and_broken_ones_are_refused_for_what_is_broken() -> None:
    caught: Counter[str] = Counter()
    for seed in range(25):
        for calendar, made, topology, chosen in plans(seed):
            assert validate(calendar, made, topology, chosen) == []
            tools = Breaker(made, topology, chosen, np.random.default_rng(seed))
            for name, broken in tools.broken(calendar).items():
                kinds = {fault.kind for fault in validate(broken, made, topology, chosen)}
                assert kinds & KINDS_OF[name], (seed, name, kinds)
                caught[name] += 1
    assert set(caught) == set(BREAKERS)
    assert sum(caught.values()) > 1000


def sound():
    """Two windows one after the other on one port, written by hand; 8 Gb/s, set-up 1 s."""
    made = demands([("gnb_00", 10**9, 0.0, 50.0), ("gnb_00", 10**9, 0.0, 50.0)])
    chosen = settings(circuit_gbps=8.0, guard_s=0.5, packet_share=0.0001)
    plan = plan_transfers(
        made, network_of(star_of(1), made, chosen), strategy="x", windows=True, packet=False
    )
    calendar = calendar_of(plan, shaped=True)
    window = calendar.windows[0]
    first = replace(window, window_id=0, start_s=0.0, end_s=2.0, bytes=10**9)
    second = replace(window, window_id=1, start_s=2.5, end_s=4.5, bytes=10**9)
    rows = (
        replace(calendar.assignments[0], window_id=0, finish_s=2.0),
        replace(calendar.assignments[1], window_id=1, finish_s=4.5),
    )
    calendar = replace(calendar, windows=(first, second), assignments=rows)
    return calendar, made, star_of(1), chosen


def test_hand_written_calendar_is_sound() -> None:
    assert validate(*sound()) == []


@pytest.mark.parametrize(
    ("start_s", "kind"), [(1.9, "port"), (2.2, "guard"), (2.4999, "guard"), (2.6, None)]
)
def test_distance_of_two_windows(start_s: float, kind: str | None) -> None:
    calendar, made, topology, chosen = sound()
    second = replace(calendar.windows[1], start_s=start_s, end_s=start_s + 2.0)
    row = replace(calendar.assignments[1], finish_s=start_s + 2.0)
    moved = replace(
        calendar,
        windows=(calendar.windows[0], second),
        assignments=(calendar.assignments[0], row),
    )
    kinds = {fault.kind for fault in validate(moved, made, topology, chosen)}
    assert (kind in kinds) if kind else not kinds


def test_light_must_suffice_for_both_riders() -> None:
    calendar, made, topology, chosen = sound()
    first = replace(calendar.windows[0], bytes=2 * 10**9)
    rows = tuple(replace(row, window_id=0, finish_s=2.0) for row in calendar.assignments)
    shared = replace(calendar, windows=(first,), assignments=rows)
    assert {f.kind for f in validate(shared, made, topology, chosen)} == {"too_short"}
    longer = replace(first, end_s=3.0)
    rows = (rows[0], replace(rows[1], finish_s=3.0))
    assert validate(replace(shared, windows=(longer,), assignments=rows), *sound()[1:]) == []


def test_windows_on_what_others_reserved_are_refused() -> None:
    calendar, made, topology, chosen = sound()
    link = (("gnb_00", "core"),)
    channel = calendar.windows[0].wavelength
    ours = Reservation((), link, channel, 10**9, 3 * 10**9)
    other = Reservation((), link, channel + 1, 10**9, 3 * 10**9)
    back = Reservation((), (("core", "gnb_00"),), channel, 10**9, 3 * 10**9)
    port = Reservation(("gnb_00",), (), channel, 10**9, 3 * 10**9)
    assert {f.kind for f in validate(calendar, made, topology, chosen, [ours])} == {"wavelength"}
    assert {f.kind for f in validate(calendar, made, topology, chosen, [port])} == {"port"}
    assert validate(calendar, made, topology, chosen, [other, back]) == []
    # Others that are in each other's way, while nothing of ours is lit, are not our fault.
    crowd = [Reservation(("gnb_00",), (), channel, 10**10, 2 * 10**10)] * 2
    assert validate(calendar, made, topology, chosen, crowd) == []
