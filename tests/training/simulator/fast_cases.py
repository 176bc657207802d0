"""Random small runs that both paths of the simulator can execute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.links import Links
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.experiment import completion_times, step_rows
from ranloom.training.simulator.fast_run import FastRun, FastWorld
from ranloom.training.simulator.network import CircuitWindow, Network
from ranloom.training.simulator.world import SimulatedWorld, WorldSettings
from tests.training.worlds import core_settings


@dataclass(frozen=True)
class Case:
    settings: CoordinatorSettings
    world: FastWorld
    layout: Layout
    costs: LayerCosts
    tflops: np.ndarray


def random_case(seed: int, rerouting: bool = False) -> Case:
    rng = np.random.default_rng(seed)
    stages, replicas = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    layers, sites = stages + int(rng.integers(0, 4)), stages * replicas
    cuts = np.sort(rng.choice(np.arange(1, layers), stages - 1, replace=False))
    boundaries = (0, *(int(cut) for cut in cuts), layers)

    hub = rng.uniform(0.001, 0.03, sites)

    def links(name: str) -> Links:
        gbps = rng.uniform(0.3, 10.0, (sites, sites))
        np.fill_diagonal(gbps, np.inf)
        # a detour over the coordinator is never shorter: a request finds its task there
        latency = rng.uniform(0.001, 0.06, (sites, sites))
        latency += np.maximum(hub[None, :] - hub[:, None], 0.0)
        np.fill_diagonal(latency, 0.0)
        return Links(name, gbps, latency, hub)

    activation, sync = links("activation"), links("sync")
    windows = []
    if rng.random() < 0.3 and sites > 1:
        for _ in range(3):
            a, b = (int(x) for x in rng.choice(sites, 2, replace=False))
            start = float(rng.uniform(0, 5))
            windows.append(CircuitWindow(a, b, start, start + float(rng.uniform(0.1, 2)), 5.0))
    micro_batches = replicas * int(rng.integers(1, 5)) + int(rng.integers(0, replicas))
    limit = int(rng.choice([1, 2, 4, 1 << 30]))
    settings = core_settings(
        micro_batch_samples=2,
        step_micro_batches=micro_batches,
        min_step_micro_batches=1,
        micro_batch_limit=-1,
        window=int(rng.integers(1, 6)),
        reduce_fanout=int(rng.integers(1, 4)),
        control_interval_s=float(rng.uniform(0.05, 0.3)),
        checkpoint_steps=0,
        lease_s=1e9,
        speculate=False,
        rerouting=rerouting,
        rebalancing=rerouting,
        tied_embeddings=bool(rng.random() < 0.5) and stages > 1,
    )
    one = rng.uniform(0.5, 2.0, (5, layers))
    costs = LayerCosts(
        one[0] * 2e12, one[1] * 4e12, one[2] * 1e8, one[3] * 5e7, one[4] * 1e7, 2e7, 3e7
    )
    tflops = rng.uniform(10.0, 60.0, (sites, int(rng.integers(1, 6))))
    world = FastWorld(
        activation,
        sync,
        tuple(windows),
        int(rng.integers(1, 5)),
        10**12,
        0.5,
        float(rng.choice([0.0, 0.01])),
        bool(rng.random() < 0.3),
        limit,
    )
    return Case(settings, world, regular_layout(boundaries, replicas), costs, tflops)


def event_path(case: Case, until_s: float) -> tuple[list, np.ndarray, SimulatedWorld]:
    world = SimulatedWorld(
        case.settings,
        WorldSettings(
            budget_period_s=case.world.budget_period_s,
            memory_bytes=case.world.memory_bytes,
            task_overhead_s=case.world.task_overhead_s,
            forward_first=case.world.forward_first,
            unmerged_limit=case.world.unmerged_limit,
        ),
        case.layout,
        case.costs,
        Network(case.world.activation, case.world.sync, case.world.windows, case.world.chunks),
        Capacity(case.tflops, 1.0),
    )
    world.start()
    world.run_until(until_s)
    notes = tuple(world.record.notes)
    return list(step_rows(notes)), completion_times(notes, case.layout.stages), world


def fast_path(case: Case, steps: int) -> FastRun:
    run = FastRun(case.settings, case.world, case.layout, case.costs, case.tflops)
    run.run_until(np.inf, steps)
    return run
