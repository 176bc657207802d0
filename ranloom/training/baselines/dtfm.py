"""DTFM (Yuan et al., Decentralized training of foundation models in heterogeneous environments).

Communication decides the placement, compute does not: N = D x P equal sites; data-parallel cost is
the slowest member of a stage's group, pipeline cost the best path over the stages, each edge a
bottleneck matching of two groups. A genetic search over partitions minimises DP + 2 PP. Every step
ends with a flush. On a change of capacity: checkpoint and restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
from scipy.optimize import linear_sum_assignment

from ranloom.errors import InputError
from ranloom.training.baselines.policy import Adaptation, BaselinePlan, Reaction
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.placement import CostsOf, PlacementProblem

Partition = tuple[tuple[int, ...], ...]
_EXACT_PATH_STAGES = 7


@dataclass(frozen=True)
class Dtfm:
    """The scheduler and its restart.

    Args:
        micro_batch_samples: sizes to choose from.
        reaction: detection and planning times.
        storage_gbps: rate at which a site loads its stage from checkpoint storage.
        population: of the genetic search.
        trials: children that it tries.
        seed: of the search.
        name: in tables.
    """

    micro_batch_samples: Sequence[int]
    reaction: Reaction
    storage_gbps: float
    population: int
    trials: int
    seed: int
    name: str = "dtfm"

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """Best score over the shapes that use all sites; ties go to fewer stages.

        Raises:
            InputError: nothing fits the memory of the sites.
        """
        count = len(problem.sites)
        room = min(float(problem.memory_bytes[site]) for site in problem.sites)
        best: tuple[float, BaselinePlan] | None = None
        for stages in range(1, count + 1):
            for samples in self.micro_batch_samples:
                costs = costs_of(samples)
                replicas = count // stages
                micro_batches = problem.step_samples // samples
                if count % stages or stages > costs.layers or replicas > micro_batches:
                    continue
                boundaries = tuple(
                    round(stage * costs.layers / stages) for stage in range(stages + 1)
                )
                shape = Layout(0, boundaries, _lanes(problem.sites, stages))
                # more micro-batches than fit go through one after another
                window = costs.widest_window(shape, -(-micro_batches // replicas), room)
                if problem.step_samples % samples or window == 0:
                    continue
                score, partition = self._search(problem, costs, shape)
                score *= micro_batches if stages == 1 else 1.0
                if best is None or score < best[0]:
                    layout = Layout(0, boundaries, _match_lanes(problem, costs, partition))
                    best = (
                        score,
                        BaselinePlan(layout, samples, window, micro_batches, True),
                    )
        if best is None:
            raise InputError("dtfm", f"{count} sites", "allowed: sites that hold an equal share")
        return best[1]

    def _search(
        self, problem: PlacementProblem, costs: LayerCosts, shape: Layout
    ) -> tuple[float, Partition]:
        """Genetic search over partitions of the sites into groups, one a stage."""
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, shape.stages]))
        sites = np.asarray(problem.sites)
        size = len(sites) // shape.stages
        gradient = float(costs.gradient_bytes.sum()) / shape.stages

        known: dict[Partition, tuple[float, Partition]] = {}

        def score(order: np.ndarray) -> tuple[float, Partition]:
            groups = tuple(
                sorted(
                    tuple(sorted(int(site) for site in order[first : first + size]))
                    for first in range(0, len(order), size)
                )
            )
            if groups not in known:
                what = (problem, gradient, costs.boundary_bytes)
                known[groups] = communication_cost(groups, *what)
            return known[groups]

        people = [rng.permutation(sites) for _ in range(self.population)]
        scored = sorted(
            ((*score(order), tuple(int(s) for s in order)) for order in people),
            key=lambda entry: (entry[0], entry[2]),
        )
        for _ in range(self.trials if shape.stages > 1 and size > 1 else 0):
            mother, father = rng.integers(0, len(scored), 2)
            child = _cross(np.asarray(scored[mother][2]), np.asarray(scored[father][2]), rng)
            found = (*score(child), tuple(int(s) for s in child))
            if found[0] < scored[-1][0]:
                scored[-1] = found
                scored.sort(key=lambda entry: (entry[0], entry[2]))
        return scored[0][0], scored[0][1]

    def adapt(
        self,
        plan: BaselinePlan,
        problem: PlacementProblem,
        costs: LayerCosts,
        seconds_per_flop: np.ndarray,
    ) -> Adaptation | None:
        """Checkpoint, restart, load: the plan is the same, since compute does not enter it."""
        del problem, seconds_per_flop
        largest = float(np.add.reduceat(costs.weight_bytes, plan.layout.boundaries[:-1]).max())
        reload_s = largest * 8e-9 / self.storage_gbps
        stall_s = self.reaction.detect_s + self.reaction.plan_s + 2.0 * reload_s
        return Adaptation(stall_s, loses_step=True, boundaries=None)


def _lanes(sites: tuple[int, ...], stages: int) -> Partition:
    return tuple(sites[first : first + stages] for first in range(0, len(sites), stages))


def communication_cost(
    groups: Partition, problem: PlacementProblem, gradient_bytes: float, boundary_bytes: float
) -> tuple[float, Partition]:
    """DTFM's cost of a partition, and its groups in the order of the best pipeline.

    Args:
        groups: sites of each stage, all of one size D.
        problem: links.
        gradient_bytes: gradient of a stage.
        boundary_bytes: activations of a micro-batch between stages.
    """
    size = len(groups[0])
    data = max(
        sum(2.0 * (problem.sync.seconds(i, j, gradient_bytes / size)) for j in group if j != i)
        for group in groups
        for i in group
    )
    count = len(groups)
    if count == 1:
        return data, groups
    edge = np.zeros((count, count))
    for a in range(count):
        for b in range(a + 1, count):
            edge[a, b] = edge[b, a] = bottleneck_matching(
                groups[a], groups[b], problem, boundary_bytes
            )[0]
    path = shortest_path(edge)
    length = sum(edge[a, b] for a, b in pairwise(path))
    return data + 2.0 * length, tuple(groups[index] for index in path)


def bottleneck_matching(
    first: tuple[int, ...],
    second: tuple[int, ...],
    problem: PlacementProblem,
    boundary_bytes: float,
) -> tuple[float, list[int]]:
    """Pairing of two groups whose slowest pair is fastest; its time, and the partner of each."""
    cost = np.array(
        [
            [
                max(
                    problem.activation.seconds(a, b, boundary_bytes),
                    problem.activation.seconds(b, a, boundary_bytes),
                )
                for b in second
            ]
            for a in first
        ]
    )
    for limit in np.unique(cost):
        rows, columns = linear_sum_assignment((cost > limit).astype(float))
        if (cost[rows, columns] <= limit).all():
            return float(limit), [int(column) for column in columns]
    raise ValueError("unreachable: the largest cost always allows a matching")


def shortest_path(edge: np.ndarray) -> tuple[int, ...]:
    """Open path over all nodes with the smallest sum: exact up to 7 nodes, then by insertion."""
    count = len(edge)

    def length(path: Sequence[int]) -> float:
        return float(sum(edge[a, b] for a, b in pairwise(path)))

    if count <= _EXACT_PATH_STAGES:
        return min(permutations(range(count)), key=lambda path: (length(path), path))
    path: list[int] = [0]
    for node in range(1, count):
        options = [[*path[:at], node, *path[at:]] for at in range(len(path) + 1)]
        path = min(options, key=lambda option: (length(option), option))
    improved = True
    while improved:
        improved = False
        for i in range(count):
            for j in range(i + 2, count + 1):
                turned = [*path[:i], *path[i:j][::-1], *path[j:]]
                if length(turned) < length(path) - 1e-15:
                    path, improved = turned, True
    return tuple(path)


def _match_lanes(
    problem: PlacementProblem, costs: LayerCosts, groups: Partition
) -> tuple[tuple[int, ...], ...]:
    """Replicas: follow the bottleneck matchings from stage to stage."""
    lanes = [[site] for site in groups[0]]
    for group in groups[1:]:
        ends = tuple(lane[-1] for lane in lanes)
        _, partner = bottleneck_matching(ends, group, problem, costs.boundary_bytes)
        for lane, column in zip(lanes, partner, strict=True):
            lane.append(group[column])
    return tuple(tuple(lane) for lane in lanes)


def _cross(mother: np.ndarray, father: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Five-point crossover of two orders: segments of one, the rest as in the other."""
    cuts = np.sort(rng.choice(len(mother) + 1, size=min(5, len(mother) + 1), replace=False))
    kept = np.zeros(len(mother), dtype=bool)
    for first, end in zip(cuts[::2], cuts[1::2], strict=False):
        kept[first:end] = True
    child = np.where(kept, mother, -1)
    child[~kept] = father[~np.isin(father, mother[kept])]
    return child
