"""Parameters of ``aggregate_updates``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt

from pipeline.stage import StageParams
from ranloom.errors import InputError
from ranloom.federated.aggregator_config import AggregatorConfig
from ranloom.federated.cutoff import CutOff
from ranloom.federated.experiment import JobSetup, chunk_bytes
from ranloom.federated.layout import TensorLayout
from ranloom.federated.mobility import Mobility, read_walk
from ranloom.federated.payload import payload_bytes
from ranloom.federated.rounds import Behaviour, Job, SampleCounts, UeClass
from ranloom.federated.shapes import MODEL_SHAPES, lora_layout, model_shape
from ranloom.federated.text_task import TextTask, read_texts
from ranloom.federated.transfers import Shipping


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, le=1_000_000_000_000, description="root of random streams")


class JobParams(StageParams):
    """One federated job."""

    name: str = Field(pattern=r"^[a-z0-9_-]{1,32}$", description="in ids and tables")
    model: Literal[*MODEL_SHAPES] = Field(description="model whose adapter is trained")  # type: ignore[valid-type]
    rank: int = Field(ge=1, le=1024, description="LoRA rank")
    targets: tuple[str, ...] = Field(min_length=1, description="adapted modules, or all_linear")
    update_dtype: Literal["fp32", "fp16", "int8"] = Field(description="wire format of an update")
    ues_per_gnb: int = Field(ge=1, le=1000, description="UEs of the job at each gNB")
    rounds: int = Field(ge=3, le=1000, description="rounds")
    first_begin_s: float = Field(ge=0, le=1e7, description="begin of round 0, s")
    period_s: float = Field(gt=0, le=1e7, description="from one begin to the next, s")
    deadline_s: float = Field(
        gt=0, le=1e7, description="an aggregate is due at the hub then, s after begin"
    )


class ClassParams(StageParams):
    """A class of devices."""

    name: str = Field(min_length=1, description="in tables")
    share: float = Field(ge=0, le=1, description="of the UEs; shares sum to 1")
    median_s: float = Field(gt=0, le=1e7, description="median training time of a round, s")
    sigma: float = Field(ge=0, le=2, description="sd of its log, from round to round")


class SampleParams(StageParams):
    """Data sizes n_k."""

    kind: Literal["lognormal", "zipf"] = Field(description="distribution")
    median: float = Field(ge=1, le=1e6, description="of lognormal")
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
    downlink_mbps: float = Field(
        gt=0, le=1e9, description="of a cell, for model distribution, Mbit/s"
    )
    multicast: bool = Field(description="a cell sends the model once for all its UEs")
    lost_answer_probability: float = Field(ge=0, le=1, description="the UE then sends all again")
    retry_s: float = Field(gt=0, le=1e7, description="how long a UE waits for an answer, s")
    drain_s: float = Field(gt=0, le=1e7, description="uploads are waited for so long at the end, s")


class RateParams(StageParams):
    """Where upload rates come from."""

    source: Literal["simulated", "trace"] = Field(description="simulated cells, or a file")
    trace_path: str = Field(description="CSV file: second, *_mbps; for trace")
    trace_share: float = Field(gt=0, le=1, description="of the recorded rate, for an upload")


class CutOffParams(StageParams):
    """When a gNB stops waiting in a round."""

    policy: Literal["fixed", "quorum", "mad"] = Field(description="rule")
    min_s: float = Field(ge=0, le=1e7, description="earliest, s after the begin (quorum, mad)")
    max_s: float = Field(gt=0, le=1e7, description="latest, s after the begin")
    quorum: float = Field(gt=0, le=1, description="share of the expected updates")
    mad_factor: float = Field(ge=0, le=1e6, description="k in median + k MAD")


class AggregatorParams(StageParams):
    """The gNB's aggregator."""

    arithmetic: Literal["float64", "fixed64", "float32"] = Field(description="of the sums")
    fraction_bits: int = Field(ge=0, le=52, description="of fixed64 sums")
    staging_updates: int = Field(
        ge=1, le=1_000_000, description="most unfinished updates held at a time"
    )
    stall_s: float = Field(gt=0, le=1e7, description="an upload without news is dropped then, s")
    late: Literal["carry_over", "carry_discount", "drop"] = Field(description="late updates")
    alpha: float = Field(ge=0, le=10, description="carry_discount: weight n_k (1+tau)^-alpha")
    max_staleness: int = Field(
        ge=1, le=1_000_000, description="rounds late from which on it is dropped"
    )
    wave_max_s: float = Field(gt=0, le=1e7, description="a wave waits at most so long, s")
    wave_max_bytes: int = Field(
        ge=1024, le=1_000_000_000_000, description="largest part of a wave, bytes"
    )
    shipped_dtype: Literal["fp64", "fp32", "fp16", "int8"] = Field(description="wire format")
    core_gbytes_per_s: float = Field(
        gt=0, le=1e7, description="checked and added by one core, GB/s"
    )
    cut_off: CutOffParams


