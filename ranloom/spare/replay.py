"""Replay of a workload beside a reservation trace, slot by slot.

In each slot the intra-site scheduler admits waves of tiles for as long as the next one is
predicted to finish before the slot ends (WEAVER section 6.2). When the reservation changes,
the training partition is re-bound; what survives that depends on the sharing mechanism and
on the workload. Tiles take longer than predicted by a random factor: a tile that runs over
the end of a slot in which the RAN takes SMs back is a *violation* (section 7.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.spare.budget import Reservation, spare_sm
from ranloom.spare.gemm import TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.workload import RESTARTS, Workload

MAX_OVERRUN = 1.0  # a tile takes at most this much longer than predicted: twice the prediction


@dataclass(frozen=True)
class Outcome:
    """What a workload got done beside a trace.

    Args:
        useful_flops: operations of finished work per second of the trace, float64[seconds];
            work that starts over is not counted.
        spare_sm_s: spare SMs times seconds.
        units: finished units, fractional for workloads that keep every tile.
        transitions: changes of the reservation.
        violations: decode starts at which training still ran on SMs that the RAN took.
        violation_us: how long, in all.
        max_violation_us: the longest.
        tile_us: predicted time of the longest wave.
        duration_s: length of the trace.
    """

    useful_flops: NDArray[np.float64]
    spare_sm_s: float
    units: float
    transitions: int
    violations: int
    violation_us: float
    max_violation_us: float
    tile_us: float
    duration_s: float

    @property
    def useful_tflops(self) -> float:
        """Mean useful throughput over the trace."""
        return float(self.useful_flops.sum()) / self.duration_s / 1e12

    def efficiency_pct(self, model: TileModel) -> float:
        """Share of the spare SM-time, at the rate of a tile, that became useful work."""
        attainable = self.spare_sm_s * 1e6 * model.flops_per_sm_us
        return 100.0 * float(self.useful_flops.sum()) / attainable if attainable else 0.0


def replay(
    reservation: Reservation,
    workload: Workload,
    mechanism: Mechanism,
    model: TileModel,
    tiling: Tiling,
    *,
    jitter_sigma: float,
    seed: int,
) -> Outcome:
    """Run a workload on what a reservation leaves free.

    Args:
        reservation: trace on the device of ``model``.
        workload: what to run.
        mechanism: how the partition changes.
        model: time of a wave.
        tiling: extent of a tile.
        jitter_sigma: standard deviation of the logarithm of actual over predicted wave time.
        seed: of the jitter.

    Raises:
        InputError: a tile does not fit in a slot on any number of SMs.
    """
    spare = spare_sm(reservation, model.card)
    kinds = list(dict.fromkeys(workload.gemms))
    kind_of = np.array([kinds.index(g) for g in workload.gemms], dtype=np.int64)
    counts = np.array([tiling.count(g) for g in kinds], dtype=np.int64)
    flops = np.array([g.flops for g in kinds])
    levels = np.unique(spare)
    wave_us = np.array(
        [[model.wave_us(g, tiling, int(s)) if s else np.inf for s in levels] for g in kinds]
    )
    usable = np.isfinite(wave_us)
    longest_us = float(wave_us[usable].max()) if usable.any() else 0.0
    if longest_us > reservation.slot_us:
        raise InputError(
            "tiling",
            f"{tiling.tile_m}x{tiling.tile_n}x{tiling.tile_k}",
            f"a wave takes {longest_us:.0f} us, a slot {reservation.slot_us:.0f} us",
        )
    # One factor a change: only the last wave before it can overrun into the RAN's slot.
    rng = np.random.default_rng(np.random.SeedSequence([seed, reservation.start_slot.size]))
    factor = np.exp(jitter_sigma * rng.standard_normal(reservation.start_slot.size))
    restart = workload.restart if mechanism.keeps_state else "unit"
    seconds = int(np.ceil(reservation.n_slots * reservation.slot_us / 1e6 - 1e-9))
    useful, units, violations, violation_us, worst_us = _replay(
        reservation.start_slot,
        reservation.slots,
        reservation.sm,
        spare,
        np.searchsorted(levels, spare),
        kind_of,
        counts,
        flops,
        wave_us,
        np.minimum(factor, 1.0 + MAX_OVERRUN),
        reservation.slot_us,
        mechanism.outage_us + workload.relaunch_us,
        RESTARTS.index(restart),
        seconds,
    )
    slot_s = reservation.slot_us / 1e6
    return Outcome(
        useful_flops=useful,
        spare_sm_s=float((spare * reservation.slots).sum()) * slot_s,
        units=units,
        transitions=reservation.transitions,
        violations=violations,
        violation_us=violation_us,
        max_violation_us=worst_us,
        tile_us=longest_us,
        duration_s=reservation.n_slots * slot_s,
    )


@njit(cache=True)
def _replay(
    start_slot: NDArray[np.int64],
    n_slots: NDArray[np.int64],
    reserved: NDArray[np.int64],
    spare: NDArray[np.int64],
    level: NDArray[np.int64],
    kind_of: NDArray[np.int64],
    counts: NDArray[np.int64],
    flops: NDArray[np.float64],
    wave_us: NDArray[np.float64],
    factor: NDArray[np.float64],
    slot_us: float,
    outage_us: float,
    restart: int,
    seconds: int,
) -> tuple[NDArray[np.float64], float, int, float, float]:
    """Event-exact replay; see :func:`replay` for the arguments."""
    useful = np.zeros(seconds)
    pending = np.zeros(seconds)  # work of the current unit, useful only once it is finished
    first_pending = 0
    n_gemms = kind_of.size
    gemm, done = 0, 0  # position in the unit: product, finished tiles of it
    units = 0.0
    violations, violation_us, worst_us = 0, 0.0, 0.0
    last_end_us = 0.0  # predicted end, within its slot, of the last wave before a change
    last_wave_us = 0.0
    for i in range(start_slot.size):
        outage_left_us = 0.0
        if i > 0:
            outage_left_us = outage_us
            if reserved[i] > reserved[i - 1] and last_wave_us > 0.0:
                over_us = last_end_us + last_wave_us * (factor[i] - 1.0) - slot_us
                if over_us > 0.0:
                    violations += 1
                    violation_us += over_us
                    worst_us = max(worst_us, over_us)
            if restart == 2:
                gemm, done = 0, 0
                pending[first_pending:] = 0.0
            elif restart == 1 and done > 0:
                lost = done * flops[kind_of[gemm]] / counts[kind_of[gemm]]
                second = int((start_slot[i] * slot_us - 1.0) // 1e6)
                while lost > 1e-6 and second >= 0:  # taken back from where it was counted
                    taken = min(lost, useful[second])
                    useful[second] -= taken
                    lost -= taken
                    second -= 1
                done = 0
        sm = spare[i]
        lv = level[i]
        last_wave_us = 0.0
        for s in range(n_slots[i]):
            now_us = 0.0
            if outage_left_us > 0.0:
                now_us = min(outage_left_us, slot_us)
                outage_left_us -= now_us
            if sm == 0:
                continue
            second = int((start_slot[i] + s) * slot_us // 1e6)
            while True:
                kind = kind_of[gemm]
                wave = wave_us[kind, lv]
                fit = int((slot_us - now_us) / wave + 1e-9)
                if fit == 0:
                    break
                need = -(-(counts[kind] - done) // sm)
                waves = min(fit, need)
                tiles = min(waves * sm, counts[kind] - done)
                done += tiles
                now_us += waves * wave
                last_end_us, last_wave_us = now_us, wave
                work = tiles * flops[kind] / counts[kind]
                if restart == 2:
                    pending[second] += work
                else:
                    useful[second] += work
                if done == counts[kind]:
                    done = 0
                    gemm += 1
                    if gemm == n_gemms:
                        gemm = 0
                        units += 1.0
                        if restart == 2:
                            for p in range(first_pending, second + 1):
                                useful[p] += pending[p]
                                pending[p] = 0.0
                            first_pending = second
    if restart != 2:
        unit_flops = 0.0
        for g in range(n_gemms):
            unit_flops += flops[kind_of[g]]
        units = useful.sum() / unit_flops
    return useful, units, violations, violation_us, worst_us
