"""Stage ``plan_windows``: packet or optical window for every transfer, against baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.io import Inputs, Outputs
from pipeline.stage import Fault, File, FromParam, FromStage, Plot, Result, Stage
from ranloom.errors import InputError
from ranloom.federated.sites import candidates
from ranloom.training.model_shapes import MIXED_PRECISION_ADAM, model_shape
from ranloom.transport.baselines import (
    AGGREGATE_PACKET,
    AGGREGATE_SELECTIVE,
    AGGREGATE_STRATEGIES,
    PER_UE_STRATEGIES,
    STRATEGIES,
)
from ranloom.transport.bound import lower_bound
from ranloom.transport.calendar import calendar_of
from ranloom.transport.comparison import (
    Comparison,
    Outcome,
    both_workloads,
    gap,
    regrets,
    strategy_demands,
    under_faults,
)
from ranloom.transport.demands import NS_PER_S, Demands
from ranloom.transport.jitter import JitterRow, jitter
from ranloom.transport.load import load_topology
from ranloom.transport.measures import PortPower, measures
from ranloom.transport.plan import Plan
from ranloom.transport.play import Background
from ranloom.transport.reservation import Reservation
from ranloom.transport.sweep import SweepRow, sweep
from ranloom.transport.tapi import parse_epoch, reservations_from_tapi, to_json, to_tapi
from ranloom.transport.topology import LinkDefaults, Topology, read_json
from ranloom.transport.training_traffic import Copy, SyncPlan, training_demands
from stages._plan_params import Params, TrainingParams
from stages._plan_tables import (
    ASSIGNMENTS,
    BOTH,
    JITTER,
    LINKS,
    RATES,
    STRATEGY_TABLE,
    SWEEP,
    TRAINING,
    WINDOWS,
    assignment_columns,
    link_columns,
    rate_columns,
    training_columns,
    window_columns,
)

_STREAM = 50  # child of the seed that belongs to this stage
_BACKGROUND, _BREAKERS, _JITTER = range(3)


def check(params: Params, files: Mapping[str, Path]) -> Iterator[Fault]:
    """What the parameters say against each other, the topology and the calendar of others."""
    key = "params.yaml: plan_windows"
    try:
        parse_epoch(params.epoch)
        params.grid()
    except InputError as error:
        part = "" if error.where == "epoch" else "spectrum."
        yield Fault(f"{key}.{part}{error.where}", error.value, error.allowed)
        return
    for number, copy in enumerate(params.training.copies):
        if copy.from_stage + 1 >= params.training.stages:
            allowed = f"allowed: 0 to {params.training.stages - 2}"
            yield Fault(f"{key}.training.copies[{number}].from_stage", copy.from_stage, allowed)
    if params.training.sync_s > params.training.period_s:
        allowed = f"allowed: up to the period of {params.training.period_s} s"
        yield Fault(f"{key}.training.sync_s", params.training.sync_s, allowed)
    topology = load_topology(files["topology"], None, LinkDefaults(**vars(params.links)))
    gnbs = len(candidates(topology.graph, topology.hub))
    if params.training.stages * params.training.replicas > gnbs:
        allowed = f"allowed: stages x replicas up to the {gnbs} gNBs of the topology"
        yield Fault(f"{key}.training.replicas", params.training.replicas, allowed)
    _reservations(params, files["others"], topology)


def _reservations(params: Params, path: Path, topology: Topology) -> tuple[Reservation, ...]:
    return reservations_from_tapi(
        read_json(path),
        topology,
        parse_epoch(params.epoch),
        params.grid(),
        params.settings(),
        str(path),
    )


def training_traffic(params: TrainingParams, sites: list[str], end_s: float) -> Demands:
    """Demands of training on the first of these sites, one pipeline stage each.

    There have to be as many as stages times replicas, which :func:`check` has made sure of.
    """
    shape = model_shape(params.model)
    edges = [k * shape.layers // params.stages for k in range(params.stages + 1)]
    parameters = [(end - first) * shape.block_parameters for first, end in pairwise(edges)]
    # Both ends hold the tied embedding; the last one the final norm as well.
    parameters[0] += shape.embedding_parameters
    if params.stages > 1:
        parameters[-1] += shape.vocabulary * shape.width
    parameters[-1] += 2 * shape.width
    lanes = tuple(
        tuple(sites[replica * params.stages + stage] for stage in range(params.stages))
        for replica in range(params.replicas)
    )
    sizes = MIXED_PRECISION_ADAM
    sync = SyncPlan(
        lanes=lanes,
        stage_bytes=tuple(round(count * sizes.gradient) for count in parameters),
        period_s=params.period_s,
        begin_s=0.0,
        end_s=end_s,
        sync_s=params.sync_s,
        fanout=params.fanout,
    )
    copies = [
        Copy(
            source=lanes[0][copy.from_stage],
            destination=lanes[0][copy.from_stage + 1],
            bytes=round(copy.layers * shape.block_parameters * sizes.weights),
            release_s=copy.at_s,
            deadline_s=copy.at_s + copy.within_s,
        )
        for copy in params.copies
        if lanes
    ]
    return training_demands(sync, copies)


class _Run:
    """Inputs of one run of the stage."""

    def __init__(self, params: Params, inputs: Inputs) -> None:
        self.params = params
        where = str(inputs.path("transfers"))
        self.topology = load_topology(
            inputs.path("topology"), None, LinkDefaults(**vars(params.links))
        )
        self.comparison = Comparison(
            strategy_demands(inputs.columns("transfers"), where),
            self.topology,
            params.settings(),
            params.planning(),
            _reservations(params, inputs.path("others"), self.topology),
            Background(**vars(params.background)),
            self.rng(_BACKGROUND),
            where,
        )
        self.power = PortPower(**vars(params.power))

    def rng(self, *path: int) -> np.random.Generator:
        entropy = [self.params.base.seed, _STREAM, *path]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def caught(self, outcomes: Mapping[str, Outcome]) -> tuple[int, int]:
        """Broken calendars that the validator refuses, and how many there were."""
        found: list[bool] = []
        for index, outcome in enumerate(outcomes.values()):
            for turn in range(self.params.broken_rounds):
                calendar, demands = outcome.calendars()[0]
                rng = self.rng(_BREAKERS, index, turn)
                found += self.comparison.refused(calendar, demands, rng)
        return sum(found), len(found)

    def swept(self) -> list[SweepRow]:
        """What windows buy for the first round's demands."""
        demands = self.comparison.demands["aggregate"].planned(self.params.plan_on)
        first = demands.deadline_ns == demands.deadline_ns.min()
        return sweep(
            demands.take(first),
            self.topology,
            self.comparison.settings,
            self.params.sweep.axes(),
            power=self.power,
            effort=self.params.sweep.effort,
        )

    def jittered(self, planned: Plan) -> tuple[list[JitterRow], int]:
        """Rows of the jitter test, and faults of the calendars that came about."""
        chosen = self.params.jitter
        rules = self.comparison.rules(self.params.replan.effort, self.params.replan.notice_s)
        rows, plans = jitter(
            planned,
            self.topology,
            self.comparison.network,
            rules,
            sd_s=chosen.sd_s,
            draws=chosen.draws,
            rng=self.rng(_JITTER),
        )
        pairs = ((calendar_of(plan, shaped=True), plan.demands) for plan in plans)
        return rows, sum(len(self.comparison.faults(*pair)) for pair in pairs)

    def both(self) -> tuple[Plan, dict[str, float], int]:
        """One calendar for aggregates and training, its metrics, and its faults."""
        aggregates = self.comparison.demands["aggregate"].realised
        # Those that send aggregates come first: the calendar is one because ports are shared.
        senders = sorted(set(aggregates.source.tolist()))
        others = candidates(self.topology.graph, self.topology.hub)
        sites = list(dict.fromkeys([*senders, *others]))
        end_s = int(aggregates.deadline_ns.max()) / NS_PER_S
        training = training_traffic(self.params.training, sites, end_s)
        plan, numbers, faults = both_workloads(self.comparison, training, self.power, BOTH)
        return plan, numbers, len(faults)


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Plan every strategy, check all calendars, sweep, and write."""
    this = _Run(params, inputs)
    comparison = this.comparison
    outcomes = {strategy: comparison.outcome(strategy) for strategy in STRATEGIES}
    selective = outcomes[AGGREGATE_SELECTIVE].planned
    bound = lower_bound(selective, comparison.network)
    points = this.swept()
    shaken, shaken_faults = this.jittered(selective)
    both, both_numbers, both_faults = this.both()
    errors = sum(
        len(comparison.faults(calendar, demands))
        for outcome in outcomes.values()
        for calendar, demands in outcome.calendars()
    )
    refused, broken = this.caught(outcomes)
    errors_pct = [p.break_even_error_pct for p in points if p.break_even_error_pct is not None]
    metrics: dict[str, Any] = {
        **{strategy: _metrics(this, outcome) for strategy, outcome in outcomes.items()},
        "validator_errors": errors + shaken_faults + both_faults,
        "validator_catches": refused / broken,
        "broken_calendars": broken,
        "bound": asdict(bound),
        "gap": gap(selective, bound),
        "forecast": regrets(comparison, selective),
        "replan": under_faults(
            comparison,
            selective,
            **vars(params.replan),
        ),
        "jitter": {
            "kept_missed_pct": max(row.kept_missed_pct for row in shaken),
            "replanned_missed_pct": max(row.replanned_missed_pct for row in shaken),
        },
        BOTH: both_numbers,
        "sweep": {
            "break_even_max_error_pct": max(errors_pct, default=0.0),
            "points": len(points),
            **{f"pays_{why}": sum(p.pays == why for p in points) for why in ("deadline", "speed")},
            "pays_nothing": sum(p.pays == "no" for p in points),
        },
    }
    served = calendar_of(both, shaped=True)
    calendars = {name: outcomes[name].calendars()[0][0] for name in AGGREGATE_STRATEGIES}
    outputs.table("windows", window_columns(outcomes, served))
    outputs.table("assignments", assignment_columns(outcomes))
    outputs.table("rates", rate_columns(outcomes))
    table: list[dict[str, Any]] = [{"strategy": name} | metrics[name] for name in STRATEGIES]
    outputs.table("strategies", {k: [row[k] for row in table] for k in table[0]})
    outputs.table("sweep", {f.name: [getattr(p, f.name) for p in points] for f in fields(SweepRow)})
    outputs.table(
        "jitter", {f.name: [getattr(row, f.name) for row in shaken] for f in fields(JitterRow)}
    )
    outputs.table("training", training_columns(served, both.demands, len(selective.demands)))
    outputs.table("links", link_columns(calendars | {BOTH: served}, this.topology))
    calendar = to_tapi(
        served.windows, parse_epoch(params.epoch), params.grid(), comparison.settings, BOTH
    )
    outputs.json("calendar", to_json(calendar))
    return Result(metrics)


def _metrics(this: _Run, outcome: Outcome) -> dict[str, float | int]:
    return {
        **measures(outcome.executed, this.comparison.network, this.power),
        "planned_missed_bytes": outcome.planned.missed_bytes,
        **outcome.played.numbers(),
    }


STAGE = Stage(
    name="plan_windows",
    title="Packet or optical window for every transfer, against baselines",
    params=Params,
    inputs={
        "transfers": FromStage("aggregate_updates", "transfers"),
        "topology": FromParam("aggregate_updates.topology_path"),
        "others": FromParam("plan_windows.reservations_path"),
    },
    outputs={
        "windows": WINDOWS,
        "assignments": ASSIGNMENTS,
        "rates": RATES,
        "calendar": File(
            "calendar.json", "windows of both workloads as TAPI connectivity services"
        ),
        "strategies": STRATEGY_TABLE,
        "sweep": SWEEP,
        "jitter": JITTER,
        "training": TRAINING,
        "links": LINKS,
    },
    run=run,
    headline=(
        f"{AGGREGATE_SELECTIVE}.missed_bytes",
        f"{AGGREGATE_SELECTIVE}.setups",
        f"{AGGREGATE_PACKET}.missed_bytes",
        f"{PER_UE_STRATEGIES[0]}.missed_bytes",
        "validator_errors",
        "validator_catches",
    ),
    plots=(
        Plot(
            "sweep",
            "setup_s",
            "break_even_bytes",
            "Break-even size against set-up time",
            {"jobs": 1, "rank_factor": 1},
        ),
    ),
    check=check,
)
