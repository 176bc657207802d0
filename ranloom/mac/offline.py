# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""``offline``: how few transitions any controller could get away with, knowing the future.

The yardstick looks at a finished run of ``noctrl``. What that decoded in an uplink slot is the
work that arrives there; a reservation decodes waiting work first come, first served, up to its
capacity, and every unit must be decoded at most a given delay later than ``noctrl`` did. Among all
reservations that keep this, dynamic programming finds those that minimise

    sum of SMs + price x transitions,

whose values for all prices are the convex front of mean reservation against transitions.

A state is (tier, backlog). Serving in order makes the deadline a limit on the backlog alone (at
most what arrived within the delay), and less backlog at less cost is always better, so each tier
keeps the labels that no other beats in both. If they become too many they are thinned out in one
of two ways: dropping labels leaves a reservation that works (its cost is an upper bound), merging
two into one with the smaller backlog and the smaller cost gives a lower bound.

Work is counted in decoder work units (code blocks x lifting size), as bytes per SM differ by UE.
The model is a fluid: grant sizes, block errors caused by another timing and reports are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d

from ranloom.errors import InputError
from ranloom.mac.kernel import kernel
from ranloom.mac.model import CellModel
from ranloom.mac.recorder import TRACE_COLUMNS
from ranloom.mac.simulate import CellRun

MAX_LABELS = 96  # of a tier; more are thinned out
_MCS_WINDOW_MS = 100.0  # the best MCS within this time tells what the carrier could have carried
_LOWEST_PRICE, _HIGHEST_PRICE = 0.25, 2.0**22  # SM x UL slots for one transition


@dataclass(frozen=True, eq=False)
class Problem:
    """What has to be decoded, and what each reservation can decode.

    Args:
        arrived: int64[n], work that arrives in each UL slot.
        carrier: int64[n], most work that the carrier brings to the GPU in a slot.
        levels: int64[n_tiers], SMs of each tier, ascending.
        capacity: int64[n_tiers], most work a slot of each tier, ascending.
        delay_slots: UL slots by which work may be decoded later than it arrived.

    Raises:
        InputError: shapes differ, a value is negative, or tiers are not ascending.
    """

    arrived: NDArray[np.int64]
    carrier: NDArray[np.int64]
    levels: NDArray[np.int64]
    capacity: NDArray[np.int64]
    delay_slots: int

    def __post_init__(self) -> None:
        if self.arrived.shape != self.carrier.shape or len(self.arrived) == 0:
            raise InputError("carrier", self.carrier.shape, f"needed: {self.arrived.shape}")
        if self.levels.shape != self.capacity.shape or len(self.levels) == 0:
            raise InputError("capacity", self.capacity.shape, f"needed: {self.levels.shape}")
        if (np.diff(self.levels) <= 0).any() or (np.diff(self.capacity) < 0).any():
            raise InputError("levels", self.levels.tolist(), "needed: ascending with capacity")
        if min(self.arrived.min(), self.carrier.min(), self.delay_slots) < 0:
            raise InputError("arrived, carrier, delay_slots", "below 0", "needed: 0 or more")

    @property
    def backlog_limit(self) -> NDArray[np.int64]:
        """int64[n], most backlog after each slot: what arrived within the delay."""
        total = np.concatenate([[0], np.cumsum(self.arrived)])
        last = np.arange(1, len(total))
        return np.asarray(total[last] - total[np.maximum(last - self.delay_slots, 0)], np.int64)


@dataclass(frozen=True, eq=False)
class Plan:
    """A reservation that keeps every deadline, as one entry per change.

    Attributes:
        ul_index: int64[n], UL slot from which each holds, the first 0.
        sm: int64[n].
        sm_slots: sum of the reservation over all UL slots.
        price: of a transition, SM x UL slots, for which it was found.
        cost_lower: no reservation has a lower ``sm_slots + price x transitions``.
    """

    ul_index: NDArray[np.int64]
    sm: NDArray[np.int64]
    sm_slots: int
    price: float
    cost_lower: float

    @property
    def transitions(self) -> int:
        """Changes of the reservation."""
        return len(self.sm) - 1


