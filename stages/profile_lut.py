"""Stage ``profile_lut``: decode latency by MCS, PRB and SMs, and the lookup table from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
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
from ranloom.lut.characterise import (
    Assumptions,
    Characterisation,
    Reservation,
    characterise,
    reserve,
)
from ranloom.lut.importers import ImportOptions
from ranloom.lut.profile import ProfileRequest
from ranloom.lut.table import INFEASIBLE, PROVENANCES, Lut
from ranloom.nr.tbs import Allocation

# The configuration of WEAVER appendix A.2: MCS 15, 162 PRB on 16 and on 48 SMs.
RESERVED_MCS, RESERVED_PRB = 15, 162
FEWER_SM, MORE_SM = 16, 48
ROOFLINE_LIFTING_SIZE = 128  # appendix A.1


class Base(StageParams):
    """Shared values of this stage."""

    card: str = Field(description="device card, a YAML file")
    mcs_table: Literal[1, 2, 3] = Field(description="38.214 tables 5.1.3.1-1, -2, -3")
    n_layers: int = Field(ge=1, le=4, description="uplink layers")


class Params(StageParams):
    """Parameters of ``profile_lut``."""

    base: Base
    backend: Literal["model", "published", "import"] = Field(
        description="where latencies come from"
    )
    source_path: str = Field(description="profile (CSV) or log, read by backend import only")
    source_sm: int = Field(ge=1, le=1_000, description="SMs behind a log that does not say it")
    fit_source: bool = Field(description="a, k and b of the model are fitted to an import")
    source_machine: str = Field(description="part of a machine name in a table of several")
    budget_us: float = Field(gt=0, le=10_000, description="latency budget of the table, us")
    percentile: Literal[50, 99] = Field(description="latency percentile that must meet the budget")
    max_prb: int = Field(ge=1, le=275, description="widest allocation, PRBs")
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
            self.base.mcs_table,
            self.base.n_layers,
            self.n_symbols,
            self.n_dmrs_per_prb,
            self.n_oh,
        )

    def model(self) -> LatencyModel:
        """Latency model."""
        return LatencyModel(self.a_us, self.k_us_sm, self.b_us, self.p99_over_mean)

    def assumptions(self) -> Assumptions:
        """What utilisation is computed with."""
        return Assumptions(self.iterations, self.deadline_us, self.instructions_per_op)


def request(params: Params, card: Card, published: Path, source: Path) -> ProfileRequest:
    """What to profile, from the parameters.

    Raises:
        InputError: the metrics would cover no allocation.
    """
    if params.characterise_from_prb > params.max_prb:
        raise InputError(
            "profile_lut.characterise_from_prb",
            params.characterise_from_prb,
            f"allowed: up to profile_lut.max_prb ({params.max_prb})",
        )
    return ProfileRequest(
        allocation=params.allocation(),
        max_prb=params.max_prb,
        card=card,
        budget_us=params.budget_us,
        percentile=params.percentile,
        model=params.model(),
        published_path=published,
        source_path=source,
        source_options=ImportOptions(
            params.source_sm,
            params.p99_over_mean,
            params.base.mcs_table,
            params.source_machine,
            params.base.n_layers,
        ),
        fit_source=params.fit_source,
    )


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Profile, build the table, characterise."""
    card = load_card(inputs.path("card"))
    wanted = request(params, card, inputs.path("published"), inputs.path("source"))
    profile = BACKENDS[params.backend](wanted)
    lut = profile.lut(wanted)
    model, assumed = profile.model, params.assumptions()
    constants = asdict(model)
    if profile.tail_sigma is not None:  # then it stands in for base.plant.tail_sigma
        constants["tail_sigma"] = profile.tail_sigma
    usage = characterise(wanted.allocation, wanted.max_prb, card, model, assumed)
    reserved_prb = min(RESERVED_PRB, wanted.max_prb)
    overhead_us = params.slot_overhead_us
    reservation = reserve(usage, RESERVED_MCS, reserved_prb, card, model, assumed, overhead_us)
    known = {p.stem: load_card(p) for p in sorted(inputs.path("cards").glob("*.yaml"))}
    cards = list(known.values())
    outputs.table("latency", profile.latencies.to_columns())
    outputs.table("lut", lut.to_columns())
    outputs.table("characterisation", vars(usage))
    outputs.table("reservation", vars(reservation))
    outputs.table(
        "cards",
        {
            "card": [c.name for c in cards],
            "sm_count": [c.sm_count for c in cards],
            "fp16_tensor_tflops": [c.fp16_tensor_tflops for c in cards],
            "memory_bandwidth_gb_per_s": [c.memory_bandwidth_gb_per_s for c in cards],
            "ridge_ops_per_byte": [c.ridge_ops_per_byte for c in cards],
        },
    )
    outputs.json(
        "source",
        {"backend": params.backend, "how": dict(profile.how), "skipped": list(profile.skipped)},
    )
    outputs.json(
        "model",
        {
            **constants,
            "slot_overhead_us": params.slot_overhead_us,
            "budget_us": params.budget_us,
            "card": card.name,
            "sm_count": card.sm_count,
            "sm_levels": card.levels.tolist(),
        },
    )
    return Result(
        metrics={
            **_published_metrics(wanted, lut, model),
            "infeasible_pairs": int((lut.min_sm[:, 1:] == INFEASIBLE).sum()),
            "roofline": {
                **_roofline(params),
                "ridge_ops_per_byte": card.ridge_ops_per_byte,
                "ridge": {stem: c.ridge_ops_per_byte for stem, c in known.items()},
            },
            "reservation": _reservation(reservation),
            "characterisation": _characterisation(usage, params.characterise_from_prb),
            "provenance": _provenance(lut),
            "latency_model": constants,
        }
    )


