"""Stage ``replay_spare``: from each reservation trace to useful compute beside it."""

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
    FromParam,
    FromStage,
    Result,
    Stage,
    StageParams,
    Table,
)
from ranloom.gpu.card import Card, load_card
from ranloom.spare.budget import Reservation, from_changes, rescale
from ranloom.spare.gemm import TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import Outcome, replay
from ranloom.spare.workload import Restart, Workload, gemm_chain, transformer_step

TRACE_CARD = "trace"  # workloads that run on the device of the traces


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, description="root of random streams")
    card: str = Field(description="device card of the traces, a YAML file")


class MechanismParams(StageParams):
    """One sharing mechanism (WEAVER Table 1)."""

    reconfiguration_us: float = Field(ge=0, description="time of a change of the partition, us")
    keeps_state: bool = Field(description="device state survives a change")
    checkpoint_us: float = Field(ge=0, description="saving and restoring where it does not, us")


class ChainParams(StageParams):
    """Chain of dependent products (WEAVER Table 5)."""

    length: int = Field(ge=1, le=100_000, description="products in a chain")
    m: int = Field(ge=1, description="rows of the output")
    n: int = Field(ge=1, description="columns of the output")
    k: int = Field(ge=1, description="reduction")
    restart: Restart = Field(description="what a change of the partition starts over")


class StepParams(StageParams):
    """Training step of a decoder-only transformer (WEAVER Table 6)."""

    layers: int = Field(ge=1, le=200, description="decoder layers")
    hidden: int = Field(ge=1, description="model width")
    heads: int = Field(ge=1, description="attention heads")
    ffn: int = Field(ge=1, description="width of the feed-forward layer")
    vocabulary: int = Field(ge=1, description="vocabulary size")
    batch: int = Field(ge=1, description="samples of a step")
    sequence: int = Field(ge=1, description="tokens of a sample")
    restart: Restart = Field(description="what a change of the partition starts over")


class TilingParams(StageParams):
    """Largest tile."""

    tile_m: int = Field(ge=1, le=4096, description="rows")
    tile_n: int = Field(ge=1, le=4096, description="columns")
    tile_k: int = Field(ge=1, description="reduction")


class Params(StageParams):
    """Parameters of ``replay_spare``."""

    base: Base
    training_card: str = Field(description="device card of a training site, a YAML file")
    mechanisms: dict[str, MechanismParams] = Field(min_length=1, description="by name")
    mechanism_of: dict[str, str] = Field(description="mechanism of a controller; others: default")
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

    def mechanism(self, name: str) -> Mechanism:
        """A mechanism by name."""
        chosen = self.mechanisms[name]
        return Mechanism(name, chosen.reconfiguration_us, chosen.keeps_state, chosen.checkpoint_us)

    def model(self, card: Card) -> TileModel:
        """Wave times on a device."""
        return TileModel(
            card, self.tile_efficiency, self.bandwidth_share, self.element_bytes, self.dispatch_us
        )

    def workloads(self) -> tuple[Workload, Workload]:
        """The chain and the training step."""
        return (
            gemm_chain("gemm_chain", **vars(self.gemm_chain)),
            transformer_step("training_step", **vars(self.training_step)),
        )


def check(params: Params, _files: Mapping[str, Path]) -> Iterator[Fault]:
    """Names of mechanisms that are not declared."""
    known = f"declared mechanisms: {', '.join(params.mechanisms)}"
    named = {"default_mechanism": params.default_mechanism} | {
        f"mechanism_of.{c}": m for c, m in params.mechanism_of.items()
    }
    for key, name in named.items():
        if name not in params.mechanisms:
            yield Fault(f"params.yaml: replay_spare.{key}", name, known)


