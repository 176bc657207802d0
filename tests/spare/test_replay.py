"""The replay against hand counts, invariants, and published facts that follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.admission import Headroom, admit
from ranloom.spare.budget import Reservation, from_changes
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import MAX_OVERRUN, Outcome, replay
from ranloom.spare.workload import RESTARTS, Restart, Workload, gemm_chain

SLOT_US = 500.0
TILING = Tiling(128, 128, 1024)
GREEN = Mechanism("green_context", 10.0, True, 0.0)
MPS = Mechanism("mps", 300_000.0, False, 0.0)


@pytest.fixture
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


def model_with_wave(card: Card, wave_us: float) -> TileModel:
    """A model whose wave takes just so long, whatever the number of SMs."""
    flops = 2.0 * 128 * 128 * 1024
    efficiency = flops / wave_us / (card.fp16_tensor_tflops * 1e6 / card.sm_count)
    return TileModel(card, efficiency, 1e9, 2, 0.0)


def run(
    trace: Reservation, card: Card, workload: Workload, wave_us: float, mechanism: Mechanism = GREEN
) -> Outcome:
    model = model_with_wave(card, wave_us)
    return replay(trace, workload, mechanism, model, TILING, jitter_sigma=0.0, seed=1)


def random_trace(seed: int, n_slots: int = 4000, rate: float = 0.05) -> Reservation:
    rng = np.random.default_rng(seed)
    slot = np.flatnonzero(rng.random(n_slots) < rate)
    slot = np.unique(np.concatenate([[0], slot]))
    return from_changes(
        slot, rng.choice([8, 16, 24, 40, 48], slot.size), n_slots, SLOT_US, sm_max=48
    )


def test_constant_reservation_by_hand(card: Card) -> None:
    """16 of 48 SMs reserved: 32 tiles a wave, 4 waves of 110 us in a slot of 500 us."""
    trace = from_changes(np.array([0]), np.array([16]), 2000, SLOT_US, sm_max=48)
    gemm = Gemm(4096, 1024, 1024)  # 32 x 8 tiles: 8 waves, two slots
    done = run(trace, card, Workload("w", (gemm,), "tile", 0), 110.0)
    assert done.units == 1000
    assert done.useful_flops.tolist() == [1000 * gemm.flops]
    assert done.spare_sm_s == 32.0
    assert done.efficiency_pct(model_with_wave(card, 110.0)) == pytest.approx(4 * 110 / 500 * 100)
    # A ragged product wastes the SMs of its last wave: 33 tiles need two waves of 32.
    ragged = run(trace, card, Workload("w", (Gemm(33 * 128, 128, 1024),), "tile", 0), 110.0)
    assert ragged.units == 2000 * 4 / 2


def test_rebinding_costs_its_time_and_mps_more(card: Card) -> None:
    trace = from_changes(np.arange(0, 2000, 2), np.tile([16, 24], 500), 2000, SLOT_US, sm_max=48)
    work = Workload("w", (Gemm(128 * 24, 128, 1024),), "tile", 0)
    free = run(trace, card, work, 100.0, replace(GREEN, reconfiguration_us=0.0))
    assert free.units == 2000 * 5
    # 10 us of re-binding leave room for 4 waves of 100 us in every other slot but the first.
    assert run(trace, card, work, 100.0).units == 5 * 2000 - 999
    assert run(trace, card, work, 100.0, MPS).units == 10  # only before the first change


@pytest.mark.parametrize("restart", RESTARTS)
def test_restart_keeps_what_it_says(card: Card, restart: Restart) -> None:
    """Changes every 3 slots; a unit of 2 products takes 4 slots, a product 2.

    16 and 12 reserved SMs leave the same partition, 32.
    """
    trace = from_changes(np.arange(0, 300, 3), np.tile([16, 12], 50), 300, SLOT_US, sm_max=48)
    instant = replace(GREEN, reconfiguration_us=0.0)
    unit = gemm_chain("c", length=2, m=128 * 32, n=128 * 10, k=1024, restart=restart)
    done = run(trace, card, unit, 100.0, instant)
    # With "gemm" the last interval ends the trace half-way in a product that nothing restarts.
    expected = {"tile": 300 / 4, "gemm": 100 / 2 + 1 / 4, "unit": 0.0}
    assert done.units == pytest.approx(expected[restart])
    assert done.useful_flops.sum() == pytest.approx(expected[restart] * unit.flops)


@pytest.mark.parametrize("seed", range(6))
def test_invariants(card: Card, seed: int) -> None:
    trace = random_trace(seed)
    chain = [gemm_chain("c", length=8, m=4096, n=1024, k=1024, restart=r) for r in RESTARTS]
    model = model_with_wave(card, 60.0)
    done = [replay(trace, c, GREEN, model, TILING, jitter_sigma=0.2, seed=3) for c in chain]
    kept = [d.useful_flops.sum() for d in done]
    assert kept[0] >= kept[1] >= kept[2]
    for d in done:
        assert (d.useful_flops >= 0).all()
        assert 0 <= d.efficiency_pct(model) <= 100
        # A violation never lasts longer than one tile: the tile in flight is the last one.
        assert d.max_violation_us <= MAX_OVERRUN * d.tile_us
        assert d.violations <= np.count_nonzero(np.diff(trace.sm) > 0)
    assert done[2].units == int(done[2].units)
    again = replay(trace, chain[0], GREEN, model, TILING, jitter_sigma=0.2, seed=3)
    assert np.array_equal(again.useful_flops, done[0].useful_flops)
    assert again.violation_us == done[0].violation_us


def test_no_jitter_no_violation_and_growth_only(card: Card) -> None:
    chain = gemm_chain("c", length=8, m=4096, n=1024, k=1024, restart="tile")
    assert run(random_trace(1), card, chain, 60.0).violations == 0
    falling = from_changes(np.arange(5), np.array([40, 32, 24, 16, 8]), 5, SLOT_US, sm_max=48)
    model = model_with_wave(card, 100.0)
    done = replay(falling, chain, GREEN, model, TILING, jitter_sigma=1.0, seed=0)
    assert done.violations == 0
    rising = from_changes(np.arange(5), np.array([8, 16, 24, 32, 40]), 5, SLOT_US, sm_max=48)
    runs = [
        replay(rising, chain, GREEN, model, TILING, jitter_sigma=1.0, seed=seed)
        for seed in range(400)
    ]
    # Four growths a trace. Before the first the last wave ends just with the slot: half of the
    # waves overrun. Later slots lose 10 us to the re-bind, so the fourth wave ends at 410 us.
    expected = (0.5 + 3 * (1 - NormalDist().cdf(np.log(1.9)))) / 4
    assert np.mean([d.violations for d in runs]) / 4 == pytest.approx(expected, abs=0.03)


def test_poisson_restarts_follow_the_exponential_law(card: Card) -> None:
    """Chains that restart at Poisson transitions finish at the rate r / (exp(r T) - 1)."""
    rng = np.random.default_rng(5)
    rate_per_slot, n_slots = 1 / 400, 4_000_000
    slot = np.flatnonzero(rng.random(n_slots) < rate_per_slot)
    slot = np.unique(np.concatenate([[0], slot]))
    trace = from_changes(slot, 16 + 8 * (np.arange(slot.size) % 2), n_slots, SLOT_US, sm_max=48)
    # 24 tiles fit one wave on 24 as on 32 SMs; 5 waves a slot: 1500 products take 300 slots.
    chain = gemm_chain("c", length=1500, m=128 * 24, n=128, k=1024, restart="unit")
    done = run(trace, card, chain, 100.0, replace(GREEN, reconfiguration_us=0.0))
    expected = n_slots * rate_per_slot / np.expm1(300 * rate_per_slot)
    assert done.units == pytest.approx(expected, rel=0.03)


def test_tile_that_fits_no_slot_is_refused(card: Card) -> None:
    with pytest.raises(InputError, match="a wave takes 600 us, a slot 500 us"):
        run(
            random_trace(0),
            card,
            gemm_chain("c", length=1, m=128, n=128, k=1024, restart="tile"),
            600.0,
        )


def violations_slot_by_slot(
    trace: Reservation, wave_us: float, mechanism: Mechanism, factor: np.ndarray
) -> list[float]:
    """How long each growth finds a tile on the RAN's SMs, from a plain walk over all waves."""
    by_slot = np.repeat(np.arange(trace.start_slot.size), trace.slots)
    found, last_us, outage_us = [], 0.0, 0.0
    for slot, interval in enumerate(by_slot):
        if slot and interval != by_slot[slot - 1]:
            if trace.sm[interval] > trace.sm[interval - 1] and last_us > 0.0:
                # The wave that ran last began at its end less its predicted time.
                really_ends_us = last_us - wave_us + wave_us * factor[interval]
                found.append(max(0.0, really_ends_us - SLOT_US))
            outage_us = mechanism.outage_us
        now_us = min(outage_us, SLOT_US)
        outage_us -= now_us
        last_us = 0.0
        headroom = Headroom(SLOT_US, 1e12, 48 - int(trace.sm[interval]))
        while admit(wave_us, 0.0, headroom.after(now_us)):
            now_us += wave_us
            last_us = now_us
    return [us for us in found if us > 0.0]