def _roofline(params: Params) -> Mapping[str, float]:
    one_block = decode_point(base_graph(1).n_edges, ROOFLINE_LIFTING_SIZE, params.iterations)
    return {
        "bg1_z128_ops_per_byte": one_block.ops_per_byte,
        "bg1_z128_ops": one_block.ops,
        "bg1_z128_bytes": one_block.bytes,
    }


def _reservation(effect: Reservation) -> Mapping[str, float]:
    """Slot and decode on 16 and 48 SMs; nothing where the card has no such partitions."""
    at = [np.flatnonzero(effect.sm == sm) for sm in (FEWER_SM, MORE_SM)]
    if any(len(rows) == 0 for rows in at):
        return {}
    few, many = (int(rows[0]) for rows in at)
    found: dict[str, float] = {
        "slowdown_16_over_48": effect.p99_us[few] / effect.p99_us[many],
        "slot_slowdown_16_over_48": effect.slot_us[few] / effect.slot_us[many],
    }
    for sm, row in ((FEWER_SM, few), (MORE_SM, many)):
        for name in ("p99_us", "slot_us", "smu_pct", "acu_pct", "gbu_pct"):
            found[f"{name}_{sm}"] = getattr(effect, name)[row]
    return found


def _characterisation(usage: Characterisation, from_prb: int) -> Mapping[str, float]:
    shown = usage.prb >= from_prb
    return {
        "slack_pct_min": usage.slack_pct[shown].min(),
        "slack_pct_max": usage.slack_pct[shown].max(),
        "max_smu_pct": usage.smu_pct[shown].max(),
        "max_acu_pct": usage.acu_pct[shown].max(),
        "max_acu_useful_pct": usage.acu_useful_pct[shown].max(),
        "gbu_pct_min": usage.gbu_pct[shown].min(),
        "gbu_pct_max": usage.gbu_pct[shown].max(),
    }


def _provenance(lut: Lut) -> Mapping[str, int]:
    kinds = np.bincount(lut.provenance[:, 1:].ravel(), minlength=len(PROVENANCES))
    return {kind: int(n) for kind, n in zip(PROVENANCES, kinds, strict=True)}


def _published_metrics(wanted: ProfileRequest, lut: Lut, model: LatencyModel) -> Mapping[str, Any]:
    """Matches with the published cells; on another card than theirs none are comparable."""
    cells, sm_count = read_published_cells(wanted.published_path)
    inside = (cells.prb <= wanted.max_prb) & (cells.mcs < wanted.n_mcs)
    if not comparable(wanted.card, wanted.allocation.table, cells, sm_count):
        inside[:] = False
    mcs, prb, min_sm = cells.mcs[inside], cells.prb[inside], cells.min_sm[inside]
    match = match_table(model, wanted.work[mcs, prb], min_sm, wanted.card.levels, wanted.budget_us)
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
        for path in sorted(paths["cards"].glob("*.yaml")):
            load_card(path)
        wanted = request(params, card, paths["published"], paths["source"])
        wanted.work  # noqa: B018 an impossible allocation is found here
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
        "cards": FromRepo("data/cards"),
        "published": FromRepo("data/published/weaver.yaml"),
        "source": FromParam("profile_lut.source_path", folder=True),
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
                Column("tbs_bits", "int32", "transport block size"),
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
        "reservation": Table(
            "reservation.parquet",
            "One slot (MCS 15, 162 PRB) by reserved SMs (appendix A.2)",
            (
                Column("sm", "int16", "reserved SMs"),
                Column("p99_us", "float64", "99th percentile of the decode, us"),
                Column("decode_us", "float64", "median of the decode, us"),
                Column("slot_us", "float64", "median of decode and what a slot takes beside, us"),
                Column("smu_pct", "float64", "share of the device's SMs that is reserved"),
                Column("acu_pct", "float64", "arithmetic utilisation of the device, decoding"),
                Column("gbu_pct", "float64", "bandwidth utilisation of the device, decoding"),
            ),
        ),
        "cards": Table(
            "cards.parquet",
            "Ridge points of the known devices (appendix A.1)",
            (
                Column("card", "string", "device card"),
                Column("sm_count", "int16", "streaming multiprocessors"),
                Column("fp16_tensor_tflops", "float64", "dense FP16 tensor peak"),
                Column("memory_bandwidth_gb_per_s", "float64", "device memory bandwidth"),
                Column("ridge_ops_per_byte", "float64", "ridge point of the roofline"),
            ),
        ),
        "source": File("source.json", "backend, how its profile was taken, lines of it skipped"),
        "model": File("model.json", "latency model and SM levels of the device"),
    },
    run=run,
    headline=("model_cells_matched", "cells_published", "model_min_margin_us"),
    check=check,
)
