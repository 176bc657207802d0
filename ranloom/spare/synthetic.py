"""Reservation traces with a given mean, number of changes and burstiness.

A trace alternates between a quiet level and excursions above it. Two changes belong to each
excursion, so a mean just above the quiet level makes excursions short and their changes come
in pairs. Beyond that a share of the excursions can be packed into bursts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.spare.budget import Reservation, from_changes


@dataclass(frozen=True)
class TraceStatistics:
    """What a synthetic trace has to carry.

    Args:
        mean_sm: mean reservation.
        transitions: changes in the whole trace; an odd one is dropped.
        quiet_sm: level between excursions.
        peak_sm: highest level of an excursion; levels are drawn evenly up to it.
        period_us: the reservation changes only at multiples of this.
        burst_transitions: changes in one burst.
        burst_us: length of a burst.
        burst_share: share of the changes that come in bursts.
    """

    mean_sm: float
    transitions: int
    quiet_sm: int
    peak_sm: int
    period_us: float
    burst_transitions: int
    burst_us: float
    burst_share: float


def synthetic_trace(
    wanted: TraceStatistics, *, duration_s: float, slot_us: float, card: Card, seed: int
) -> Reservation:
    """Draw a trace.

    Excursions and the gaps between them are exponential, scaled so that the number of changes
    is exact and the mean is met up to rounding to periods; the bursts are placed as a Poisson
    process conditioned on their number.

    Args:
        wanted: statistics of the trace.
        duration_s: length of the trace.
        slot_us: slot duration.
        card: device; its partitions are the levels.
        seed: of the draw.

    Raises:
        InputError: no trace carries these statistics.
    """
    where = "synthetic trace"
    for name, value in (("slot_us", slot_us), ("period_us", wanted.period_us)):
        if not 0.0 < value <= duration_s * 1e6:
            raise InputError(f"{where}: {name}", value, "allowed: above 0, up to the whole trace")
    if wanted.transitions < 0:
        raise InputError(f"{where}: transitions", wanted.transitions, "allowed: 0 or more")
    for name, level in (("quiet_sm", wanted.quiet_sm), ("peak_sm", wanted.peak_sm)):
        if not 0 <= level <= card.sm_count:
            raise InputError(f"{where}: {name}", level, f"allowed: 0 to {card.sm_count} SMs")
    levels = np.array(card.levels, dtype=np.int64)
    above = levels[(levels > wanted.quiet_sm) & (levels <= wanted.peak_sm)]
    if not above.size:
        raise InputError(f"{where}: peak_sm", wanted.peak_sm, "allowed: a level above quiet_sm")
    if not wanted.quiet_sm <= wanted.mean_sm < wanted.peak_sm:
        raise InputError(f"{where}: mean_sm", wanted.mean_sm, "allowed: from quiet_sm to peak_sm")
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0x5E17]))
    total = round(duration_s * 1e6 / wanted.period_us)
    excursions = wanted.transitions // 2
    in_bursts = wanted.burst_transitions // 2
    bursts = round(excursions * wanted.burst_share / in_bursts) if in_bursts else 0
    packed = bursts * in_bursts
    step = max(1, round(wanted.burst_us / wanted.period_us / max(1, wanted.burst_transitions)))
    height = rng.choice(above, excursions) - wanted.quiet_sm
    # A block is a single excursion or a burst; blocks are shuffled, gaps lie between them.
    budget = (wanted.mean_sm - wanted.quiet_sm) * total - float(height[:packed].sum()) * step
    weight = rng.standard_exponential(excursions - packed)
    area = float((weight * height[packed:]).sum())
    length = _whole(weight * (budget / area)) if area else np.zeros(0, dtype=np.int64)
    blocks: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = [
        (np.array([n]), np.array([h])) for n, h in zip(length, height[packed:], strict=True)
    ]
    for k in range(bursts):
        heights = height[k * in_bursts : (k + 1) * in_bursts]
        blocks.append((np.full(in_bursts, step), heights))
    order = rng.permutation(len(blocks))
    used = int(length.sum()) + bursts * step * (2 * in_bursts - 1)
    if budget <= 0 or total - used < len(blocks) + 1:
        raise InputError(
            f"{where}: transitions",
            wanted.transitions,
            f"a mean of {wanted.mean_sm} SMs leaves no room for so many changes",
        )
    # One period each, and a share of the rest: the trace has just its length.
    share = rng.standard_exponential(len(blocks) + 1)
    rest = total - used - share.size
    gaps = 1 + np.diff(np.rint(np.cumsum(share) / share.sum() * rest).astype(np.int64), prepend=0)
    slot, sm, now = [0], [wanted.quiet_sm], 0
    for gap, index in zip(gaps, order, strict=False):
        now += int(gap)
        lengths, heights = blocks[index]
        for n, h in zip(lengths, heights, strict=True):
            slot += [now, now + int(n)]
            sm += [wanted.quiet_sm + int(h), wanted.quiet_sm]
            now += int(n) + step
        now -= step
    per_period = wanted.period_us / slot_us
    slots = np.rint(np.array(slot) * per_period).astype(np.int64)
    n_slots = round(total * per_period)
    return from_changes(slots, np.array(sm), n_slots, slot_us, sm_max=card.sm_count, where=where)


def _whole(lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round lengths to whole periods, none below one, keeping their running sum."""
    edges = np.rint(np.cumsum(lengths)).astype(np.int64)
    return np.maximum(np.diff(edges, prepend=0), 1)
