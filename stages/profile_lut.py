"""Stage ``profile_lut``: decode latency by MCS, PRB and SMs, and the lookup table from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    File,
    FromParam,
    FromRepo,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.gpu.latency import LatencyModel, match_table
from ranloom.gpu.roofline import decode_point
from ranloom.ldpc.base_graph import base_graph
from ranloom.lut.backends import BACKENDS, comparable, read_published_cells
from ranloom.lut.characterise import Allocation, Characterisation, characterise
from ranloom.lut.importers import ImportOptions
from ranloom.lut.profile import ProfileRequest
from ranloom.lut.table import INFEASIBLE, PROVENANCES, Lut
from ranloom.nr.segmentation import work_table

# The configuration of WEAVER appendix A.2: MCS 15, 162 PRB on 16 of 48 SMs.
RESERVED_MCS, RESERVED_PRB, RESERVED_SM = 15, 162, 16
ROOFLINE_LIFTING_SIZE = 128  # appendix A.1


class Base(StageParams):
    """Shared values of this stage."""

    card: str = Field(description="device card, a YAML file")


class Params(StageParams):
    """Parameters of ``profile_lut``."""

    base: Base
    backend: Literal["model", "published", "import"] = Field(
        description="where latencies come from"
    )
    source_path: str = Field(description="profile (CSV) or log, read by backend import only")
    source_sm: int = Field(ge=1, le=1_000, description="SMs behind a log that does not say it")
    source_machine: str = Field(description="part of a machine name in a table of several")
    budget_us: float = Field(gt=0, le=10_000, description="latency budget of the table, us")
    percentile: Literal[50, 99] = Field(description="latency percentile that must meet the budget")
    mcs_table: Literal[1, 2, 3] = Field(description="38.214 tables 5.1.3.1-1, -2, -3")
    max_prb: int = Field(ge=1, le=275, description="widest allocation, PRBs")
    n_layers: int = Field(ge=1, le=4, description="uplink layers")
    n_symbols: int = Field(ge=1, le=14, description="OFDM symbols of the allocation")
    n_dmrs_per_prb: int = Field(ge=0, le=156, description="DMRS resource elements per PRB")
    n_oh: Literal[0, 6, 12, 18] = Field(description="configured overhead, resource elements")
    a_us: float = Field(ge=0, le=10_000, description="fixed cost of a decode (P99), us")
    k_us_sm: float = Field(ge=0, le=1_000, description="parallel cost per unit of work, us x SM")
    b_us: float = Field(ge=0, le=10, description="serial cost per unit of work, us")
    p99_over_mean: float = Field(ge=1, le=10, description="P99 of a decode over its mean")
    slot_overhead_us: float = Field(ge=0, le=10_000, description="slot time beside the decode, us")
    iterations: int = Field(ge=1, le=100, description="decoder iterations")
    deadline_us: float = Field(gt=0, le=10_000, description="time that a slot may take, us")
    instructions_per_op: float = Field(ge=1, le=1_000, description="issued per operation")
    characterise_from_prb: int = Field(ge=1, le=275, description="least PRBs in these metrics")

    def allocation(self) -> Allocation:
        """Shape of the allocation."""
        return Allocation(
            self.mcs_table, self.n_layers, self.n_symbols, self.n_dmrs_per_prb, self.n_oh
        )

    def model(self) -> LatencyModel:
        """Latency model."""
        return LatencyModel(self.a_us, self.k_us_sm, self.b_us, self.p99_over_mean)


def request(params: Params, card: Card, published: Path, source: Path) -> ProfileRequest:
    """What to profile, from the parameters."""
    work = work_table(
        params.max_prb,
        table=params.mcs_table,
        n_layers=params.n_layers,
        n_symbols=params.n_symbols,
        n_dmrs_per_prb=params.n_dmrs_per_prb,
        n_oh=params.n_oh,
    )
    return ProfileRequest(
        work=work,
        card=card,
        budget_us=params.budget_us,
        percentile=params.percentile,
        model=params.model(),
        published_path=published,
        source_path=source,
        source_options=ImportOptions(
            params.source_sm, params.p99_over_mean, params.mcs_table, params.source_machine
        ),
    )


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Profile, build the table, characterise."""
    card = load_card(inputs.path("card"))
    wanted = request(params, card, inputs.path("published"), inputs.path("source"))
    profile = BACKENDS[params.backend](wanted)
    lut = profile.lut(wanted)
    usage = characterise(
        wanted.work,
        params.allocation(),
        card,
        wanted.model,
        iterations=params.iterations,
        deadline_us=params.deadline_us,
        instructions_per_op=params.instructions_per_op,
    )
    outputs.table("latency", profile.latencies.to_columns())
    outputs.table("lut", lut.to_columns())
    outputs.table("characterisation", vars(usage))
    outputs.json(
        "model",
        {
            "a_us": params.a_us,
            "k_us_sm": params.k_us_sm,
            "b_us": params.b_us,
            "p99_over_mean": params.p99_over_mean,
            "slot_overhead_us": params.slot_overhead_us,
            "budget_us": params.budget_us,
            "card": card.name,
            "sm_count": card.sm_count,
            "sm_levels": card.levels.tolist(),
        },
    )
    return Result(metrics=_metrics(params, wanted, lut, usage))