@pytest.mark.parametrize("seed", range(5))
def test_violations_are_those_of_a_plain_walk(card: Card, seed: int) -> None:
    trace = random_trace(seed, n_slots=1500, rate=0.2)
    kept = np.concatenate([[True], np.diff(trace.sm) != 0])
    trace = from_changes(trace.start_slot[kept], trace.sm[kept], 1500, SLOT_US, sm_max=48)
    chain = gemm_chain("c", length=8, m=128 * 960, n=128, k=1024, restart="tile")
    for wave_us, mechanism in (
        (47.0, GREEN),
        (110.0, GREEN),
        (110.0, replace(GREEN, reconfiguration_us=700.0)),
    ):
        model = model_with_wave(card, wave_us)
        done = replay(trace, chain, mechanism, model, TILING, jitter_sigma=0.6, seed=seed)
        # The same draws: one a change of the trace.
        rng = np.random.default_rng(np.random.SeedSequence([seed, trace.start_slot.size]))
        factor = np.exp(0.6 * rng.standard_normal(trace.start_slot.size))
        expected = violations_slot_by_slot(trace, wave_us, mechanism, np.minimum(factor, 2.0))
        assert done.violations == len(expected) > 5
        assert done.violation_us == pytest.approx(sum(expected))
        assert done.max_violation_us == pytest.approx(max(expected))
        assert done.max_violation_us <= wave_us


