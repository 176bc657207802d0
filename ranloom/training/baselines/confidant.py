"""Confidant (Chen et al., MobiCom 2025) and Confidant*, its strengthened form.

Confidant: one pipeline over all devices; the cut minimises the slowest of stage and link. Each
micro-batch in work has a weight copy of its own and steps it at once; copies are averaged at the
end of an epoch, so there is no flush and no synchronisation until then. To have all P stages at
work it takes at least P micro-batches, so the first stage holds P copies of its share: in 16 bits
they take 2 N bytes for a model of N parameters, however long the pipeline is. Slow devices:
backward time-out, repartition, redistribution, commit. Confidant*: the same with an exhaustive
search over replicas and stages, and with all spare compute harvested without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numba import njit

from ranloom.errors import InputError
from ranloom.training.baselines.policy import (
    Adaptation,
    BaselinePlan,
    Reaction,
    state_transfer_s,
)
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.placement import CostsOf, PlacementProblem, place

_ALL = 1 << 30


@dataclass(frozen=True)
class Confidant:
    """One pipeline with local updates, over the chain of sites that promises the highest rate.

    Args:
        micro_batch_samples: sizes to choose from.
        epoch_samples: samples between two averagings.
        memory_share: share of a site's memory for weight copies.
        reaction: detection and planning times.
        name: in tables.
    """

    micro_batch_samples: Sequence[int]
    epoch_samples: int
    memory_share: float
    reaction: Reaction
    name: str = "confidant"

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """Best chain and micro-batch: every start, every length, always on along the best link.

        Raises:
            InputError: not even one weight copy fits.
        """
        count = len(problem.sites)
        starts = problem.sites if count <= problem.searched_sites else problem.sites[:1]
        best: tuple[float, BaselinePlan] | None = None
        for start in starts:
            chain = linked_chain(problem, start, count)
            for length in range(problem.least_sites, count + 1):
                found = self.plan_chain(problem, costs_of, chain[:length])
                if found is not None and (best is None or found[0] > best[0]):
                    best = found
        if best is None:
            raise InputError(
                self.name, f"{count} sites", "allowed: sites that hold a weight copy each"
            )
        return best[1]

    def plan_chain(
        self, problem: PlacementProblem, costs_of: CostsOf, chain: tuple[int, ...]
    ) -> tuple[float, BaselinePlan] | None:
        """Predicted rate and plan on a given chain, None if the weight copies do not fit.

        The cut with the fastest bottleneck, the micro-batch with the highest rate, and as many
        micro-batches in work as fit, up to 2 P - 1 and at least one a stage.
        """
        best: tuple[float, BaselinePlan] | None = None
        for samples in self.micro_batch_samples:
            costs = costs_of(samples)
            if self.epoch_samples % samples or costs.layers < len(chain):
                continue
            room = self.memory_share * problem.memory_bytes[list(chain)].astype(np.float64)

            def cut(window: int) -> tuple[float, tuple[int, ...]]:
                return bottleneck_cut(problem, costs, chain, window, room)  # noqa: B023

            found = widest_window(cut, len(chain), 2 * len(chain) - 1)
            if found is None:
                continue
            window, slowest_s, boundaries = found
            layout = Layout(0, boundaries, (chain,))
            count = self.epoch_samples // samples
            rate = min(1.0 / slowest_s, window / _path_s(problem, costs, layout)) * samples
            if best is None or rate > best[0]:
                best = (
                    rate,
                    BaselinePlan(layout, samples, window, count, False, averages_weights=True),
                )
        return best

    def adapt(
        self,
        plan: BaselinePlan,
        problem: PlacementProblem,
        costs: LayerCosts,
        seconds_per_flop: np.ndarray,
    ) -> Adaptation | None:
        """New cut for the present rates; layers travel while nothing trains."""
        layout = plan.layout
        if layout.replicas > 1:
            return None
        now = replace(problem, seconds_per_flop=seconds_per_flop)
        chain = layout.lanes[0]
        room = self.memory_share * problem.memory_bytes[list(chain)].astype(np.float64)
        slowest_s, boundaries = bottleneck_cut(now, costs, chain, plan.window, room)
        if not np.isfinite(slowest_s) or boundaries == layout.boundaries:
            return None
        moved = [abs(new - old) for new, old in zip(boundaries, layout.boundaries, strict=True)]
        transfer_s = max(
            state_transfer_s(problem, costs, moved[i], layout.lanes[0][i - 1], layout.lanes[0][i])
            for i in range(1, layout.stages)
        )
        stall_s = self.reaction.detect_s + self.reaction.plan_s + transfer_s
        return Adaptation(stall_s, loses_step=False, boundaries=boundaries)


@dataclass(frozen=True)
class ConfidantStar(Confidant):
    """Exhaustive search over replicas and stages; averaging between replicas once an epoch."""

    name: str = "confidant_star"

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """Best of all shapes and sizes, by the same closed form that WEAVER's placement uses.

        A weight copy takes as much as a gradient that is kept for itself.

        Raises:
            InputError: nothing fits the memory of the sites.
        """

        def copied(samples: int) -> LayerCosts:
            return replace(costs_of(samples), unmerged_limit=_ALL)

        whole = replace(
            problem, step_samples=self.epoch_samples, full_pipelines=True, hidden_share=0.0
        )
        found = place(whole, copied, self.micro_batch_samples)
        samples = found.micro_batch_samples
        window = min(found.window, 2 * found.layout.stages - 1)
        count = self.epoch_samples // samples
        return BaselinePlan(found.layout, samples, window, count, False, averages_weights=True)


def linked_chain(problem: PlacementProblem, start: int, length: int) -> tuple[int, ...]:
    """Sites in a row: from the start always on to the unused site with the best link.

    Args:
        problem: sites and links.
        start: first site.
        length: sites wanted; fewer if there are not so many.
    """
    links = problem.activation
    both_ways = np.minimum(links.bandwidth_gbps, links.bandwidth_gbps.T)
    chain = [start]
    free = [site for site in problem.sites if site != start]
    while free and len(chain) < length:
        rate, delay = both_ways[chain[-1], free], links.latency_s[chain[-1], free]
        pick = int(np.lexsort((np.asarray(free), delay, -rate))[0])
        chain.append(free.pop(pick))
    return tuple(chain)


def _path_s(problem: PlacementProblem, costs: LayerCosts, layout: Layout) -> float:
    """Time of one micro-batch through the pipeline and back."""
    forward, backward = costs.stage_flop(layout)
    lane = list(layout.lanes[0])
    work_s = float(((forward + backward) * problem.seconds_per_flop[lane]).sum())
    hops_s = sum(
        problem.activation.seconds(a, b, costs.boundary_bytes)
        + problem.activation.seconds(b, a, costs.boundary_bytes)
        for a, b in pairwise(lane)
    )
    return work_s + hops_s


def copy_bytes(costs: LayerCosts, layout: Layout, window: int) -> np.ndarray:
    """Memory of each stage of a pipeline: training state, weight copies, activations [P].

    Stage s has ``window - s`` micro-batches in work (1F1B), each with a copy of the weights in 16
    bits (as large as a gradient) and its activations.
    """
    starts = np.asarray(layout.boundaries[:-1])
    held = np.maximum(window - np.arange(layout.stages), 1)
    fixed = np.add.reduceat(costs.weight_bytes + costs.gradient_bytes, starts)
    each = np.add.reduceat(costs.gradient_bytes + costs.activation_bytes, starts)
    return np.asarray(fixed + held * (each + costs.transit_bytes(1)))


def widest_window(
    cut: Callable[[int], tuple[float, tuple[int, ...]]], least: int, most: int
) -> tuple[int, float, tuple[int, ...]] | None:
    """Largest window between two for which a cut fits, with that cut; None if there is none."""
    best: tuple[int, float, tuple[int, ...]] | None = None
    while least <= most:
        window = (least + most) // 2
        slowest_s, boundaries = cut(window)
        if np.isfinite(slowest_s):
            best = (window, slowest_s, boundaries)
            least = window + 1
        else:
            most = window - 1
    return best


def bottleneck_cut(
    problem: PlacementProblem,
    costs: LayerCosts,
    chain: tuple[int, ...],
    window: int = 0,
    room_bytes: np.ndarray | None = None,
) -> tuple[float, tuple[int, ...]]:
    """Confidant's dynamic program.

    ``dp[j][s] = min_i max(dp[i][s - 1], 2 size / bandwidth, T(i + 1 .. j) slowdown_s)``. Where a
    link is the bottleneck many cuts tie; of these the one with the fastest slowest stage is taken.

    Args:
        problem: rates and links.
        costs: costs of the layers [L].
        chain: sites of the stages in order [P].
        window: micro-batches in work, for the memory of a stage.
        room_bytes: memory of each stage [P]; None for no limit.

    Returns:
        Time of the slowest stage or link (infinite if nothing fits), and the boundaries.
    """
    gbps = [float(problem.activation.bandwidth_gbps[a, b]) for a, b in pairwise(chain)]
    link_s = 2.0 * costs.boundary_bytes * 8e-9 / np.asarray([np.inf, *gbps])
    pace = problem.seconds_per_flop[list(chain)]
    room = np.full(len(chain), np.inf) if room_bytes is None else room_bytes
    return memory_cut(costs, pace, link_s, window, room)


def memory_cut(
    costs: LayerCosts, pace: np.ndarray, link_s: np.ndarray, window: int, room_bytes: np.ndarray
) -> tuple[float, tuple[int, ...]]:
    """The same for stages of a given pace and given hand-over times, under memory limits.

    Args:
        costs: costs of the layers [L].
        pace: seconds per operation of each stage [P].
        link_s: time of the link before each stage [P].
        window: micro-batches in work in a pipeline.
        room_bytes: memory of each stage [P].
    """
    held = np.maximum(window - np.arange(len(pace)), 1).astype(np.float64)
    sums = [
        np.concatenate([[0.0], np.cumsum(values)])
        for values in (
            costs.forward_flop + costs.backward_flop,
            costs.weight_bytes + costs.gradient_bytes,
            costs.gradient_bytes + costs.activation_bytes,
        )
    ]
    room = room_bytes - held * costs.transit_bytes(1)
    slowest_s, cut = _cut(*sums, pace, link_s, held, room)
    return float(slowest_s), tuple(int(layer) for layer in cut)


@njit(cache=True)
def _cut(
    work: np.ndarray,
    fixed: np.ndarray,
    each: np.ndarray,
    pace: np.ndarray,
    link_s: np.ndarray,
    held: np.ndarray,
    room: np.ndarray,
) -> tuple[float, np.ndarray]:
    layers, stages = len(work) - 1, len(pace)
    best = np.full((stages, layers + 1), np.inf)
    slowest = np.full((stages, layers + 1), np.inf)
    origin = np.zeros((stages, layers + 1), dtype=np.int64)
    for stage in range(stages):
        for end in range(stage + 1, layers + 1):
            for start in range(stage, end) if stage else range(1):
                size = fixed[end] - fixed[start] + held[stage] * (each[end] - each[start])
                if size > room[stage]:
                    continue
                stage_s = (work[end] - work[start]) * pace[stage]
                cost = compute = stage_s
                if stage:
                    compute = max(slowest[stage - 1, start], stage_s)
                    cost = max(best[stage - 1, start], stage_s, link_s[stage])
                if cost < best[stage, end] or (
                    cost == best[stage, end] and compute < slowest[stage, end]
                ):
                    best[stage, end] = cost
                    slowest[stage, end] = compute
                    origin[stage, end] = start
    cut = np.zeros(stages + 1, dtype=np.int64)
    cut[stages] = layers
    for stage in range(stages - 1, 0, -1):
        cut[stage] = origin[stage, cut[stage + 1]]
    return best[stages - 1, layers], cut