def _metrics(
    params: Params, wanted: ProfileRequest, lut: Lut, usage: Characterisation
) -> Mapping[str, Any]:
    shown = usage.prb >= params.characterise_from_prb
    reserved = wanted.work[RESERVED_MCS, min(RESERVED_PRB, wanted.max_prb)]
    p99_us = wanted.model.p99_us(reserved, [RESERVED_SM, wanted.card.sm_count])
    slot_us = p99_us / params.p99_over_mean + params.slot_overhead_us
    one_block = decode_point(base_graph(1).n_edges, ROOFLINE_LIFTING_SIZE, params.iterations)
    kinds = np.bincount(lut.provenance[:, 1:].ravel(), minlength=len(PROVENANCES))
    return {
        **_published_metrics(wanted, lut),
        "infeasible_pairs": int((lut.min_sm[:, 1:] == INFEASIBLE).sum()),
        "roofline": {
            "bg1_z128_ops_per_byte": one_block.ops_per_byte,
            "bg1_z128_ops": one_block.ops,
            "bg1_z128_bytes": one_block.bytes,
            "ridge_ops_per_byte": wanted.card.ridge_ops_per_byte,
        },
        "reservation": {
            "slowdown_16_over_48": p99_us[0] / p99_us[1],
            "slot_us_16": slot_us[0],
            "slot_us_48": slot_us[1],
            "slot_slowdown_16_over_48": slot_us[0] / slot_us[1],
        },
        "characterisation": {
            "slack_pct_min": usage.slack_pct[shown].min(),
            "slack_pct_max": usage.slack_pct[shown].max(),
            "max_smu_pct": usage.smu_pct[shown].max(),
            "max_acu_pct": usage.acu_pct[shown].max(),
            "max_acu_useful_pct": usage.acu_useful_pct[shown].max(),
            "gbu_pct_min": usage.gbu_pct[shown].min(),
            "gbu_pct_max": usage.gbu_pct[shown].max(),
        },
        "provenance": {kind: int(n) for kind, n in zip(PROVENANCES, kinds, strict=True)},
    }


