"""All strategies on one set of demands: planned, carried out, simulated, checked.

The strategies see the same releases, topology, calendar of others and background traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ranloom.errors import InputError
from ranloom.transport.baselines import (
    AGGREGATE_ALWAYS_WINDOW,
    AGGREGATE_SELECTIVE,
    AGGREGATE_STRATEGIES,
    PER_UE_PACKET,
    aggregate_plan,
    per_ue_packet,
    per_ue_static_circuits,
)
from ranloom.transport.bound import LowerBound
from ranloom.transport.breakers import Breaker
from ranloom.transport.calendar import Calendar, calendar_of
from ranloom.transport.demands import (
    NS_PER_S,
    Demands,
    ForecastDemands,
    demands_from_columns,
    require_nodes,
)
from ranloom.transport.exact import refine
from ranloom.transport.execution import execute
from ranloom.transport.forecast import regret
from ranloom.transport.measures import PortPower, measures
from ranloom.transport.network import TransportSettings, build_network
from ranloom.transport.plan import MISSED, Plan
from ranloom.transport.play import Background, Played, background_streams, play
from ranloom.transport.replan import ReplanRules
from ranloom.transport.reservation import Reservation
from ranloom.transport.rolling import Faults, roll
from ranloom.transport.topology import Topology
from ranloom.transport.validator import CalendarFault, validate


def strategy_demands(columns: Mapping[str, Any], where: str) -> dict[str, ForecastDemands]:
    """Demands of the two ways to send: one flow a UE, one aggregate a gNB.

    Args:
        columns: of ``transfers.parquet``.
        where: file name for error messages.

    Raises:
        InputError: one of them is not there, or a demand cannot be used.
    """
    if "strategy" not in columns:
        raise InputError(where, "no column strategy", "per_ue and aggregate rows")
    found = {}
    for strategy in ("per_ue", "aggregate"):
        rows = np.flatnonzero(np.asarray(columns["strategy"], dtype=object) == strategy)
        if len(rows) == 0:
            raise InputError(f"{where}: strategy", strategy, "at least one demand of each")
        taken = {name: np.asarray(values)[rows] for name, values in columns.items()}
        found[strategy] = demands_from_columns(taken, f"{where}: {strategy}")
    return found


@dataclass(frozen=True)
class Planning:
    """How aggregates are planned.

    Args:
        plan_on: forecast quantile, ``p50`` or ``p95``.
        effort: moves of local search.
        refine_time: deterministic time of CP-SAT per objective; 0: off.
        refine_most: most demands with which it is tried.
        seed: of CP-SAT.
    """

    plan_on: str
    effort: int
    refine_time: float
    refine_most: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """A strategy: planned, carried out on what happened, and simulated beside other traffic."""

    planned: Plan
    executed: Plan
    played: Played
    shaped: bool

    def calendars(self) -> tuple[tuple[Calendar, Demands], ...]:
        """Both calendars with the demands that they have to serve."""
        plans = (self.planned, self.executed)
        return tuple((calendar_of(plan, shaped=self.shaped), plan.demands) for plan in plans)


class Comparison:
    """One set of demands and everything that its strategies share.

    Args:
        demands: ``per_ue`` and ``aggregate``.
        topology: the topology.
        settings: rates, times and limits.
        planning: how aggregates are planned.
        reservations: optical use by others.
        background: other packet traffic.
        rng: random stream of the background.
        where: file of the demands, for error messages.

    Raises:
        InputError: a demand between unknown, equal or disconnected nodes.
    """

    def __init__(
        self,
        demands: Mapping[str, ForecastDemands],
        topology: Topology,
        settings: TransportSettings,
        planning: Planning,
        reservations: tuple[Reservation, ...],
        background: Background,
        rng: np.random.Generator,
        where: str,
    ) -> None:
        self.demands, self.topology, self.settings = demands, topology, settings
        self.planning, self.reservations, self.background = planning, reservations, background
        every = [d.realised for d in demands.values()]
        for made in every:
            require_nodes(made, topology, where)
        pairs = sorted({pair for made in every for pair in made.pairs()})
        self.network = build_network(topology, pairs, settings)
        last_s = max(int(made.deadline_ns.max()) for made in every) / NS_PER_S
        self.streams = background_streams(self.network, background, last_s, rng)

    def plan(self, strategy: str, demands: Demands) -> Plan:
        """Plan of an aggregate strategy."""
        plan = aggregate_plan(
            strategy,
            demands,
            self.network,
            effort=self.planning.effort,
            reservations=self.reservations,
        )
        limit = self.planning.refine_time
        exact = strategy == AGGREGATE_SELECTIVE and not self.reservations
        if exact and limit and len(demands) <= self.planning.refine_most:
            seed = self.planning.seed
            plan = refine(plan, self.network, deterministic_time=limit, seed=seed).plan
        return plan

    def outcome(self, strategy: str) -> Outcome:
        """Plan, execute and simulate a strategy."""
        shaped = strategy in AGGREGATE_STRATEGIES
        if shaped:
            forecast = self.demands["aggregate"]
            planned = self.plan(strategy, forecast.planned(self.planning.plan_on))
            executed = self.execute(strategy, planned)
        else:
            flows = self.demands["per_ue"].realised
            if strategy == PER_UE_PACKET:
                planned = executed = per_ue_packet(flows, self.network)
            else:
                planned = executed = per_ue_static_circuits(flows, self.network, self.reservations)
        played = play(executed, self.network, self.streams, self.background, shaped=shaped)
        return Outcome(planned, executed, played, shaped)

    def execute(self, strategy: str, planned: Plan) -> Plan:
        """Carry an aggregate plan out on the releases that occur."""
        packet = strategy != AGGREGATE_ALWAYS_WINDOW
        realised = self.demands["aggregate"].realised
        return execute(planned, realised, self.network, packet=packet)

    def faults(self, calendar: Calendar, demands: Demands) -> list[CalendarFault]:
        """What the independent validator says."""
        return validate(calendar, demands, self.topology, self.settings, self.reservations)

    def refused(self, calendar: Calendar, demands: Demands, rng: np.random.Generator) -> list[bool]:
        """For each way to break a sound calendar, whether the validator refuses the result."""
        tools = Breaker(demands, self.topology, self.settings, rng)
        broken = tools.broken(calendar).values()
        return [bool(self.faults(one, demands)) for one in broken]

    def rules(self, effort: int, notice_s: float) -> ReplanRules:
        """Rules of re-planning the selective plan."""
        notice_ns = round(notice_s * NS_PER_S)
        return ReplanRules(effort=effort, notice_ns=notice_ns, reservations=self.reservations)


def regrets(comparison: Comparison, planned: Plan) -> dict[str, float]:
    """Regret of the selective plan and of planning on the median, against the oracle."""
    demands = comparison.demands["aggregate"]
    oracle = comparison.plan(AGGREGATE_SELECTIVE, demands.realised)
    median = comparison.plan(AGGREGATE_SELECTIVE, demands.planned("p50"))
    found: dict[str, float] = {}
    for label, plan in (("", planned), ("p50_", median)):
        costs = regret(comparison.execute(AGGREGATE_SELECTIVE, plan), oracle)
        found |= {
            f"{label}regret_pct": costs.missed_pct,
            f"{label}regret_setups": costs.setups,
            f"{label}regret_circuit_seconds": costs.circuit_seconds,
            f"{label}regret_last_finish_s": costs.last_finish_s,
        }
    return found


def gap(plan: Plan, bound: LowerBound) -> dict[str, float]:
    """How far a plan is from its lower bound; missed bytes in percent of all bytes."""
    offered = int(plan.demands.bytes.sum())
    light_s = plan.circuit_ns / NS_PER_S
    above_s = light_s - bound.circuit_seconds
    return {
        "missed_pct": 100.0 * (plan.missed_bytes - bound.missed_bytes) / offered,
        "setups_pct": 100.0 * (plan.setups - bound.setups) / max(1, bound.setups),
        "circuit_seconds_pct": (
            100.0 * above_s / bound.circuit_seconds if bound.circuit_seconds else 0.0
        ),
    }


def busiest_fibre(plan: Plan, comparison: Comparison) -> tuple[str, str]:
    """The fibre over which most of the plan's bytes travel; by name where several do."""
    network = comparison.network
    pair_of = network.pair_of(plan.demands)
    load: dict[tuple[str, str], int] = {}
    for row, size in enumerate(plan.demands.bytes.tolist()):
        window = int(plan.window_of[row])
        links = [network.links[link] for link in network.routes[pair_of[row]]]
        if window >= 0:
            path = plan.windows[window].path
            links = list(pairwise(path))
        for a, b in links:
            fibre = (a, b) if a < b else (b, a)
            load[fibre] = load.get(fibre, 0) + size
    return min(load, key=lambda fibre: (-load[fibre], fibre))


