"""The executor on modelled time: by hand, against the replay, and what it must never do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.admission import Headroom, admit, admitted_waves
from ranloom.spare.budget import Reservation, from_changes
from ranloom.spare.coexistence import (
    ChainBuffers,
    Coexistence,
    chain_buffers,
    measure_profile,
    run_beside,
)
from ranloom.spare.executor import SlotExecutor
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import replay
from ranloom.spare.tile_profile import TileProfile, modelled_profile
from ranloom.spare.virtual_device import VirtualDevice
from ranloom.spare.workload import gemm_chain

SLOT_US = 500.0
REBIND_US = 10.0
TILING = Tiling(128, 128, 1024)
GEMM = Gemm(4096, 1024, 1024)  # 256 tiles


@pytest.fixture(scope="module")
def card(root: Path) -> Card:
    return load_card(root / "data/cards/dgx_spark.yaml")


def model_with_wave(card: Card, wave_us: float) -> TileModel:
    flops = 2.0 * 128 * 128 * 1024
    efficiency = flops / wave_us / (card.fp16_tensor_tflops * 1e6 / card.sm_count)
    return TileModel(card, efficiency, 1e9, 2, 0.0)


def never_computed(gemm: Gemm) -> ChainBuffers:
    return ChainBuffers(
        torch.empty(2, gemm.m, gemm.k, device="meta"), torch.empty(1, gemm.k, gemm.n, device="meta")
    )


def make(
    card: Card,
    wave_us: float = 110.0,
    factor: Callable[[], float] = lambda: 1.0,
    copy_us: float = 0.0,
    buffers: ChainBuffers | None = None,
    **options,
) -> tuple[SlotExecutor, VirtualDevice]:
    model = model_with_wave(card, wave_us)
    device = VirtualDevice(
        rebind_us=REBIND_US,
        factor=factor,
        copy_us=copy_us,
        slot_us=SLOT_US,
        compute=buffers is not None,
    )
    profile = modelled_profile([GEMM], card.levels, model, TILING)
    source = (buffers or never_computed(GEMM)).source(TILING)
    executor = SlotExecutor(
        device, profile, model.bytes_per_us, SLOT_US, source, poll_us=1.0, **options
    )
    return executor, device


def beside(
    trace: Reservation, card: Card, executor: SlotExecutor, device: VirtualDevice
) -> Coexistence:
    return run_beside(
        trace,
        executor,
        device,
        card.levels,
        card.sm_count,
        decodes=lambda slot: slot % 10 >= 8,
        decode=lambda slot, sm: None,
    )


def random_trace(seed: int, n_slots: int = 400) -> Reservation:
    """Changes at every slot boundary, from a start without spare SMs."""
    rng = np.random.default_rng(seed)
    slot = np.unique(np.concatenate([[0], np.flatnonzero(rng.random(n_slots) < 0.2)]))
    sm = np.cumsum(rng.integers(1, 6, slot.size)) % 6 * 8  # never the same twice
    sm[0] = 48
    if sm[1] == 48:
        sm[1] = 0
    return from_changes(slot, sm, n_slots, SLOT_US, sm_max=48)


def test_admission_by_hand() -> None:
    assert admit(100.0, 1000.0, Headroom(100.0, 10.0, 8))
    assert not admit(100.1, 1000.0, Headroom(100.0, 10.0, 8))  # would end after the slot
    assert not admit(100.0, 1001.0, Headroom(100.0, 10.0, 8))  # would take the RAN's bandwidth
    assert not admit(1.0, 1.0, Headroom(100.0, 10.0, 0))
    assert not admit(1.0, 1.0, Headroom(-5.0, 10.0, 8))
    assert not admit(60.0, 1.0, Headroom(100.0, 10.0, 8).after(50.0))
    assert admitted_waves(500.0, 10.0, 8, 110.0, 1000.0) == 4
    assert admitted_waves(330.0, 10.0, 8, 110.0, 1000.0) == 3


def test_slots_by_hand(card: Card) -> None:
    executor, device = make(card)
    executor.run_slot(0, 0.0, 32, decodes=False)  # 10 us of binding, then 4 waves to 450 us
    assert executor.report.tiles == 4 * 32
    assert device.now_us() == pytest.approx(450.0)
    executor.run_slot(1, 500.0, 32, decodes=False)  # finishes the product, then nothing is free
    assert executor.report.tiles == 8 * 32
    executor.run_slot(2, 1000.0, 0, decodes=True)
    executor.run_slot(3, 1500.0, 16, decodes=False)
    assert executor.report.tiles == 8 * 32 + 4 * 16
    assert executor.report.rebind_us == [REBIND_US] * 2
    assert executor.report.violations == 0
    assert executor.report.useful_flops == pytest.approx(GEMM.flops * (8 * 32 + 64) / 256)


@pytest.mark.parametrize("seed", range(4))
def test_decides_as_the_replay_does(card: Card, seed: int) -> None:
    """One policy: the compiled replay and the loop for devices finish the same tiles."""
    trace = random_trace(seed)
    for wave_us in (47.0, 110.0):
        model = model_with_wave(card, wave_us)
        replayed = replay(
            trace,
            gemm_chain("c", length=1, m=GEMM.m, n=GEMM.n, k=GEMM.k, restart="tile"),
            Mechanism("green_context", REBIND_US, True, 0.0),
            model,
            TILING,
            jitter_sigma=0.0,
            seed=0,
        )
        executor, device = make(card, wave_us)
        done = beside(trace, card, executor, device)
        assert executor.report.useful_flops == pytest.approx(replayed.useful_flops.sum())
        assert done.rebinds == np.count_nonzero(trace.sm[1:] < 48)
        assert done.violations == 0


@pytest.mark.parametrize("seed", range(3))
def test_violations_are_shorter_than_a_tile(card: Card, seed: int) -> None:
    rng = np.random.default_rng(seed)
    executor, device = make(card, factor=lambda: float(min(2.0, np.exp(rng.normal(0.0, 0.5)))))
    done = beside(random_trace(seed, 2000), card, executor, device)
    assert done.violations > 5  # the jitter is heavy
    assert done.max_violation_us <= 110.0
    assert done.violation_us == pytest.approx(sum(executor.report.violation_us))


def test_waves_launched_ahead_cannot_be_called_back(card: Card) -> None:
    trace = random_trace(1, 2000)

    def run(ahead: int) -> Coexistence:
        executor, device = make(card, factor=lambda: 1.4, waves_ahead=ahead)
        return beside(trace, card, executor, device)

    assert run(1).max_violation_us <= 110.0
    assert run(4).max_violation_us > 110.0


def test_computes_the_chain(card: Card) -> None:
    gemm = Gemm(60, 12, 12)
    buffers = chain_buffers(gemm, torch.float64, torch.device("cpu"), 3)
    expected = buffers.entries[0].clone()
    tiling = Tiling(16, 8, 5)
    model = model_with_wave(card, 110.0)
    device = VirtualDevice(
        rebind_us=REBIND_US, factor=lambda: 1.0, copy_us=0.0, slot_us=SLOT_US, compute=True
    )
    wave = np.full((1, card.levels.size), 110.0)
    profile = TileProfile(tiling, (gemm,), card.levels, wave, 0.0 * wave)
    executor = SlotExecutor(
        device, profile, model.bytes_per_us, SLOT_US, buffers.source(tiling), poll_us=1.0
    )
    beside(random_trace(0, 300), card, executor, device)
    products, rest = divmod(executor.report.tiles, tiling.count(gemm))
    assert products > 4
    for _ in range(products):
        expected = expected @ buffers.weight[0]
    # The last buffer that was written holds the product under way, if there is one.
    found = buffers.entries[products % 2]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert rest < tiling.count(gemm)


def test_training_waits_for_the_ran_copies(card: Card) -> None:
    executor, _ = make(card, copy_us=100.0)
    executor.run_slot(0, 0.0, 32, decodes=False)
    executor.run_slot(1, 500.0, 32, decodes=True)  # 400 us are left: 3 waves instead of 4
    assert executor.report.tiles == 4 * 32 + 3 * 32
    assert executor.report.gated_us == pytest.approx(100.0)
    late, _ = make(card, copy_us=600.0)
    late.run_slot(0, 0.0, 32, decodes=True)
    assert late.report.tiles == 0


def test_profile_is_measured_by_running(card: Card) -> None:
    _, device = make(card)
    source = never_computed(GEMM).source(TILING)
    model = model_with_wave(card, 110.0)
    found = measure_profile(device, source, card.levels, model, repetitions=3, percentile=95.0)
    expected = modelled_profile([GEMM], card.levels, model, TILING)
    np.testing.assert_allclose(found.wave_us, expected.wave_us)
    np.testing.assert_allclose(found.wave_bytes, expected.wave_bytes)
    assert found.wave(GEMM, 24) == pytest.approx(expected.wave(GEMM, 24))


def test_bandwidth_of_the_ran_is_kept(card: Card) -> None:
    """A wave that would take more than the RAN leaves is never launched."""
    model = replace(model_with_wave(card, 110.0), bandwidth_share=0.5)
    device = VirtualDevice(
        rebind_us=0.0, factor=lambda: 1.0, copy_us=0.0, slot_us=SLOT_US, compute=False
    )
    profile = modelled_profile([GEMM], card.levels, model, TILING)
    source = never_computed(GEMM).source(TILING)
    short = SlotExecutor(device, profile, profile.wave(GEMM, 32)[1] / 111.0, SLOT_US, source, 1.0)
    short.run_slot(0, 0.0, 32, decodes=False)
    assert short.report.tiles == 0
    enough = SlotExecutor(device, profile, profile.wave(GEMM, 32)[1] / 109.0, SLOT_US, source, 1.0)
    enough.run_slot(0, 0.0, 32, decodes=False)
    assert enough.report.tiles == 4 * 32


def test_bad_use_is_named(card: Card) -> None:
    executor, _ = make(card)
    with pytest.raises(InputError, match="executor: SM budget: 20"):
        executor.run_slot(0, 0.0, 20, decodes=False)
    with pytest.raises(InputError, match="a wave takes 600 us, a slot 500 us"):
        make(card, wave_us=600.0)
    with pytest.raises(InputError, match="waves ahead: 0"):
        make(card, waves_ahead=0)
    with pytest.raises(InputError, match="chain: k"):
        chain_buffers(Gemm(4, 5, 6), torch.float32, torch.device("cpu"), 0)
    levels, one = np.array([8, 16]), np.ones((1, 2))
    profile = TileProfile(TILING, (GEMM,), levels, one, one)
    with pytest.raises(InputError, match="tile profile: SM budget: 12"):
        profile.wave(GEMM, 12)
    with pytest.raises(InputError, match="tile profile: product"):
        profile.wave(Gemm(1, 2, 3), 8)
    for bad in (
        lambda: TileProfile(TILING, (GEMM,), levels, np.ones((1, 3)), one),
        lambda: TileProfile(TILING, (GEMM,), levels[::-1], one, one),
        lambda: TileProfile(TILING, (GEMM,), levels, 0.0 * one, one),
    ):
        with pytest.raises(InputError, match="tile profile"):
            bad()
