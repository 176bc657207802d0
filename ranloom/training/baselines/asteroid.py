"""Asteroid (Ye et al., MobiCom 2024): hybrid pipeline parallelism over heterogeneous devices.

Devices in order of memory; dynamic programming over (last l layers, last n devices, p stages),
where a stage may be a group of devices that share its micro-batches, and links are steps of the
pipeline like stages. Lost or slowed devices: pipeline replay, a new cut in which layers move to
neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from ranloom.training.layout import NO_SITE, Layout
from ranloom.training.mlr import plan_boundaries
from ranloom.training.placement import CostsOf, PlacementProblem


@dataclass(frozen=True)
class Asteroid:
    """Planner and pipeline replay.

    Args:
        micro_batch_samples: sizes to choose from.
        reaction: detection and planning times.
        name: in tables.
    """

    micro_batch_samples: Sequence[int]
    reaction: Reaction
    name: str = "asteroid"

    def plan(self, problem: PlacementProblem, costs_of: CostsOf) -> BaselinePlan:
        """Smallest predicted round latency over all micro-batch sizes.

        Raises:
            InputError: nothing fits the memory of the sites.
        """
        order = sorted(problem.sites, key=lambda s: (-int(problem.memory_bytes[s]), s))
        best: tuple[float, BaselinePlan] | None = None
        for samples in self.micro_batch_samples:
            if problem.step_samples % samples:
                continue
            costs = costs_of(samples)
            micro_batches = problem.step_samples // samples
            found = _cut(problem, costs, order, micro_batches)
            if found is not None and (best is None or found[0] < best[0]):
                layout = found[1]
                room = [
                    min(float(problem.memory_bytes[s]) for s in layout.pool(i))
                    for i in range(layout.stages)
                ]
                most = min(2 * layout.stages - 1, micro_batches)
                window = max(costs.widest_window(layout, most, np.asarray(room)), 1)
                plan = BaselinePlan(layout, samples, window, micro_batches, False)
                best = (found[0], plan)
        if best is None:
            raise InputError("asteroid", f"{len(order)} sites", "allowed: sites that fit the model")
        return best[1]

    def adapt(
        self,
        plan: BaselinePlan,
        problem: PlacementProblem,
        costs: LayerCosts,
        seconds_per_flop: np.ndarray,
    ) -> Adaptation | None:
        """Replay: new boundaries for the present rates, layers sent to neighbours meanwhile."""
        layout = plan.layout
        try:
            boundaries = plan_boundaries(
                layout,
                costs,
                seconds_per_flop,
                problem.memory_bytes,
                plan.step_micro_batches,
                plan.window,
                0.0,
            )
        except InputError:
            return None
        if boundaries == layout.boundaries:
            return None
        moved = [abs(new - old) for new, old in zip(boundaries, layout.boundaries, strict=True)]
        transfer_s = 0.0
        for index in range(1, layout.stages):
            source, target = layout.pool(index - 1)[0], layout.pool(index)[0]
            layers_s = state_transfer_s(problem, costs, moved[index], source, target)
            transfer_s = max(transfer_s, layers_s)
        stall_s = self.reaction.detect_s + self.reaction.plan_s + transfer_s
        return Adaptation(stall_s, loses_step=True, boundaries=boundaries)


def _cut(
    problem: PlacementProblem, costs: LayerCosts, order: list[int], micro_batches: int
) -> tuple[float, Layout] | None:
    """Best cut for one micro-batch size: predicted round latency and layout."""
    pace = problem.seconds_per_flop[order]
    count = len(order)
    link = np.array(
        [problem.activation.seconds(a, b, costs.boundary_bytes) for a, b in pairwise(order)] + [0.0]
    )
    ring = np.array(
        [
            problem.sync.bandwidth_gbps[order[i], order[i + 1]] if i + 1 < count else np.inf
            for i in range(count)
        ]
    )
    latency, splits = plan_rounds(
        costs.forward_flop,
        costs.backward_flop,
        costs.layer_bytes(1),
        costs.gradient_bytes,
        1.0 / pace,
        problem.memory_bytes[order].astype(np.float64) - costs.transit_bytes(1),
        link,
        ring,
        micro_batches,
    )
    if not np.isfinite(latency):
        return None
    boundaries = [0]
    pools: list[list[int]] = []
    device = 0
    for layers, devices in splits:
        boundaries.append(boundaries[-1] + int(layers))
        pools.append(order[device : device + int(devices)])
        device += int(devices)
    replicas = max(len(pool) for pool in pools)
    lanes = tuple(
        tuple(pool[r] if r < len(pool) else NO_SITE for pool in pools) for r in range(replicas)
    )
    return float(latency), Layout(0, tuple(boundaries), lanes)


@njit(cache=True)
def round_latency(
    forward_s: np.ndarray, both_s: np.ndarray, reduce_s: np.ndarray, micro_batches: int
) -> float:
    """Latency of a round over the steps of a pipeline (stages and links, first to last).

    The dominant step sets the pace; each stage then still needs the forward steps before it and
    its own reduction.
    """
    before = 0.0
    dominant = -1.0
    pace = 0.0
    for step in range(len(both_s)):
        reach = micro_batches * both_s[step] + before
        if reach > dominant:
            dominant = reach
            pace = micro_batches * both_s[step]
        before += both_s[step]
    worst = 0.0
    ahead = 0.0
    for step in range(len(both_s)):
        worst = max(worst, ahead + pace + reduce_s[step])
        ahead += forward_s[step]
    return max(worst, dominant)


@njit(cache=True)
def plan_rounds(
    forward_flop: np.ndarray,
    backward_flop: np.ndarray,
    layer_bytes: np.ndarray,
    gradient_bytes: np.ndarray,
    flops: np.ndarray,
    room_bytes: np.ndarray,
    link_s: np.ndarray,
    ring_gbps: np.ndarray,
    micro_batches: int,
) -> tuple[float, np.ndarray]:
    """Asteroid's dynamic program; where links dominate and cuts tie, the fastest slowest stage.

    Args:
        forward_flop: of each layer [L].
        backward_flop: of each layer [L].
        layer_bytes: memory of a layer with one micro-batch in work [L].
        gradient_bytes: of each layer [L].
        flops: rate of each device in order [N].
        room_bytes: memory of each device [N].
        link_s: hand-over from each device to the next [N].
        ring_gbps: bandwidth from each device to the next, for the ring reduction [N].
        micro_batches: micro-batches of a round.

    Returns:
        Round latency (infinite if nothing fits) and (layers, devices) of each stage [P, 2].
    """
    layers, devices = len(forward_flop), len(flops)
    work = np.zeros(layers + 1)
    ahead = np.zeros(layers + 1)
    size = np.zeros(layers + 1)
    gradient = np.zeros(layers + 1)
    for layer in range(layers):
        ahead[layer + 1] = ahead[layer] + forward_flop[layer]
        work[layer + 1] = work[layer] + forward_flop[layer] + backward_flop[layer]
        size[layer + 1] = size[layer] + layer_bytes[layer]
        gradient[layer + 1] = gradient[layer] + gradient_bytes[layer]
    best = np.full((layers + 1, devices + 1, devices + 1), np.inf)
    slowest = np.full((layers + 1, devices + 1, devices + 1), np.inf)
    steps = np.zeros((layers + 1, devices + 1, devices + 1, 3, 2 * devices))
    choice = np.zeros((layers + 1, devices + 1, devices + 1, 2), dtype=np.int64)
    trial = np.zeros((3, 2 * devices))
    for stages in range(1, devices + 1):
        for last in range(stages, layers + 1):
            for used in range(stages, devices + 1):
                for group in range(1, used - stages + 2):
                    first_device = devices - used
                    rate = flops[first_device : first_device + group].sum()
                    room = room_bytes[first_device : first_device + group].min()
                    ring = np.inf
                    for device in range(first_device, first_device + group - 1):
                        ring = min(ring, ring_gbps[device])
                    for taken in range(1, last - stages + 2):
                        if stages == 1 and (taken != last or group != used):
                            continue
                        begin = layers - last
                        if size[begin + taken] - size[begin] > room:
                            continue
                        rest, left = last - taken, used - group
                        if stages > 1 and not np.isfinite(best[rest, left, stages - 1]):
                            continue
                        trial[0, 0] = (ahead[begin + taken] - ahead[begin]) / rate
                        trial[1, 0] = (work[begin + taken] - work[begin]) / rate
                        grown = gradient[begin + taken] - gradient[begin]
                        share = 2.0 * (group - 1) / group
                        trial[2, 0] = share * grown * 8e-9 / ring if group > 1 else 0.0
                        count = 1
                        if stages > 1:
                            hop = link_s[first_device + group - 1]
                            trial[0, 1] = hop
                            trial[1, 1] = 2.0 * hop
                            trial[2, 1] = 0.0
                            tail = 2 * (stages - 1) - 1
                            for kind in range(3):
                                for step in range(tail):
                                    trial[kind, 2 + step] = steps[
                                        rest, left, stages - 1, kind, step
                                    ]
                            count = 2 + tail
                        latency = round_latency(
                            trial[0, :count], trial[1, :count], trial[2, :count], micro_batches
                        )
                        stage_s = trial[1, 0]
                        if stages > 1:
                            stage_s = max(stage_s, slowest[rest, left, stages - 1])
                        known = best[last, used, stages]
                        if latency < known * (1.0 - 1e-9) or (
                            latency <= known * (1.0 + 1e-9)
                            and stage_s < slowest[last, used, stages]
                        ):
                            best[last, used, stages] = latency
                            slowest[last, used, stages] = stage_s
                            choice[last, used, stages, 0] = taken
                            choice[last, used, stages, 1] = group
                            steps[last, used, stages, :, :count] = trial[:, :count]
    found = np.inf
    count = 0
    for stages in range(1, devices + 1):
        if best[layers, devices, stages] < found:
            found = best[layers, devices, stages]
            count = stages
    splits = np.zeros((count, 2), dtype=np.int64)
    last, used = layers, devices
    for index in range(count):
        taken, group = choice[last, used, count - index]
        splits[index, 0] = taken
        splits[index, 1] = group
        last -= taken
        used -= group
    return found, splits
