"""Deployments of hundreds of sites: networks, and throughput in closed form (section 7.2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ranloom.errors import InputError
from ranloom.training.baselines.confidant import (
    Confidant,
    bottleneck_cut,
    copy_bytes,
    linked_chain,
    memory_cut,
    widest_window,
)
from ranloom.training.closed_form import estimate_step
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.links import Links
from ranloom.training.mlr import smallest_bottleneck
from ranloom.training.placement import CostsOf, PlacementProblem
from ranloom.training.timing import pool_rates


@dataclass(frozen=True)
class StarTopology:
    """The paper's *Typical* setting: sites in a star round cores, cores in a mesh.

    Args:
        sites_per_core: sites of one core.
        site_core_gbps: between a site and its core.
        site_core_ms: one way.
        core_core_gbps: between two cores.
        core_core_ms: one way.
        peer_gbps: direct links between sites of one core.
    """

    sites_per_core: int
    site_core_gbps: float
    site_core_ms: float
    core_core_gbps: float
    core_core_ms: float
    peer_gbps: float

    def links(self, sites: int) -> Links:
        """End-to-end links: peers directly, sites of different cores through both of them."""
        core = np.arange(sites) // self.sites_per_core
        near = core[:, None] == core[None, :]
        far_gbps = min(self.site_core_gbps, self.core_core_gbps)
        gbps = np.where(near, self.peer_gbps, far_gbps).astype(np.float64)
        latency = 2.0 * self.site_core_ms + np.where(near, 0.0, self.core_core_ms)
        np.fill_diagonal(gbps, np.inf)
        np.fill_diagonal(latency, 0.0)
        hub_s = np.full(sites, self.site_core_ms / 1000.0)
        return Links("typical", gbps, latency / 1000.0, hub_s)


def rescaled_links(testbed: Links, sites: int) -> Links:
    """The paper's *Rescaled* setting: the measured testbed repeated, its link characteristics kept.

    Two sites are linked like the testbed sites that they stand for; two that stand for the same one
    like a median pair.
    """
    rank = np.arange(sites) % testbed.sites
    pairs = ~np.eye(testbed.sites, dtype=bool)
    gbps = testbed.bandwidth_gbps[np.ix_(rank, rank)].copy()
    latency_s = testbed.latency_s[np.ix_(rank, rank)].copy()
    same = rank[:, None] == rank[None, :]
    gbps[same] = np.median(testbed.bandwidth_gbps[pairs])
    latency_s[same] = np.median(testbed.latency_s[pairs])
    np.fill_diagonal(gbps, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    return Links("rescaled", gbps, latency_s, testbed.coordinator_latency_s[rank])


@dataclass(frozen=True)
class ScalePoint:
    """One system on one deployment.

    Args:
        tokens_per_s: predicted rate, 0 if it does not fit.
        peak_bytes: memory of the fullest site.
        oom: whether that is more than there is.
        stages: pipeline stages P.
        replicas: replicas D.
        micro_batch_samples: samples of a micro-batch.
    """

    tokens_per_s: float
    peak_bytes: float
    oom: bool
    stages: int
    replicas: int
    micro_batch_samples: int


def replicated(
    problem: PlacementProblem,
    costs_of: CostsOf,
    sequence: int,
    stage_counts: Sequence[int],
    micro_batch_samples: Sequence[int],
) -> ScalePoint:
    """Best regular layout by the closed form of a step.

    Replicas are sites in a row, taken as they are numbered or along the best links.

    Args:
        problem: sites, rates, links and B*.
        costs_of: costs by micro-batch size.
        sequence: tokens of a sample.
        stage_counts: numbers of stages to try.
        micro_batch_samples: sizes to try.
    """
    count = len(problem.sites)
    room = float(problem.memory_bytes.min())
    orders = (np.asarray(problem.sites), np.asarray(linked_chain(problem, problem.sites[0], count)))
    best: ScalePoint | None = None
    for stages, samples in product(stage_counts, micro_batch_samples):
        costs = costs_of(samples)
        micro_batches = problem.step_samples // samples
        if stages > costs.layers:
            continue
        for replicas in _replica_counts(count // stages, micro_batches):
            plain, window = (_copied if problem.full_pipelines else _fitted)(
                problem, costs, stages, replicas, micro_batches
            )
            if problem.full_pipelines:
                peak = float(copy_bytes(costs, plain, window).max())
            else:
                peak = float(costs.stage_bytes(plain, window).max())
            oom = peak > room
            step_s = min(
                estimate_step(
                    _renumbered(plain, order),
                    costs,
                    problem.seconds_per_flop,
                    micro_batches,
                    window,
                    problem.activation,
                    problem.sync,
                    problem.tied and stages > 1,
                    problem.fanout,
                    problem.chunks,
                    problem.hidden_share,
                ).step_s
                for order in orders
            )
            rate = 0.0 if oom else micro_batches * samples * sequence / step_s
            point = ScalePoint(rate, peak, oom, stages, replicas, samples)
            if best is None or (not point.oom, point.tokens_per_s, -point.peak_bytes) > (
                not best.oom,
                best.tokens_per_s,
                -best.peak_bytes,
            ):
                best = point
    if best is None:
        raise InputError("scaling.stages", stage_counts, f"allowed: some number up to {count}")
    return best


def _replica_counts(most: int, micro_batches: int) -> list[int]:
    """One, two, half and all of the replicas that there are sites for, each with work to do."""
    limit = min(most, micro_batches)
    return sorted({count for count in (1, 2, most // 2, most) if 1 <= count <= limit})


def _renumbered(layout: Layout, order: np.ndarray) -> Layout:
    """The same layout with the sites in another order."""
    lanes = tuple(tuple(int(order[site]) for site in lane) for lane in layout.lanes)
    return Layout(layout.epoch, layout.boundaries, lanes)


def _fitted(
    problem: PlacementProblem, costs: LayerCosts, stages: int, replicas: int, micro_batches: int
) -> tuple[Layout, int]:
    """Regular layout with planned boundaries, and the widest window that fits."""
    boundaries = tuple(round(stage * costs.layers / stages) for stage in range(stages + 1))
    layout = regular_layout(boundaries, replicas)
    room = float(problem.memory_bytes.min())
    window = -(-micro_batches // replicas)
    fixed = float(costs.stage_bytes(layout, 0).max())
    each = float(costs.stage_bytes(layout, 1).max()) - fixed
    window = max(1, min(window, int((room - fixed) // each)))
    rooms = np.full(stages, room)
    rates = pool_rates(layout, problem.seconds_per_flop)
    cut = smallest_bottleneck(costs, rates, rooms, window)
    return layout if cut is None else layout.with_boundaries(0, cut), window


def _copied(
    problem: PlacementProblem, costs: LayerCosts, stages: int, replicas: int, micro_batches: int
) -> tuple[Layout, int]:
    """Regular layout of pipelines that keep a weight copy for each micro-batch in work.

    With as many of these as fit, and at least one a stage: where even those do not fit, the even
    cut is returned, and its memory shows it.
    """
    layout = regular_layout(
        tuple(round(stage * costs.layers / stages) for stage in range(stages + 1)), replicas
    )
    pace = replicas / pool_rates(layout, problem.seconds_per_flop)
    room = np.full(stages, float(problem.memory_bytes.min()))
    share = -(-micro_batches // replicas)
    least = min(stages, share)
    free = np.zeros(stages)

    def cut(window: int) -> tuple[float, tuple[int, ...]]:
        return memory_cut(costs, pace, free, window, room)

    found = widest_window(cut, least, min(2 * stages - 1, share))
    if found is None:
        return layout, least
    return layout.with_boundaries(0, found[2]), found[0]


def single_pipeline(
    problem: PlacementProblem,
    costs_of: CostsOf,
    sequence: int,
    stage_counts: Sequence[int],
    confidant: Confidant,
) -> ScalePoint:
    """Confidant: one pipeline, as long as is best, along well-linked sites.

    Args:
        problem: sites, rates and links.
        costs_of: costs by micro-batch size.
        sequence: tokens of a sample.
        stage_counts: lengths to try.
        confidant: the planner.
    """
    chain = linked_chain(problem, problem.sites[0], max(stage_counts))
    best: ScalePoint | None = None
    for length in stage_counts:
        found = confidant.plan_chain(problem, costs_of, chain[:length])
        if found is None:
            continue
        rate, plan = found
        costs = costs_of(plan.micro_batch_samples)
        peak = float(copy_bytes(costs, plan.layout, plan.window).max())
        if best is None or rate * sequence > best.tokens_per_s:
            samples = plan.micro_batch_samples
            best = ScalePoint(rate * sequence, peak, False, length, 1, samples)
    if best is not None:
        return best
    costs = costs_of(min(confidant.micro_batch_samples))
    peaks = []
    for length in stage_counts:
        _, boundaries = bottleneck_cut(problem, costs, chain[:length])
        layout = Layout(0, boundaries, (chain[:length],))
        peaks.append((float(copy_bytes(costs, layout, length).max()), length))
    peak, length = min(peaks)
    return ScalePoint(0.0, peak, True, length, 1, min(confidant.micro_batch_samples))
