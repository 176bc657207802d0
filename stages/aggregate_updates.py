"""Stage ``aggregate_updates``: federated rounds over left-over uplink, summed at the gNBs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
from pydantic import Field
from safetensors.numpy import save_file

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
from ranloom.federated.aggregator import AggregatorConfig
from ranloom.federated.cells import cell_rates
from ranloom.federated.core_rate import measure_core_gbytes_per_s
from ranloom.federated.cutoff import CutOff
from ranloom.federated.experiment import (
    Answers,
    JobSetup,
    Network,
    chunk_bytes,
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
from ranloom.federated.layout import TensorLayout
from ranloom.federated.mobility import Mobility, read_walk
from ranloom.federated.payload import Payload, encode, payload_bytes
from ranloom.federated.quality import STRATEGIES, Training, pretrained, run_strategy, summary
from ranloom.federated.radio import CellRates
from ranloom.federated.rounds import Behaviour, Job, SampleCounts, UeClass
from ranloom.federated.shapes import MODEL_SHAPES, lora_layout, model_shape
from ranloom.federated.tables import curve_columns, transfer_columns, update_columns, wave_columns
from ranloom.federated.text_task import TextTask, read_texts
from ranloom.federated.transfers import AGGREGATE, PER_UE, Shipping, Transfer, transfers
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
from ranloom.transport.topology import LinkDefaults, Topology

_STREAM = 40  # child of the seed that belongs to this stage
_RATES, _UPDATES, _ROUNDS, _QUALITY = range(4)
_SHIPPED = ("fp64", "fp32", "fp16", "int8")
_SENT = ("fp32", "fp16", "int8")
_ERROR_SAMPLES = 20


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, description="root of random streams")


class JobParams(StageParams):
    """One federated job."""

    name: str = Field(pattern=r"^[a-z0-9_-]{1,32}$", description="in ids and tables")
    model: Literal[*MODEL_SHAPES] = Field(description="model whose adapter is trained")  # type: ignore[valid-type]
    rank: int = Field(ge=1, le=1024, description="LoRA rank")
    targets: tuple[str, ...] = Field(min_length=1, description="adapted modules, or all_linear")
    update_dtype: Literal["fp32", "fp16", "int8"] = Field(description="wire format of an update")
    ues_per_gnb: int = Field(ge=1, le=1000, description="UEs of the job at each gNB")
    rounds: int = Field(ge=3, le=1000, description="rounds")
    first_begin_s: float = Field(ge=0, description="begin of round 0, s")
    period_s: float = Field(gt=0, description="from one begin to the next, s")
    deadline_s: float = Field(
        gt=0, description="an aggregate is due at the hub then, s after begin"
    )


class ClassParams(StageParams):
    """A class of devices."""

    name: str = Field(min_length=1, description="in tables")
    share: float = Field(ge=0, le=1, description="of the UEs; shares sum to 1")
    median_s: float = Field(gt=0, description="median training time of a round, s")
    sigma: float = Field(ge=0, le=2, description="sd of its log, from round to round")


class SampleParams(StageParams):
    """Data sizes n_k."""

    kind: Literal["lognormal", "zipf"] = Field(description="distribution")
    median: float = Field(ge=1, description="of lognormal")
    sigma: float = Field(ge=0, le=4, description="of lognormal: sd of the log")
    exponent: float = Field(gt=0, le=10, description="of zipf")
    most: int = Field(ge=1, le=1_000_000, description="largest n_k")


class UeParams(StageParams):
    """Behaviour of UEs."""

    classes: tuple[ClassParams, ...] = Field(min_length=1, description="device classes")
    samples: SampleParams
    work: Literal["fixed_steps", "one_epoch"] = Field(description="whether time grows with n_k")
    leave_probability: float = Field(ge=0, lt=1, description="vanishes while it works for a round")
    return_probability: float = Field(gt=0, le=1, description="is back at the next begin")
    mobility: Literal["poisson", "walk"] = Field(description="how moving UEs move")
    moving_share: float = Field(ge=0, le=1, description="of the UEs")
    moves_per_hour: float = Field(ge=0, le=3600, description="hand-overs of one, for poisson")
    walk_path: str = Field(description="CSV file: second, cell; for walk")
    move_gap_s: float = Field(gt=0, le=60, description="interruption by a hand-over, s")
    restart_on_move: bool = Field(description="a hand-over restarts an upload (else it goes on)")
    downlink_mbps: float = Field(gt=0, description="of a cell, for model distribution, Mbit/s")
    multicast: bool = Field(description="a cell sends the model once for all its UEs")
    lost_answer_probability: float = Field(ge=0, le=1, description="the UE then sends all again")
    retry_s: float = Field(gt=0, description="how long a UE waits for an answer, s")
    drain_s: float = Field(gt=0, description="uploads are waited for so long at the end, s")


class CutOffParams(StageParams):
    """When a gNB stops waiting in a round."""

    policy: Literal["fixed", "quorum", "mad"] = Field(description="rule")
    min_s: float = Field(ge=0, description="earliest, s after the begin (quorum, mad)")
    max_s: float = Field(gt=0, description="latest, s after the begin")
    quorum: float = Field(gt=0, le=1, description="share of the expected updates")
    mad_factor: float = Field(ge=0, description="k in median + k MAD")


class AggregatorParams(StageParams):
    """The gNB's aggregator."""

    arithmetic: Literal["float64", "fixed64", "float32"] = Field(description="of the sums")
    fraction_bits: int = Field(ge=0, le=52, description="of fixed64 sums")
    staging_updates: int = Field(ge=1, description="most unfinished updates held at a time")
    stall_s: float = Field(gt=0, description="an upload without news is dropped then, s")
    late: Literal["carry_over", "carry_discount", "drop"] = Field(description="late updates")
    alpha: float = Field(ge=0, le=10, description="carry_discount: weight n_k (1+tau)^-alpha")
    max_staleness: int = Field(ge=1, description="rounds late from which on it is dropped")
    wave_max_s: float = Field(gt=0, description="a wave waits at most so long, s")
    wave_max_bytes: int = Field(ge=1024, description="largest part of a wave, bytes")
    shipped_dtype: Literal["fp64", "fp32", "fp16", "int8"] = Field(description="wire format")
    core_gbytes_per_s: float = Field(gt=0, description="checked and added by one core, GB/s")
    cut_off: CutOffParams


