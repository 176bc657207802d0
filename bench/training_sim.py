"""Training coordinator and simulator: what a decision costs, and how fast virtual time passes.

``python bench/training_sim.py`` prints a table and writes it into ``bench/results.json`` under
``training_sim``. CPU time of one thread; compiled kernels are warm.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from ranloom.training.costs import LayerCosts  # noqa: E402
from ranloom.training.layout import regular_layout  # noqa: E402
from ranloom.training.links import Links  # noqa: E402
from ranloom.training.messages import BudgetReport, Tick  # noqa: E402
from ranloom.training.settings import CoordinatorSettings  # noqa: E402
from ranloom.training.simulator.capacity import Capacity  # noqa: E402
from ranloom.training.simulator.network import Network  # noqa: E402
from ranloom.training.simulator.world import SimulatedWorld, WorldSettings  # noqa: E402

TFLOPS = 40.0


def settings(micro_batches: int, window: int) -> CoordinatorSettings:
    """Everything on."""
    return CoordinatorSettings(
        micro_batch_samples=1,
        step_micro_batches=micro_batches,
        min_step_micro_batches=1,
        max_steps=1 << 40,
        micro_batch_limit=-1,
        window=window,
        hop_s=0.01,
        reduce_fanout=2,
        control_interval_s=0.1,
        slack_fraction=0.1,
        steal_gain=0.1,
        exact_assignment=20000,
        speculate=True,
        error_weight=0.3,
        margin_errors=0.5,
        debt_gain=0.3,
        max_debt_samples=100.0,
        mlr_threshold=0.3,
        mlr_weight=0.2,
        mlr_patience_steps=3,
        mlr_min_gain=0.05,
        lease_s=1e9,
        checkpoint_steps=0,
        tied_embeddings=True,
        rerouting=True,
        rebalancing=True,
    )


def world(stages: int, replicas: int, micro_batches: int, window: int) -> SimulatedWorld:
    """Even sites of which one in eight is slow, so that there is something to decide."""
    sites = stages * replicas
    gbps = np.full((sites, sites), 10.0)
    np.fill_diagonal(gbps, np.inf)
    latency = np.full((sites, sites), 0.005)
    np.fill_diagonal(latency, 0.0)
    links = Links("even", gbps, latency, np.full(sites, 0.005))
    tflops = np.full((sites, 1), TFLOPS)
    tflops[::8] *= 0.5
    one = np.ones(2 * stages)
    made = SimulatedWorld(
        settings(micro_batches, window),
        WorldSettings(budget_period_s=1.0, memory_bytes=1 << 40),
        regular_layout(tuple(range(0, 2 * stages + 1, 2)), replicas),
        LayerCosts(one * 4e11, one * 8e11, one * 1e8, one * 2e7, one * 1e7, 1e6, 1e7),
        Network(links, links),
        Capacity(tflops, 1.0),
    )
    made.start()
    return made


def control_interval_us(stages: int, replicas: int, micro_batches: int) -> tuple[float, float]:
    """CPU time of a control interval in mid-step, with fresh budgets; median and 95th percentile.

    A tick predicts, sets deadlines, assigns, and writes the ledger.
    """
    made = world(stages, replicas, micro_batches, window=micro_batches)
    for _ in range(2):
        step = made.coordinator.run.applied_steps
        while made.coordinator.run.applied_steps == step:
            made.engine.step()
    opened_s = made.engine.now_s
    rng = np.random.default_rng(1)
    taken: list[float] = []
    for round_s in np.linspace(0.05, 1.5, 60):
        made.run_until(opened_s + round_s)
        core, now_s = made.coordinator, made.engine.now_s
        for site in core.members.living():
            incarnation = int(core.members.incarnation[site])
            budget = float(TFLOPS * rng.uniform(0.7, 1.0))
            core.handle(BudgetReport(site, incarnation, budget), now_s)
        began = time.process_time_ns()
        core.handle(Tick(), now_s)
        taken.append((time.process_time_ns() - began) / 1000.0)
    return statistics.median(taken), float(np.percentile(taken, 95))


def step_cost_ms() -> float:
    """CPU time of the core for a step with 64 stage tasks: D = 2, P = 4, 8 micro-batches."""
    made = world(4, 2, 8, window=8)
    spent = 0.0
    handle = made.coordinator.handle

    def timed(event, now_s):
        nonlocal spent
        began = time.process_time()
        actions = handle(event, now_s)
        spent += time.process_time() - began
        return actions

    made.run_until(5.0)
    made.coordinator.handle = timed  # type: ignore[method-assign]
    before = made.coordinator.run.applied_steps
    made.run_until(60.0)
    return 1000.0 * spent / (made.coordinator.run.applied_steps - before)


def events_per_s() -> float:
    """Engine events a CPU second, eight sites, contention and rerouting on."""
    made = world(4, 2, 16, window=8)
    made.run_until(5.0)
    processed, began = made.engine.processed, time.process_time()
    made.run_until(60.0)
    return (made.engine.processed - processed) / (time.process_time() - began)


def main() -> None:
    """Measure and write."""
    small, small_p95 = control_interval_us(4, 2, 16)
    large, large_p95 = control_interval_us(32, 16, 128)
    figures = {
        "control_interval_8_sites_us": small,
        "control_interval_8_sites_p95_us": small_p95,
        "control_interval_512_sites_us": large,
        "control_interval_512_sites_p95_us": large_p95,
        "coordinator_cpu_per_step_of_64_tasks_ms": step_cost_ms(),
        "event_mode_events_per_s": events_per_s(),
    }
    path = ROOT / "bench" / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results["training_sim"] = figures
    path.write_text(json.dumps(results, indent=2) + "\n")
    for name, value in figures.items():
        print(f"{name:48s} {value:12.1f}")


if __name__ == "__main__":
    main()
