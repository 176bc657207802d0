"""Parameters of ``plan_windows``."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from pipeline.stage import StageParams
from ranloom.training.model_shapes import SHAPES
from ranloom.transport.comparison import Planning
from ranloom.transport.network import TransportSettings
from ranloom.transport.sweep import Axes
from ranloom.transport.tapi import SpectrumGrid

if TYPE_CHECKING:
    ModelName = str
else:  # names that the library registers, known only when it is imported
    ModelName = Literal[tuple(SHAPES)]

_Count = Annotated[int, Field(ge=1, le=1000)]


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, le=1_000_000_000_000, description="root of random streams")


class LinkParams(StageParams):
    """Links of topology files that state lengths only."""

    packet_gbps: float = Field(ge=1e-3, le=1e6, description="packet rate in each direction, Gbit/s")
    wavelengths: int = Field(ge=1, le=1000, description="channels in each direction")


class RefineParams(StageParams):
    """Refinement of the selective plan by CP-SAT."""

    deterministic_time: float = Field(
        ge=0, le=1e6, description="per objective, solver's unit; 0: off"
    )
    most_demands: int = Field(
        ge=1, le=1_000_000, description="not tried with more demands than that"
    )


class BackgroundParams(StageParams):
    """Background traffic of the fluid simulation."""

    load: float = Field(ge=0, le=1, description="mean share of the busiest links")
    stream_mbps: float = Field(ge=0.1, le=1e9, description="rate of a stream, Mbit/s")
    mean_stream_s: float = Field(ge=1e-3, le=1e7, description="mean duration of a stream, s")
    buffer_ms: float = Field(ge=1e-3, le=1e9, description="longest queueing time, ms")
    flow_mbps: float = Field(
        ge=0.1, le=1e9, description="highest rate of an unshaped transfer, Mbit/s"
    )
    bin_ms: float = Field(ge=1, le=1e9, description="time bins of burstiness, ms")


class PowerParams(StageParams):
    """Per-port power."""

    transponder_w: float = Field(ge=0, le=1e6, description="one end of a lit circuit, W")
    packet_port_w: float = Field(ge=0, le=1e6, description="a packet port at full rate, W")


class SpectrumParams(StageParams):
    """Spectrum of the channels."""

    first_centre_ghz: float = Field(ge=1, le=1e6, description="centre of channel 0, GHz")
    slot_ghz: float = Field(ge=0.1, le=1e6, description="width of a channel, GHz")


class SweepParams(StageParams):
    """Points of the sweep; all combinations are planned."""

    setup_s: tuple[Annotated[float, Field(ge=0, le=3600)], ...] = Field(
        min_length=1, description="set-up times, s"
    )
    packet_share: tuple[Annotated[float, Field(ge=1e-9, le=1)], ...] = Field(
        min_length=1, description="granted packet shares"
    )
    jobs: tuple[_Count, ...] = Field(min_length=1, description="concurrent copies of the demands")
    rank_factor: tuple[Annotated[float, Field(ge=1e-3, le=1000)], ...] = Field(
        description="LoRA ranks over that of the demands"
    )
    gnbs: tuple[_Count, ...] = Field(description="numbers of gNBs that send; more are left out")
    effort: int = Field(ge=0, le=1_000_000, description="moves of local search per plan")

    def axes(self) -> Axes:
        """Values to sweep."""
        return Axes(self.setup_s, self.packet_share, self.jobs, self.rank_factor, self.gnbs)


class ReplanParams(StageParams):
    """Re-planning while the selective plan is carried out."""

    effort: int = Field(ge=0, le=1_000_000, description="moves of local search at each re-planning")
    notice_s: float = Field(ge=0, le=3600, description="windows are committed that early, s")
    failed_setups: tuple[NonNegativeInt, ...] = Field(
        description="set-ups that fail, from 0 in their order"
    )
    cut_at_s: float = Field(ge=0, le=1e7, description="the busiest fibre is cut then, s")


class JitterParams(StageParams):
    """Shifted releases."""

    sd_s: tuple[NonNegativeFloat, ...] = Field(min_length=1, description="spreads of the shifts, s")
    draws: int = Field(ge=1, le=1000, description="draws per spread")


class CopyParams(StageParams):
    """A layout change of the training job."""

    at_s: float = Field(ge=0, le=1e7, description="decided then, s")
    within_s: float = Field(gt=0, le=1e7, description="takes effect so much later, s")
    layers: int = Field(ge=1, le=1_000_000, description="decoder layers that move")
    from_stage: int = Field(
        ge=0, le=1_000_000, description="stage that gives them; the next one takes them"
    )


class TrainingParams(StageParams):
    """Elastic training whose transfers share the calendar."""

    model: ModelName = Field(description="model that is trained")
    stages: int = Field(ge=1, le=100, description="pipeline stages")
    replicas: int = Field(ge=0, le=100, description="replicas; below 2 there is nothing to sum")
    period_s: float = Field(gt=0, le=1e7, description="from one gradient sum to the next, s")
    sync_s: float = Field(gt=0, le=1e7, description="time until every holder has the sum, s")
    fanout: int = Field(ge=1, le=1_000_000, description="children of a node in the tree of the sum")
    copies: tuple[CopyParams, ...] = Field(description="layout changes")


class Params(StageParams):
    """Parameters of ``plan_windows``."""

    base: Base
    setup_s: float = Field(ge=0, le=3600, description="set-up time of a window, s")
    guard_s: float = Field(ge=0, le=3600, description="ports and channels rest after a window, s")
    circuit_gbps: float = Field(ge=0.1, le=1e6, description="rate of a circuit, Gbit/s")
    site_ports: int = Field(ge=1, le=1000, description="optical ports of a gNB")
    hub_ports: int = Field(ge=1, le=1000, description="optical ports of the hub")
    candidate_paths: int = Field(ge=1, le=16, description="paths that a window may take")
    packet_share: float = Field(
        ge=1e-5, le=1, description="of each packet link, for these transfers"
    )
    plan_on: str = Field(pattern="^(p50|p95)$", description="forecast quantile to plan on")
    effort: int = Field(ge=0, le=1_000_000, description="moves of local search")
    refine: RefineParams
    links: LinkParams
    reservations_path: str = Field(description="calendar of others, TAPI JSON")
    background: BackgroundParams
    power: PowerParams
    spectrum: SpectrumParams
    epoch: str = Field(description="instant of time 0 in calendar.json, ISO 8601 with zone")
    sweep: SweepParams
    replan: ReplanParams
    jitter: JitterParams
    training: TrainingParams
    broken_rounds: int = Field(ge=1, le=1000, description="broken calendars per kind and plan")

    def settings(self) -> TransportSettings:
        """Rates, times and limits."""
        names = [f.name for f in fields(TransportSettings)]
        return TransportSettings(**{name: getattr(self, name) for name in names})

    def planning(self) -> Planning:
        """How aggregates are planned."""
        return Planning(
            plan_on=self.plan_on,
            effort=self.effort,
            refine_time=self.refine.deterministic_time,
            refine_most=self.refine.most_demands,
            seed=self.base.seed,
        )

    def grid(self) -> SpectrumGrid:
        """Spectrum of the channels."""
        return SpectrumGrid(**vars(self.spectrum))
