"""Replay of a workload beside a reservation trace, slot by slot.

In each slot the intra-site scheduler admits waves of tiles by the policy of ``admission``
(WEAVER section 6.2). When the reservation changes, the training partition is re-bound; what
survives that depends on the sharing mechanism and on the workload. Tiles take longer than
predicted by a random factor: a tile that runs over the end of a slot in which the RAN takes
SMs back is a *violation* (section 7.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.spare.admission import admitted_waves
from ranloom.spare.budget import Reservation, spare_sm
from ranloom.spare.gemm import TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.tile_profile import modelled_profile
from ranloom.spare.workload import RESTARTS, Workload

MAX_OVERRUN = 1.0  # a tile takes at most this much longer than predicted: twice the prediction


@dataclass(frozen=True)
class Outcome:
    """What a workload got done beside a trace.

    Args:
        useful_flops: operations of finished work per second of the trace, float64[seconds];
            work that starts over is not counted.
        executed_flops: operations of all tiles that ran, also of work that started over.
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
    executed_flops: float
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

    @property
    def executed_tflops(self) -> float:
        """Mean throughput over the trace of all that ran, useful or not."""
        return self.executed_flops / self.duration_s / 1e12

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
    slot_bounded: bool = True,
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
        slot_bounded: whether tiles are admitted by the end of the slot. Without, a wave starts
            whenever the one before it is done, and whatever runs at a decode start runs on.

    Raises:
        InputError: on some of the trace's budgets a wave of tiles does not fit in a slot.
    """
    spare = spare_sm(reservation, model.card)
    levels = np.unique(spare[spare > 0])
    profile = modelled_profile(workload.gemms, levels, model, tiling)
    profile.check_slot(reservation.slot_us)
    kinds = profile.gemms
    # One factor a change: only the last wave before it can overrun into the RAN's slot.
    rng = np.random.default_rng(np.random.SeedSequence([seed, reservation.start_slot.size]))
    factor = np.exp(jitter_sigma * rng.standard_normal(reservation.start_slot.size))
    restart = workload.restart if mechanism.keeps_state else "unit"
    seconds = int(np.ceil(reservation.n_slots * reservation.slot_us / 1e6 - 1e-9))
    useful, executed, units, violations, violation_us, worst_us = _replay(
        reservation.start_slot,
        reservation.slots,
        reservation.sm,
        spare,
        np.searchsorted(levels, spare),
        np.array([kinds.index(g) for g in workload.gemms], dtype=np.int64),
        np.array([tiling.count(g) for g in kinds], dtype=np.int64),
        np.array([g.flops for g in kinds]),
        profile.wave_us,
        profile.wave_bytes,
        model.bytes_per_us,
        np.minimum(factor, 1.0 + MAX_OVERRUN),
        reservation.slot_us,
        mechanism.outage_us + workload.relaunch_us,
        RESTARTS.index(restart),
        slot_bounded,
        seconds,
    )
    slot_s = reservation.slot_us / 1e6
    return Outcome(
        useful_flops=useful,
        executed_flops=executed,
        spare_sm_s=float((spare * reservation.slots).sum()) * slot_s,
        units=units,
        transitions=reservation.transitions,
        violations=violations,
        violation_us=violation_us,
        max_violation_us=worst_us,
        tile_us=float(profile.wave_us.max(initial=0.0)),
        duration_s=reservation.n_slots * slot_s,
    )


@njit(cache=True, nogil=True)
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
    wave_bytes: NDArray[np.float64],
    bytes_per_us: float,
    factor: NDArray[np.float64],
    slot_us: float,
    outage_us: float,
    restart: int,
    slot_bounded: bool,
    seconds: int,
) -> tuple[NDArray[np.float64], float, float, int, float, float]:
    """Event-exact replay; see :func:`replay` for the arguments."""
    useful = np.zeros(seconds)
    pending = np.zeros(seconds)  # work of the current unit, useful only once it is finished
    first_pending = 0
    n_gemms = kind_of.size
    gemm, done = 0, 0  # position in the unit: product, finished tiles of it
    units, executed = 0.0, 0.0
    violations, violation_us, worst_us = 0, 0.0, 0.0
    last_end_us = 0.0  # predicted end, within its slot, of the last wave before a change
    last_wave_us = 0.0
    carried_us = 0.0  # how far the last wave is predicted to reach into the next slot
    for i in range(start_slot.size):
        outage_left_us = 0.0
        if i > 0 and reserved[i] != reserved[i - 1]:
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
            now_us, carried_us = carried_us, 0.0
            if outage_left_us > 0.0:
                lost_us = min(outage_left_us, slot_us - now_us)
                now_us += lost_us
                outage_left_us -= lost_us
            if sm == 0:
                continue
            second = int((start_slot[i] + s) * slot_us // 1e6)
            while True:
                kind = kind_of[gemm]
                wave = wave_us[kind, lv]
                fit = admitted_waves(slot_us - now_us, bytes_per_us, sm, wave, wave_bytes[kind, lv])
                if fit == 0:
                    if slot_bounded or now_us >= slot_us:
                        break
                    fit = 1
                need = -(-(counts[kind] - done) // sm)
                waves = min(fit, need)
                tiles = min(waves * sm, counts[kind] - done)
                done += tiles
                now_us += waves * wave
                last_end_us, last_wave_us = now_us, wave
                work = tiles * flops[kind] / counts[kind]
                executed += work
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
            if not slot_bounded:
                carried_us = max(0.0, now_us - slot_us)
    if restart != 2:
        unit_flops = 0.0
        for g in range(n_gemms):
            unit_flops += flops[kind_of[g]]
        units = useful.sum() / unit_flops
    return useful, executed, units, violations, violation_us, worst_us
