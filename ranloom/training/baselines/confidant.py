"""Confidant (Chen et al., MobiCom 2025) and Confidant*, its strengthened form.

Confidant: one pipeline over all devices; the cut minimises the slowest of stage and link. Each
micro-batch in work has a weight copy of its own and steps it at once; copies are averaged at the
end of an epoch, so there is no flush and no synchronisation until then. Slow devices: backward
time-out, repartition, redistribution, commit. Confidant*: the same with an exhaustive search over
replicas and stages, and with all spare compute harvested without loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

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
        """Predicted rate and plan on a given chain, None if no weight copy fits.

        The cut with the fastest bottleneck, and the micro-batch with the highest rate.
        """
        best: tuple[float, BaselinePlan] | None = None
        for samples in self.micro_batch_samples:
            costs = costs_of(samples)
            if self.epoch_samples % samples or costs.layers < len(chain):
                continue
            _, boundaries = bottleneck_cut(problem, costs, chain)
            layout = Layout(0, boundaries, (chain,))
            window = min(2 * len(chain) - 1, self.copies(problem, costs, layout))
            count = self.epoch_samples // samples
            plan = BaselinePlan(layout, samples, window, count, False)
            if window >= 1:
                rate = self.rate(problem, costs, plan)
                if best is None or rate > best[0]:
                    best = (rate, plan)
        return best

    def rate(self, problem: PlacementProblem, costs: LayerCosts, plan: BaselinePlan) -> float:
        """Samples a second: limited by the slowest stage or link, or by the window."""
        slowest_s, _ = bottleneck_cut(problem, costs, plan.layout.lanes[0])
        path_s = _path_s(problem, costs, plan.layout)
        return min(1.0 / slowest_s, plan.window / path_s) * plan.micro_batch_samples

    def copies(self, problem: PlacementProblem, costs: LayerCosts, layout: Layout) -> int:
        """Weight copies, and so micro-batches in work, that the tightest stage has room for."""
        one = costs.weight_bytes + costs.gradient_bytes + costs.activation_bytes
        each = np.add.reduceat(one, np.asarray(layout.boundaries[:-1]))
        room = np.array(
            [min(float(problem.memory_bytes[s]) for s in pool) for pool in _pools(layout)]
        )
        each = each + costs.transit_bytes(1)
        return int(np.min(self.memory_share * room // each))

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
        now = PlacementProblem(**{**vars(problem), "seconds_per_flop": seconds_per_flop})
        _, boundaries = bottleneck_cut(now, costs, layout.lanes[0])
        if boundaries == layout.boundaries:
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

        Raises:
            InputError: nothing fits the memory of the sites.
        """
        whole = PlacementProblem(**{**vars(problem), "step_samples": self.epoch_samples})
        found = place(whole, costs_of, self.micro_batch_samples)
        samples = found.micro_batch_samples
        costs = costs_of(samples)
        window = min(
            found.window,
            2 * found.layout.stages - 1,
            max(self.copies(problem, costs, found.layout), 1),
        )
        return BaselinePlan(
            found.layout,
            samples,
            window,
            self.epoch_samples // samples,
            forward_first=False,
        )


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


def _pools(layout: Layout) -> list[tuple[int, ...]]:
    return [layout.pool(stage) for stage in range(layout.stages)]


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


def bottleneck_cut(
    problem: PlacementProblem, costs: LayerCosts, chain: tuple[int, ...]
) -> tuple[float, tuple[int, ...]]:
    """Confidant's dynamic program.

    ``dp[j][s] = min_i max(dp[i][s - 1], 2 size / bandwidth, T(i + 1 .. j) slowdown_s)``. Where a
    link is the bottleneck many cuts tie; of these the one with the fastest slowest stage is taken.

    Args:
        problem: rates and links.
        costs: costs of the layers [L].
        chain: sites of the stages in order [P].

    Returns:
        Time of the slowest stage or link, and the boundaries.
    """
    layers, stages = costs.layers, len(chain)
    work = np.concatenate([[0.0], np.cumsum(costs.forward_flop + costs.backward_flop)])
    best = np.full((stages, layers + 1), np.inf)
    slowest = np.full((stages, layers + 1), np.inf)
    origin = np.zeros((stages, layers + 1), dtype=np.int64)
    pace = problem.seconds_per_flop[list(chain)]
    best[0, 1:] = slowest[0, 1:] = work[1:] * pace[0]
    for stage in range(1, stages):
        gbps = float(problem.activation.bandwidth_gbps[chain[stage - 1], chain[stage]])
        link_s = 2.0 * costs.boundary_bytes * 8e-9 / gbps
        for end in range(stage + 1, layers + 1):
            starts = np.arange(stage, end)
            stage_s = (work[end] - work[starts]) * pace[stage]
            compute = np.maximum(slowest[stage - 1, starts], stage_s)
            cost = np.maximum(np.maximum(best[stage - 1, starts], stage_s), link_s)
            pick = int(np.lexsort((compute, cost))[0])
            best[stage, end] = cost[pick]
            slowest[stage, end] = compute[pick]
            origin[stage, end] = starts[pick]
    cut = [layers]
    for stage in range(stages - 1, 0, -1):
        cut.append(int(origin[stage, cut[-1]]))
    return float(best[stages - 1, layers]), (0, *reversed(cut))