def test_without_admission_by_the_slot_every_growth_meets_a_tile(card: Card) -> None:
    rising = from_changes(np.arange(5), np.array([8, 16, 24, 32, 40]), 5, SLOT_US, sm_max=48)
    chain = gemm_chain("c", length=8, m=128 * 960, n=128, k=1024, restart="tile")
    model = model_with_wave(card, 120.0)
    options = {"jitter_sigma": 0.0, "seed": 0}
    assert replay(rising, chain, GREEN, model, TILING, **options).violations == 0
    done = replay(rising, chain, GREEN, model, TILING, slot_bounded=False, **options)
    # Waves end at 600, then after 100 us carried and 10 us of binding at 590, 580 and 570 us.
    assert done.violations == 4
    assert done.violation_us == pytest.approx(100 + 90 + 80 + 70)
    # 5 waves before each change, the last of which belongs to the slot that it began in.
    tiles = 5 * 40 + 4 * 32 + 4 * 24 + 4 * 16 + 4 * 8
    assert done.executed_flops == pytest.approx(tiles * 2 * 128 * 128 * 1024)


def test_executed_counts_what_started_over(card: Card) -> None:
    """A unit takes 4 slots, a change comes every 3: all of it is done in vain."""
    trace = from_changes(np.arange(0, 300, 3), np.tile([16, 12], 50), 300, SLOT_US, sm_max=48)
    unit = gemm_chain("c", length=2, m=128 * 32, n=128 * 10, k=1024, restart="unit")
    done = run(trace, card, unit, 100.0, replace(GREEN, reconfiguration_us=0.0))
    assert done.useful_flops.sum() == 0.0
    assert done.executed_flops == pytest.approx(unit.flops * 300 / 4)
