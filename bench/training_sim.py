"""Training coordinator and simulator: what a decision costs, and how fast virtual time passes.

``python bench/training_sim.py`` prints a table and writes it into ``bench/results.json`` under
``training_sim``; ``--equal`` first compares both paths of the simulator on a thousand random runs.
CPU time of one thread, the fastest step of several; compiled kernels are warm. An event of the fast
path is the end of a task at a site or of a transfer on a link, with contention and rerouting on.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.layout import regular_layout
from ranloom.training.links import Links
from ranloom.training.messages import BudgetReport, Tick
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.fast_run import FastRun, FastWorld
from ranloom.training.simulator.network import Network
from ranloom.training.simulator.world import SimulatedWorld, WorldSettings

ROOT = Path(__file__).resolve().parent.parent
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


def fast_run(stages: int, replicas: int, each: int, rerouting: bool) -> FastRun:
    """Pipelines of sites whose compute changes every second, all links in use."""
    sites = stages * replicas
    rng = np.random.default_rng(0)
    gbps = np.full((sites, sites), 10.0)
    np.fill_diagonal(gbps, np.inf)
    latency = 0.005 + rng.uniform(0.0, 1e-4, (sites, sites))
    np.fill_diagonal(latency, 0.0)
    links = Links("even", gbps, latency, np.full(sites, 0.005))
    tflops = TFLOPS * rng.uniform(0.9, 1.0, (sites, 600))
    one = np.ones(2 * stages)
    changed = replace(
        settings(each * replicas, each),
        rerouting=rerouting,
        rebalancing=rerouting,
        speculate=False,
        exact_assignment=0,
        control_interval_s=0.2,
    )
    return FastRun(
        changed,
        FastWorld(links, links),
        regular_layout(tuple(range(0, 2 * stages + 1, 2)), replicas),
        LayerCosts(one * 4e11, one * 8e11, one * 1e8, one * 2e7, one * 1e7, 1e6, 1e7),
        tflops,
    )


def fast_path(
    stages: int, replicas: int, each: int, rerouting: bool, steps: int
) -> tuple[float, float]:
    """Events a CPU second, and CPU seconds of a thousand steps, by the fastest step."""
    run = fast_run(stages, replicas, each, rerouting)
    run.run_until(np.inf, 1)
    taken = []
    for step in range(steps):
        before, began = run.record.events, time.process_time()
        run.run_until(np.inf, 2 + step)
        spent = time.process_time() - began
        taken.append((spent, run.record.events - before))
    spent, events = min(taken)
    return events / spent, 1000.0 * spent


def equal_runs(count: int, rerouting: bool) -> int:
    """Random runs, of that many, in which both paths give the same times to 1e-9."""
    from tests.training.simulator.fast_cases import event_path, fast_path, random_case

    equal = 0
    for seed in range(count):
        case = random_case(seed, rerouting)
        fast = fast_path(case, 3).record.steps
        rows, _, _ = event_path(case, fast[-1].end_s + (20.0 if rerouting else 1e-6))
        mine = [(s.start_s, s.end_s, s.samples, s.reroutes) for s in fast]
        theirs = [(r.start_s, r.end_s, r.samples, r.reroutes) for r in rows[:3]]
        equal += len(theirs) == 3 and bool(np.allclose(mine, theirs, rtol=1e-9, atol=1e-9))
    return equal


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
    task_us = 1000.0 * figures["coordinator_cpu_per_step_of_64_tasks_ms"] / 64
    tick_share = figures["control_interval_512_sites_us"] / 512 / 200_000.0
    figures["coordinator_cpu_per_task_us"] = task_us
    # App. F: one core, a site reporting two tasks a second, a control interval of 200 ms
    figures["sites_of_one_coordinator_core"] = 1.0 / (2e-6 * task_us + tick_share)
    for name, stages, replicas in (("480_sites", 40, 12), ("2048_sites", 32, 64)):
        for rerouting in (False, True):
            rate, thousand = fast_path(stages, replicas, 43 if stages == 40 else 8, rerouting, 8)
            label = f"fast_path_{name}{'_air' if rerouting else ''}"
            figures[f"{label}_million_events_per_s"] = rate / 1e6
            figures[f"{label}_1000_steps_s"] = thousand
    figures["fast_path_over_event_path"] = (
        1e6 * figures["fast_path_480_sites_air_million_events_per_s"]
    ) / figures["event_mode_events_per_s"]
    figures["peak_memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if "--equal" in sys.argv[1:]:
        figures["equal_runs_of_1000"] = float(equal_runs(1000, rerouting=False))
        figures["equal_runs_of_1000_air"] = float(equal_runs(1000, rerouting=True))
    path = ROOT / "bench" / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results["training_sim"] = figures
    path.write_text(json.dumps(results, indent=2) + "\n")
    for name, value in figures.items():
        print(f"{name:48s} {value:12.2f}")


if __name__ == "__main__":
    main()