class TensorParams(StageParams):
    """Tensors that are really added up; bytes in the tables are those of the job's model."""

    model: Literal[*MODEL_SHAPES] = Field(description="shape of the tensors")  # type: ignore[valid-type]
    rank: int = Field(ge=1, le=1024, description="LoRA rank")
    targets: tuple[str, ...] = Field(min_length=1, description="adapted modules")
    scale: float = Field(gt=0, description="sd of the values")


class BurstParams(StageParams):
    """Burstiness."""

    bin_s: tuple[int, ...] = Field(min_length=1, description="bin widths, s")
    burst_gbps: float = Field(gt=0, description="rate at which a gNB sends a wave, Gbit/s")


class QualityParams(StageParams):
    """Fine-tuning of a small model with every strategy."""

    text_path: str = Field(description="tab-separated file, columns sentence and label")
    words: int = Field(ge=16, le=100_000, description="vocabulary")
    tokens: int = Field(ge=2, le=512, description="words of a text")
    test_rows: int = Field(ge=16, description="last rows of the file, for testing")
    layers: int = Field(ge=1, le=24, description="decoder layers")
    width: int = Field(ge=4, le=1024, description="model width")
    heads: int = Field(ge=1, description="attention heads")
    rank: int = Field(ge=1, description="LoRA rank, on all linear layers")
    pretrain_steps: int = Field(ge=0, description="next-token steps before, without labels")
    gnbs: int = Field(ge=2, description="gNBs that take part")
    ues_per_gnb: int = Field(ge=1, description="UEs at each of them")
    rounds: int = Field(ge=2, description="rounds on the timetable")
    period_s: float = Field(gt=0, description="timetable and cut-off of a round, s")
    steps: int = Field(ge=1, description="local steps in a round")
    rows: int = Field(ge=1, description="texts in a batch")
    rate: float = Field(gt=0, lt=1, description="step size of Adam")
    skew: float = Field(ge=0.5, le=1, description="share of rows with a label of the own class")
    slow_labels: int = Field(ge=1, description="labels that belong to the slowest class")
    seeds: int = Field(ge=1, le=100, description="repetitions")

    def task(self, path: Path) -> TextTask:
        """The texts.

        Raises:
            InputError: a file that cannot be used, or more slow labels than labels.
        """
        task = read_texts(path, self.words, self.tokens, self.test_rows)
        if self.slow_labels >= task.labels:
            key = "params.yaml: aggregate_updates.quality.slow_labels"
            raise InputError(key, self.slow_labels, f"allowed: 1 to {task.labels - 1}")
        return task


