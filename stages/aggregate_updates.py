"""Stage ``aggregate_updates``: federated rounds over left-over uplink, summed at the gNBs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from safetensors.numpy import save_file

from pipeline.io import Inputs, Outputs
from pipeline.stage import Fault, File, FromParam, FromStage, Plot, Result, Stage
from ranloom.errors import InputError
from ranloom.federated.cells import cell_rates
from ranloom.federated.core_rate import measure_core_gbytes_per_s
from ranloom.federated.experiment import (
    Answers,
    JobSetup,
    Network,
    earlier_rounds,
    random_updates,
    simulate,
)
from ranloom.federated.figures import (
    burstiness,
    dropped_by_reason,
    forecast_quality,
    moved_while_uploading,
    payload_errors,
    round_times,
    update_sizes,
)
from ranloom.federated.hub import Hub
from ranloom.federated.mobility import read_walk
from ranloom.federated.payload import Payload, encode
from ranloom.federated.radio import CellRates
from ranloom.federated.rate_trace import read_rates, traced_rates
from ranloom.federated.rounds import Behaviour
from ranloom.federated.sites import gnb_nodes, nearest
from ranloom.federated.tables import curve_columns, transfer_columns, update_columns, wave_columns
from ranloom.federated.transfers import AGGREGATE, PER_UE, Transfer, transfers
from ranloom.federated.verify import (
    fixed_point_identical,
    flat_rounds,
    float64_error,
    merged,
    merged_as_shipped,
    weigh,
    worst_error,
)
from ranloom.transport.load import load_topology
from ranloom.transport.topology import LinkDefaults
from stages._aggregate_params import Params
from stages._aggregate_tables import QUALITY, TRANSFERS, UPDATES, WAVES

_STREAM = 40  # child of the seed that belongs to this stage
_RATES, _UPDATES, _ROUNDS, _QUALITY = range(4)
_SHIPPED = ("fp64", "fp32", "fp16", "int8")
_SENT = ("fp32", "fp16", "int8")
_ERROR_SAMPLES = 20


def check(params: Params, files: Mapping[str, Path]) -> Iterator[Fault]:
    """What the parameters say against each other and about the topology."""
    key = "params.yaml: aggregate_updates"
    total = sum(c.share for c in params.ue.classes)
    if abs(total - 1.0) > 1e-9:
        yield Fault(f"{key}.ue.classes", round(total, 9), "allowed: shares that sum to 1")
    names = [job.name for job in params.jobs]
    if len(set(names)) < len(names):
        yield Fault(f"{key}.jobs", names, "allowed: each job name once")
    if params.hour >= params.hours:
        yield Fault(f"{key}.hour", params.hour, f"allowed: 0 to {params.hours - 1}")
    cut = params.aggregator.cut_off
    if cut.min_s > cut.max_s:
        yield Fault(f"{key}.aggregator.cut_off.min_s", cut.min_s, f"allowed: up to {cut.max_s}")
    for job in params.jobs:
        where = f"{key}.jobs.{job.name}"
        try:
            setup = params.setup(job)
            parts = sum(setup.shipping.part_bytes())
        except InputError as error:
            yield Fault(f"{where}: {error.where}", error.value, error.allowed)
            continue
        ready_s = cut.max_s + setup.shipping.seconds(setup.job.update_bytes + parts)
        if job.deadline_s <= ready_s:
            allowed = f"allowed: above {ready_s:.3f}, the latest release of a wave"
            yield Fault(f"{where}.deadline_s", job.deadline_s, allowed)
        if job.period_s < cut.max_s:
            yield Fault(f"{where}.period_s", job.period_s, f"allowed: at least {cut.max_s}")
    if params.quality.width % params.quality.heads:
        allowed = f"allowed: a divisor of the width {params.quality.width}"
        yield Fault(f"{key}.quality.heads", params.quality.heads, allowed)
    read: dict[str, Callable[[Path], object]] = {
        "text": params.quality.task,
        "walk": read_walk,
        "trace": read_rates,
        "topology": lambda path: gnb_nodes(*graph_and_hub(path), params.n_gnbs),
    }
    for name, reader in read.items():
        try:
            reader(files[name])
        except InputError as error:
            where = f"{key}.n_gnbs" if error.where == "n_gnbs" else error.where
            yield Fault(where, error.value, error.allowed)


def graph_and_hub(path: Path) -> tuple[nx.Graph, str]:
    """Fibre graph and hub; what the links carry does not matter here."""
    topology = load_topology(path, None, LinkDefaults(packet_gbps=1.0, wavelengths=1))
    return topology.graph, topology.hub


def uplink(params: Params, inputs: Inputs) -> CellRates:
    """Left-over uplink of the gNBs' cells: simulated, or a trace replayed."""
    seed = [params.base.seed, _STREAM, _RATES]
    if params.rates.source == "trace":
        trace = read_rates(inputs.path("trace"))
        return traced_rates(trace, params.rates.trace_share, params.n_gnbs, seed)
    return cell_rates(
        inputs.columns("rates"),
        scenario=params.scenario,
        hours=params.hours,
        hour=params.hour,
        hour_spread=params.hour_spread,
        gnbs=params.n_gnbs,
        seed=seed,
        where=str(inputs.path("rates")),
    )


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Simulate, aggregate, verify, and write demands."""
    seed = [params.base.seed, _STREAM]
    graph, hub = graph_and_hub(inputs.path("topology"))
    names = gnb_nodes(graph, hub, params.n_gnbs)
    near = nearest(graph, names, params.nearest_gnbs)
    network = Network(tuple(names), near, uplink(params, inputs))
    setups = [params.setup(job) for job in params.jobs]
    values_of = random_updates(setups, params.tensors.scale, [*seed, _UPDATES])

    def payload_of(job: int, ue: int, round_index: int) -> Payload:
        return encode(values_of(job, ue, round_index), setups[job].update_dtype)

    behaviour = params.behaviour(inputs.path("walk"))
    answers = Answers(params.ue.lost_answer_probability, params.ue.retry_s)
    simulation = simulate(setups, network, behaviour, answers, payload_of, [*seed, _ROUNDS])
    histories = earlier_rounds(
        setups,
        network,
        behaviour,
        params.history_rounds,
        [*seed, _ROUNDS],
    )
    for setup, replay in zip(setups, simulation.replays, strict=True):
        if not replay.waves:
            raise InputError(
                f"params.yaml: aggregate_updates.jobs.{setup.job.name}",
                "no update counted in any round",
                "allowed: a period and updates that the cells' left-over uplink can carry",
            )
    flat = [flat_rounds(simulation, j, s, payload_of) for j, s in enumerate(setups)]
    hubs = [merged(simulation, j, s) for j, s in enumerate(setups)]
    rows: list[Transfer] = []
    for j, setup in enumerate(setups):
        rows += transfers(
            simulation.population,
            simulation.uploads,
            j,
            simulation.replays[j],
            setup.shipping,
            names,
            histories[j].waves,
            histories[j].updates,
        )
    by_strategy = {name: [r for r in rows if r.strategy == name] for name in (PER_UE, AGGREGATE)}
    rows = by_strategy[PER_UE] + by_strategy[AGGREGATE]
    outputs.table("transfers", transfer_columns(rows, names, hub))
    classes = [c.name for c in params.ue.classes]
    outputs.table("updates", update_columns(simulation, names, classes))
    outputs.table("waves", wave_columns(simulation))
    write_average(outputs.path("aggregate"), setups, hubs)

    weights = weigh(simulation, hubs)
    jobs = range(len(setups))
    counted = [(j, f.ue, f.round) for j in jobs for rnd in flat[j] for f in rnd.fates]
    some = [values_of(*key) for key in counted[:_ERROR_SAMPLES]]
    metrics = {
        "exact_max_rel_error": max(
            max(
                worst_error(hubs[j], flat[j]),
                float64_error(simulation, j, setups[j], values_of, flat[j]),
            )
            for j in jobs
        ),
        "fixed_point_bit_identical": all(
            fixed_point_identical(simulation, j, setups[j], payload_of, flat[j]) for j in jobs
        ),
        "bytes_per_ue_flows": sum(r.bytes for r in by_strategy[PER_UE]),
        "bytes_aggregated": sum(r.bytes for r in by_strategy[AGGREGATE]),
        "flows_per_ue": len(by_strategy[PER_UE]),
        "flows_aggregated": len(by_strategy[AGGREGATE]),
        "weight_conserved": weights.conserved,
        "weight": {
            "in": weights.in_,
            "delivered": weights.delivered,
            "carried": weights.carried,
            "carried_waiting": weights.waiting,
            "dropped": weights.dropped,
            "dropped_by": dropped_by_reason(simulation),
        },
        "late_share": weights.carried / max(1, weights.delivered + weights.carried),
        "duplicates": sum(replay.duplicates for replay in simulation.replays),
        "moved_while_uploading": moved_while_uploading(simulation),
        "shipped": {
            f"{dtype}_max_rel_error": max(
                worst_error(merged_as_shipped(simulation, j, setups[j], dtype), flat[j])
                for j in jobs
            )
            for dtype in _SHIPPED
        },
        "payload": payload_errors(some, _SENT),
        "update": update_sizes(setups),
        "round": round_times(simulation),
        "forecast": {name: forecast_quality(mine) for name, mine in by_strategy.items()},
        "burstiness": burstiness(
            simulation, by_strategy, params.bursts.bin_s, params.bursts.burst_gbps
        ),
    }
    rate = measure_core_gbytes_per_s(setups[0].update_dtype)
    metrics |= quality(params, setups[0], network, behaviour, inputs.path("text"), outputs)
    return Result(metrics, {"core_gbytes_per_s": rate})


def quality(
    params: Params,
    setup: JobSetup,
    network: Network,
    behaviour: Behaviour,
    text: Path,
    outputs: Outputs,
) -> dict[str, Any]:
    """Fine-tune with every strategy on part of the network; writes the curves."""
    # Imported here: every `check` reads this declaration, and torch takes seconds to import.
    from ranloom.federated.quality import STRATEGIES, Training, pretrained, run_strategy, summary

    chosen = params.quality
    part = network.first(min(chosen.gnbs, params.n_gnbs))
    job = replace(
        setup.job,
        rounds=chosen.rounds,
        first_begin_s=0.0,
        period_s=chosen.period_s,
        deadline_s=chosen.period_s,
        ues_per_gnb=chosen.ues_per_gnb,
    )
    task = chosen.task(text)
    model = pretrained(
        task,
        chosen.layers,
        chosen.width,
        chosen.heads,
        chosen.rank,
        chosen.pretrain_steps,
        params.base.seed,
    )
    training = Training(chosen.steps, chosen.rows, chosen.rate, chosen.skew, chosen.slow_labels)
    curves = [
        run_strategy(
            strategy,
            replace(setup, job=job),
            part,
            behaviour,
            training,
            task,
            model,
            [params.base.seed, _STREAM, _QUALITY, repetition],
            repetition,
        )
        for repetition in range(chosen.seeds)
        for strategy in STRATEGIES
    ]
    outputs.table("quality", curve_columns(curves))
    return {
        "quality": summary(curves, chosen.rounds * chosen.period_s),
        "quality_exact_max_rel_error": max(curve.worst_error for curve in curves),
    }


def write_average(path: Path, setups: list[JobSetup], hubs: list[Hub]) -> None:
    """Averages of each job's last round, float64, named ``<job>.<tensor>``."""
    tensors = {}
    for setup, hub in zip(setups, hubs, strict=True):
        average = hub.average(hub.rounds()[-1])
        for name, values in setup.config.layout.unflatten(average).items():
            tensors[f"{setup.job.name}.{name}"] = np.ascontiguousarray(values)
    save_file(tensors, path)


STAGE = Stage(
    name="aggregate_updates",
    title="Federated rounds aggregated at the gNB",
    params=Params,
    inputs={
        "rates": FromStage("generate_traces", "ue_rates"),
        "topology": FromParam("aggregate_updates.topology_path"),
        "walk": FromParam("aggregate_updates.ue.walk_path"),
        "trace": FromParam("aggregate_updates.rates.trace_path"),
        "text": FromParam("aggregate_updates.quality.text_path"),
    },
    outputs={
        "transfers": TRANSFERS,
        "updates": UPDATES,
        "waves": WAVES,
        "quality": QUALITY,
        "aggregate": File("aggregate.safetensors", "averages of the last round, float64"),
    },
    run=run,
    headline=("bytes_per_ue_flows", "bytes_aggregated", "exact_max_rel_error", "weight_conserved"),
    measured=True,
    plots=(Plot("waves", "closed_s", "sum_n", "Samples shipped by each wave"),),
    check=check,
)
