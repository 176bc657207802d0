"""Stage ``replay_spare``: from each reservation trace to useful compute beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
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
from ranloom.spare.checks import measure_detection
from ranloom.spare.gemm import TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import Outcome, replay
from ranloom.spare.synthetic import TraceStatistics, synthetic_trace
from ranloom.spare.workload import Restart, Workload, gemm_chain, transformer_step

CHECKED_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Base(StageParams):
    """Shared values of this stage."""

    seed: int = Field(ge=0, description="root of random streams")
    card: str = Field(description="device card of the traces, a YAML file")


class MechanismParams(StageParams):
    """One sharing mechanism (WEAVER Table 1)."""

    reconfiguration_us: float = Field(ge=0, description="time of a change of the partition, us")
    keeps_state: bool = Field(description="device state survives a change")
    checkpoint_us: float = Field(ge=0, description="saving and restoring where it does not, us")


class TilingParams(StageParams):
    """Largest tile."""

    tile_m: int = Field(ge=1, le=4096, description="rows")
    tile_n: int = Field(ge=1, le=4096, description="columns")
    tile_k: int = Field(ge=1, description="reduction")


class ChainParams(StageParams):
    """Chain of dependent products (WEAVER Table 5)."""

    length: int = Field(ge=1, le=100_000, description="products in a chain")
    m: int = Field(ge=1, description="rows of the output")
    n: int = Field(ge=1, description="columns of the output")
    k: int = Field(ge=1, description="reduction")
    restart: Restart = Field(description="what a change of the partition starts over")
    relaunch_us: float = Field(ge=0, description="time to launch the chain again, us")
    tile_efficiency: float = Field(gt=0, le=1, description="share of the tensor peak in a tile")
    tiling: TilingParams


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


class ChecksParams(StageParams):
    """Measured detection of corrupted products (WEAVER App. F)."""

    trials: int = Field(ge=1, le=1_000_000, description="products a type")
    pairs: int = Field(ge=1, le=64, description="probe pairs of a check")
    sigmas: float = Field(gt=0, le=100, description="tolerance in deviations of the rounding")
    rows: int = Field(ge=2, le=4096, description="rows of a product")
    columns: int = Field(ge=2, le=4096, description="columns of a product")
    reduction: int = Field(ge=1, le=65536, description="reduction of a product")
    corruption_rms: float = Field(gt=0, description="wrong entry: off by this many rms entries")


class SyntheticTraceParams(StageParams):
    """Statistics of the synthetic reservations of one controller."""

    mean_sm: float = Field(gt=0, description="mean reservation, SMs")
    transitions: int = Field(ge=0, description="changes in the trace")
    quiet_sm: int = Field(ge=0, description="level between excursions, SMs")
    peak_sm: int = Field(ge=1, description="highest level of an excursion, SMs")
    period_us: float = Field(gt=0, description="changes happen at multiples of this, us")
    burst_transitions: int = Field(ge=0, description="changes in one burst; 0: no bursts")


class SyntheticParams(StageParams):
    """Second reading: traces drawn to given statistics instead of our own."""

    traces: int = Field(ge=1, le=100, description="traces drawn of each kind")
    duration_s: float = Field(gt=0, le=3600, description="length of a trace, s")
    slot_us: float = Field(gt=0, description="slot duration, us")
    burst_us: float = Field(gt=0, description="length of a burst, us")
    burst_share: float = Field(ge=0, lt=1, description="share of the changes in bursts")
    step_loss_us: float = Field(ge=0, description="further loss of a training step a change, us")
    scenarios: dict[str, dict[str, SyntheticTraceParams]] = Field(
        description="by scenario and controller"
    )


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
    checks: ChecksParams

    def mechanism(self, name: str) -> Mechanism:
        """A mechanism by name."""
        chosen = self.mechanisms[name]
        return Mechanism(name, chosen.reconfiguration_us, chosen.keeps_state, chosen.checkpoint_us)

    def setting(self, workload: str, card: Card) -> tuple[TileModel, Tiling]:
        """Wave times and tiles of a workload on a device."""
        chain = workload == "gemm_chain"
        model = TileModel(
            card,
            self.gemm_chain.tile_efficiency if chain else self.tile_efficiency,
            self.bandwidth_share,
            self.element_bytes,
            self.dispatch_us,
        )
        return model, Tiling(**vars(self.gemm_chain.tiling if chain else self.tiling))

    def workloads(self) -> tuple[Workload, Workload]:
        """The chain and the training step."""
        chain = self.gemm_chain.model_dump(exclude={"tile_efficiency", "tiling"})
        return (
            gemm_chain("gemm_chain", **chain),
            transformer_step("training_step", **vars(self.training_step)),
        )


def check(params: Params, _files: Mapping[str, Path]) -> Iterator[Fault]:
    """Names of mechanisms that are not declared."""
    known = f"declared mechanisms: {', '.join(params.mechanisms)}"
    named = {"default_mechanism": params.default_mechanism}
    for key in ("mechanism_of", "site_mechanism_of"):
        named |= {f"{key}.{c}": m for c, m in getattr(params, key).items()}
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
    on = {w.name: params.setting(w.name, c) for w, c in ((chain, card), (step, training_card))}
    spare: dict[str, list[Any]] = {c.name: [] for c in SPARE.columns}
    rows: list[dict[str, Any]] = []
    for index, (scenario, controller, cell, trace, starts) in enumerate(
        traces(inputs, card.sm_count)
    ):
        own = params.mechanism_of.get(controller, params.default_mechanism)
        at_sites = params.site_mechanism_of.get(controller, own)
        every = scenario != "macro" and controller == params.compared_controller
        for name in dict.fromkeys([own, at_sites, *(params.mechanisms if every else ())]):
            for workload in (chain, step):
                if scenario == "macro" and workload is chain:
                    continue
                model, tiling = on[workload.name]
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
                if workload is step and name == at_sites:
                    _append_spare(spare, scenario, controller, name, cell, beside, model, done)
    outputs.table("spare", spare)
    outputs.table("coexistence", {c.name: [r[c.name] for r in rows] for c in COEXISTENCE.columns})
    return Result(
        metrics=_metrics(rows)
        | {"synthetic": _synthetic(params, card, training_card), "checks": _checks(params)}
    )


def _checks(params: Params) -> dict[str, Any]:
    """Rates of each type, and the worse of them."""
    asked = params.checks
    rates = {
        name: asdict(
            measure_detection(
                dtype=dtype,
                m=asked.rows,
                n=asked.columns,
                k=asked.reduction,
                trials=asked.trials,
                pairs=asked.pairs,
                sigmas=asked.sigmas,
                corruption_rms=asked.corruption_rms,
                seed=params.base.seed,
            )
        )
        for name, dtype in CHECKED_TYPES.items()
    }
    return {
        "detected_pct": min(r["detected_pct"] for r in rates.values()),
        "false_alarm_pct": max(r["false_alarm_pct"] for r in rates.values()),
        "trials": asked.trials * len(rates),
    } | rates


def _synthetic(params: Params, card: Card, training_card: Card) -> dict[str, Any]:
    """The second reading, and the chain's ratios without each of its constants."""
    _, step = params.workloads()
    found: dict[str, Any] = _synthetic_chain(params, card)
    for scenario, controllers in params.synthetic.scenarios.items():
        for controller in controllers:
            kept = _beside_drawn(params, card, scenario, controller, step, training_card)
            place = found[scenario][controller]
            place |= _means(kept, step, params.setting(step.name, training_card)[0])
            lossy = replace(step, relaunch_us=params.synthetic.step_loss_us)
            lost = _beside_drawn(params, card, scenario, controller, lossy, training_card)
            for name, value in _means(
                lost, step, params.setting(step.name, training_card)[0]
            ).items():
                place[f"with_loss_{name}"] = value
    without: dict[str, dict[str, Any]] = {
        "without_relaunch": {"gemm_chain": {"relaunch_us": 0.0}},
        "without_bursts": {"synthetic": {"burst_share": 0.0}},
        "without_checkpoint": {
            "mechanisms": {name: {"checkpoint_us": 0.0} for name in params.mechanisms}
        },
    }
    for name, change in without.items():
        ratios = _synthetic_chain(_changed(params, change), card)
        found[name] = {
            scenario: {k: v for k, v in values.items() if k.startswith("useful_ratio")}
            for scenario, values in ratios.items()
        }
    return found