class Params(StageParams):
    """Parameters of ``aggregate_updates``."""

    base: Base
    scenario: str = Field(description="rows of ue_rates.parquet")
    hours: int = Field(ge=1, description="hours that the scenario's seconds sample")
    hour: int = Field(ge=0, description="hour of the rounds")
    hour_spread: int = Field(ge=0, le=12, description="of gNBs beyond the scenario's cells")
    topology_path: str = Field(description="nodes of kind gnb, and the hub: the destination")
    n_gnbs: int = Field(ge=1, le=1000, description="gNBs")
    nearest_gnbs: int = Field(ge=1, description="gNBs that a UE may move to")
    jobs: tuple[JobParams, ...] = Field(min_length=1, description="federated jobs")
    ue: UeParams
    aggregator: AggregatorParams
    tensors: TensorParams
    history_rounds: int = Field(ge=1, le=1000, description="earlier rounds, for the forecast")
    bursts: BurstParams
    quality: QualityParams

    def behaviour(self, walk: Path) -> Behaviour:
        """Behaviour of the UEs.

        Raises:
            InputError: a walk that cannot be used.
        """
        ue = self.ue
        followed = read_walk(walk) if ue.mobility == "walk" else None
        return Behaviour(
            classes=tuple(UeClass(**vars(c)) for c in ue.classes),
            samples=SampleCounts(**vars(ue.samples)),
            work=ue.work,
            leave_probability=ue.leave_probability,
            return_probability=ue.return_probability,
            mobility=Mobility(ue.moving_share, ue.moves_per_hour, followed),
            downlink_mbps=ue.downlink_mbps,
            multicast=ue.multicast,
            restart_on_move=ue.restart_on_move,
            move_gap_s=ue.move_gap_s,
            give_up=self.aggregator.late == "drop",
            drain_s=ue.drain_s,
            until_s=0.0,
        )

    def layout(self) -> TensorLayout:
        """Tensors that are added up."""
        return lora_layout(
            model_shape(self.tensors.model), self.tensors.rank, list(self.tensors.targets)
        )

    def setup(self, job: JobParams) -> JobSetup:
        """A job with its aggregators' configuration."""
        agg, layout = self.aggregator, self.layout()
        size = payload_bytes(job.update_dtype, layout.elements)
        full = lora_layout(model_shape(job.model), job.rank, list(job.targets)).elements
        update_bytes = payload_bytes(job.update_dtype, full)
        config = AggregatorConfig(
            gnb="",
            layout=layout,
            arithmetic=agg.arithmetic,
            fraction_bits=agg.fraction_bits,
            chunk_bytes=chunk_bytes(job.update_dtype, layout),
            staging_bytes=agg.staging_updates * size,
            stall_s=agg.stall_s,
            cut_off=CutOff(**vars(agg.cut_off)),
            wave_max_s=agg.wave_max_s,
            late=agg.late,
            alpha=agg.alpha,
            max_staleness=agg.max_staleness,
        )
        shipping = Shipping(
            dtype=agg.shipped_dtype,
            elements=full,
            wave_max_bytes=agg.wave_max_bytes,
            core_gbytes_per_s=agg.core_gbytes_per_s,
            latest_close_s=agg.cut_off.max_s,
            update_tensor_bytes=size,
        )
        timing = Job(
            name=job.name,
            rounds=job.rounds,
            first_begin_s=job.first_begin_s,
            period_s=job.period_s,
            deadline_s=job.deadline_s,
            ues_per_gnb=job.ues_per_gnb,
            model_bytes=update_bytes,
            update_bytes=update_bytes,
        )
        return JobSetup(timing, config, job.update_dtype, shipping)


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
        "topology": lambda path: gnb_nodes(read_topology(path), params.n_gnbs),
    }
    for name, reader in read.items():
        if name in files and files[name].is_file():
            try:
                reader(files[name])
            except InputError as error:
                yield Fault(error.where, error.value, error.allowed)


def read_topology(path: Path) -> Topology:
    """The topology; what its links carry does not matter here."""
    return load_topology(path, None, LinkDefaults(packet_gbps=1.0, wavelengths=1))


