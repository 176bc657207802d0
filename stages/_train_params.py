"""Parameters of ``train_sites``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from pipeline.stage import Share, StageParams
from ranloom.training.model_shapes import SHAPES
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.comparison import BASELINES, SYSTEMS
from ranloom.training.simulator.experiment import NEVER_S

if TYPE_CHECKING:
    ModelName = str
    SystemName = str
    BaselineName = str
else:  # names that the library registers, known only when it is imported
    ModelName = Literal[tuple(SHAPES)]
    SystemName = Literal[tuple(SYSTEMS)]
    BaselineName = Literal[tuple(BASELINES)]


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, le=1_000_000_000_000, description="root of random streams")


class ControlParams(StageParams):
    """Coordinator; meaning of each in ``ranloom.training.settings``."""

    control_interval_s: float = Field(gt=0, le=60, description="AIR control interval, s (Eq. 2)")
    slack_fraction: float = Field(ge=0, le=10, description="theta_AIR: slack over T_bar (Eq. 2)")
    steal_gain: float = Field(ge=0, le=10, description="lag from which work moves, share of T_bar")
    exact_assignment: int = Field(ge=0, le=1_000_000, description="largest matrix assigned exactly")
    speculate: bool = Field(description="execute the last micro-batches twice where late")
    error_weight: float = Field(gt=0, le=1, description="weight of the newest prediction error")
    margin_errors: float = Field(ge=0, le=10, description="mean errors added to predictions")
    debt_gain: float = Field(gt=0, lt=1, description="kappa (Eq. 5)")
    max_debt_steps: float = Field(ge=0, le=100, description="d_max, in steps' worth of samples")
    mlr_threshold: float = Field(gt=0, le=1, description="theta_MLR: deferral fraction")
    mlr_weight: float = Field(gt=0, le=1, description="weight of the newest deferral fraction")
    mlr_patience_steps: int = Field(ge=1, le=1000, description="steps above theta_MLR")
    mlr_min_gain: float = Field(ge=0, le=10, description="gain in step time worth a move")
    min_step_share: float = Field(gt=0, le=1, description="B_min / B*: below, a step is skipped")
    reduce_fanout: int = Field(ge=1, le=64, description="children in the reduction tree")

    def settings(self, micro_batch_samples: int, step_micro_batches: int) -> CoordinatorSettings:
        """Settings of the core for a step of that size."""
        fields = self.model_dump()
        debt = fields.pop("max_debt_steps")
        share = fields.pop("min_step_share")
        return CoordinatorSettings(
            **fields,
            micro_batch_samples=micro_batch_samples,
            step_micro_batches=step_micro_batches,
            min_step_micro_batches=max(1, int(share * step_micro_batches)),
            max_debt_samples=debt * micro_batch_samples * step_micro_batches,
            max_steps=1 << 40,
            micro_batch_limit=-1,
            window=step_micro_batches,
            hop_s=0.0,
            lease_s=NEVER_S,
            checkpoint_steps=0,
            tied_embeddings=True,
            rerouting=True,
            rebalancing=True,
        )


class CapacityParams(StageParams):
    """Which traces of ``replay_spare`` a system lives on."""

    controller: str = Field(description="controller of the reservations")
    mechanism: str = Field(description="GPU-sharing mechanism")


class ConditionsParams(StageParams):
    """Changes of the testbed that a sweep asks about; 1, 0 and 1 leave it as it was measured."""

    bandwidth_factor: float = Field(
        gt=0, le=1000, description="factor on the bandwidth of every pair of sites"
    )
    added_latency_ms: float = Field(
        ge=0, le=10_000, description="added to the latency of every pair of sites, one way, ms"
    )
    spare_share: float = Field(
        gt=0, le=1, description="share of the usable compute that training gets"
    )


class OrderingParams(StageParams):
    """Who is fastest as one condition of the testbed changes; an empty list leaves it out."""

    model: ModelName = Field(description="model")
    systems: tuple[SystemName, ...] = Field(min_length=1, description="systems to compare")
    bandwidth_factor: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(
        description="factors on the bandwidth of every pair"
    )
    added_latency_ms: tuple[Annotated[float, Field(ge=0, le=10_000)], ...] = Field(
        description="latencies added to every pair, one way, ms"
    )
    spare_share: tuple[Share, ...] = Field(description="shares of the usable compute")

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are simulated: none where there is nothing to change."""
        asked = (*self.bandwidth_factor, *self.added_latency_ms, *self.spare_share)
        return (self.model,) if asked else ()


