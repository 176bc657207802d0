"""The cell and its GPU as parameters, shared by the stages that simulate it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from pipeline.io import Inputs
from pipeline.stage import FromParam, FromStage, Input, StageParams
from ranloom.gpu.card import load_card
from ranloom.lut.table import Lut
from ranloom.mac.config import CellConfig, PlantConfig
from ranloom.mac.controllers.registry import ControllerSpec, check_name
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.lut_calibration import with_budgets
from ranloom.mac.model import CellModel, cell_model
from ranloom.nr.bler import bler_curves

CELL_INPUTS: Mapping[str, Input] = {
    "card": FromParam("base.card"),
    "bler": FromParam("base.bler_path"),
    "lut": FromStage("profile_lut", "lut"),
    "latency_model": FromStage("profile_lut", "model"),
}
CALIBRATED_INPUTS: Mapping[str, Input] = {
    **CELL_INPUTS,
    "budgets": FromStage("calibrate_scheduler", "budgets"),
    "scheduler": FromStage("calibrate_scheduler", "scheduler"),
}


class CellParams(StageParams):
    """Uplink scheduler and its UEs; meaning of each in ``ranloom.mac.config.CellConfig``."""

    k2_slots: int = Field(ge=1, le=32, description="slots between grant and PUSCH")
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
    buffer_limit_bytes: int = Field(
        ge=0, le=1_000_000_000_000, description="UE buffer; 0: unlimited"
    )


class PlantParams(StageParams):
    """Random part of the decode latency; meaning in ``ranloom.mac.config.PlantConfig``."""

    tail_sigma: float = Field(ge=0, le=2, description="sd of the log of the decode latency")
    stall_probability: float = Field(ge=0, le=1, description="share of decodes the host delays")
    stall_mean_us: float = Field(ge=0, le=1e6, description="mean delay of those, us")
    overlap: Literal["serial", "shared", "summed"] = Field(description="adjacent decodes")
    grace_slots: int = Field(ge=0, le=1000, description="slots until HARQ feedback is overdue")


class Base(StageParams):
    """Shared values of the stages that simulate the cell."""

    seed: int = Field(ge=0, le=1_000_000_000_000, description="root of random streams")
    card: str = Field(description="device card, a YAML file")
    bler_path: str = Field(description="error rates of code blocks by SNR, a CSV file")
    mcs_table: Literal[1, 2, 3] = Field(description="38.214 tables 5.1.3.1-1, -2, -3")
    n_layers: int = Field(ge=1, le=4, description="uplink layers")
    n_prb: int = Field(ge=5, le=275, description="carrier width, PRBs")
    scs_khz: Literal[15, 30, 60, 120] = Field(description="subcarrier spacing, kHz")
    tdd_pattern: str = Field(pattern=r"^[DSU]*U[DSU]*$", description="TDD pattern")
    cell: CellParams
    plant: PlantParams


def cell_config(base: Base, n_prb: int | None = None) -> CellConfig:
    """The cell; a scenario may have another carrier."""
    values = vars(base.cell) | {
        "n_prb": n_prb or base.n_prb,
        "n_layers": base.n_layers,
        "scs_khz": base.scs_khz,
        "tdd_pattern": base.tdd_pattern,
        "mcs_table": base.mcs_table,
    }
    return CellConfig(**values)


def check_cell(
    base: Base, paths: Mapping[str, Path], controllers: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Refuse a cell that cannot be simulated, before anything runs.

    Args:
        base: shared values.
        paths: of the inputs ``card`` and ``bler``.
        controllers: names of controllers by the key in ``params.yaml`` that lists them.

    Raises:
        InputError: a value, a file, or a reservation that the device does not have.
    """
    cell_config(base)
    card = load_card(paths["card"])
    bler_curves(paths["bler"], base.mcs_table)
    for key, names in (controllers or {}).items():
        for name in names:
            where = f"params.yaml: {key}"
            check_name(name, where)
            constant_sm = ControllerSpec(name).constant_sm
            if constant_sm is not None:
                card.check_level(constant_sm, f"{where}: {name}")


def plant_config(base: Base, latency: Mapping[str, float]) -> PlantConfig:
    """The GPU, with the latency model of ``profile_lut``, and the tail if that was fitted."""
    known = ("a_us", "k_us_sm", "b_us", "tail_sigma")
    fitted = {name: latency[name] for name in known if name in latency}
    return PlantConfig(**vars(base.plant) | fitted)


def load_model(base: Base, inputs: Inputs, rounding: str, n_prb: int | None = None) -> CellModel:
    """Cell, plant and lookup table from ``CELL_INPUTS``."""
    card = load_card(inputs.path("card"))
    lut = Lut.from_columns(inputs.columns("lut"), card.sm_count)
    return cell_model(
        cell_config(base, n_prb),
        plant_config(base, inputs.json("latency_model")),
        lut,
        card,
        bler_curves(inputs.path("bler"), base.mcs_table),
        rounding,
    )


def load_calibrated(
    base: Base, inputs: Inputs, carriers_prb: Iterable[int]
) -> tuple[list[CellModel], WeaverParams]:
    """The cell on each carrier and the calibrated weaver, from ``CALIBRATED_INPUTS``."""
    chosen = inputs.json("scheduler")
    values = chosen["params"]
    weaver = WeaverParams(**values | {"delay_threshold_ms": tuple(values["delay_threshold_ms"])})
    rows = inputs.columns("budgets")
    budgets = rows["max_prb"].astype(np.int64).reshape(int(rows["mcs"].max()) + 1, -1)
    models = [load_model(base, inputs, chosen["mcs_rounding"], n_prb) for n_prb in carriers_prb]
    return [replace(m, tables=with_budgets(m.tables, budgets)) for m in models], weaver
