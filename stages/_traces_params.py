"""Parameters of ``generate_traces``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat

from pipeline.stage import StageParams
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.controllers.weaver_plus import WeaverPlusParams
from ranloom.traffic.macro import MacroCell
from ranloom.traffic.scenario import Source
from stages._cell import Base
from stages._controllers import WeaverPlusTable


class TableTenParams(StageParams):
    """Scenario 1 or 2 of Table 10."""

    duration_s: float = Field(ge=1, le=1e6, description="window, s")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    uploaders: int = Field(ge=0, le=4, description="UEs that also send a large file")
    sinr_offset_db: float = Field(ge=-60, le=60, description="added to every SINR sample, dB")


class StressParams(StageParams):
    """D-ITG stress of D.1.3."""

    duration_s: float = Field(ge=1, le=1e6, description="window, s")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    n_ue: int = Field(ge=1, le=4, description="UEs")
    stagger_s: float = Field(ge=0, le=1e5, description="how much later each next burst starts, s")
    sinr_offset_db: float = Field(ge=-60, le=60, description="added to every SINR sample, dB")


class WidebandParams(StageParams):
    """Large uploads on a wide carrier."""

    duration_s: float = Field(ge=1, le=1e6, description="window, s")
    load_factor: float = Field(gt=0, le=1e4, description="multiplies every UE's bytes")
    n_ue: int = Field(ge=1, le=64, description="UEs")
    n_prb: int = Field(ge=5, le=275, description="carrier width, PRBs")
    sinr_offset_db: float = Field(ge=-60, le=60, description="added to every SINR sample, dB")


class MacroParams(StageParams):
    """Sites over a day; meaning of the cell's values in ``ranloom.traffic.scenario.MacroCell``."""

    seconds_per_hour: int = Field(ge=1, le=3600, description="simulated seconds of each hour")
    n_ue: int = Field(ge=1, le=64, description="UEs of a cell")
    busy_hour_mbps: float = Field(gt=0, le=1e4, description="offered at load 1, Mbit/s")
    file_bytes: int = Field(
        ge=1, le=1_000_000_000_000, description="size of an uploaded file, bytes"
    )
    background_reports_per_s: float = Field(gt=0, le=1e4, description="reports of every UE")
    sinr_mean_db: float = Field(ge=-20, le=60, description="mean SINR over UEs, dB")
    sinr_spread_db: float = Field(ge=0, le=40, description="sd over UEs, dB")
    sinr_std_db: float = Field(ge=0, le=40, description="sd over time, dB")
    sinr_coherence_s: float = Field(gt=0, le=1e4, description="coherence time, s")
    sinr_period_ms: int = Field(ge=1, le=10_000, description="grid of the channel, ms")

    def cell(self) -> MacroCell:
        """What every cell has in common."""
        return MacroCell(**{k: v for k, v in vars(self).items() if k != "seconds_per_hour"})


class OfflineParams(StageParams):
    """The yardstick; meaning in ``ranloom.mac.offline``."""

    delays_ms: list[PositiveFloat] = Field(
        min_length=1, description="later than noctrl; metrics: the first"
    )
    mean_sm_pct: float = Field(ge=0, le=100, description="higher mean reservation than noctrl's")
    steps: int = Field(ge=1, le=60, description="prices of a transition that are tried")
    max_labels: int = Field(ge=2, le=100_000, description="labels of a tier; more: tighter bounds")


class Params(StageParams):
    """Parameters of ``generate_traces``."""

    base: Base
    source: Literal["generator", "tractor", "csv"] = Field(description="where traffic comes from")
    source_path: str = Field(description="facts (YAML), TRACTOR folder, or CSV file or folder")
    reading: Literal["cleaned", "as_published"] = Field(description="reading of the KPI logs")
    csv_sinr_db: float = Field(ge=-20, le=60, description="SINR of a CSV source without channel")
    diurnal_path: str = Field(description="load by hour and cell, CSV")
    controllers: list[str] = Field(min_length=1, description="controllers of single cells")
    macro_controllers: list[str] = Field(min_length=1, description="controllers of the sites")
    demand: Literal["slot_total", "per_block"] = Field(description="demand of a slot")
    hold_empty: bool = Field(description="noctrl keeps its reservation in empty slots")
    constant_capped: bool = Field(description="const_<n> limits the PRBs to what n SMs decode")
    weaver_plus: WeaverPlusTable
    scenario_1: TableTenParams
    scenario_2: TableTenParams
    scenario_1_scaled: TableTenParams
    scenario_2_scaled: TableTenParams
    stress: StressParams
    wideband: WidebandParams
    macro: MacroParams
    offline: OfflineParams
    timeline_ul_slots: int = Field(ge=1, le=100_000, description="length of the timeline, UL slots")

    def traffic(self, path: Path) -> Source:
        """Source of the single-cell scenarios."""
        return Source(self.source, path, self.reading, self.csv_sinr_db)

    def specs(self, names: list[str], weaver: WeaverParams) -> list[ControllerSpec]:
        """Controllers by name."""
        return [
            ControllerSpec(
                name,
                weaver=weaver,
                weaver_plus=WeaverPlusParams(**vars(self.weaver_plus)),
                demand=self.demand,
                hold_empty=self.hold_empty,
                constant_capped=self.constant_capped,
            )
            for name in names
        ]