def _published_metrics(wanted: ProfileRequest, lut: Lut) -> Mapping[str, Any]:
    """Matches with the published cells; on another card than theirs none are comparable."""
    cells, sm_count = read_published_cells(wanted.published_path)
    inside = (cells.prb <= wanted.max_prb) & (cells.mcs < wanted.n_mcs)
    if not comparable(wanted.card, cells, sm_count):
        inside[:] = False
    mcs, prb, min_sm = cells.mcs[inside], cells.prb[inside], cells.min_sm[inside]
    match = match_table(
        wanted.model, wanted.work[mcs, prb], min_sm, wanted.card.levels, wanted.budget_us
    )
    from_published = lut
    if inside.any():
        from_published = BACKENDS["published"](wanted).lut(wanted)
    return {
        "cells_published": len(mcs),
        "model_cells_matched": match.matched,
        "model_min_margin_us": match.min_margin_us,
        "published_cells_matched": int((from_published.min_sm_raw[mcs, prb] == min_sm).sum()),
        "table_cells_matched": int((lut.min_sm_raw[mcs, prb] == min_sm).sum()),
        "envelope_cells_matched": int((lut.min_sm[mcs, prb] == min_sm).sum()),
    }


def check(params: Params, paths: Mapping[str, Path]) -> Iterator[Fault]:
    """Faults of the card, and of what the backend needs of it."""
    try:
        card = load_card(paths["card"])
        wanted = request(params, card, paths["published"], paths["source"])
        if params.backend != "model":
            BACKENDS[params.backend](wanted)
    except InputError as error:
        yield Fault(error.where, error.value, error.allowed)


STAGE = Stage(
    name="profile_lut",
    title="Decode latency and SM lookup table",
    params=Params,
    inputs={
        "card": FromParam("base.card"),
        "published": FromRepo("data/published/weaver.yaml"),
        "source": FromParam("profile_lut.source_path"),
    },
    outputs={
        "latency": Table(
            "latency.parquet",
            "Decode latency by MCS, PRB and SM count",
            (
                Column("mcs", "int16", "MCS index"),
                Column("prb", "int16", "PRBs, from 1"),
                Column("sm", "int16", "SMs, a level of the card"),
                Column("p50_us", "float64", "median decode latency, us"),
                Column("p99_us", "float64", "99th percentile of the decode latency, us"),
                Column("provenance", "string", "published, model, measured or imported"),
            ),
        ),
        "lut": Table(
            "lut.parquet",
            "Fewest SMs within the budget by MCS and PRB",
            (
                Column("mcs", "int16", "MCS index"),
                Column("prb", "int16", "PRBs, from 1"),
                Column(
                    "min_sm_raw",
                    "int16",
                    "as profiled; null where infeasible, or not profiled (provenance ceiling)",
                    nullable=True,
                ),
                Column(
                    "min_sm",
                    "int16",
                    "monotone envelope with ceiling between points; null where infeasible",
                    nullable=True,
                ),
                Column("provenance", "string", "published, model, measured, imported or ceiling"),
            ),
        ),
        "characterisation": Table(
            "characterisation.parquet",
            "Utilisation of the whole device over one deadline by MCS and PRB",
            (
                Column("mcs", "int16", "MCS index"),
                Column("prb", "int16", "PRBs, from 1"),
                Column("work", "int32", "code blocks x lifting size"),
                Column("ops", "float64", "operations of a decode (appendix A.1)"),
                Column("bytes", "float64", "memory traffic of a decode (appendix A.1)"),
                Column("p50_us", "float64", "median decode latency on all SMs, us"),
                Column("p99_us", "float64", "99th percentile on all SMs, us"),
                Column("slack_pct", "float64", "share of the deadline that the median leaves"),
                Column("smu_pct", "float64", "SM utilisation"),
                Column("acu_pct", "float64", "arithmetic utilisation, issued instructions"),
                Column("acu_useful_pct", "float64", "arithmetic utilisation, operations only"),
                Column("gbu_pct", "float64", "memory bandwidth utilisation"),
            ),
        ),
        "model": File("model.json", "latency model and SM levels of the device"),
    },
    run=run,
    headline=("model_cells_matched", "cells_published", "model_min_margin_us"),
    check=check,
)