def traces(inputs: Inputs, sm_max: int) -> Iterator[tuple[str, str, int, Reservation, int]]:
    """Reservation traces as (scenario, controller, cell, trace, decode starts)."""
    lengths = {
        (s, int(c)): (int(n), float(us))
        for s, c, n, us in zip(
            *(inputs.columns("scenarios")[k] for k in ("scenario", "cell", "slots", "slot_us")),
            strict=True,
        )
    }
    cells = inputs.columns("cells")
    changes = inputs.columns("reservations")
    keys = list(zip(changes["scenario"], changes["controller"], changes["cell"], strict=True))
    first = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
    for begin, end in zip(first, [*first[1:], len(keys)], strict=True):
        scenario, controller, cell = keys[begin]
        n_slots, slot_us = lengths[scenario, int(cell)]
        trace = from_changes(
            changes["slot"][begin:end],
            changes["sm"][begin:end],
            n_slots,
            slot_us,
            sm_max=sm_max,
            where=f"reservations of {scenario}, {controller}, cell {cell}",
        )
        mine = (
            (cells["scenario"] == scenario)
            & (cells["controller"] == controller)
            & (cells["cell"] == cell)
        )
        yield scenario, controller, int(cell), trace, int(cells["decode_starts"][mine].sum())


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Replay both workloads beside every trace."""
    card, training_card = load_card(inputs.path("card")), load_card(inputs.path("training_card"))
    chain, step = params.workloads()
    on = {chain.name: params.model(card), step.name: params.model(training_card)}
    tiling = Tiling(**vars(params.tiling))
    spare: dict[str, list[Any]] = {c.name: [] for c in SPARE.columns}
    rows: list[dict[str, Any]] = []
    for index, (scenario, controller, cell, trace, starts) in enumerate(
        traces(inputs, card.sm_count)
    ):
        own = params.mechanism_of.get(controller, params.default_mechanism)
        every = scenario != "macro" and controller == params.compared_controller
        for name in dict.fromkeys([own, *(params.mechanisms if every else ())]):
            for workload in (chain, step):
                if scenario == "macro" and workload is chain:
                    continue
                model = on[workload.name]
                beside = trace if workload is chain else rescale(trace, card.sm_count, model.card)
                done = replay(
                    beside,
                    workload,
                    params.mechanism(name),
                    model,
                    tiling,
                    jitter_sigma=params.jitter_sigma,
                    seed=params.base.seed + index,
                )
                rows.append(
                    {
                        "scenario": scenario,
                        "controller": controller,
                        "cell": cell,
                        "own": name == own,
                    }
                    | _row(workload, name, beside, model, done, starts)
                )
                if workload is step and name == own:
                    _append_spare(spare, scenario, controller, name, cell, beside, model, done)
    outputs.table("spare", spare)
    outputs.table("coexistence", {c.name: [r[c.name] for r in rows] for c in COEXISTENCE.columns})
    return Result(metrics=_metrics(rows))


def _row(
    workload: Workload,
    mechanism: str,
    trace: Reservation,
    model: TileModel,
    done: Outcome,
    starts: int,
) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "workload": workload.name,
        "device": model.card.name,
        "reservation_mean_sm": trace.mean_sm,
        "transitions": done.transitions,
        "spare_share_pct": 100.0 * done.spare_sm_s / done.duration_s / model.card.sm_count,
        "useful_tflops": done.useful_tflops,
        "efficiency_pct": done.efficiency_pct(model),
        "violations": done.violations,
        "violation_ms": done.violation_us / 1000.0,
        "decode_starts": starts,
        "violation_pct": 100.0 * done.violations / starts if starts else 0.0,
        "tokens_per_s": done.units * workload.tokens / done.duration_s,
    }


def _append_spare(
    spare: dict[str, list[Any]],
    scenario: str,
    controller: str,
    mechanism: str,
    site: int,
    trace: Reservation,
    model: TileModel,
    done: Outcome,
) -> None:
    seconds = done.useful_flops.size
    per_second = round(1e6 / trace.slot_us)
    free = np.repeat(model.card.sm_count - trace.sm, trace.slots)
    padded = np.pad(free.astype(float), (0, seconds * per_second - free.size), "edge")
    spare["scenario"] += [scenario] * seconds
    spare["controller"] += [controller] * seconds
    spare["mechanism"] += [mechanism] * seconds
    spare["site"] += [site] * seconds
    spare["second"] += list(range(seconds))
    spare["spare_sm"] += padded.reshape(seconds, per_second).mean(axis=1).tolist()
    spare["usable_tflops"] += (done.useful_flops / 1e12).tolist()


def _metrics(rows: list[dict[str, Any]]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    own = [r for r in rows if r["own"] and r["scenario"] != "macro"]
    for row in own:
        place = metrics.setdefault(row["scenario"], {}).setdefault(row["controller"], {})
        if row["workload"] == "gemm_chain":
            place["useful_tflops"] = row["useful_tflops"]
            continue
        place["training_tflops"] = row["useful_tflops"]
        for name in ("efficiency_pct", "violations", "violation_ms", "violation_pct"):
            place[name] = row[name]
        place["tokens_per_s"] = row["tokens_per_s"]
    for scenario in metrics.values():
        for other in ("noctrl", "yinyangran"):
            if {"weaver", other} <= scenario.keys() and scenario[other]["useful_tflops"] > 0:
                scenario[f"useful_ratio_weaver_over_{other}"] = (
                    scenario["weaver"]["useful_tflops"] / scenario[other]["useful_tflops"]
                )
    return metrics


SPARE = Table(
    "spare.parquet",
    "usable compute of each site and second, beside its own controller's reservations",
    (
        Column("scenario", "string", "scenario of generate_traces"),
        Column("controller", "string", "controller that made the reservations"),
        Column("mechanism", "string", "GPU-sharing mechanism"),
        Column("site", "int32", "cell of the scenario"),
        Column("second", "int32", "second of the scenario"),
        Column("spare_sm", "float64", "mean SMs not reserved, of the training device"),
        Column("usable_tflops", "float64", "useful operations of that second, 1e12 per second"),
    ),
)

COEXISTENCE = Table(
    "coexistence.parquet",
    "each workload beside each trace",
    (
        Column("scenario", "string", "scenario of generate_traces"),
        Column("controller", "string", "controller that made the reservations"),
        Column("cell", "int32", "cell of the scenario"),
        Column("mechanism", "string", "GPU-sharing mechanism"),
        Column("own", "bool", "whether this is the mechanism that the controller stands for"),
        Column("workload", "string", "gemm_chain or training_step"),
        Column("device", "string", "device that both share"),
        Column("reservation_mean_sm", "float64", "mean reserved SMs of that device"),
        Column("transitions", "int64", "changes of the reservation"),
        Column("spare_share_pct", "float64", "share of SM-time that a partition can use"),
        Column("useful_tflops", "float64", "finished work, 1e12 operations per second"),
        Column("efficiency_pct", "float64", "share of spare SM-time turned into work"),
        Column("violations", "int64", "decode starts with training still on the RAN's SMs"),
        Column("violation_ms", "float64", "duration of those, in all"),
        Column("decode_starts", "int64", "decode starts of the trace"),
        Column("violation_pct", "float64", "violations per decode start"),
        Column("tokens_per_s", "float64", "training throughput; 0 for the chain"),
    ),
)

STAGE = Stage(
    name="replay_spare",
    title="Useful compute beside each reservation trace",
    params=Params,
    inputs={
        "reservations": FromStage("generate_traces", "reservations"),
        "scenarios": FromStage("generate_traces", "scenarios"),
        "cells": FromStage("generate_traces", "cells"),
        "card": FromParam("base.card"),
        "training_card": FromParam("replay_spare.training_card"),
    },
    outputs={"spare": SPARE, "coexistence": COEXISTENCE},
    run=run,
    check=check,
    headline=(
        "scenario_1.useful_ratio_weaver_over_noctrl",
        "scenario_2.useful_ratio_weaver_over_noctrl",
        "scenario_1.weaver.efficiency_pct",
    ),
)