def gnb_nodes(topology: Topology, count: int) -> list[str]:
    """Node names of the gNBs, evenly drawn from those of kind ``gnb`` (else all but the hub).

    Raises:
        InputError: fewer nodes than gNBs.
    """
    kinds = nx.get_node_attributes(topology.graph, "kind")
    nodes = [n for n in topology.graph if kinds.get(n) == "gnb"]
    nodes = nodes or [n for n in topology.graph if n != topology.hub]
    if count > len(nodes):
        raise InputError("params.yaml: aggregate_updates.n_gnbs", count, f"allowed: {len(nodes)}")
    return [str(nodes[i * len(nodes) // count]) for i in range(count)]


def nearest(topology: Topology, names: list[str], count: int) -> tuple[tuple[int, ...], ...]:
    """For each gNB its nearest ones by fibre."""
    by_gnb = []
    for name in names:
        km = nx.single_source_dijkstra_path_length(topology.graph, name, weight="km")
        others = sorted((km[other], i) for i, other in enumerate(names) if other != name)
        by_gnb.append(tuple(i for _, i in others[:count]))
    return tuple(by_gnb)


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Simulate, aggregate, verify, and write demands."""
    seed = [params.base.seed, _STREAM]
    topology = read_topology(inputs.path("topology"))
    names = gnb_nodes(topology, params.n_gnbs)
    rates = cell_rates(
        inputs.columns("rates"),
        scenario=params.scenario,
        hours=params.hours,
        hour=params.hour,
        hour_spread=params.hour_spread,
        gnbs=params.n_gnbs,
        seed=[*seed, _RATES],
        where=str(inputs.path("rates")),
    )
    network = Network(tuple(names), nearest(topology, names, params.nearest_gnbs), rates)
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
    outputs.table("transfers", transfer_columns(rows, names, topology.hub))
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
    chosen = params.quality
    count = min(chosen.gnbs, params.n_gnbs)
    part = Network(
        network.names[:count],
        tuple(tuple((g + step) % count for step in (1, count - 1)) for g in range(count)),
        CellRates(
            network.rates.mbps[:count],
            network.rates.series_count[:count],
            network.rates.phase_s[:count],
        ),
    )
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


TRANSFERS = Table(
    "transfers.parquet",
    "Transfer demands of both strategies; both carry the same updates in the same rounds.",
    (
        Column("demand_id", "string", "unique"),
        Column("job", "string", "federated job"),
        Column("round", "int32", "round in which the transfer counts"),
        Column("wave", "int32", "wave of that round at that gNB"),
        Column("part", "int32", "part of the wave (0 for per_ue)"),
        Column("strategy", "string", "per_ue or aggregate"),
        Column("source", "string", "node of the gNB"),
        Column("destination", "string", "node of the hub"),
        Column("bytes", "int64", "payload on the wire, from the shape of the job's model"),
        Column("release_p50_s", "float64", "forecast when the round begins: median"),
        Column("release_p95_s", "float64", "forecast when the round begins: 95 % quantile"),
        Column("release_s", "float64", "when it happened"),
        Column("deadline_s", "float64", "when it has to be at the hub"),
        Column("sum_n", "int64", "samples in it"),
        Column("updates", "int32", "updates in it"),
        Column("payload_sha256", "string", "of the tensors that were really encoded"),
        Column("tensor_bytes", "int64", "bytes of those tensors (smaller model)"),
    ),
)
UPDATES = Table(
    "updates.parquet",
    "One row for each round that a UE took part in, and one more for a retransmission.",
    (
        Column("job", "string", "federated job"),
        Column("round", "int32", "round that the UE trained for"),
        Column("ue", "string", "name"),
        Column("ue_class", "string", "device class"),
        Column("gnb", "string", "gNB that counted it, else the one where the round began"),
        Column("n_k", "int64", "samples"),
        Column("compute_s", "float64", "training time"),
        Column("upload_start_s", "float64", "begin of the upload", nullable=True),
        Column("upload_s", "float64", "duration of the upload", nullable=True),
        Column("arrival_s", "float64", "last bit at the gNB", nullable=True),
        Column("fate", "string", "delivered, carried (a later round), dropped, duplicate"),
        Column("reason", "string", "why dropped", nullable=True),
        Column("counted_round", "int32", "round that it counts in", nullable=True),
        Column("wave", "int32", "wave that ships it", nullable=True),
    ),
)
WAVES = Table(
    "waves.parquet",
    "Waves of all gNBs.",
    (
        Column("job", "string", "federated job"),
        Column("round", "int32", "round"),
        Column("gnb", "string", "node of the gNB"),
        Column("wave", "int32", "index in the round at that gNB"),
        Column("closed_s", "float64", "when the last update could join"),
        Column("closed_by", "string", "complete, cut_off, wave_time or next_round"),
        Column("updates", "int32", "updates in it"),
        Column("sum_n", "int64", "samples in it"),
        Column("weight", "float64", "samples, discounted where late"),
    ),
)

QUALITY = Table(
    "quality.parquet",
    "Accuracy of the global model against simulated time.",
    (
        Column("strategy", "string", "wait, drop, carry_over or carry_discount"),
        Column("seed", "int32", "repetition"),
        Column("round", "int32", "rounds finished"),
        Column("time_s", "float64", "when this model was ready"),
        Column("accuracy", "float64", "on texts of all labels, 0 to 1"),
        Column("slow_class_accuracy", "float64", "on texts of the slow devices' labels"),
        Column("updates", "int32", "counted in the last round"),
    ),
)

STAGE = Stage(
    name="aggregate_updates",
    title="Federated rounds aggregated at the gNB",
    params=Params,
    inputs={
        "rates": FromStage("generate_traces", "ue_rates"),
        "topology": FromParam("aggregate_updates.topology_path"),
        "walk": FromParam("aggregate_updates.ue.walk_path"),
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
