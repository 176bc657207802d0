"""Break-even: theory beside simulation, and a sweep that says where windows do not pay."""

from __future__ import annotations

import pytest

from ranloom.transport.measures import PortPower
from ranloom.transport.sweep import (
    Axes,
    break_even_bytes,
    concurrent,
    from_gnbs,
    simulated_break_even,
    sweep,
)

from .networks import demands, network_of, settings, star_of


def test_break_even_of_published_rates() -> None:
    # 100 Gb/s against 2 Gb/s: 0.8 MB at 3 ms, 5 MB at 20 ms, 255 MB at 1 s, 2.6 GB at 10 s.
    for setup_s, megabytes in ((0.003, 0.765), (0.02, 5.1), (1.0, 255.1), (10.0, 2551.0)):
        assert break_even_bytes(setup_s, 2.0, 100.0) == pytest.approx(megabytes * 1e6, rel=1e-3)
    assert break_even_bytes(1.0, 100.0, 100.0) is None


@pytest.mark.parametrize("setup_s", [20e-6, 0.02, 1.0])
@pytest.mark.parametrize("share", [0.001, 0.5])
def test_simulated_break_even_is_that_of_theory(setup_s: float, share: float) -> None:
    made = demands([("gnb_00", 10**6, 0.0, 9.0)])
    network = network_of(star_of(1), made, settings(setup_s=setup_s, packet_share=share))
    theory = break_even_bytes(setup_s, 10.0 * share, 100.0)
    assert theory is not None
    assert simulated_break_even(network) == pytest.approx(theory, abs=2.0, rel=2e-6)


def test_circuit_no_faster_than_packets_never_wins() -> None:
    made = demands([("gnb_00", 10**6, 0.0, 9.0)])
    chosen = settings(circuit_gbps=1.0, packet_share=1.0)
    assert simulated_break_even(network_of(star_of(1), made, chosen)) is None


def test_sweep_says_where_windows_pay() -> None:
    # 10 MB due 5 s after its release: 8 s at 10 Mb/s, 0.08 s at 1 Gb/s.
    made = demands([("gnb_00", 10**7, 10.0, 15.0), ("gnb_01", 10**7, 10.0, 15.0)])
    rows = sweep(
        made,
        star_of(2),
        settings(),
        Axes((0.001, 20.0), (0.001, 0.1), (1, 3), (1.0, 4.0), (1, 2, 3)),
        power=PortPower(60.0, 12.0),
        effort=50,
    )
    # Two gNBs have demands: three of them are left out, and what the first grid has.
    assert len(rows) == 8 + 2 * 3
    by_point = {(r.setup_s, r.packet_share, r.jobs): r for r in rows[:8]}
    by_load = {(r.setup_s, r.rank_factor, r.gnbs): r for r in rows[8:]}
    assert by_load[0.001, 4.0, 1].offered_bytes == 4 * 10**7
    assert by_load[0.001, 4.0, 2].offered_bytes == 8 * 10**7
    assert by_load[0.001, 1.0, 1].median_bytes == 10**7
    assert {r.packet_share for r in rows[8:]} == {0.01}
    # At 100 Mb/s a gNB's 10 MB take 0.8 s, those of four times the rank 3.2 s, of two gNBs each.
    assert by_load[20.0, 4.0, 1].packet_missed_pct == 0.0
    scarce = by_point[0.001, 0.001, 1]
    assert (scarce.pays, scarce.packet_missed_pct, scarce.selective_missed_pct) == (
        "deadline",
        100.0,
        0.0,
    )
    # Ample packets: windows save no deadline, though one transfer alone would be faster.
    assert by_point[0.001, 0.1, 1].pays == "speed"
    assert by_point[20.0, 0.1, 1].pays == "no"
    # A set-up of 20 s is over before 15 s for nobody.
    slow = by_point[20.0, 0.001, 3]
    assert (slow.pays, slow.window_missed_pct) == ("no", 100.0)
    assert slow.offered_bytes == 6 * 10**7


def test_copies_have_ids_of_their_own() -> None:
    made = concurrent(demands([("gnb_00", 10**6, 0.0, 9.0)]), 3)
    assert made.ids.tolist() == ["0/d0", "1/d0", "2/d0"]
    assert made.bytes.tolist() == [10**6] * 3


def test_gnbs_are_drawn_evenly() -> None:
    made = demands([(f"gnb_{k:02d}", 10**6, 0.0, 9.0) for k in range(6)])
    assert from_gnbs(made, 3).source.tolist() == ["gnb_00", "gnb_02", "gnb_04"]
    assert from_gnbs(made, 6).ids.tolist() == made.ids.tolist()