class TensorParams(StageParams):
    """Tensors that are really added up; bytes in the tables are those of the job's model."""

    model: Literal[*MODEL_SHAPES] = Field(description="shape of the tensors")  # type: ignore[valid-type]
    rank: int = Field(ge=1, le=1024, description="LoRA rank")
    targets: tuple[str, ...] = Field(min_length=1, description="adapted modules")
    scale: float = Field(gt=0, le=1e6, description="sd of the values")


class BurstParams(StageParams):
    """Burstiness."""

    bin_s: tuple[PositiveInt, ...] = Field(min_length=1, description="bin widths, s")
    burst_gbps: float = Field(gt=0, le=1e6, description="rate at which a gNB sends a wave, Gbit/s")


class QualityParams(StageParams):
    """Fine-tuning of a small model with every strategy."""

    text_path: str = Field(description="tab-separated file, columns sentence and label")
    words: int = Field(ge=16, le=100_000, description="vocabulary")
    tokens: int = Field(ge=2, le=512, description="words of a text")
    test_rows: int = Field(ge=16, le=1_000_000, description="last rows of the file, for testing")
    layers: int = Field(ge=1, le=24, description="decoder layers")
    width: int = Field(ge=4, le=1024, description="model width")
    heads: int = Field(ge=1, le=1_000_000, description="attention heads")
    rank: int = Field(ge=1, le=1_000_000, description="LoRA rank, on all linear layers")
    pretrain_steps: int = Field(
        ge=0, le=1_000_000, description="next-token steps before, without labels"
    )
    gnbs: int = Field(ge=2, le=1_000_000, description="gNBs that take part")
    ues_per_gnb: int = Field(ge=1, le=1_000_000, description="UEs at each of them")
    rounds: int = Field(ge=2, le=1_000_000, description="rounds on the timetable")
    period_s: float = Field(gt=0, le=1e7, description="timetable and cut-off of a round, s")
    steps: int = Field(ge=1, le=1_000_000, description="local steps in a round")
    rows: int = Field(ge=1, le=1_000_000, description="texts in a batch")
    rate: float = Field(gt=0, lt=1, description="step size of Adam")
    skew: float = Field(ge=0.5, le=1, description="share of rows with a label of the own class")
    slow_labels: int = Field(
        ge=1, le=1_000_000, description="labels that belong to the slowest class"
    )
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
    hours: int = Field(ge=1, le=1_000_000, description="hours that the scenario's seconds sample")
    hour: int = Field(ge=0, le=1_000_000, description="hour of the rounds")
    hour_spread: int = Field(ge=0, le=12, description="of gNBs beyond the scenario's cells")
    topology_path: str = Field(description="nodes of kind gnb, and the hub: the destination")
    n_gnbs: int = Field(ge=1, le=1000, description="gNBs")
    nearest_gnbs: int = Field(ge=1, le=1_000_000, description="gNBs that a UE may move to")
    jobs: tuple[JobParams, ...] = Field(min_length=1, description="federated jobs")
    rates: RateParams
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
