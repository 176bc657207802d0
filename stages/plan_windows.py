"""Stage ``plan_windows``: packet or optical window for every transfer, against baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    File,
    FromParam,
    FromStage,
    Plot,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.errors import InputError
from ranloom.transport.baselines import (
    AGGREGATE_ALWAYS_WINDOW,
    AGGREGATE_PACKET,
    AGGREGATE_SELECTIVE,
    AGGREGATE_STRATEGIES,
    PER_UE_PACKET,
    PER_UE_STRATEGIES,
    STRATEGIES,
    aggregate_plan,
    per_ue_packet,
    per_ue_static_circuits,
)
from ranloom.transport.bound import LowerBound, lower_bound
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
from ranloom.transport.load import load_topology
from ranloom.transport.measures import PortPower, measures
from ranloom.transport.network import TransportSettings, build_network
from ranloom.transport.plan import MODES, Plan
from ranloom.transport.play import Background, Played, background_streams, play
from ranloom.transport.reservation import Reservation
from ranloom.transport.sweep import SweepRow, sweep
from ranloom.transport.tapi import (
    SpectrumGrid,
    parse_epoch,
    reservations_from_tapi,
    to_json,
    to_tapi,
)
from ranloom.transport.topology import LinkDefaults, Topology, read_json
from ranloom.transport.validator import CalendarFault, validate

_STREAM = 50  # child of the seed that belongs to this stage
_BACKGROUND, _BREAKERS = range(2)


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, description="root of random streams")


class LinkParams(StageParams):
    """Links of topology files that state lengths only."""

    packet_gbps: float = Field(gt=0, description="packet rate in each direction, Gbit/s")
    wavelengths: int = Field(ge=1, le=1000, description="channels in each direction")


class RefineParams(StageParams):
    """Refinement of the selective plan by CP-SAT."""

    deterministic_time: float = Field(ge=0, description="per objective, solver's unit; 0: off")
    most_demands: int = Field(ge=1, description="not tried with more demands than that")


class BackgroundParams(StageParams):
    """Background traffic of the fluid simulation."""

    load: float = Field(ge=0, le=1, description="mean share of the busiest links")
    stream_mbps: float = Field(gt=0, description="rate of a stream, Mbit/s")
    mean_stream_s: float = Field(gt=0, description="mean duration of a stream, s")
    buffer_ms: float = Field(gt=0, description="longest queueing time, ms")
    flow_mbps: float = Field(gt=0, description="highest rate of an unshaped transfer, Mbit/s")
    bin_ms: float = Field(gt=0, description="time bins of burstiness, ms")


class PowerParams(StageParams):
    """Per-port power."""

    transponder_w: float = Field(ge=0, description="one end of a lit circuit, W")
    packet_port_w: float = Field(ge=0, description="a packet port at full rate, W")


class SpectrumParams(StageParams):
    """Spectrum of the channels."""

    first_centre_ghz: float = Field(gt=0, description="centre of channel 0, GHz")
    slot_ghz: float = Field(gt=0, description="width of a channel, GHz")


class SweepParams(StageParams):
    """Points of the sweep; all combinations are planned."""

    setup_s: tuple[float, ...] = Field(min_length=1, description="set-up times, s")
    packet_share: tuple[float, ...] = Field(min_length=1, description="granted packet shares")
    jobs: tuple[int, ...] = Field(min_length=1, description="concurrent copies of the demands")
    effort: int = Field(ge=0, description="moves of local search per plan")


class Params(StageParams):
    """Parameters of ``plan_windows``."""

    base: Base
    setup_s: float = Field(ge=0, le=3600, description="set-up time of a window, s")
    guard_s: float = Field(ge=0, le=3600, description="ports and channels rest after a window, s")
    circuit_gbps: float = Field(gt=0, description="rate of a circuit, Gbit/s")
    site_ports: int = Field(ge=1, le=1000, description="optical ports of a gNB")
    hub_ports: int = Field(ge=1, le=1000, description="optical ports of the hub")
    candidate_paths: int = Field(ge=1, le=16, description="paths that a window may take")
    packet_share: float = Field(gt=0, le=1, description="of each packet link, for these transfers")
    plan_on: str = Field(pattern="^(p50|p95)$", description="forecast quantile to plan on")
    effort: int = Field(ge=0, description="moves of local search")
    refine: RefineParams
    links: LinkParams
    reservations_path: str = Field(description="calendar of others, TAPI JSON")
    background: BackgroundParams
    power: PowerParams
    spectrum: SpectrumParams
    epoch: str = Field(description="instant of time 0 in calendar.json, ISO 8601 with zone")
    sweep: SweepParams
    broken_rounds: int = Field(ge=1, le=1000, description="broken calendars per kind and plan")

    def settings(self) -> TransportSettings:
        """Rates, times and limits."""
        names = [f.name for f in fields(TransportSettings)]
        return TransportSettings(**{name: getattr(self, name) for name in names})

    def grid(self) -> SpectrumGrid:
        """Spectrum of the channels."""
        return SpectrumGrid(**vars(self.spectrum))


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
    swept = params.sweep
    for name, values, low, high in (
        ("setup_s", swept.setup_s, 0.0, 3600.0),
        ("packet_share", swept.packet_share, 1e-9, 1.0),
        ("jobs", swept.jobs, 1, 1000),
    ):
        for value in values:
            if not low <= value <= high:
                yield Fault(f"{key}.sweep.{name}", value, f"allowed: {low} to {high}")
    if files["topology"].is_file() and files["others"].is_file():
        topology = load_topology(files["topology"], None, LinkDefaults(**vars(params.links)))
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


def demands_of(columns: Mapping[str, Any], where: str) -> dict[str, ForecastDemands]:
    """Demands of the two ways to send: one flow a UE, one aggregate a gNB.

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


