"""Random fault schedules: small runs in which anything may fail at any moment.

Every run is drawn from its seed: layout, sizes, settings, and a schedule of faults (deaths, silent
sites, cut control channels, crashes of the coordinator with loss of what was not synced, late and
repeated reports, evictions, budget cuts). Faults end before a run does, so it must finish; then
every layer at every holder must have learned every micro-batch exactly once, in the same order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.links import Links
from ranloom.training.messages import Event, TaskCompleted
from ranloom.training.run_cycle import RunStatistics
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.network import Network
from ranloom.training.simulator.site import history
from ranloom.training.simulator.world import SimulatedWorld, WorldSettings

FAULTS_END_S = 12.0
PATIENCE_S = 3000.0
FAULTS = ("kill", "kill_and_boot", "freeze", "cut_off", "crash", "evict")


@dataclass(frozen=True)
class ChaosResult:
    """What a random run came to.

    Args:
        seed: of the run.
        finished: whether all work was applied.
        lost: micro-batches drawn that some layer never learned.
        doubled: micro-batches that some layer learned more than once.
        divergent: layers whose holders disagree, or that differ from the first layer.
        statistics: counters of the coordinator.
        faults: injected faults by kind.
        virtual_s: virtual time that it took.
    """

    seed: int
    finished: bool
    lost: int
    doubled: int
    divergent: int
    statistics: RunStatistics
    faults: Counter[str]
    virtual_s: float

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, doubled or divergent, and the run came to its end."""
        return self.finished and not (self.lost or self.doubled or self.divergent)


