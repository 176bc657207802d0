"""Runs the executor beside a reservation trace, on a GPU or on modelled time, and sums up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.spare.budget import Reservation
from ranloom.spare.executor import ExecutorReport, SlotExecutor, TrainingDevice
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.green_contexts import budget_for
from ranloom.spare.tile_profile import TileProfile
from ranloom.spare.tiled_product import TiledProduct


@dataclass(frozen=True)
class Coexistence:
    """Summary of a run.

    Args:
        slots: slots run.
        useful_tflops: finished tiles over the time of these slots.
        rebinds: changes of the partition.
        rebind_us: median time of one; 0 without any.
        rebind_us_p99: 99th percentile.
        decode_starts: slots in which the RAN decoded.
        violations: decode starts with training on SMs that the RAN took.
        violation_us: how long, in all.
        max_violation_us: the longest.
        gated_us: time in which training waited for the RAN's copies.
    """

    slots: int
    useful_tflops: float
    rebinds: int
    rebind_us: float
    rebind_us_p99: float
    decode_starts: int
    violations: int
    violation_us: float
    max_violation_us: float
    gated_us: float


def run_beside(
    reservation: Reservation,
    executor: SlotExecutor,
    device: TrainingDevice,
    budgets: NDArray[np.int64],
    sm_count: int,
    *,
    decodes: Callable[[int], bool],
    decode: Callable[[int, int], None],
) -> Coexistence:
    """Run slot after slot for the length of a trace.

    Args:
        reservation: reserved SMs by slot.
        executor: the intra-site scheduler.
        device: its device.
        budgets: SM budgets that have a partition, ascending.
        sm_count: SMs of the device.
        decodes: whether the RAN decodes in a slot.
        decode: starts that decode, given the slot and the budget of training.
    """
    start_us = device.now_us() + reservation.slot_us
    starts = 0
    slot = 0
    for reserved, slots in zip(reservation.sm.tolist(), reservation.slots.tolist(), strict=True):
        sm = budget_for(sm_count - reserved, budgets)
        for _ in range(slots):
            begin_us = start_us + slot * reservation.slot_us
            device.wait_until(begin_us)
            now_decodes = decodes(slot)
            if now_decodes:
                starts += 1
                decode(slot, sm)
            executor.run_slot(slot, begin_us, sm, decodes=now_decodes)
            slot += 1
    device.wait_idle(float("inf"))
    return _summary(executor.report, starts, slot * reservation.slot_us)


def _summary(report: ExecutorReport, starts: int, length_us: float) -> Coexistence:
    rebind_us = np.array(report.rebind_us or [0.0])
    return Coexistence(
        slots=report.slots,
        useful_tflops=report.useful_flops / length_us / 1e6,
        rebinds=len(report.rebind_us),
        rebind_us=float(np.median(rebind_us)),
        rebind_us_p99=float(np.quantile(rebind_us, 0.99, method="higher")),
        decode_starts=starts,
        violations=report.violations,
        violation_us=sum(report.violation_us),
        max_violation_us=max(report.violation_us, default=0.0),
        gated_us=report.gated_us,
    )


def measure_profile(
    device: TrainingDevice,
    product: Callable[[], TiledProduct],
    budgets: NDArray[np.int64],
    model: TileModel,
    *,
    repetitions: int,
    percentile: float,
) -> TileProfile:
    """Profile of one product by running waves of it on every budget (App. C.1).

    Args:
        device: where to run.
        product: makes a fresh one.
        budgets: SM budgets, ascending.
        model: for the traffic of a wave, which a clock does not show.
        repetitions: timed waves a budget, after one to warm up.
        percentile: of these times, the predicted one.
    """
    gemm, tiling = product().gemm, product().tiling
    times_us = np.empty((1, budgets.size))
    for column, sm in enumerate(budgets.tolist()):
        device.bind(sm)
        taken = []
        for _ in range(repetitions + 1):
            fresh = product()
            began_us = device.now_us()
            device.launch(fresh, min(sm, fresh.concurrent), model.wave_us(gemm, tiling, sm))
            device.wait_idle(float("inf"))
            taken.append(device.now_us() - began_us)
        times_us[0, column] = np.percentile(taken[1:], percentile, method="higher")
    moved = [[model.wave_bytes(gemm, tiling, int(sm)) for sm in budgets]]
    return TileProfile(tiling, (gemm,), budgets, times_us, np.array(moved))


@dataclass(frozen=True)
class ChainBuffers:
    """Matrices of a chain of products of which each takes the result of the one before.

    Args:
        entries: two buffers that take turns as A and C, [2, m, k] with k = n.
        weight: B, [1, k, n].
    """

    entries: torch.Tensor
    weight: torch.Tensor

    def source(self, tiling: Tiling) -> Callable[[], TiledProduct]:
        """The next product of the chain (WEAVER Table 5); nothing is allocated."""
        turn = 0

        def next_product() -> TiledProduct:
            nonlocal turn
            a, c = turn, 1 - turn
            turn = c
            return TiledProduct(
                self.entries[a],
                self.weight[0],
                tiling,
                c=self.entries[c],
                operands=(a, 0, c),
            )

        return next_product


def chain_buffers(gemm: Gemm, dtype: torch.dtype, device: torch.device, seed: int) -> ChainBuffers:
    """Random matrices, the weight scaled so that entries keep their size from product to product.

    Args:
        gemm: shape.
        dtype: type of the matrices.
        device: where they are.
        seed: of the entries.

    Raises:
        InputError: a result that cannot be the next operand.
    """
    if gemm.k != gemm.n:
        raise InputError("chain: k", gemm.k, f"allowed: n, {gemm.n}")
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(1, gemm.k, gemm.n, generator=generator) / gemm.k**0.5
    entries = torch.randn(2, gemm.m, gemm.k, generator=generator)
    return ChainBuffers(entries.to(device, dtype), weight.to(device, dtype))