@dataclass(frozen=True, eq=False)
class Fewest:
    """The fewest transitions at a mean reservation.

    Attributes:
        transitions_lower: no reservation within the mean has fewer.
        plan: one that comes closest; its transitions are the upper bound.
        front: a plan for each price that was tried, by ascending price.
    """

    transitions_lower: int
    plan: Plan
    front: tuple[Plan, ...]


def problem_of(run: CellRun, model: CellModel, delay_ms: float) -> Problem:
    """The yardstick's view of a run of ``noctrl``.

    A tier's capacity is the most work that the lookup table admits at it, or what ``noctrl`` put
    on it if that is more (several blocks in a slot): its own reservation is always a solution.

    Args:
        run: a run of ``noctrl``, traced in full.
        model: its cell.
        delay_ms: by how much later work may be decoded.

    Raises:
        InputError: the run is of another controller or not traced in full.
    """
    if run.controller != "noctrl" or run.trace_from != 0 or len(run.trace) != run.ul_slots:
        raise InputError("run", run.controller, "needed: noctrl, traced from start to end")
    column = {name: run.trace[:, i] for i, name in enumerate(TRACE_COLUMNS)}
    work, n_prb = column["work"], column["n_prb"]
    mcs = np.zeros(run.ul_slots, np.int64)
    used = n_prb > 0
    mcs[used] = np.ceil(column["mcs_prb"][used] / n_prb[used] - 1e-9)
    per_ms = run.ul_slots / (run.duration_us / 1000.0)
    best_mcs = maximum_filter1d(mcs, max(1, round(_MCS_WINDOW_MS * per_ms)), mode="nearest")
    carrier = np.maximum(work, model.blocks.work[best_mcs, model.config.n_prb])
    most = []
    for level in model.tables.levels:
        admitted = model.tables.max_prb[:, level]
        own = work[column["demand_sm"] <= level].max(initial=0)
        most.append(max(own, model.blocks.work[np.arange(len(admitted)), admitted].max()))
    capacity = np.maximum.accumulate(np.array(most, np.int64))
    # tiers above one that decodes whatever the carrier brings are of no use
    capacity[-1] = max(capacity[-1], carrier.max())
    useful = 1 + int(np.argmax(capacity >= carrier.max()))
    return Problem(
        np.ascontiguousarray(work),
        np.asarray(carrier, np.int64),
        np.ascontiguousarray(model.tables.levels[:useful]),
        np.ascontiguousarray(capacity[:useful], np.int64),
        round(delay_ms * per_ms),
    )


class _Labels(NamedTuple):
    """Labels of each tier by ascending backlog and descending cost; arrays [n_tiers, width].

    ``node`` is the last switch on the way to a label; ``switched`` marks labels that have just
    come from another tier.
    """

    backlog: NDArray[np.int64]
    cost: NDArray[np.float64]
    node: NDArray[np.int64]
    switched: NDArray[np.int64]
    size: NDArray[np.int64]


class _Switches(NamedTuple):
    """Every switch that a label went through: its slot, its tier and the switch before."""

    slot: NDArray[np.int64]
    tier: NDArray[np.int64]
    before: NDArray[np.int64]
    size: NDArray[np.int64]


def _labels(n_tiers: int, width: int) -> _Labels:
    shape = (n_tiers, width)
    return _Labels(
        np.zeros(shape, np.int64),
        np.zeros(shape),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(n_tiers, np.int64),
    )


@kernel
def _merge_tiers(now, best, best_tier, at):
    """Labels of all tiers that no other label beats. Returns how many."""
    n_tiers = now.size.shape[0]
    for s in range(n_tiers):
        at[s] = 0
    kept = 0
    while True:
        pick = -1
        for s in range(n_tiers):
            if at[s] < now.size[s] and (
                pick < 0
                or now.backlog[s, at[s]] < now.backlog[pick, at[pick]]
                or (
                    now.backlog[s, at[s]] == now.backlog[pick, at[pick]]
                    and now.cost[s, at[s]] < now.cost[pick, at[pick]]
                )
            ):
                pick = s
        if pick < 0:
            return kept
        i = at[pick]
        at[pick] += 1
        if kept == 0 or now.cost[pick, i] < best.cost[0, kept - 1]:
            best.backlog[0, kept] = now.backlog[pick, i]
            best.cost[0, kept] = now.cost[pick, i]
            best.node[0, kept] = now.node[pick, i]
            best_tier[kept] = pick
            kept += 1


