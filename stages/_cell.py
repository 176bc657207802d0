"""The cell and its GPU as parameters, shared by the stages that simulate it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.io import Inputs
from pipeline.stage import StageParams
from ranloom.gpu.card import load_card
from ranloom.lut.table import Lut
from ranloom.mac.config import CellConfig, PlantConfig
from ranloom.mac.model import CellModel, cell_model
from ranloom.nr.bler import bler_curves

BLER_PATH = "data/bler/table1.csv"
MCS_TABLE = 1


class CellParams(StageParams):
    """Uplink scheduler and its UEs; meaning of each in ``ranloom.mac.config.CellConfig``."""

    k2_slots: int = Field(ge=1, le=32, description="slots between grant and PUSCH")
    n_layers: int = Field(ge=1, le=4, description="uplink layers")
    max_mcs: int = Field(ge=0, le=28, description="highest MCS in use")
    initial_mcs: int = Field(ge=0, le=28, description="MCS before the first measurement")
    allocation: Literal["greedy_first", "shared"] = Field(description="PRBs of the first UE")
    min_rb: int = Field(ge=1, le=100, description="smallest grant, PRBs")
    max_ue_per_slot: int = Field(ge=0, le=1024, description="most UEs a slot; 0: PRBs / 24")
    link_adaptation: Literal["olla", "oai_bler"] = Field(description="how the MCS is found")
    bler_target: float = Field(gt=0, lt=1, description="error target of the outer loop")
    olla_step_db: float = Field(gt=0, le=10, description="offset per error, dB")
    harq_processes: int = Field(ge=1, le=32, description="HARQ processes of a UE")
    harq_rounds: int = Field(ge=1, le=32, description="transmissions of a block")
    rlc_mode: Literal["um", "am"] = Field(description="RLC mode of the data bearer")
    am_status_ms: float = Field(gt=0, le=1e5, description="until an AM sender knows of a loss, ms")
    am_max_retx: int = Field(ge=0, le=255, description="repetitions of an AM range")
    bsr_format: Literal["short", "long"] = Field(description="buffer status report, 5 or 8 bits")
    bsr_period_ms: float = Field(gt=0, le=1e5, description="periodicBSR-Timer, ms")
    bsr_retx_ms: float = Field(gt=0, le=1e5, description="retxBSR-Timer, ms")
    sr_period_slots: int = Field(ge=1, le=10_000, description="period of SR occasions, slots")
    inactivity_frames: int = Field(
        ge=0, le=10_000, description="idle frames before a grant; 0: off"
    )
    buffer_limit_bytes: int = Field(ge=0, description="UE buffer; 0: unlimited")


class PlantParams(StageParams):
    """Random part of the decode latency; meaning in ``ranloom.mac.config.PlantConfig``."""

    tail_sigma: float = Field(ge=0, le=2, description="sd of the log of the decode latency")
    stall_probability: float = Field(ge=0, le=1, description="share of decodes the host delays")
    stall_mean_us: float = Field(ge=0, le=1e6, description="mean delay of those, us")
    overlap: Literal["serial", "shared", "summed"] = Field(description="adjacent decodes")
    grace_slots: int = Field(ge=0, le=1000, description="slots until HARQ feedback is overdue")


class Base(StageParams):
    """Shared values of the stages that simulate the cell."""

    seed: int = Field(ge=0, description="root of random streams")
    card: str = Field(description="device card, a YAML file")
    n_prb: int = Field(ge=5, le=275, description="carrier width, PRBs")
    scs_khz: Literal[15, 30, 60, 120] = Field(description="subcarrier spacing, kHz")
    tdd_pattern: str = Field(pattern=r"^[DSU]*U[DSU]*$", description="TDD pattern")
    cell: CellParams
    plant: PlantParams


def cell_config(base: Base, n_prb: int | None = None, n_layers: int | None = None) -> CellConfig:
    """The cell; a scenario may have another carrier."""
    values = vars(base.cell) | {
        "n_prb": n_prb or base.n_prb,
        "n_layers": n_layers or base.cell.n_layers,
        "scs_khz": base.scs_khz,
        "tdd_pattern": base.tdd_pattern,
        "mcs_table": MCS_TABLE,
    }
    return CellConfig(**values)


def plant_config(base: Base, latency: dict[str, float]) -> PlantConfig:
    """The GPU, with the latency model of ``profile_lut``."""
    return PlantConfig(
        a_us=latency["a_us"],
        k_us_sm=latency["k_us_sm"],
        b_us=latency["b_us"],
        **vars(base.plant),
    )


def load_model(
    base: Base,
    inputs: Inputs,
    rounding: str,
    *,
    n_prb: int | None = None,
    n_layers: int | None = None,
) -> CellModel:
    """Cell, plant and lookup table from inputs ``card``, ``lut``, ``latency_model``, ``bler``."""
    card = load_card(inputs.path("card"))
    lut = Lut.from_columns(inputs.columns("lut"), card.sm_count)
    return cell_model(
        cell_config(base, n_prb, n_layers),
        plant_config(base, inputs.json("latency_model")),
        lut,
        card,
        bler_curves(inputs.path("bler"), MCS_TABLE),
        rounding,
    )