def _synthetic_chain(params: Params, card: Card) -> dict[str, Any]:
    """Useful work of the chain beside drawn traces, by scenario and controller."""
    chain, _ = params.workloads()
    found: dict[str, Any] = {}
    for scenario, controllers in params.synthetic.scenarios.items():
        place = found[scenario] = {}
        for controller in controllers:
            drawn = list(_drawn(params, card, scenario, controller))
            done = _beside_drawn(params, card, scenario, controller, chain, card)
            place[controller] = {
                "useful_tflops": float(np.mean([d.useful_tflops for d in done])),
                "mean_sm": float(np.mean([t.mean_sm for t in drawn])),
                "transitions": float(np.mean([t.transitions for t in drawn])),
            }
        _ratios(place)
    return found


def _beside_drawn(
    params: Params, card: Card, scenario: str, controller: str, workload: Workload, on: Card
) -> list[Outcome]:
    """A workload beside each drawn trace, rescaled to the device that it runs on."""
    model, tiling = params.setting(workload.name, on)
    own = params.mechanism_of.get(controller, params.default_mechanism)
    return [
        replay(
            trace if on is card else rescale(trace, card.sm_count, on),
            workload,
            params.mechanism(own),
            model,
            tiling,
            jitter_sigma=params.jitter_sigma,
            seed=params.base.seed,
        )
        for trace in _drawn(params, card, scenario, controller)
    ]


