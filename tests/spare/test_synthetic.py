"""Drawn traces carry what they were asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.budget import Reservation
from ranloom.spare.synthetic import TraceStatistics, synthetic_trace

PLAIN = TraceStatistics(
    mean_sm=14.2,
    transitions=435,
    quiet_sm=8,
    peak_sm=24,
    period_us=5000.0,
    burst_transitions=0,
    burst_us=100_000.0,
    burst_share=0.0,
)


@pytest.fixture
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


def draw(wanted: TraceStatistics, card: Card, seed: int = 1) -> Reservation:
    return synthetic_trace(wanted, duration_s=600.0, slot_us=500.0, card=card, seed=seed)


def most_changes_in(trace: Reservation, window_slots: int) -> int:
    at = trace.start_slot[1:]
    return int((np.searchsorted(at, at + window_slots) - np.arange(at.size)).max())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("mean_sm", "transitions", "burst_transitions", "share"),
    [(14.2, 435, 0, 0.0), (8.4, 744, 24, 0.1), (8.5, 187, 10, 0.5), (14.4, 89, 10, 0.3)],
)
def test_mean_and_changes_are_met(
    card: Card, mean_sm: float, transitions: int, burst_transitions: int, share: float, seed: int
) -> None:
    wanted = replace(
        PLAIN,
        mean_sm=mean_sm,
        transitions=transitions,
        burst_transitions=burst_transitions,
        burst_share=share,
    )
    trace = draw(wanted, card, seed)
    assert trace.n_slots == 1_200_000
    assert trace.transitions == transitions // 2 * 2
    assert trace.mean_sm == pytest.approx(mean_sm, rel=0.01)
    assert set(np.unique(trace.sm)) <= {8, 16, 24}
    assert (trace.start_slot % 10 == 0).all()
    again = draw(wanted, card, seed)
    assert np.array_equal(trace.start_slot, again.start_slot)
    assert np.array_equal(trace.sm, again.sm)


def test_bursts_pack_changes_into_their_window(card: Card) -> None:
    bursty = replace(PLAIN, mean_sm=8.4, transitions=744, burst_transitions=24, burst_share=0.5)
    # Fig. 10: 24 changes in 200 slots; all lie within 24 periods of 10 slots here.
    assert most_changes_in(draw(bursty, card), 240) >= 24
    assert most_changes_in(draw(PLAIN, card), 240) < 12


def test_gaps_are_exponential_without_bursts(card: Card) -> None:
    """Quiet times of a Poisson process: standard deviation equals mean."""
    gaps = np.concatenate(
        [t.slots[t.sm == 8] for t in (draw(PLAIN, card, seed) for seed in range(10))]
    )
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_sm": 7.0}, "mean_sm: 7"),
        ({"mean_sm": 24.0}, "mean_sm: 24"),
        ({"peak_sm": 8}, "peak_sm: 8"),
        ({"mean_sm": 8.0}, "no room for so many changes"),
        ({"transitions": 400_000}, "no room for so many changes"),
        ({"mean_sm": 23.5}, "no room for so many changes"),
    ],
)
def test_impossible_statistics_are_refused(card: Card, change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(replace(PLAIN, **change), card)