class Planning:
    """One run of the stage: inputs read, then strategy by strategy."""

    def __init__(self, params: Params, inputs: Inputs) -> None:
        self.params = params
        self.settings = params.settings()
        self.topology = load_topology(
            inputs.path("topology"), None, LinkDefaults(**vars(params.links))
        )
        where = str(inputs.path("transfers"))
        self.demands = demands_of(inputs.columns("transfers"), where)
        for demands in self.demands.values():
            require_nodes(demands.realised, self.topology, where)
        self.reservations = _reservations(params, inputs.path("others"), self.topology)
        every = [d.realised for d in self.demands.values()]
        pairs = sorted({pair for d in every for pair in zip(d.source, d.destination, strict=True)})
        self.network = build_network(self.topology, pairs, self.settings)
        self.power = PortPower(**vars(params.power))
        self.background = Background(**vars(params.background))
        last_s = max(int(d.deadline_ns.max()) for d in every) / NS_PER_S
        self.streams = background_streams(
            self.network, self.background, last_s, self._rng(_BACKGROUND)
        )

    def _rng(self, *path: int) -> np.random.Generator:
        entropy = [self.params.base.seed, _STREAM, *path]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def plan(self, strategy: str, demands: Demands) -> Plan:
        """Plan of an aggregate strategy."""
        plan = aggregate_plan(
            strategy,
            demands,
            self.network,
            effort=self.params.effort,
            reservations=self.reservations,
        )
        limits = self.params.refine
        exact = strategy == AGGREGATE_SELECTIVE and not self.reservations
        if exact and limits.deterministic_time and len(demands) <= limits.most_demands:
            refined = refine(
                plan,
                self.network,
                deterministic_time=limits.deterministic_time,
                seed=self.params.base.seed,
            )
            plan = refined.plan
        return plan

    def outcome(self, strategy: str) -> Outcome:
        """Plan, execute and simulate a strategy."""
        shaped = strategy in AGGREGATE_STRATEGIES
        if shaped:
            demands = self.demands["aggregate"]
            planned = self.plan(strategy, demands.planned(self.params.plan_on))
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

    def caught(self, outcomes: Mapping[str, Outcome]) -> tuple[int, int]:
        """Broken calendars that the validator refuses, and how many there were."""
        refused = total = 0
        for index, outcome in enumerate(outcomes.values()):
            for turn in range(self.params.broken_rounds):
                for calendar, demands in outcome.calendars()[:1]:
                    tools = Breaker(
                        demands,
                        self.topology,
                        self.settings,
                        self._rng(_BREAKERS, index, turn),
                    )
                    for broken in tools.broken(calendar).values():
                        total += 1
                        refused += bool(self.faults(broken, demands))
        return refused, total

    def regrets(self, p95: Plan) -> dict[str, float]:
        """Regret of the plan and of planning on the median, against the oracle."""
        demands = self.demands["aggregate"]
        oracle = self.plan(AGGREGATE_SELECTIVE, demands.realised)
        executed = {
            "": self.execute(AGGREGATE_SELECTIVE, p95),
            "p50_": self.execute(
                AGGREGATE_SELECTIVE, self.plan(AGGREGATE_SELECTIVE, demands.planned("p50"))
            ),
        }
        found: dict[str, float] = {}
        for label, plan in executed.items():
            costs = regret(plan, oracle)
            found |= {
                f"{label}regret_pct": costs.missed_pct,
                f"{label}regret_setups": costs.setups,
                f"{label}regret_circuit_seconds": costs.circuit_seconds,
                f"{label}regret_last_finish_s": costs.last_finish_s,
            }
        return found


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Plan every strategy, check all calendars, sweep, and write."""
    planning = Planning(params, inputs)
    outcomes = {strategy: planning.outcome(strategy) for strategy in STRATEGIES}
    errors = sum(
        len(planning.faults(calendar, demands))
        for outcome in outcomes.values()
        for calendar, demands in outcome.calendars()
    )
    refused, broken = planning.caught(outcomes)
    selective = outcomes[AGGREGATE_SELECTIVE].planned
    bound = lower_bound(selective, planning.network)
    points = _swept(params, planning)
    metrics: dict[str, Any] = {
        strategy: _metrics(planning, outcome) for strategy, outcome in outcomes.items()
    }
    errors_pct = [p.break_even_error_pct for p in points if p.break_even_error_pct is not None]
    metrics |= {
        "validator_errors": errors,
        "validator_catches": refused / broken,
        "broken_calendars": broken,
        "bound": asdict(bound),
        "gap": _gap(selective, bound),
        "forecast": planning.regrets(selective),
        "sweep": {
            "break_even_max_error_pct": max(errors_pct, default=0.0),
            "points": len(points),
            **{f"pays_{why}": sum(p.pays == why for p in points) for why in ("deadline", "speed")},
            "pays_nothing": sum(p.pays == "no" for p in points),
        },
    }
    outputs.table("windows", _window_columns(outcomes))
    outputs.table("assignments", _assignment_columns(outcomes))
    outputs.table("rates", _rate_columns(outcomes))
    table = [{"strategy": name} | metrics[name] for name in STRATEGIES]
    outputs.table("strategies", {k: [row[k] for row in table] for k in table[0]})
    outputs.table("sweep", {f.name: [getattr(p, f.name) for p in points] for f in fields(SweepRow)})
    calendar = to_tapi(
        calendar_of(selective, shaped=True).windows,
        parse_epoch(params.epoch),
        params.grid(),
        planning.settings,
        AGGREGATE_SELECTIVE,
    )
    outputs.json("calendar", to_json(calendar))
    return Result(metrics)


def _swept(params: Params, planning: Planning) -> list[SweepRow]:
    demands = planning.demands["aggregate"].planned(params.plan_on)
    first = demands.deadline_ns == demands.deadline_ns.min()
    return sweep(
        demands.take(first),
        planning.topology,
        planning.settings,
        setup_s=params.sweep.setup_s,
        packet_share=params.sweep.packet_share,
        jobs=params.sweep.jobs,
        power=planning.power,
        effort=params.sweep.effort,
    )


def _metrics(planning: Planning, outcome: Outcome) -> dict[str, float | int]:
    played, fluid = outcome.played.plan, outcome.played.fluid
    return {
        **measures(outcome.executed, planning.network, planning.power),
        "planned_missed_bytes": outcome.planned.missed_bytes,
        "simulated_missed_bytes": played.missed_bytes,
        "simulated_last_finish_s": float(played.finish_ns.max(initial=0)) / NS_PER_S,
        "background_delay_p99_ms": fluid.background_delay_p99_ms,
        "background_loss_pct": fluid.background_loss_pct,
        "peak_gbps": fluid.peak_gbps,
        "burstiness": fluid.burstiness,
    }


def _gap(plan: Plan, bound: LowerBound) -> dict[str, float]:
    offered = int(plan.demands.bytes.sum())
    light_s = plan.circuit_ns / NS_PER_S
    return {
        "missed_pct": 100.0 * (plan.missed_bytes - bound.missed_bytes) / offered,
        "setups_pct": 100.0 * (plan.setups - bound.setups) / max(1, bound.setups),
        "circuit_seconds_pct": (
            100.0 * (light_s - bound.circuit_seconds) / bound.circuit_seconds
            if bound.circuit_seconds
            else 0.0
        ),
    }


def _window_columns(outcomes: Mapping[str, Outcome]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {c.name: [] for c in _WINDOWS.columns}
    for strategy, outcome in outcomes.items():
        planned, _ = outcome.calendars()
        for row, used in zip(planned[0].windows, outcome.executed.windows, strict=True):
            values = asdict(row) | {
                "strategy": strategy,
                "bytes": used.bytes,
                "planned_bytes": row.bytes,
            }
            for name, cells in columns.items():
                cells.append(values[name])
    return columns


def _assignment_columns(outcomes: Mapping[str, Outcome]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {c.name: [] for c in _ASSIGNMENTS.columns}
    for strategy, outcome in outcomes.items():
        planned, executed = (calendar for calendar, _ in outcome.calendars())
        simulated = outcome.played.plan.finish_ns.tolist()
        rows = zip(planned.assignments, executed.assignments, simulated, strict=True)
        for before, after, played_ns in rows:
            values = asdict(after) | {
                "strategy": strategy,
                "planned_mode": before.mode,
                "planned_window_id": before.window_id,
                "planned_finish_s": before.finish_s,
                "simulated_finish_s": None if played_ns < 0 else played_ns / NS_PER_S,
            }
            for name, cells in columns.items():
                cells.append(values[name])
    return columns


def _rate_columns(outcomes: Mapping[str, Outcome]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {c.name: [] for c in _RATES.columns}
    for strategy, outcome in outcomes.items():
        _, executed = (calendar for calendar, _ in outcome.calendars())
        for rate in executed.rates or ():
            for name, value in ({"strategy": strategy} | asdict(rate)).items():
                columns[name].append(value)
    return columns


_WINDOWS = Table(
    "windows.parquet",
    "lit windows; times in seconds of the plan",
    (
        Column("strategy", "string", f"one of {', '.join(STRATEGIES)}"),
        Column("window_id", "int32", "unique in a strategy, by start"),
        Column("source", "string", "sending node"),
        Column("destination", "string", "receiving node"),
        Column("path", "string", "node names joined by |"),
        Column("wavelength", "int16", "channel on the whole path"),
        Column("start_s", "float64", "start of the set-up"),
        Column("end_s", "float64", "end of light; the guard time follows"),
        Column("setup_s", "float64", "from the start until data can be sent"),
        Column("bytes", "int64", "payload that rode in it"),
        Column("planned_bytes", "int64", "payload that was planned to"),
    ),
)
_ASSIGNMENTS = Table(
    "assignments.parquet",
    "what became of every demand under every strategy",
    (
        Column("strategy", "string", "strategy; per-UE strategies have per-UE demands"),
        Column("demand_id", "string", "as in transfers.parquet"),
        Column("mode", "string", f"carried out: {', '.join(MODES)}"),
        Column("window_id", "int32", "its window", nullable=True),
        Column("finish_s", "float64", "arrival; a missed demand may arrive late", nullable=True),
        Column("bytes", "int64", "payload"),
        Column("missed_bytes", "int64", "payload that is not there by the deadline"),
        Column("planned_mode", "string", f"planned: {', '.join(MODES)}"),
        Column("planned_window_id", "int32", "window of the plan", nullable=True),
        Column("planned_finish_s", "float64", "arrival in the plan", nullable=True),
        Column("simulated_finish_s", "float64", "arrival beside other traffic", nullable=True),
    ),
)
_RATES = Table(
    "rates.parquet",
    "packet rates that shapers give to aggregates, as carried out",
    (
        Column("strategy", "string", "strategy"),
        Column("demand_id", "string", "as in transfers.parquet"),
        Column("start_s", "float64", "start of a stretch of constant rate"),
        Column("end_s", "float64", "its end"),
        Column("gbps", "float64", "rate, Gbit/s"),
    ),
)
_STRATEGY_TABLE = Table(
    "strategies.parquet",
    "one row a strategy",
    (
        Column("strategy", "string", "strategy"),
        Column("missed_bytes", "int64", "payload not there by its deadline"),
        Column("missed_pct", "float64", "the same in percent of the offered bytes"),
        Column("setups", "int64", "windows"),
        Column("circuit_seconds", "float64", "light held, s"),
        Column("last_finish_s", "float64", "arrival of the last transfer, s"),
        Column("utilisation_pct", "float64", "of the held circuits' capacity; 0 without any"),
        Column("energy_kj", "float64", "ports working for these transfers, kJ"),
        Column("flows", "int64", "transfers"),
        Column("offered_bytes", "int64", "payload of all transfers"),
        Column("planned_missed_bytes", "int64", "payload that the plan gave up"),
        Column("simulated_missed_bytes", "int64", "missed beside other traffic"),
        Column("simulated_last_finish_s", "float64", "last arrival beside other traffic, s"),
        Column("background_delay_p99_ms", "float64", "99 % quantile of other traffic's wait, ms"),
        Column("background_loss_pct", "float64", "other traffic lost, %"),
        Column("peak_gbps", "float64", "highest packet rate of these transfers, Gbit/s"),
        Column("burstiness", "float64", "coefficient of variation of that rate per bin"),
    ),
)
_SWEEP = Table(
    "sweep.parquet",
    "set-up time x granted packet share x concurrent jobs, first round's demands",
    (
        Column("setup_s", "float64", "set-up time, s"),
        Column("packet_share", "float64", "granted share of each packet link"),
        Column("jobs", "int32", "concurrent copies of the demands"),
        Column("packet_gbps", "float64", "granted rate on the narrowest route, Gbit/s"),
        Column("offered_bytes", "int64", "payload of all demands"),
        Column("median_bytes", "float64", "median payload"),
        Column("packet_missed_pct", "float64", "missed bytes with packets only, %"),
        Column("window_missed_pct", "float64", "missed bytes with windows only, %"),
        Column("selective_missed_pct", "float64", "missed bytes of the selective plan, %"),
        Column("selective_window_pct", "float64", "share of its bytes in windows, %"),
        Column("selective_setups", "int64", "its windows"),
        Column("selective_circuit_s", "float64", "its light, s"),
        Column("packet_mean_s", "float64", "mean transfer time, packets only, s", nullable=True),
        Column("window_mean_s", "float64", "mean transfer time, windows only, s", nullable=True),
        Column("packet_energy_kj", "float64", "energy, packets only, kJ"),
        Column("window_energy_kj", "float64", "energy, windows only, kJ"),
        Column("break_even_bytes", "float64", "Ts / (1/Rp - 1/Rc); null: never", nullable=True),
        Column("break_even_simulated_bytes", "float64", "by simulation", nullable=True),
        Column("break_even_error_pct", "float64", "simulation against theory, %", nullable=True),
        Column("pays", "string", "deadline: fewer misses; speed: median above break-even; no"),
    ),
)

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
        "windows": _WINDOWS,
        "assignments": _ASSIGNMENTS,
        "rates": _RATES,
        "calendar": File("calendar.json", "the selective plan as TAPI connectivity services"),
        "strategies": _STRATEGY_TABLE,
        "sweep": _SWEEP,
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
            {"jobs": 1},
        ),
    ),
    check=check,
)