def _means(done: list[Outcome], workload: Workload, model: TileModel) -> dict[str, float]:
    return {
        "training_tflops": float(np.mean([d.useful_tflops for d in done])),
        "efficiency_pct": float(np.mean([d.efficiency_pct(model) for d in done])),
        "violations": float(np.mean([d.violations for d in done])),
        "tokens_per_s": float(np.mean([d.units * workload.tokens / d.duration_s for d in done])),
    }


def _drawn(params: Params, card: Card, scenario: str, controller: str) -> Iterator[Reservation]:
    """The drawn traces of one scenario and controller."""
    asked = params.synthetic
    wanted = TraceStatistics(
        **asked.scenarios[scenario][controller].model_dump(),
        burst_us=asked.burst_us,
        burst_share=asked.burst_share,
    )
    for k in range(asked.traces):
        yield synthetic_trace(
            wanted,
            duration_s=asked.duration_s,
            slot_us=asked.slot_us,
            card=card,
            seed=params.base.seed + k,
        )


def _changed(params: Params, change: Mapping[str, Any]) -> Params:
    """The same parameters but for some nested values."""

    def merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        return old | {k: merged(old[k], v) if isinstance(v, Mapping) else v for k, v in new.items()}

    return Params.model_validate(merged(params.model_dump(), change))


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
        "w_per_tflops": _w_per_tflops(model.card, done),
        "efficiency_pct": done.efficiency_pct(model),
        "violations": done.violations,
        "violation_ms": done.violation_us / 1000.0,
        "decode_starts": starts,
        "violation_pct": 100.0 * done.violations / starts if starts else 0.0,
        "tokens_per_s": done.units * workload.tokens / done.duration_s,
    }


def _w_per_tflops(card: Card, done: Outcome) -> float:
    """Power of the spare SMs, as their share of the board's limit, over useful throughput."""
    power_w = card.power_w * done.spare_sm_s / done.duration_s / card.sm_count
    return power_w / done.useful_tflops if done.useful_tflops else math.inf


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
        _ratios(scenario)
    return metrics


def _ratios(scenario: dict[str, Any]) -> None:
    """Add how much more of the chain is done beside weaver's reservations."""
    for other in ("noctrl", "yinyangran"):
        if {"weaver", other} <= scenario.keys() and scenario[other]["useful_tflops"] > 0:
            scenario[f"useful_ratio_weaver_over_{other}"] = (
                scenario["weaver"]["useful_tflops"] / scenario[other]["useful_tflops"]
            )


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
        Column(
            "w_per_tflops",
            "float64",
            "watts per useful TFLOPS: the spare SMs' share of the board's power limit, drawn in "
            "full also while they redo lost work or wait; infinite where nothing was finished",
        ),
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
        "synthetic.scenario_1.useful_ratio_weaver_over_noctrl",
        "synthetic.scenario_2.useful_ratio_weaver_over_noctrl",
        "checks.detected_pct",
    ),
)