@kernel
def _serve(s, arrived, capacity, limit, price, now, best, best_tier, n_best, then):
    """Labels of tier ``s`` after a slot: stayed or came from another tier, then were served."""
    kept = 0
    i = 0
    k = 0
    lowest = math.inf
    while True:
        while k < n_best and best_tier[k] == s:
            k += 1
        stays = i < now.size[s]
        comes = k < n_best
        if not stays and not comes:
            break
        if stays and comes:
            mine, other = now.backlog[s, i], best.backlog[0, k]
            stays = mine < other or (
                mine == other and now.cost[s, i] <= best.cost[0, k] + price
            )  # fmt: skip
        if stays:
            backlog, cost, node = now.backlog[s, i], now.cost[s, i], now.node[s, i]
            i += 1
        else:
            backlog, cost, node = best.backlog[0, k], best.cost[0, k] + price, best.node[0, k]
            k += 1
        left = max(0, backlog + arrived - capacity)
        if left > limit:
            break  # those that follow have more
        if cost >= lowest:
            continue
        lowest = cost
        if kept > 0 and then.backlog[s, kept - 1] == left:
            kept -= 1  # as little backlog at less cost
        then.backlog[s, kept] = left
        then.cost[s, kept] = cost
        then.node[s, kept] = node
        then.switched[s, kept] = 0 if stays else 1
        kept += 1
    then.size[s] = kept


@kernel
def _thin(s, most, optimistic, labels):
    """Halve the labels of a tier until at most ``most`` are left. Returns whether it had to."""
    had_to = False
    while labels.size[s] > most:
        had_to = True
        half = (labels.size[s] + 1) // 2
        for i in range(half):
            low = 2 * i
            high = min(low + 1, labels.size[s] - 1)
            labels.backlog[s, i] = labels.backlog[s, low]
            source = high if optimistic else low
            labels.cost[s, i] = labels.cost[s, source]
            labels.node[s, i] = labels.node[s, source]
            labels.switched[s, i] = labels.switched[s, source]
        labels.size[s] = half
    return had_to


@kernel
def _advance(
    first, arrived, carrier, limit, levels, capacity, price, most, optimistic,
    now, then, best, best_tier, at, switches, thinned,
):  # fmt: skip
    """Go through the slots from ``first`` on, while there is room for switches.

    Returns:
        First slot that was not handled.
    """
    n_tiers = levels.shape[0]
    for j in range(first, arrived.shape[0]):
        if switches.size[0] + n_tiers * most > switches.slot.shape[0]:
            return j
        n_best = _merge_tiers(now, best, best_tier, at)
        for s in range(n_tiers):
            _serve(
                s, arrived[j], min(capacity[s], carrier[j]), limit[j], price if j > 0 else 0.0,
                now, best, best_tier, n_best, then,
            )  # fmt: skip
        for s in range(n_tiers):
            if _thin(s, most, optimistic, then):
                thinned[0] += 1
            now.size[s] = then.size[s]
            for i in range(then.size[s]):
                node = then.node[s, i]
                if then.switched[s, i] == 1:
                    new = switches.size[0]
                    switches.size[0] = new + 1
                    switches.slot[new] = j
                    switches.tier[new] = s
                    switches.before[new] = node
                    node = new
                now.backlog[s, i] = then.backlog[s, i]
                now.cost[s, i] = then.cost[s, i] + levels[s]
                now.node[s, i] = node
    return arrived.shape[0]


