"""Parameters of ``replay_spare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from pipeline.stage import StageParams
from ranloom.gpu.card import Card
from ranloom.spare.colocation import Colocation
from ranloom.spare.gemm import TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.synthetic import TraceStatistics
from ranloom.spare.workload import Restart, Workload, gemm_chain, transformer_step


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, le=1_000_000_000_000, description="root of random streams")
    card: str = Field(description="device card of the traces, a YAML file")


class MechanismParams(StageParams):
    """One sharing mechanism (WEAVER Table 1)."""

    reconfiguration_us: float = Field(
        ge=0, le=1e12, description="time of a change of the partition, us"
    )
    keeps_state: bool = Field(description="device state survives a change")
    checkpoint_us: float = Field(
        ge=0, le=1e12, description="saving and restoring where it does not, us"
    )


class TilingParams(StageParams):
    """Largest tile."""

    tile_m: int = Field(ge=1, le=4096, description="rows")
    tile_n: int = Field(ge=1, le=4096, description="columns")
    tile_k: int = Field(ge=1, le=16_777_216, description="reduction")


class ChainParams(StageParams):
    """Chain of dependent products (WEAVER Table 5)."""

    length: int = Field(ge=1, le=100_000, description="products in a chain")
    m: int = Field(ge=1, le=16_777_216, description="rows of the output")
    n: int = Field(ge=1, le=16_777_216, description="columns of the output")
    k: int = Field(ge=1, le=16_777_216, description="reduction")
    restart: Restart = Field(description="what a change of the partition starts over")
    relaunch_us: float = Field(ge=0, le=1e12, description="time to launch the chain again, us")
    tile_efficiency: float = Field(gt=0, le=1, description="share of the tensor peak in a tile")
    tiling: TilingParams


class StepParams(StageParams):
    """Training step of a decoder-only transformer (WEAVER Table 6)."""

    layers: int = Field(ge=1, le=200, description="decoder layers")
    hidden: int = Field(ge=1, le=1_000_000, description="model width")
    heads: int = Field(ge=1, le=1_000_000, description="attention heads")
    ffn: int = Field(ge=1, le=1_000_000, description="width of the feed-forward layer")
    vocabulary: int = Field(ge=1, le=1_000_000, description="vocabulary size")
    batch: int = Field(ge=1, le=1_000_000, description="samples of a step")
    sequence: int = Field(ge=1, le=1_000_000, description="tokens of a sample")
    restart: Restart = Field(description="what a change of the partition starts over")


class ChecksParams(StageParams):
    """Measured detection of corrupted products (WEAVER App. F)."""

    trials: int = Field(ge=1, le=1_000_000, description="products a type")
    pairs: int = Field(ge=1, le=64, description="probe pairs of a check")
    sigmas: float = Field(gt=0, le=100, description="tolerance in deviations of the rounding")
    rows: int = Field(ge=2, le=4096, description="rows of a product")
    columns: int = Field(ge=2, le=4096, description="columns of a product")
    reduction: int = Field(ge=1, le=65536, description="reduction of a product")
    corruption_rms: float = Field(
        gt=0, le=1e6, description="wrong entry: off by this many rms entries"
    )


class SyntheticTraceParams(StageParams):
    """Statistics of the synthetic reservations of one controller."""

    mean_sm: float = Field(gt=0, le=1e6, description="mean reservation, SMs")
    transitions: int = Field(ge=0, le=10_000_000, description="changes in the trace")
    quiet_sm: int = Field(ge=0, le=1_000_000, description="level between excursions, SMs")
    peak_sm: int = Field(ge=1, le=1_000_000, description="highest level of an excursion, SMs")
    period_us: float = Field(gt=0, le=1e12, description="changes happen at multiples of this, us")
    burst_transitions: int = Field(
        ge=0, le=10_000_000, description="changes in one burst; 0: no bursts"
    )


class SyntheticParams(StageParams):
    """Second reading: traces drawn to given statistics instead of our own."""

    traces: int = Field(ge=1, le=100, description="traces drawn of each kind")
    duration_s: float = Field(gt=0, le=3600, description="length of a trace, s")
    slot_us: float = Field(gt=0, le=1e12, description="slot duration, us")
    burst_us: float = Field(gt=0, le=1e12, description="length of a burst, us")
    burst_share: float = Field(ge=0, lt=1, description="share of the changes in bursts")
    sensitivity_traces: int = Field(ge=1, le=100, description="of these, for sensitivity.parquet")
    step_loss_us: float = Field(
        ge=0, le=1e12, description="further loss of a training step a change, us"
    )
    scenarios: dict[str, dict[str, SyntheticTraceParams]] = Field(
        description="by scenario and controller"
    )


class SteadinessParams(StageParams):
    """Bursty against stable reservations of about the same mean (WEAVER Fig. 4)."""

    duration_s: float = Field(gt=0, le=3600, description="length of both traces, s")
    bursty: SyntheticTraceParams = Field(description="statistics of the bursty trace")
    stable_sm: int = Field(ge=0, le=1_000_000, description="reservation of the stable trace, SMs")


class Params(StageParams):
    """Parameters of ``replay_spare``."""

    base: Base
    training_card: str = Field(description="device card of a training site, a YAML file")
    mechanisms: dict[str, MechanismParams] = Field(min_length=1, description="by name")
    mechanism_of: dict[str, str] = Field(description="mechanism of a controller; others: default")
    site_mechanism_of: dict[str, str] = Field(
        description="mechanism of a controller in spare.parquet; others: as in mechanism_of"
    )
    default_mechanism: str = Field(description="mechanism of the other controllers")
    compared_controller: str = Field(description="controller shown under every mechanism")
    gemm_chain: ChainParams
    training_step: StepParams
    tiling: TilingParams
    tile_efficiency: float = Field(gt=0, le=1, description="share of the tensor peak in a tile")
    bandwidth_share: float = Field(gt=0, le=1, description="memory bandwidth left to training")
    element_bytes: Literal[1, 2, 4, 8] = Field(description="bytes of a matrix element")
    dispatch_us: float = Field(ge=0, le=1000, description="time between two waves, us")
    jitter_sigma: float = Field(ge=0, le=2, description="sd of log(actual / predicted wave time)")
    synthetic: SyntheticParams
    steadiness: SteadinessParams
    checks: ChecksParams

    def mechanism(self, name: str) -> Mechanism:
        """A mechanism by name."""
        chosen = self.mechanisms[name]
        return Mechanism(name, chosen.reconfiguration_us, chosen.keeps_state, chosen.checkpoint_us)

    def mechanism_for(self, controller: str) -> Mechanism:
        """The mechanism that a controller stands for."""
        return self.mechanism(self.mechanism_of.get(controller, self.default_mechanism))

    def chain(self, card: Card) -> Colocation:
        """The chain on a device."""
        asked = self.gemm_chain
        fields = asked.model_dump(exclude={"tile_efficiency", "tiling"})
        return self._colocation(
            gemm_chain("gemm_chain", **fields), card, asked.tile_efficiency, asked.tiling
        )

    def step(self, card: Card) -> Colocation:
        """The training step on a device."""
        step = transformer_step("training_step", **vars(self.training_step))
        return self._colocation(step, card, self.tile_efficiency, self.tiling)

    def _colocation(
        self, workload: Workload, card: Card, tile_efficiency: float, tiling: TilingParams
    ) -> Colocation:
        model = TileModel(
            card, tile_efficiency, self.bandwidth_share, self.element_bytes, self.dispatch_us
        )
        return Colocation(workload, model, Tiling(**vars(tiling)), self.jitter_sigma)

    def statistics(self) -> dict[str, dict[str, TraceStatistics]]:
        """What the synthetic traces have to carry, by scenario and controller."""
        return {
            scenario: {name: self.trace_statistics(asked) for name, asked in controllers.items()}
            for scenario, controllers in self.synthetic.scenarios.items()
        }

    def trace_statistics(self, asked: SyntheticTraceParams) -> TraceStatistics:
        """What one synthetic trace has to carry."""
        return TraceStatistics(
            **asked.model_dump(),
            burst_us=self.synthetic.burst_us,
            burst_share=self.synthetic.burst_share,
        )

    def changed(self, change: Mapping[str, Any]) -> Params:
        """The same parameters but for some nested values."""

        def merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
            return old | {
                k: merged(old[k], v) if isinstance(v, Mapping) else v for k, v in new.items()
            }

        return Params.model_validate(merged(self.model_dump(), change))
