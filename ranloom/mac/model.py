"""A cell ready to be simulated: configuration turned into the tables that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.lut.table import INFEASIBLE, Lut
from ranloom.mac.bsr import bsr_levels
from ranloom.mac.cell import BlockTables, CellRules
from ranloom.mac.config import ROUNDINGS, CellConfig, PlantConfig
from ranloom.mac.link_adaptation import LinkRules, required_snr_db
from ranloom.mac.plant import Plant, plant_constants
from ranloom.mac.proportional_fair import SchedulerRules
from ranloom.mac.sm_tables import SmTables
from ranloom.nr.bler import BlerCurves, transport_block_curves
from ranloom.nr.numerology import MAX_PRB
from ranloom.nr.segmentation import work_table
from ranloom.nr.tbs import tbs_table

WEIGHT_SYMBOLS = 10  # the proportional-fair weight uses a block of one PRB and 10 symbols


def sm_tables(lut: Lut, levels: NDArray[np.int64], rounding: str = "ceil") -> SmTables:
    """Lookup table for the kernels.

    Args:
        lut: the table; its monotone envelope is used.
        levels: SM counts that can be reserved, ascending.
        rounding: how an average MCS becomes an index: ``ceil``, ``nearest`` or ``floor``.

    Raises:
        InputError: the levels are not those of the table's device.
    """
    if rounding not in ROUNDINGS:
        raise InputError("mcs_rounding", rounding, f"allowed: {ROUNDINGS}")
    if len(levels) == 0 or levels[-1] != lut.sm_count:
        raise InputError("sm_levels", levels, f"needed: levels up to the {lut.sm_count} SMs")
    sm_min, sm_max = int(levels[0]), int(levels[-1])
    min_sm = np.where(lut.min_sm == INFEASIBLE, sm_max, lut.min_sm).astype(np.int64)
    counts = np.arange(sm_max + 1)
    level = np.asarray(levels, np.int64)[
        np.maximum(np.searchsorted(levels, counts, side="right") - 1, 0)
    ]
    return SmTables(
        np.ascontiguousarray(np.maximum(min_sm, sm_min)),
        np.ascontiguousarray(lut.max_prb, np.int64),
        np.asarray(levels, np.int64),
        level,
        sm_min,
        sm_max,
        ROUNDINGS.index(rounding),
    )


@dataclass(frozen=True, eq=False)
class CellModel:
    """Everything about a cell that does not change from run to run.

    Args:
        config: the cell.
        plant_config: the GPU that decodes.
        tables: lookup table for the controllers (see :func:`sm_tables`).
        curves: block error curves of the cell's MCS table.

    Raises:
        InputError: the lookup table is narrower than the carrier or lacks MCS indices.
    """

    config: CellConfig
    plant_config: PlantConfig
    tables: SmTables
    curves: BlerCurves
    blocks: BlockTables = field(init=False)
    scheduler: SchedulerRules = field(init=False)
    link_rules: LinkRules = field(init=False)
    plant: Plant = field(init=False)

    def __post_init__(self) -> None:
        cell = self.config
        n_mcs, width = self.tables.min_sm.shape
        if width != cell.n_prb + 1:
            raise InputError("n_prb", cell.n_prb, f"needed: a lookup table of {width - 1} PRB")
        shape = {"table": cell.mcs_table, "n_layers": cell.n_layers}
        tbs_bits = tbs_table(cell.n_prb, **shape).astype(np.int64)
        if n_mcs != len(tbs_bits):
            raise InputError("mcs_table", cell.mcs_table, f"the lookup table has {n_mcs} MCS")
        curves = transport_block_curves(self.curves, cell.n_prb, **shape)
        weight = tbs_table(1, n_symbols=WEIGHT_SYMBOLS, **shape)[:, 1] / 8.0
        max_mcs = min(cell.max_mcs, n_mcs - 1)
        target = cell.bler_target
        set_field = object.__setattr__
        set_field(
            self,
            "blocks",
            BlockTables(
                tbs_bits // 8,
                work_table(cell.n_prb, **shape).astype(np.int64),
                curves.n_code_blocks.astype(np.int64),
                curves.snr50_db,
                curves.slope_db,
                curves.redundancy_share,
                weight,
            ),
        )
        set_field(
            self,
            "scheduler",
            SchedulerRules(
                cell.n_prb, cell.min_rb, cell.blocks_per_slot, int(cell.allocation == "shared")
            ),
        )
        set_field(
            self,
            "link_rules",
            LinkRules(
                int(cell.link_adaptation == "olla"),
                max_mcs,
                cell.olla_step_db,
                cell.olla_step_db * target / (1.0 - target),
                required_snr_db(curves, cell.n_prb, target),
            ),
        )
        set_field(self, "plant", plant_constants(self.plant_config, cell.slot_us))

    def rules(self, n_ue: int, seed: int) -> CellRules:
        """Constants of a run.

        Raises:
            InputError: power limits are given for another number of UEs.
        """
        cell = self.config
        limits = cell.power_limit_rb or (cell.n_prb,) * n_ue
        if len(limits) != n_ue:
            raise InputError("cell.power_limit_rb", len(limits), f"needed: {n_ue} values or none")
        am_status_us = round(1000 * cell.am_status_ms) if cell.rlc_mode == "am" else -1
        return CellRules(
            slot_us=cell.slot_us,
            period_slots=cell.tdd.period_slots,
            ul_offsets=np.array(cell.tdd.ul_slots, np.int64),
            k2_slots=cell.k2_slots,
            harq_rounds=cell.harq_rounds,
            am_status_us=am_status_us,
            am_max_retx=cell.am_max_retx,
            report_period_us=round(1000 * cell.bsr_period_ms),
            report_again_us=round(1000 * cell.bsr_retx_ms),
            sr_period_slots=cell.sr_period_slots,
            inactivity_slots=cell.inactivity_frames * (10_000 // cell.slot_us),
            buffer_limit_bytes=cell.buffer_limit_bytes,
            bsr_levels=bsr_levels(cell.bsr_format),
            power_limit_rb=np.array(limits, np.int64),
            initial_mcs=cell.initial_mcs,
            seed=seed,
        )


def cell_model(
    config: CellConfig,
    plant: PlantConfig,
    lut: Lut,
    card: Card,
    curves: BlerCurves,
    rounding: str = "ceil",
) -> CellModel:
    """A cell on a device.

    Raises:
        InputError: the parts do not fit together.
    """
    if not 1 <= config.n_prb <= min(lut.carrier_prb, MAX_PRB):
        allowed = f"allowed: 1 to {lut.carrier_prb} (PRBs of the lookup table)"
        raise InputError("n_prb", config.n_prb, allowed)
    narrow = Lut(
        lut.min_sm_raw[:, : config.n_prb + 1],
        lut.min_sm[:, : config.n_prb + 1],
        np.minimum(lut.max_prb, np.int16(config.n_prb)),
        lut.provenance[:, : config.n_prb + 1],
    )
    return CellModel(config, plant, sm_tables(narrow, card.levels, rounding), curves)
