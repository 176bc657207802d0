"""The fluid simulation against answers worked out by hand, and against conservation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ranloom.transport.fluid import FluidResult, simulate
from ranloom.transport.packet import Segments
from ranloom.transport.plan import no_segments
from ranloom.transport.streams import Streams, no_streams, poisson_streams

S = 1_000_000_000
GBIT = 125_000_000  # bytes


def played(
    capacity,
    routes,
    flows=(),
    *,
    streams: Streams | None = None,
    reserved: Segments | None = None,
    reserved_route=(),
    buffer_s: float = 0.1,
    cap: float = np.inf,
    bin_s: float = 1.0,
) -> FluidResult:
    """Simulate flows of (route, Gbit, release in s)."""
    route, gbit, release = zip(*flows, strict=True) if flows else ((), (), ())
    return simulate(
        np.array(capacity, dtype=np.float64),
        routes,
        flow_route=np.array(route, dtype=np.int64),
        flow_bytes=np.array([g * GBIT for g in gbit], dtype=np.int64),
        flow_release_ns=np.array([r * S for r in release], dtype=np.int64),
        reserved=reserved or no_segments(),
        reserved_route=np.array(reserved_route, dtype=np.int64),
        streams=streams or no_streams(),
        buffer_s=buffer_s,
        flow_cap_gbps=cap,
        bin_s=bin_s,
    )


def stream(*items: tuple[int, float, float], gbps: float) -> Streams:
    route, start, end = zip(*items, strict=True)
    return Streams(np.array(route), np.array(start), np.array(end), gbps)


def segments(*items: tuple[int, float, float, float]) -> Segments:
    row, start, end, gbps = zip(*items, strict=True)
    return Segments(
        np.array(row, dtype=np.int64),
        (np.array(start) * S).astype(np.int64),
        (np.array(end) * S).astype(np.int64),
        np.array(gbps),
    )


def test_one_flow_takes_size_over_rate() -> None:
    assert played([2.0], ((0,),), [(0, 6, 1)]).finish_s == pytest.approx([4.0])
    assert played([2.0], ((0,),), [(0, 6, 1)], cap=1.0).finish_s == pytest.approx([7.0])


def test_equal_flows_share_and_speed_up_when_one_ends() -> None:
    # 1 Gb/s: until 2 s half each, then the larger one alone.
    finish = played([1.0], ((0,),), [(0, 1, 0), (0, 3, 0)]).finish_s
    assert finish == pytest.approx([2.0, 4.0])


def test_max_min_on_the_textbook_line() -> None:
    # Links of 1 and 2 Gb/s; a flow over both, one on each: 0.5, 0.5 and 1.5.
    finish = played(
        [1.0, 2.0], ((0, 1), (0,), (1,)), [(0, 0.5, 0), (1, 0.5, 0), (2, 1.5, 0)]
    ).finish_s
    assert finish == pytest.approx([1.0, 1.0, 1.0])


def test_background_below_capacity_waits_for_nothing_and_elastic_flows_take_the_rest() -> None:
    background = stream((0, 0.0, 100.0), (0, 0.0, 100.0), gbps=0.4)
    result = played([1.0], ((0,),), [(0, 2, 0)], streams=background)
    # Fair shares are 1/3 each: streams need no more than 0.4, so all three get a third.
    assert result.background_loss_pct > 0
    calm = played([1.5], ((0,),), [(0, 7, 0)], streams=background)
    assert calm.finish_s == pytest.approx([10.0])  # 1.5 - 0.8
    assert calm.background_delay_p99_ms == 0.0
    assert calm.background_loss_pct == 0.0


def test_overload_fills_the_buffer_and_loses_the_rest() -> None:
    # Offered 2 for 10 s at 1 Gb/s; the buffer holds 0.1 s of what is offered.
    background = stream((0, 0.0, 10.0), (0, 0.0, 10.0), gbps=1.0)
    result = played([1.0], ((0,),), streams=background, buffer_s=0.1)
    assert result.background_loss_pct == pytest.approx(100 * (10.0 - 0.2) / 20.0)
    # A full buffer of 0.2 Gbit leaves at 1 Gb/s.
    assert result.background_delay_p99_ms == pytest.approx(200.0, rel=0.05)


def test_short_overload_drains() -> None:
    # 1.5 offered for 0.1 s, then 0.5: the backlog of 0.05 is gone 0.1 s later; nothing lost.
    background = stream((0, 0.0, 0.1), (0, 0.0, 0.1), (0, 0.0, 10.0), gbps=0.5)
    result = played([1.0], ((0,),), streams=background, buffer_s=1.0)
    assert result.background_loss_pct == 0.0
    # Offered while there was a backlog: 0.15 + 0.05 of 5.1 Gbit, waiting up to 50 ms.
    assert 0.0 < result.background_delay_p99_ms < 50.0


def test_reserved_rates_are_taken_from_everyone_else() -> None:
    result = played(
        [1.0],
        ((0,),),
        [(0, 1, 0)],
        reserved=segments((0, 0.0, 1.0, 0.75)),
        reserved_route=[0],
    )
    assert result.finish_s == pytest.approx([1.75])
    assert result.peak_gbps == pytest.approx(1.0)
    assert result.learning_gbit == pytest.approx(1.75)


def test_back_to_back_reservations_do_not_add_up() -> None:
    result = played(
        [1.0],
        ((0,),),
        reserved=segments((0, 0.0, 1.0, 1.0), (1, 1.0, 2.0, 1.0)),
        reserved_route=[0, 0],
    )
    assert result.peak_gbps == pytest.approx(1.0)


def test_burstiness_is_that_of_the_binned_rate() -> None:
    def burstiness(bin_s: float) -> float:
        return played(
            [1.0],
            ((0,),),
            reserved=segments((0, 0.0, 1.0, 1.0), (0, 3.0, 4.0, 1.0)),
            reserved_route=[0, 0],
            bin_s=bin_s,
        ).burstiness

    # Bins of 1 s: 1, 0, 0, 1 has mean 1/2 and deviation 1/2. Bins of 2 s: 1, 1.
    assert burstiness(1.0) == pytest.approx(1.0)
    assert burstiness(2.0) == pytest.approx(0.0)


def test_random_traffic_is_conserved_and_links_are_never_overfull() -> None:
    rng = np.random.default_rng(3)
    routes = ((0, 3), (1, 3), (2,), (0,))
    capacity = [1.0, 0.5, 0.7, 1.2]
    flows = [
        (int(rng.integers(4)), float(rng.integers(1, 20)) / 8, float(rng.integers(0, 20)))
        for _ in range(60)
    ]
    background = poisson_streams(
        np.array([0.2, 0.1, 0.3, 0.1]),
        stream_gbps=0.05,
        mean_s=5.0,
        horizon_s=60.0,
        rng=rng,
    )
    result = played(capacity, routes, flows, streams=background, cap=0.6)
    total = sum(gbit for _, gbit, _ in flows)
    assert np.isfinite(result.finish_s).all()
    assert result.learning_gbit == pytest.approx(total, rel=1e-6)
    assert result.peak_gbps <= 1.2 + 0.5 + 0.7 + 1.0
    for (_, gbit, release), finish in zip(flows, result.finish_s, strict=True):
        assert finish >= release + gbit / 0.6 - 1e-6


def test_streams_offer_their_mean() -> None:
    rng = np.random.default_rng(11)
    made = poisson_streams(
        np.array([2.0, 5.0]), stream_gbps=0.01, mean_s=10.0, horizon_s=200.0, rng=rng
    )
    for route, mean in enumerate((2.0, 5.0)):
        mine = made.route == route
        held = np.minimum(made.end_s[mine], 200.0) - made.start_s[mine]
        assert made.gbps * held.sum() / 200.0 == pytest.approx(mean, rel=0.05)
        # Poisson count at an instant: variance equals mean.
        counts = [
            ((made.start_s[mine] <= t) & (made.end_s[mine] > t)).sum() for t in range(0, 200, 20)
        ]
        assert np.mean(counts) == pytest.approx(mean / 0.01, rel=0.1)
        assert np.std(counts) < 0.3 * np.mean(counts)


def test_starved_flow_never_arrives() -> None:
    result = played(
        [1.0],
        ((0,),),
        [(0, 1, 0)],
        reserved=segments((0, 0.0, 5.0, 1.0)),
        reserved_route=[0],
    )
    assert result.finish_s == pytest.approx([6.0])


def test_events_are_in_order() -> None:
    finish = played([1.0], ((0,),), [(0, 1, k) for k in range(20)]).finish_s
    assert all(a < b for a, b in pairwise(finish))
