"""Step time of a layout in closed form, with links: the first of the simulator's three modes.

Also what placement minimises. Compute follows ``timing``; links add the hops of a micro-batch, a
rate limit where a link is slower than a stage, and the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.layout import NO_SITE, Layout
from ranloom.training.links import Links
from ranloom.training.timing import pool_rates


@dataclass(frozen=True)
class StepEstimate:
    """Predicted parts of a step.

    Args:
        pipeline_s: from the first forward task to the last gradient.
        reduce_s: partial sums up, totals down, tied weights exchanged.
        control_s: messages to and from the coordinator that nothing hides.
        hidden_share: share of the pipeline's time behind which the reduction hides.
    """

    pipeline_s: float
    reduce_s: float
    control_s: float
    hidden_share: float = 0.0

    @property
    def step_s(self) -> float:
        """The whole step."""
        shown_s = max(self.reduce_s - self.hidden_share * self.pipeline_s, 0.0)
        return self.pipeline_s + shown_s + self.control_s


def estimate_step(
    layout: Layout,
    costs: LayerCosts,
    seconds_per_flop: np.ndarray,
    micro_batches: int,
    window: int,
    activation: Links,
    sync: Links,
    tied: bool,
    fanout: int,
    chunks: int,
    hidden_share: float = 0.0,
) -> StepEstimate:
    """Closed form of a step in which every replica does its share and nothing goes wrong.

    Args:
        layout: sites and boundaries.
        costs: costs of the layers for one micro-batch.
        seconds_per_flop: pace by site.
        micro_batches: micro-batches of the step.
        window: micro-batches in work at a time in a replica.
        activation: links that carry activations and their gradients.
        sync: links that carry sums and totals.
        tied: whether the first and last stage share a weight.
        fanout: children of a node in the reduction tree.
        chunks: parts in which sums stream through the tree.
        hidden_share: share of the pipeline's time behind which sums are exchanged already.
    """
    forward, backward = costs.stage_flop(layout)
    hops = _hops(layout, activation, costs.boundary_bytes)
    serial = _hops(layout, activation, costs.boundary_bytes, serial=True)
    rates = pool_rates(layout, seconds_per_flop)
    members = np.array([len(layout.pool(stage)) for stage in range(layout.stages)])
    pace = members / rates
    share = micro_batches / layout.replicas
    head = np.concatenate([[0.0], np.cumsum(forward[:-1] * pace[:-1] + hops)])
    tail = np.concatenate([[0.0], np.cumsum(backward[:-1] * pace[:-1] + hops)])
    work = (forward + backward) * pace * share
    pipeline = float(np.max(head + work + tail))
    if layout.stages > 1:
        links = head[:-1] + forward[:-1] * pace[:-1] + serial * share + tail[1:]
        pipeline = max(pipeline, float(np.max(links)))
    path = float(head[-1] + tail[-1] + (forward + backward)[-1] * pace[-1])
    rounds = share / min(window, share)
    pipeline = max(pipeline, path * rounds)
    control_s = 2.0 * float(np.max(activation.coordinator_latency_s[list(layout.sites())]))
    waits_s = float(tail.max()) + control_s if costs.unmerged_limit else 0.0
    if share > costs.unmerged_limit > 0:
        pipeline = max(pipeline, path + waits_s * (share / costs.unmerged_limit - 1.0))
    gradients = _stage_gradients(layout, costs)
    reduce_s = max(
        _reduce_s(layout.pool(stage), sync, gradients[stage], fanout, chunks)
        for stage in range(layout.stages)
    )
    if tied and layout.stages > 1:
        first, last = layout.pool(0)[0], layout.pool(layout.stages - 1)[0]
        reduce_s += sync.seconds(first, last, costs.tied_bytes)
    return StepEstimate(pipeline, reduce_s, 2.0 * control_s, hidden_share)


def _hops(layout: Layout, links: Links, size_bytes: float, serial: bool = False) -> np.ndarray:
    """Slowest hand-over between each stage and the next, over the replicas [P - 1]."""
    hops = np.zeros(layout.stages - 1)
    for lane in layout.lanes:
        for stage, (source, target) in enumerate(pairwise(lane)):
            if NO_SITE not in (source, target):
                both = ((source, target), (target, source))
                for a, b in both:
                    seconds = links.seconds(a, b, size_bytes)
                    if serial:
                        seconds -= float(links.latency_s[a, b])
                    hops[stage] = max(hops[stage], seconds)
    return hops


def _stage_gradients(layout: Layout, costs: LayerCosts) -> np.ndarray:
    starts = np.asarray(layout.boundaries[:-1])
    return np.asarray(np.add.reduceat(costs.gradient_bytes, starts))


def _reduce_s(
    pool: tuple[int, ...], sync: Links, size_bytes: float, fanout: int, chunks: int
) -> float:
    """Up the tree to the first holder, then the total from there to all others, in chunks."""

    def arrival(source: int, target: int, ready_s: float) -> float:
        latency_s = float(sync.latency_s[source, target])
        whole_s = sync.seconds(source, target, size_bytes) - latency_s
        return max(whole_s, ready_s + whole_s / chunks) + latency_s

    ready = [0.0] * len(pool)
    for index in range(len(pool) - 1, 0, -1):
        parent = (index - 1) // fanout
        ready[parent] = max(ready[parent], arrival(pool[index], pool[parent], ready[index]))
    return max((arrival(pool[0], site, ready[0]) for site in pool[1:]), default=0.0)
