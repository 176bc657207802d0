"""Small worlds for tests of the coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.links import Links
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.network import Network
from ranloom.training.simulator.site import history
from ranloom.training.simulator.world import SimulatedWorld, WorldSettings


def core_settings(**changes: Any) -> CoordinatorSettings:
    fields: dict[str, Any] = {
        "micro_batch_samples": 2,
        "step_micro_batches": 8,
        "min_step_micro_batches": 2,
        "max_steps": 10**6,
        "micro_batch_limit": 48,
        "window": 4,
        "hop_s": 0.01,
        "reduce_fanout": 2,
        "control_interval_s": 0.1,
        "slack_fraction": 0.2,
        "steal_gain": 0.1,
        "exact_assignment": 4000,
        "speculate": True,
        "error_weight": 0.3,
        "margin_errors": 0.0,
        "debt_gain": 0.3,
        "max_debt_samples": 16.0,
        "mlr_threshold": 0.3,
        "mlr_weight": 0.3,
        "mlr_patience_steps": 3,
        "mlr_min_gain": 0.05,
        "lease_s": 5.0,
        "checkpoint_steps": 2,
        "tied_embeddings": True,
        "rerouting": True,
        "rebalancing": True,
    }
    return CoordinatorSettings(**{**fields, **changes})


def layer_costs(layers: int) -> LayerCosts:
    one = np.ones(layers)
    return LayerCosts(one * 1e12, one * 2e12, one * 1e8, one * 2e7, one * 1e7, 1e6, 1e7)


def even_links(sites: int, gbps: float = 10.0, latency_s: float = 0.005) -> Links:
    rate = np.full((sites, sites), gbps)
    np.fill_diagonal(rate, np.inf)
    delay = np.full((sites, sites), latency_s)
    np.fill_diagonal(delay, 0.0)
    return Links("even", rate, delay, np.full(sites, latency_s))


def small_world(
    stages: int = 2,
    replicas: int = 2,
    layers: int = 4,
    tflops: np.ndarray | float = 40.0,
    layout: Layout | None = None,
    loss_notice_s: float = 0.05,
    record_tasks: bool = False,
    **changes: Any,
) -> SimulatedWorld:
    if layout is None:
        cuts = tuple(round(stage * layers / stages) for stage in range(stages + 1))
        layout = regular_layout(cuts, replicas)
    sites = max(layout.sites()) + 1
    capacity = np.ones((sites, 1)) * tflops if np.isscalar(tflops) else np.asarray(tflops)
    links = even_links(sites)
    world = SimulatedWorld(
        core_settings(**changes),
        WorldSettings(budget_period_s=0.5, memory_bytes=10**10, loss_notice_s=loss_notice_s),
        layout,
        layer_costs(layout.boundaries[-1]),
        Network(links, links),
        Capacity(capacity, 1.0),
        record_messages=True,
        record_tasks=record_tasks,
    )
    world.start()
    return world


def run_to_the_end(world: SimulatedWorld, patience_s: float = 500.0) -> list[tuple[int, ...]]:
    """Finish, check that all layers learned the same, and return the micro-batches by step."""
    world.run_until(patience_s)
    assert world.coordinator.finished
    world.drain()
    learned = {layer: history(chain) for layer, chain in world.final_weights().items()}
    reference = learned[0]
    assert set(learned) == set(range(world.coordinator.layout.boundaries[-1]))
    assert all(found == reference for found in learned.values())
    return [numbers for _, numbers in reference]


def assert_each_once(world: SimulatedWorld, steps: list[tuple[int, ...]]) -> None:
    numbers = sorted(number for step in steps for number in step)
    assert numbers == list(range(world.coordinator.run.queue.drawn))


def sent(world: SimulatedWorld, kind: type) -> list[Any]:
    return [message for _, message in world.record.messages if isinstance(message, kind)]
