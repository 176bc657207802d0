"""WEAVER's own initial placement: replicas, stages, boundaries, micro-batch, window, quotas.

The paper leaves it open ("baseline sample quota from placement"). Here: all ways to make D replicas
of P stages and all micro-batch sizes that fit the memory are rated by the closed form; in the best
of them sites are exchanged pairwise as long as that helps. Deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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

_REFINED_SHAPES = 6


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
        full_pipelines: whether a replica needs a micro-batch in work for every stage, as a pipeline
            that never flushes does.
        hidden_share: share of the pipeline's time behind which sums are exchanged already.
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
    full_pipelines: bool = False
    hidden_share: float = 0.0
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
    shapes: list[_Shape] = []
    count = len(problem.sites)
    for samples in micro_batch_samples:
        if problem.step_samples % samples:
            continue
        costs = costs_of(samples)
        micro_batches = problem.step_samples // samples
        for stages in range(1, min(count, costs.layers) + 1):
            fewest = max(problem.least_replicas, -(-problem.least_sites // stages))
            for replicas in range(fewest, min(count // stages, micro_batches) + 1):
                shape = _shape(problem, costs, samples, stages, replicas)
                if shape is not None:
                    shapes.append(shape)
    if not shapes:
        raise InputError(
            "placement",
            f"{count} sites",
            "allowed: sites whose memory holds the model in at most one stage a site",
        )
    shapes.sort(key=lambda shape: shape.estimate.step_s)
    refined = [_refine(problem, shape) for shape in shapes[:_REFINED_SHAPES]]
    best = min(refined, key=lambda shape: shape.estimate.step_s)
    shares = _shares(best.layout, problem.seconds_per_flop)
    return Placement(best.layout, best.samples, best.window, shares, best.estimate)


@dataclass(frozen=True)
class _Shape:
    """D replicas of P stages with one micro-batch size, in the better of two plain orders."""

    layout: Layout
    costs: LayerCosts
    samples: int
    micro_batches: int
    window: int
    estimate: StepEstimate

    def estimated(self, problem: PlacementProblem, layout: Layout) -> StepEstimate:
        """Predicted step of this shape in another order."""
        return estimate_step(
            layout,
            self.costs,
            problem.seconds_per_flop,
            self.micro_batches,
            self.window,
            problem.activation,
            problem.sync,
            problem.tied,
            problem.fanout,
            problem.chunks,
            problem.hidden_share,
        )


def _shape(
    problem: PlacementProblem, costs: LayerCosts, samples: int, stages: int, replicas: int
) -> _Shape | None:
    """A shape with the widest window that fits, None if not even one micro-batch does."""
    micro_batches = problem.step_samples // samples
    boundaries = tuple(round(stage * costs.layers / stages) for stage in range(stages + 1))
    room = min(float(problem.memory_bytes[site]) for site in problem.sites)
    orders = [
        Layout(0, boundaries, _lanes(problem.sites, stages, replicas, by_stage))
        for by_stage in (True, False)
    ]
    window = costs.widest_window(orders[0], -(-micro_batches // replicas), room)
    if window == 0:
        return None
    if problem.full_pipelines and window < min(stages, -(-micro_batches // replicas)):
        return None
    plain = _Shape(orders[0], costs, samples, micro_batches, window, StepEstimate(0.0, 0.0, 0.0))
    estimates = [(plain.estimated(problem, order), order) for order in orders]
    estimate, layout = min(estimates, key=lambda found: found[0].step_s)
    return replace(plain, layout=layout, estimate=estimate)


def _refine(problem: PlacementProblem, shape: _Shape) -> _Shape:
    """The same shape with sites exchanged and boundaries moved where that helps."""
    layout = shape.layout
    if len(problem.sites) <= problem.searched_sites:
        layout = _exchange(layout, problem.sites, lambda tried: shape.estimated(problem, tried))
    cut = plan_boundaries(
        layout,
        shape.costs,
        problem.seconds_per_flop,
        problem.memory_bytes,
        shape.micro_batches,
        shape.window,
        0.0,
    )
    tried = (layout, layout.with_boundaries(0, cut))
    estimates = [(shape.estimated(problem, one), one) for one in tried]
    estimate, layout = min(estimates, key=lambda found: found[0].step_s)
    return replace(shape, layout=layout, estimate=estimate)


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
