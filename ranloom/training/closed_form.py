"""Step time of a layout in closed form, with links: the first of the simulator's three modes.

Also what placement minimises. Compute follows ``timing``; links add the hops of a micro-batch, a
rate limit where a link is slower than a stage, and the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

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
    hops, serial = _hops(layout, activation, costs.boundary_bytes)
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
    lanes = lane_array(layout)
    reduce_s = float(
        _slowest_reduction_s(
            lanes, sync.bandwidth_gbps, sync.latency_s, gradients * 8e-9, fanout, chunks
        )
    )
    if tied and layout.stages > 1:
        first, last = layout.pool(0)[0], layout.pool(layout.stages - 1)[0]
        reduce_s += sync.seconds(first, last, costs.tied_bytes)
    return StepEstimate(pipeline, reduce_s, 2.0 * control_s, hidden_share)


@lru_cache(maxsize=256)
def lane_array(layout: Layout) -> np.ndarray:
    """Sites of a layout by replica and stage [D, P], ``NO_SITE`` where there is none."""
    return np.array(layout.lanes, dtype=np.int64)


def _hops(layout: Layout, links: Links, size_bytes: float) -> tuple[np.ndarray, np.ndarray]:
    """Slowest hand-over between each stage and the next, with the latency and without [P - 1]."""
    lanes = lane_array(layout)
    source, target = lanes[:, :-1], lanes[:, 1:]
    there_s, back_s = (
        size_bytes * 8e-9 / links.bandwidth_gbps[ends]
        for ends in ((source, target), (target, source))
    )
    serial_s = np.maximum(there_s, back_s)
    there_s += links.latency_s[source, target]
    back_s += links.latency_s[target, source]
    hops_s = np.maximum(there_s, back_s)
    for seconds in (hops_s, serial_s):
        seconds[(source == NO_SITE) | (target == NO_SITE)] = 0.0
    return hops_s.max(axis=0, initial=0.0), serial_s.max(axis=0, initial=0.0)


def _stage_gradients(layout: Layout, costs: LayerCosts) -> np.ndarray:
    starts = np.asarray(layout.boundaries[:-1])
    return np.asarray(np.add.reduceat(costs.gradient_bytes, starts))


@njit(cache=True)
def _slowest_reduction_s(
    lanes: np.ndarray,
    gbps: np.ndarray,
    latency_s: np.ndarray,
    gradient_gbit: np.ndarray,
    fanout: int,
    chunks: int,
) -> float:
    """Up the tree to the first holder, then the total from there to all others, in chunks."""
    replicas, stages = lanes.shape
    pool = np.zeros(replicas, dtype=np.int64)
    ready_s = np.zeros(replicas)
    slowest_s = 0.0
    for stage in range(stages):
        count = 0
        for replica in range(replicas):
            if lanes[replica, stage] >= 0:
                pool[count] = lanes[replica, stage]
                ready_s[count] = 0.0
                count += 1
        for index in range(count - 1, 0, -1):
            parent = (index - 1) // fanout
            whole_s = gradient_gbit[stage] / gbps[pool[index], pool[parent]]
            there_s = max(whole_s, ready_s[index] + whole_s / chunks)
            there_s += latency_s[pool[index], pool[parent]]
            ready_s[parent] = max(ready_s[parent], there_s)
        for index in range(1, count):
            whole_s = gradient_gbit[stage] / gbps[pool[0], pool[index]]
            there_s = max(whole_s, ready_s[0] + whole_s / chunks)
            slowest_s = max(slowest_s, there_s + latency_s[pool[0], pool[index]])
    return slowest_s