class SimParams(StageParams):
    """Testbed of eight sites."""

    models: tuple[ModelName, ...] = Field(min_length=1, description="models")
    systems: tuple[SystemName, ...] = Field(min_length=1, description="systems to compare")
    sites: int = Field(ge=2, le=64, description="sites; as many as the links file has, or fewer")
    duration_s: dict[ModelName, PositiveFloat] = Field(
        description="virtual time of a run, s, by model"
    )
    step_samples: int = Field(ge=1, le=1_000_000, description="B*, samples of a step")
    sequence: int = Field(ge=8, le=2048, description="tokens of a sample")
    micro_batch_samples: tuple[PositiveInt, ...] = Field(
        min_length=1, description="sizes to choose from"
    )
    least_replicas: int = Field(ge=1, le=1_000_000, description="replicas that WEAVER has to have")
    least_sites: int = Field(ge=1, le=64, description="sites that every system has to use")
    unmerged_limits: tuple[PositiveInt, ...] = Field(
        min_length=1, description="unmerged gradients of a site, sizes to choose from"
    )
    memory_share: float = Field(gt=0, le=1, description="share of device memory for training")
    optimizer_on_host: bool = Field(description="optimizer state in host memory (App. E)")
    tied_embeddings: bool = Field(description="first and last stage share the embedding")
    reduce_chunks: int = Field(ge=1, le=10_000, description="parts in which sums stream")
    plan_seconds: int = Field(
        ge=1, le=1_000_000, description="seconds of the trace known when plans are made"
    )
    task_overhead_ms: float = Field(ge=0, le=1000, description="beside the work of a task, ms")
    budget_period_s: float = Field(gt=0, le=60, description="between two budget reports, s")
    scenarios: tuple[str, ...] = Field(min_length=1, description="scenarios of the trace pool")
    weaver: CapacityParams
    baselines: CapacityParams
    timeline_steps: int = Field(ge=1, le=100, description="steps of the timeline table")


class BaselineParams(StageParams):
    """What the papers of the baselines leave open."""

    slowdown: float = Field(gt=1, le=100, description="slow-down at which they react")
    detect_s: float = Field(ge=0, le=1e7, description="until it is noticed, s")
    plan_s: float = Field(ge=0, le=1e7, description="to find a new plan, s")
    quiet_s: float = Field(ge=0, le=1e7, description="shortest time between two reactions, s")
    storage_gbps: float = Field(gt=0, le=1e6, description="checkpoint storage to a site, Gbit/s")
    epoch_steps: int = Field(ge=1, le=10_000, description="Confidant averages every so many steps")
    copy_memory_share: float = Field(gt=0, le=1, description="memory for Confidant's weight copies")
    local_steps: int = Field(ge=1, le=1000, description="DiLoCo averages every so many steps")
    population: int = Field(ge=2, le=1000, description="DTFM's genetic search")
    trials: int = Field(ge=0, le=100_000, description="DTFM's genetic search")


class DynamicParams(StageParams):
    """Adaptation to changing capacity (section 7.2.2)."""

    model: ModelName = Field(description="model")
    systems: tuple[BaselineName, ...] = Field(description="baselines beside WEAVER")
    duration_s: float = Field(gt=0, le=1e7, description="virtual time, s")
    drops: int = Field(ge=0, le=10_000, description="capacity drops over all sites")
    drop_left: tuple[Share, Share] = Field(description="least and largest share that is left")
    drop_length_s: tuple[PositiveInt, PositiveInt] = Field(
        description="shortest and longest drop, s"
    )
    failures: int = Field(ge=0, le=10_000, description="deaths of sites in a run of WEAVER more")
    repair_s: tuple[PositiveFloat, PositiveFloat] = Field(
        description="shortest and longest time a site is dead, s"
    )
    checkpoint_steps: int = Field(
        ge=0, le=1_000_000, description="steps between checkpoints where sites die; 0: none"
    )
    shift_threshold: float = Field(
        gt=0, le=1e6, description="relative change that counts as a shift"
    )
    least_replicas: int = Field(ge=1, le=1_000_000, description="replicas: rerouting needs two")
    optimizer_on_host: bool = Field(description="optimizer state in host memory (App. E)")
    air_slacks: tuple[NonNegativeFloat, ...] = Field(
        description="theta_AIR of the sensitivity (Table 14)"
    )
    mlr_thresholds: tuple[NonNegativeFloat, ...] = Field(
        description="theta_MLR of the sensitivity (Table 14)"
    )
    halves: tuple[CapacityParams, ...] = Field(
        description="reservations under which elastic and static training are compared"
    )


class ReconciledParams(StageParams):
    """Assumptions of the second set, which contradict or go beyond the published inputs."""

    step_samples: int = Field(
        ge=1, le=1_000_000, description="samples of a step, also between two averagings"
    )
    tied_embeddings: bool = Field(description="first and last stage share the embedding")
    ends_on_host: bool = Field(description="embeddings and head take no device memory")
    hidden_share: float = Field(
        ge=0, le=1, description="fitted: share of the pipeline's time that hides sums"
    )
    duration_s: dict[ModelName, PositiveFloat] = Field(
        description="virtual time of a run, s, by model"
    )
    dynamic_sync_gbps: float = Field(
        gt=0, le=1e6, description="sums in the dynamic experiment, Gbit/s"
    )


class StarParams(StageParams):
    """Typical setting (section 7.2.3)."""

    sites_per_core: int = Field(ge=1, le=1_000_000, description="sites of a core")
    site_core_gbps: float = Field(gt=0, le=1e6, description="site to core, Gbit/s")
    site_core_ms: float = Field(ge=0, le=1e9, description="site to core, ms")
    core_core_gbps: float = Field(gt=0, le=1e6, description="core to core, Gbit/s")
    core_core_ms: float = Field(ge=0, le=1e9, description="core to core, ms")
    peer_gbps: float = Field(gt=0, le=1e6, description="between sites of a core, Gbit/s")