def under_faults(
    comparison: Comparison,
    planned: Plan,
    *,
    effort: int,
    notice_s: float,
    failed_setups: tuple[int, ...],
    cut_at_s: float,
) -> dict[str, dict[str, float]]:
    """What re-planning saves when releases slip, set-ups fail or the busiest fibre is cut.

    Args:
        comparison: demands and network.
        planned: the selective plan.
        effort: moves that local search may try at each re-planning.
        notice_s: windows are committed so long before they start.
        failed_setups: which set-ups fail, in the order in which they begin.
        cut_at_s: when the busiest fibre is cut.

    Returns:
        By event: missed bytes and set-ups when demands only fall back to packets (``kept_``)
        and with re-planning, the number of re-plannings, and whether none of them chose a plan
        behind going on.
    """
    fibre = busiest_fibre(planned, comparison)
    events = {
        "slip": Faults(),
        "setup_failure": Faults(failed_setups=failed_setups),
        "fibre_cut": Faults(cuts=((round(cut_at_s * NS_PER_S), *fibre),)),
    }
    forecast = comparison.demands["aggregate"]
    found: dict[str, dict[str, float]] = {}
    for name, faults in events.items():
        runs = {}
        for label, moves in (("kept", 0), ("replanned", effort)):
            rules = comparison.rules(moves, notice_s)
            runs[label] = roll(
                planned, forecast, comparison.topology, comparison.network, rules, faults
            )
        found[name] = {
            "kept_missed_bytes": runs["kept"].plan.missed_bytes,
            "kept_setups": runs["kept"].plan.setups,
            "missed_bytes": runs["replanned"].plan.missed_bytes,
            "setups": runs["replanned"].plan.setups,
            "replannings": len(runs["replanned"].choices),
            "never_worse": runs["replanned"].never_worse,
        }
    return found