def chaos_world(seed: int, record_messages: bool = False) -> tuple[SimulatedWorld, Counter[str]]:
    """A world with its fault schedule in place, ready to run; and what was scheduled.

    Args:
        seed: of everything.
        record_messages: whether to keep all messages for an audit.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 77]))
    stages = int(rng.integers(1, 4))
    replicas = int(rng.integers(1 if stages > 1 else 2, 4))
    layers = stages + int(rng.integers(0, 3))
    cuts = np.sort(rng.choice(np.arange(1, layers), stages - 1, replace=False))
    layout = regular_layout((0, *(int(cut) for cut in cuts), layers), replicas)
    sites = replicas * stages
    tflops = rng.uniform(0.5, 2.0, (sites, 1)) * np.ones((sites, 64))
    for _ in range(int(rng.integers(0, 4))):
        first = int(rng.integers(0, 60))
        tflops[int(rng.integers(sites)), first : first + int(rng.integers(1, 20))] *= 0.1
    world = SimulatedWorld(
        _settings(rng),
        WorldSettings(
            budget_period_s=float(rng.choice([0.5, 1.0])),
            memory_bytes=1 << 30,
            loss_notice_s=float(rng.choice([0.05, 0.5, np.inf])),
            sync_s=float(rng.choice([0.0, 0.02, 0.1])),
            unmerged_limit=int(rng.choice([1, 2, 100])),
        ),
        layout,
        _costs(layers),
        Network(_links(sites, rng), _links(sites, rng)),
        Capacity(tflops, 1.0),
        record_messages=record_messages,
    )
    jitter = np.random.default_rng(np.random.SeedSequence([seed, 78]))
    world.delay = lambda: float(jitter.exponential(0.01))

    def repeat(event: Event) -> float | None:
        if isinstance(event, TaskCompleted) and jitter.random() < 0.1:
            return float(jitter.exponential(0.5))
        return None

    world.repeat = repeat
    world.start()
    return world, _schedule(world, layout, rng)


def _settings(rng: np.random.Generator) -> CoordinatorSettings:
    per_step = int(rng.integers(2, 6))
    return CoordinatorSettings(
        micro_batch_samples=int(rng.integers(1, 4)),
        step_micro_batches=per_step,
        min_step_micro_batches=int(rng.integers(1, per_step + 1)),
        max_steps=int(rng.choice([3, 6, 12, 24])),
        micro_batch_limit=int(rng.choice([-1, 13, 40])),
        window=int(rng.integers(1, 5)),
        hop_s=0.02,
        reduce_fanout=int(rng.integers(1, 4)),
        control_interval_s=0.5,
        slack_fraction=float(rng.choice([0.05, 0.3, 1.0])),
        steal_gain=float(rng.choice([0.05, 0.3, np.inf])),
        exact_assignment=int(rng.choice([0, 4000])),
        speculate=bool(rng.integers(2)),
        error_weight=0.3,
        margin_errors=1.0,
        debt_gain=0.3,
        max_debt_samples=20.0,
        mlr_threshold=float(rng.choice([0.05, 0.3])),
        mlr_weight=0.5,
        mlr_patience_steps=1,
        mlr_min_gain=0.01,
        lease_s=2.0,
        checkpoint_steps=int(rng.integers(0, 4)),
        tied_embeddings=bool(rng.integers(2)),
        rerouting=bool(rng.random() < 0.9),
        rebalancing=True,
    )


def _costs(layers: int) -> LayerCosts:
    one = np.ones(layers)
    return LayerCosts(one * 4e10, one * 8e10, one * 2e6, one * 1e6, one * 1e5, 1e5)


def _links(sites: int, rng: np.random.Generator) -> Links:
    gbps = rng.uniform(0.05, 1.0, (sites, sites))
    latency_s = rng.uniform(0.001, 0.03, (sites, sites))
    np.fill_diagonal(gbps, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    return Links("random", gbps, latency_s, rng.uniform(0.001, 0.03, sites))


def _schedule(world: SimulatedWorld, layout: Layout, rng: np.random.Generator) -> Counter[str]:
    """Put random faults on the calendar; all sites are back at the end of it."""
    engine = world.engine
    faults: Counter[str] = Counter()
    sites = layout.sites()
    for _ in range(int(rng.integers(0, 9))):
        kind = str(rng.choice(FAULTS))
        when_s = float(rng.uniform(0.1, FAULTS_END_S * rng.choice([0.1, 0.3, 1.0])))
        site = int(rng.choice(sites))
        faults[kind] += 1
        if kind == "kill":
            engine.at(when_s, world.kill, site)
        elif kind == "kill_and_boot":
            engine.at(when_s, world.kill, site)
            engine.at(when_s + float(rng.exponential(1.0)), world.boot, site)
        elif kind == "freeze":
            engine.at(when_s, world.freeze, site)
            engine.at(when_s + float(rng.exponential(2.0)), world.thaw, site)
        elif kind == "cut_off":
            engine.at(when_s, world.cut_off, site, when_s + float(rng.exponential(2.0)))
        elif kind == "crash":
            engine.at(when_s, world.crash_coordinator)
            engine.at(when_s + float(rng.exponential(0.5)), world.restart_coordinator)
        else:
            engine.at(when_s, world.evict, site)
    engine.at(FAULTS_END_S + 5.0, world.recover_all)
    return faults


def examine(world: SimulatedWorld, seed: int, faults: Counter[str]) -> ChaosResult:
    """Compare what all layers have learned: in the last checkpoint and at every holder."""
    layout = world.coordinator.layout
    layers = range(layout.boundaries[-1])
    drawn = world.coordinator.run.queue.drawn
    copies = [world.final_weights()]
    knows = world.coordinator.members.knows
    holders = [p for p in world.sites.values() if p.stage >= 0 and knows(p.site, p.incarnation)]
    copies.extend(process.weights for process in holders)
    reference = history(copies[0].get(0))
    divergent: set[int] = set(layers) - set(copies[0])
    lost = doubled = 0
    for weights in copies:
        for layer, learned in weights.items():
            found = history(learned)
            if found != reference:
                divergent.add(layer)
            counts = Counter(number for _, numbers in found for number in numbers)
            lost = max(lost, sum(1 for number in range(drawn) if not counts[number]))
            doubled = max(doubled, sum(count - 1 for count in counts.values() if count > 1))
    return ChaosResult(
        seed,
        world.coordinator.finished,
        lost,
        doubled,
        len(divergent),
        world.coordinator.statistics,
        faults,
        world.engine.now_s,
    )


def run_chaos(seed: int) -> ChaosResult:
    """One random run.

    Args:
        seed: of everything.
    """
    world, faults = chaos_world(seed)
    world.run_until(PATIENCE_S)
    world.drain()
    return examine(world, seed, faults)