class ScalingParams(StageParams):
    """Hundreds of sites, in closed form."""

    sites: tuple[PositiveInt, ...] = Field(min_length=1, description="deployments")
    model: ModelName = Field(description="model of the site sweep")
    large_models: tuple[ModelName, ...] = Field(description="models on the largest deployment")
    stages: tuple[PositiveInt, ...] = Field(min_length=1, description="pipeline lengths to try")
    micro_batch_samples: tuple[PositiveInt, ...] = Field(min_length=1, description="sizes to try")
    star: StarParams


class CircuitParams(StageParams):
    """Planned optical windows as extra bandwidth of the synchronisation plane."""

    strategy: str = Field(description="strategy of plan_windows whose windows are used")
    gbps: float = Field(gt=0, le=1e6, description="rate that a circuit adds for training, Gbit/s")


class LiveFaults(StageParams):
    """What happens to processes of the live run."""

    kill_site: int = Field(
        ge=0, le=1_000_000, description="site that is killed once it holds committed work"
    )
    kill_step: int = Field(
        ge=-1, le=1_000_000, description="from this step on; -1: no site is killed"
    )
    crash_step: int = Field(
        ge=-1, le=1_000_000, description="the coordinator is killed then; -1: it is not"
    )
    back_after_s: float = Field(ge=0, le=60, description="killed processes start again after, s")


class LiveParams(StageParams):
    """Live run on this machine."""

    layers: int = Field(ge=1, le=64, description="decoder layers")
    width: int = Field(ge=8, le=4096, description="hidden width")
    heads: int = Field(ge=1, le=1_000_000, description="attention heads; divides the width")
    sequence: int = Field(ge=4, le=2048, description="tokens of a sample")
    dtype: Literal["float64", "float32", "bfloat16"] = Field(description="parameters, activations")
    dropout: float = Field(ge=0, lt=1, description="residual dropout")
    optimizer: Literal["sgd", "adamw"] = Field(description="update rule")
    learning_rate: float = Field(gt=0, le=1e6, description="step size")
    text_source: Literal["generated", "file"] = Field(description="where the text comes from")
    text_path: str = Field(description="file: UTF-8 text, or SST-2 style .tsv")
    generated_samples: int = Field(
        ge=1, le=1_000_000, description="sentences where the text is generated"
    )
    stages: int = Field(ge=1, le=16, description="pipeline stages")
    replicas: int = Field(ge=1, le=16, description="replicas")
    steps: int = Field(ge=1, le=100_000, description="steps' worth of samples")
    micro_batch_samples: int = Field(ge=1, le=1_000_000, description="samples of a micro-batch")
    step_micro_batches: int = Field(ge=1, le=1_000_000, description="micro-batches of a step")
    task_ms: float = Field(gt=0, le=60_000, description="a forward task at full budget, ms")
    second_s: float = Field(
        gt=0, le=60, description="a second of spare.parquet lasts so long here, s"
    )
    budget_shares: tuple[Share, ...] = Field(min_length=2, description="budget of each site")
    cut_site: int = Field(ge=0, le=1_000_000, description="site whose budget is cut")
    cut_steps: tuple[NonNegativeInt, NonNegativeInt] = Field(
        description="from which step until which"
    )
    cut_left: float = Field(gt=0, le=1, description="share of its budget that is left")
    control_interval_s: float = Field(gt=0, le=10, description="AIR control interval, s")
    hop_ms: float = Field(ge=0, le=1e9, description="predicted hand-over, ms")
    lease_s: float = Field(gt=0, le=1e7, description="silence after which a site is lost, s")
    checkpoint_steps: int = Field(
        ge=0, le=1_000_000, description="steps between checkpoints; 0: at the end"
    )
    mlr_threshold: float = Field(gt=0, le=1, description="theta_MLR of the live run")
    faults: LiveFaults
    deadline_s: float = Field(gt=0, le=1e7, description="the run is given up then, s")


class LayerParams(StageParams):
    """What the layers of a model cost a site."""

    source: Literal["card", "profile"] = Field(
        description="operations of their shape, or times from the file"
    )
    profile_path: str = Field(description="CSV file: times of layers on a device; for profile")
    efficiency: Share = Field(
        description="usable compute of a free device over its tensor peak; for profile"
    )


class Params(StageParams):
    """Parameters of ``train_sites``."""

    base: Base
    card: str = Field(description="device card of a training site, a YAML file")
    links: str = Field(description="links between the sites, a YAML file")
    layers: LayerParams
    conditions: ConditionsParams
    control: ControlParams
    sim: SimParams
    orderings: OrderingParams
    dynamic: DynamicParams
    reconciled: ReconciledParams
    baselines: BaselineParams
    scaling: ScalingParams
    circuits: CircuitParams
    live: LiveParams
