"""The transport planner: time for many demands, and quality against CP-SAT on small instances.

``python bench/planner.py`` prints both and writes them into ``bench/results.json`` under
``planner``. Times are CPU seconds after compilation, the best of several. CP-SAT (OR-Tools)
gets the planner's plan as a hint and ``--seconds`` of CPU time for each instance (20 s are 10 s
on two idle cores); what it proves within them counts as an optimum, the rest as an incumbent.

``python bench/planner.py --validate 10000`` plans random instances of every kind instead and
has the independent validator check each calendar and refuse broken ones.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ranloom.transport.baselines import AGGREGATE_STRATEGIES, aggregate_plan
from ranloom.transport.breakers import Breaker
from ranloom.transport.calendar import calendar_of
from ranloom.transport.demands import Demands
from ranloom.transport.exact import refine
from ranloom.transport.generators import HUB, ring, site_name
from ranloom.transport.instances import (
    RoundShape,
    federated_rounds,
    random_instance,
    random_reservations,
    scattered,
)
from ranloom.transport.load import load_topology
from ranloom.transport.network import Network, TransportSettings, build_network
from ranloom.transport.plan import Plan
from ranloom.transport.planner import plan_transfers
from ranloom.transport.topology import LinkDefaults, Topology
from ranloom.transport.validator import validate

ROOT = Path(__file__).resolve().parent.parent
LINKS = LinkDefaults(packet_gbps=10.0, wavelengths=16)
#: LoRA aggregates of a 7B model: rank 16 on q, v (fp16); all linear, rank 16 and 64.
PAYLOADS = (16_777_216, 80_000_000, 160_000_000, 320_000_000, 640_000_000)
EFFORT_LARGE, EFFORT_SMALL = 100, 60_000


def metro(jobs: int, rounds: int, setup_s: float, share: float) -> tuple[Demands, Network]:
    """Rounds of several jobs at the 34 sites of the metro topology, both ways round its rings."""
    topology = load_topology(ROOT / "data/topologies/metro.json", None, LINKS)
    sites = [n for n, kind in topology.graph.nodes(data="kind") if kind == "gnb"]
    shapes = [RoundShape(80_000_000, 240.0, 10.0 * k, (36.0, 200.0), 1) for k in range(jobs)]
    rng = np.random.default_rng(1)
    made = federated_rounds(shapes, sites, topology.hub, rounds, rng)
    settings = TransportSettings(setup_s, 0.001, 100.0, 1, 4, 2, share)
    return made, build_network(topology, [(s, topology.hub) for s in sites], settings)


def speed(repeats: int) -> dict[str, dict[str, float]]:
    """CPU time of plans with many windows, at about 1,000 and 10,000 demands."""
    found = {}
    cases = (
        ("1000_demands_20ms_setup", (4, 7, 0.02, 0.01)),
        ("1000_demands_10s_setup", (4, 7, 10.0, 0.003)),
        ("10000_demands_20ms_setup", (10, 30, 0.02, 0.01)),
        ("10000_demands_1s_setup", (10, 30, 1.0, 0.003)),
    )
    for name, case in cases:
        made, network = metro(*case)
        plan = plan_transfers(made, network, strategy=name, effort=EFFORT_LARGE)
        best = float("inf")
        for _ in range(repeats):
            began = time.process_time()
            plan_transfers(made, network, strategy=name, effort=EFFORT_LARGE)
            best = min(best, time.process_time() - began)
        found[name] = {
            "demands": len(made),
            "cpu_s": best,
            "missed_bytes": plan.missed_bytes,
            "setups": plan.setups,
        }
        print(f"{name:28s} {len(made):6d} demands {best:8.3f} s  {plan.setups} windows")
    return found


def instance(seed: int) -> tuple[Demands, Topology, Network]:
    """A random ring with up to 100 demands; scarce packets and few ports overload about half."""
    rng = np.random.default_rng(np.random.SeedSequence([31, seed]))
    sites, jobs = int(rng.integers(4, 26)), int(rng.integers(1, 5))
    waves, rounds = int(rng.integers(1, 3)), int(rng.choice([1, 1, 2]))
    sites = max(2, min(sites, 100 // (jobs * waves * rounds)))
    topology = ring(sites, 8.0, LINKS, sites_per_office=3, spur_km=2.0)
    shapes = []
    for _ in range(jobs):
        period = float(rng.choice([90.0, 120.0, 240.0]))
        low = float(rng.uniform(20.0, 40.0))
        high = float(rng.uniform(low + 5.0, period - 10.0))
        start = float(rng.uniform(0.0, 60.0))
        shapes.append(RoundShape(int(rng.choice(PAYLOADS)), period, start, (low, high), waves))
    names = [site_name(k) for k in range(sites)]
    made = federated_rounds(shapes, names, HUB, rounds, rng)
    settings = TransportSettings(
        setup_s=float(rng.choice([0.02, 1.0, 10.0, 30.0, 60.0])),
        guard_s=0.01,
        circuit_gbps=100.0,
        site_ports=1,
        hub_ports=int(rng.choice([1, 1, 1, 2])),
        candidate_paths=1,
        packet_share=float(rng.choice([0.0003, 0.0005, 0.001, 0.002, 0.005])),
    )
    return made, topology, build_network(topology, [(n, HUB) for n in names], settings)


def compared(first: int, count: int, seconds: float) -> Iterator[tuple[Plan, Plan, int, float]]:
    """(our plan, CP-SAT's, how many objectives it proved, our CPU seconds)."""
    for seed in range(first, first + count):
        made, topology, network = instance(seed)
        began = time.process_time()
        plan = plan_transfers(made, network, strategy="ours", effort=EFFORT_SMALL)
        cpu_s = time.process_time() - began
        assert validate(calendar_of(plan, shaped=True), made, topology, network.settings) == []
        solved = refine(plan, network, deterministic_time=1e9, seed=1, cpu_s=seconds)
        print(
            f"{seed:4d} {len(made):4d} demands  ours {plan.objective}  CP-SAT "
            f"{solved.plan.objective}  proven {solved.proven}  {cpu_s:.2f} s",
            flush=True,
        )
        yield plan, solved.plan, solved.proven, cpu_s


def quality(first: int, count: int, seconds: float) -> dict[str, float | list[int]]:
    """How often the planner reaches CP-SAT's optima, and how far it is from its incumbents."""
    equal = proven = overloaded = within = 0
    worst_pct = worst_cpu_s = 0.0
    behind = []
    for seed, (ours, theirs, level, cpu_s) in enumerate(compared(first, count, seconds), first):
        overloaded += theirs.missed_bytes > 0
        worst_cpu_s = max(worst_cpu_s, cpu_s)
        same = ours.objective[:2] == theirs.objective[:2]
        if level >= 2:
            proven += 1
            equal += same
            within += same and ours.circuit_ns <= 1.005 * theirs.circuit_ns
        elif theirs.missed_bytes:
            above = 100.0 * (ours.missed_bytes / theirs.missed_bytes - 1.0)
            worst_pct = max(worst_pct, above)
            if above > 2.0:
                behind.append(seed)
    return {
        "instances": count,
        "overloaded_pct": 100.0 * overloaded / count,
        "proven_pct": 100.0 * proven / count,
        "missed_and_setups_equal_pct_of_proven": 100.0 * equal / max(1, proven),
        "light_within_half_pct_of_proven": 100.0 * within / max(1, proven),
        "worst_above_unproven_incumbent_pct": worst_pct,
        "more_than_2_pct_above": behind,
        "worst_cpu_s": worst_cpu_s,
        "solver_cpu_s": seconds,
    }


def soak(first: int, count: int) -> dict[str, float]:
    """Calendars of random instances, all of which must pass, and broken ones, none of which may.

    Three shaped strategies in turn; every third instance has several destinations, every fourth
    a calendar of others.
    """
    faults = broken = refused = missed = 0
    for seed in range(first, first + count):
        made, topology, settings = random_instance(seed)
        rng = np.random.default_rng(np.random.SeedSequence([33, seed]))
        if seed % 3 == 0:
            made = scattered(made, topology, rng)
        end_s = float(made.deadline_ns.max()) / 1e9
        others = random_reservations(topology, 3, end_s, rng) if seed % 4 == 0 else ()
        network = build_network(topology, made.pairs(), settings)
        strategy = AGGREGATE_STRATEGIES[seed % 5 % 3]
        plan = aggregate_plan(strategy, made, network, effort=30, reservations=others)
        calendar = calendar_of(plan, shaped=True)
        found = validate(calendar, made, topology, settings, others)
        if found:
            print(seed, strategy, found[0])
        faults += bool(found)
        missed += plan.missed_bytes > 0
        if seed % 10 == 0:
            for one in Breaker(made, topology, settings, rng).broken(calendar).values():
                broken += 1
                refused += bool(validate(one, made, topology, settings, others))
    return {
        "instances": count,
        "refused_calendars": faults,
        "with_missed_bytes_pct": 100.0 * missed / count,
        "broken_calendars": broken,
        "broken_refused": refused,
    }


def keep(name: str, figures: dict[str, object]) -> None:
    """Put figures under a name into ``bench/results.json``."""
    path = ROOT / "bench/results.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | {name: figures}, indent=2) + "\n")


def main() -> None:
    """Run, print, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=12, help="compared with CP-SAT")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU s of CP-SAT each")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first instance")
    parser.add_argument("--validate", type=int, metavar="COUNT", help="instances to check instead")
    options = parser.parse_args()
    if options.validate:
        checked = soak(options.first, options.validate)
        print(json.dumps(checked, indent=2))
        keep("planner_calendars", checked)
        return
    results = {
        "speed": speed(options.repeats),
        "against_cp_sat": quality(options.first, options.instances, options.seconds),
    }
    print(json.dumps(results["against_cp_sat"], indent=2))
    keep("planner", results)


if __name__ == "__main__":
    main()