def _solve(
    problem: Problem, price: float, most: int, optimistic: bool
) -> tuple[float, NDArray[np.int64], NDArray[np.int64], bool]:
    """Lowest cost, slots and tiers of the switches behind it, and whether labels were thinned."""
    n_tiers = len(problem.levels)
    width = most * (n_tiers + 1) + 1
    now, then, best = _labels(n_tiers, width), _labels(n_tiers, width), _labels(1, n_tiers * width)
    best_tier = np.zeros(n_tiers * width, np.int64)
    now.size[:] = 1
    now.node[:, 0] = np.arange(n_tiers)
    room = n_tiers * most + len(problem.arrived)
    empty = [np.zeros(room, np.int64) for _ in range(3)]
    switches = _Switches(empty[0], empty[1], empty[2], np.zeros(1, np.int64))
    switches.tier[:n_tiers] = np.arange(n_tiers)
    switches.before[:n_tiers] = -1
    switches.size[0] = n_tiers
    limit, thinned = problem.backlog_limit, np.zeros(1, np.int64)
    at = 0
    while True:
        at = _advance(
            at, problem.arrived, problem.carrier, limit, problem.levels, problem.capacity,
            price, most, optimistic, now, then, best, best_tier, np.zeros(n_tiers, np.int64),
            switches, thinned,
        )  # fmt: skip
        if at == len(problem.arrived):
            break
        grown = [np.concatenate([a, np.zeros_like(a)]) for a in switches[:3]]
        switches = _Switches(grown[0], grown[1], grown[2], switches.size)
    ends = [
        (float(now.cost[s, i]), int(now.node[s, i]))
        for s in range(n_tiers)
        for i in range(now.size[s])
    ]
    if not ends:
        raise InputError("delay_slots", problem.delay_slots, "no reservation keeps this delay")
    cost, node = min(ends)
    path = []
    while node >= 0:
        path.append(node)
        node = int(switches.before[node])
    path.reverse()
    return cost, switches.slot[path], switches.tier[path], bool(thinned[0])


def cheapest(problem: Problem, price: float, max_labels: int = MAX_LABELS) -> Plan:
    """The reservation of lowest ``sum of SMs + price x transitions``.

    Args:
        problem: what has to be decoded.
        price: of a transition, SM x UL slots, above 0.
        max_labels: labels that a tier keeps; the result is exact while they suffice.

    Raises:
        InputError: the price is not positive, or no reservation keeps the delay.
    """
    if not price > 0 or max_labels < 2:
        raise InputError("price, max_labels", (price, max_labels), "needed: above 0; 2 or more")
    cost, slots, tiers, thinned = _solve(problem, price, max_labels, optimistic=False)
    lower = _solve(problem, price, max_labels, optimistic=True)[0] if thinned else cost
    held = np.diff(slots, append=len(problem.arrived))
    sm = problem.levels[tiers]
    # a switch in the first slot is free and leaves an entry of no length
    return Plan(slots[held > 0], sm[held > 0], int((held * sm).sum()), price, lower)


def fewest_transitions(
    problem: Problem, mean_sm: float, *, steps: int = 10, max_labels: int = MAX_LABELS
) -> Fewest:
    """Bounds on the fewest transitions at a mean reservation.

    Args:
        problem: what has to be decoded.
        mean_sm: most mean reservation over the UL slots.
        steps: prices tried, by bisection of their logarithm.
        max_labels: see :func:`cheapest`.

    Raises:
        InputError: no reservation keeps both delay and mean.
    """
    budget = mean_sm * len(problem.arrived)
    plans = [cheapest(problem, _LOWEST_PRICE, max_labels)]
    if plans[0].sm_slots > budget:
        lowest = plans[0].sm_slots / len(problem.arrived)
        raise InputError("mean_sm", mean_sm, f"needed: at least {lowest:.4g} for this delay")
    low, high = _LOWEST_PRICE, _HIGHEST_PRICE
    for _ in range(steps):
        price = math.sqrt(low * high)
        plans.append(cheapest(problem, price, max_labels))
        if plans[-1].sm_slots <= budget:
            low = price
        else:
            high = price
    plans.sort(key=lambda plan: plan.price)
    # Lagrangian duality: any reservation within the budget has cost <= budget + price x transitions
    lower = max(math.ceil((p.cost_lower - budget) / p.price - 1e-6) for p in plans)
    within = min(
        (p for p in plans if p.sm_slots <= budget), key=lambda p: (p.transitions, p.sm_slots)
    )
    return Fewest(max(lower, 0), within, tuple(plans))


def front(
    problem: Problem, prices: Sequence[float], max_labels: int = MAX_LABELS
) -> tuple[Plan, ...]:
    """A plan for each price: corners of the front of mean reservation against transitions."""
    return tuple(cheapest(problem, price, max_labels) for price in prices)
