"""WEAVER's own initial placement: replicas, stages, boundaries, micro-batch, window, quotas.

The paper leaves it open ("baseline sample quota from placement"). Here: among all ways to make D
replicas of P stages and all micro-batch sizes that fit the memory, the one with the shortest step
in closed form, with sites exchanged pairwise as long as that helps. Deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ranloom.errors import InputError
from ranloom.training.closed_form import StepEstimate, estimate_step
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout
from ranloom.training.links import Links
from ranloom.training.mlr import plan_boundaries
from ranloom.training.timing import pool_rates

CostsOf = Callable[[int], LayerCosts]
"""Costs of a micro-batch with that many samples."""


@dataclass(frozen=True)
class Placement:
    """Where training begins.

    Args:
        layout: sites, stages and boundaries.
        micro_batch_samples: samples in a micro-batch m.
        window: micro-batches in work at a time in a replica.
        shares: share of each replica in a step [D]; sums to 1.
        estimate: predicted step.
    """

    layout: Layout
    micro_batch_samples: int
    window: int
    shares: np.ndarray
    estimate: StepEstimate


@dataclass(frozen=True)
class PlacementProblem:
    """What placement starts from.

    Args:
        sites: sites to use, ascending.
        seconds_per_flop: pace by site [S].
        memory_bytes: memory for training state by site [S].
        activation: links that carry activations.
        sync: links that carry sums and totals.
        step_samples: samples of a step B*.
        tied: whether the first and last stage share a weight.
        fanout: children of a node in the reduction tree.
        chunks: parts in which sums stream through the tree.
        least_replicas: replicas that there must be; rerouting needs two.
        least_sites: sites that have to take part; where links are slow, fewer may be faster.
        searched_sites: largest number of sites for which exchanges are tried; above, sites are
            taken in order.
    """

    sites: tuple[int, ...]
    seconds_per_flop: np.ndarray
    memory_bytes: np.ndarray
    activation: Links
    sync: Links
    step_samples: int
    tied: bool
    fanout: int
    chunks: int
    least_replicas: int = 1
    least_sites: int = 1
    searched_sites: int = 32


def place(
    problem: PlacementProblem, costs_of: CostsOf, micro_batch_samples: Sequence[int]
) -> Placement:
    """Find the placement with the shortest predicted step.

    Args:
        problem: sites, links and the step.
        costs_of: costs by micro-batch size.
        micro_batch_samples: sizes to try.

    Raises:
        InputError: no placement fits the memory of the sites.
    """
    best: Placement | None = None
    count = len(problem.sites)
    for samples in micro_batch_samples:
        if problem.step_samples % samples:
            continue
        costs = costs_of(samples)
        micro_batches = problem.step_samples // samples
        for stages in range(1, min(count, costs.layers) + 1):
            fewest = max(problem.least_replicas, -(-problem.least_sites // stages))
            for replicas in range(fewest, min(count // stages, micro_batches) + 1):
                found = _of_shape(problem, costs, micro_batches, stages, replicas)
                if found is not None and (best is None or found[2].step_s < best.estimate.step_s):
                    shares = _shares(found[0], problem.seconds_per_flop)
                    best = Placement(found[0], samples, found[1], shares, found[2])
    if best is None:
        raise InputError(
            "placement",
            f"{count} sites",
            "allowed: sites whose memory holds the model in at most one stage a site",
        )
    return best


def _of_shape(
    problem: PlacementProblem, costs: LayerCosts, micro_batches: int, stages: int, replicas: int
) -> tuple[Layout, int, StepEstimate] | None:
    """Best placement of one shape: layout, window, estimate; None if it does not fit."""
    window = -(-micro_batches // replicas)
    boundaries = tuple(round(stage * costs.layers / stages) for stage in range(stages + 1))
    room = min(float(problem.memory_bytes[site]) for site in problem.sites)
    even = Layout(0, boundaries, _lanes(problem.sites, stages, replicas, by_stage=True))
    while window > 1 and costs.stage_bytes(even, window).max() > room:
        window -= 1
    if costs.stage_bytes(even, window).max() > room:
        return None

    def step(layout: Layout) -> StepEstimate:
        return estimate_step(
            layout,
            costs,
            problem.seconds_per_flop,
            micro_batches,
            window,
            problem.activation,
            problem.sync,
            problem.tied,
            problem.fanout,
            problem.chunks,
        )

    starts = [even, Layout(0, boundaries, _lanes(problem.sites, stages, replicas, False))]
    if len(problem.sites) <= problem.searched_sites:
        starts = [_exchange(start, problem.sites, step) for start in starts]
    layout = min(starts, key=lambda start: step(start).step_s)
    cut = plan_boundaries(
        layout,
        costs,
        problem.seconds_per_flop,
        problem.memory_bytes,
        micro_batches,
        window,
        0.0,
    )
    planned = layout.with_boundaries(0, cut)
    layout = min((layout, planned), key=lambda tried: step(tried).step_s)
    return layout, window, step(layout)


def _lanes(
    sites: tuple[int, ...], stages: int, replicas: int, by_stage: bool
) -> tuple[tuple[int, ...], ...]:
    """Neighbouring sites share a stage, or follow each other in a replica."""
    if by_stage:
        return tuple(
            tuple(sites[stage * replicas + replica] for stage in range(stages))
            for replica in range(replicas)
        )
    return tuple(sites[replica * stages : (replica + 1) * stages] for replica in range(replicas))


def _exchange(
    layout: Layout, sites: tuple[int, ...], step: Callable[[Layout], StepEstimate]
) -> Layout:
    """Exchange sites pairwise, the best exchange first, until none helps."""
    spare = tuple(site for site in sites if layout.place_of(site) is None)
    flat = [site for lane in layout.lanes for site in lane] + list(spare)
    stages, used = layout.stages, layout.stages * layout.replicas

    def built(order: list[int]) -> Layout:
        lanes = tuple(tuple(order[i : i + stages]) for i in range(0, used, stages))
        return Layout(0, layout.boundaries, lanes)

    best_s = step(layout).step_s
    while True:
        tried: list[tuple[float, int, int]] = []
        for first in range(used):
            for second in range(first + 1, len(flat)):
                flat[first], flat[second] = flat[second], flat[first]
                tried.append((step(built(flat)).step_s, first, second))
                flat[first], flat[second] = flat[second], flat[first]
        if not tried or min(tried)[0] >= best_s * (1.0 - 1e-9):
            return built(flat)
        best_s, first, second = min(tried)
        flat[first], flat[second] = flat[second], flat[first]


def _shares(layout: Layout, seconds_per_flop: np.ndarray) -> np.ndarray:
    rates = pool_rates(layout, seconds_per_flop)
    share = np.zeros(layout.replicas)
    for replica, stage, site in layout.holders():
        share[replica] += 1.0 / (seconds_per_flop[site] * rates[stage])
    return np.asarray(share / share.sum())