def both_workloads(
    comparison: Comparison, training: Demands, power: PortPower, strategy: str
) -> tuple[Plan, dict[str, float], list[CalendarFault]]:
    """Federated aggregates and training transfers in one calendar, and in two made apart.

    Apart, the federated calendar is made first; training respects it like one of others and
    has windows only, as the granted packet rate is the aggregates'.

    Args:
        comparison: the federated demands.
        training: demands of training, all of them certain.
        power: energy model.
        strategy: name of the plan.

    Returns:
        The plan of both, its metrics (those of the simulation beside the background too), and
        faults that the validator finds.
    """
    federated = comparison.demands["aggregate"].planned(comparison.planning.plan_on)
    require_nodes(training, comparison.topology, "training")
    made = Demands.joined((federated, training))
    network = build_network(comparison.topology, sorted(set(made.pairs())), comparison.settings)
    effort, others = comparison.planning.effort, comparison.reservations
    plan = aggregate_plan(AGGREGATE_SELECTIVE, made, network, effort=effort, reservations=others)
    alone = aggregate_plan(
        AGGREGATE_SELECTIVE, federated, network, effort=effort, reservations=others
    )
    guard = comparison.settings.guard_ns
    taken = tuple(Reservation.of_window(w, guard) for w in alone.windows)
    second = aggregate_plan(
        AGGREGATE_ALWAYS_WINDOW, training, network, effort=effort, reservations=(*others, *taken)
    )
    missed = plan.mode == MISSED
    size = made.bytes
    numbers = {
        **measures(plan, network, power),
        "federated_missed_bytes": int(size[: len(federated)][missed[: len(federated)]].sum()),
        "training_missed_bytes": int(size[len(federated) :][missed[len(federated) :]].sum()),
        "training_demands": len(training),
        "training_bytes": int(training.bytes.sum()),
        "apart_missed_bytes": alone.missed_bytes + second.missed_bytes,
        "apart_setups": alone.setups + second.setups,
        "apart_circuit_seconds": (alone.circuit_ns + second.circuit_ns) / NS_PER_S,
    }
    # Routes of the background first: the streams name them by position.
    routes = build_network(
        comparison.topology, [*comparison.network.pairs, *network.pairs], comparison.settings
    )
    played = play(plan, routes, comparison.streams, comparison.background, shaped=True)
    numbers |= played.numbers()
    named = Plan(**{**vars(plan), "strategy": strategy})
    return named, numbers, comparison.faults(calendar_of(named, shaped=True), made)
