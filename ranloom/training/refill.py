"""Who takes the place of lost sites."""

from __future__ import annotations

import numpy as np

from ranloom.errors import InputError
from ranloom.training.costs import LayerCosts
from ranloom.training.layout import NO_SITE, Layout
from ranloom.training.mlr import plan_boundaries


def fill_vacancies(
    layout: Layout,
    spare: list[int],
    stage_bytes: np.ndarray,
    memory_bytes: np.ndarray,
    replicas: int = 0,
) -> Layout:
    """Put spare sites into vacant places, first into the stages with the fewest holders.

    Args:
        layout: layout in force; its epoch is raised in the result.
        spare: living sites that hold nothing, ascending.
        stage_bytes: memory that a holder of each stage needs [P].
        memory_bytes: memory for training state by site.
        replicas: replicas that there may be; those beyond the layout's are vacant at first.
    """
    lanes = [list(lane) for lane in layout.lanes]
    lanes.extend([NO_SITE] * layout.stages for _ in range(replicas - layout.replicas))
    for site in spare:
        vacant = [
            (sum(other[stage] != NO_SITE for other in lanes), stage, replica)
            for replica, lane in enumerate(lanes)
            for stage, holder in enumerate(lane)
            if holder == NO_SITE and stage_bytes[stage] <= memory_bytes[site]
        ]
        if not vacant:
            continue
        _, stage, replica = min(vacant)
        lanes[replica][stage] = site
    while len(lanes) > layout.replicas and set(lanes[-1]) == {NO_SITE}:
        lanes.pop()
    return Layout(layout.epoch + 1, layout.boundaries, tuple(tuple(lane) for lane in lanes))


def rebuild(
    layout: Layout,
    alive: list[int],
    costs: LayerCosts,
    seconds_per_flop: np.ndarray,
    memory_bytes: np.ndarray,
    micro_batches: int,
    window: int,
    hop_s: float,
) -> Layout | None:
    """A layout for the survivors after the last holder of a stage is lost, None if none fits.

    Keeps the number of stages if there are enough sites, else takes the largest possible. Sites
    stay at their stage where they can; vacant stages are filled from spare sites, then from the
    fullest pools.

    Args:
        layout: layout that broke.
        alive: living sites, ascending.
        costs: costs of the layers.
        seconds_per_flop: predicted pace by site.
        memory_bytes: memory for training state by site.
        micro_batches: micro-batches of a step.
        window: micro-batches in work at a time in a replica.
        hop_s: time to hand a tensor to the next stage.
    """
    stages = min(layout.stages, len(alive), costs.layers)
    if stages == 0:
        return None
    pools: list[list[int]] = [[] for _ in range(stages)]
    spare: list[int] = []
    for site in alive:
        place = layout.place_of(site)
        if place is not None and place[1] < stages:
            pools[place[1]].append(site)
        else:
            spare.append(site)
    for pool in pools:
        if not pool:
            if spare:
                pool.append(spare.pop(0))
            else:
                fullest = max(pools, key=len)
                pool.append(fullest.pop())
    for site in spare:
        min(pools, key=len).append(site)
    replicas = max(len(pool) for pool in pools)
    lanes = tuple(
        tuple(pool[replica] if replica < len(pool) else NO_SITE for pool in pools)
        for replica in range(replicas)
    )
    boundaries = layout.boundaries
    if stages != layout.stages:
        boundaries = tuple(round(stage * costs.layers / stages) for stage in range(stages + 1))
    rebuilt = Layout(layout.epoch + 1, boundaries, lanes)
    try:
        boundaries = plan_boundaries(
            rebuilt, costs, seconds_per_flop, memory_bytes, micro_batches, window, hop_s
        )
    except InputError:
        return None
    return rebuilt.with_boundaries(rebuilt.epoch, boundaries)
