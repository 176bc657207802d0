"""Stage ``replay_spare``: from each reservation trace to useful compute beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    Column,
    Fault,
    FromParam,
    FromStage,
    Result,
    Stage,
    Table,
)
from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card
from ranloom.spare.budget import Reservation, from_changes
from ranloom.spare.colocation import Colocation
from ranloom.spare.replay import Outcome
from ranloom.spare.second_reading import useful_ratios
from ranloom.spare.synthetic import synthetic_trace
from stages._spare_params import Params
from stages._spare_reading import second_reading, sensitivity, steadiness

_BLOCK = "params.yaml: replay_spare"


def check(params: Params, files: Mapping[str, Path]) -> Iterator[Fault]:
    """The cards, mechanisms that are not declared, tiles and traces that no device can have."""
    card, training_card = load_card(files["card"]), load_card(files["training_card"])
    known = f"declared mechanisms: {', '.join(params.mechanisms)}"
    named = {"default_mechanism": params.default_mechanism}
    for key in ("mechanism_of", "site_mechanism_of"):
        named |= {f"{key}.{c}": m for c, m in getattr(params, key).items()}
    for key, name in named.items():
        if name not in params.mechanisms:
            yield Fault(f"{_BLOCK}.{key}", name, known)
    for scenario, controllers in params.synthetic.scenarios.items():
        for needed in ("weaver", "noctrl"):
            if needed not in controllers:
                where = f"{_BLOCK}.synthetic.scenarios.{scenario}"
                yield Fault(where, list(controllers), f"needed: {needed}, to compare with")
    for key, attempt in _attempts(params, card, training_card):
        try:
            attempt()
        except InputError as error:
            name = error.where.rpartition(": ")[2]
            stands_at = {"tiling": key, "slot_us": "synthetic.slot_us"}.get(name, f"{key}.{name}")
            yield Fault(f"{_BLOCK}.{stands_at}", error.value, error.allowed)


def _attempts(
    params: Params, card: Card, training_card: Card
) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a run would find out later: whether tiles fit in a slot, and traces can be drawn."""
    slot_us = params.synthetic.slot_us
    for key, workload in (
        ("gemm_chain.tiling", params.chain(card)),
        ("tiling", params.step(training_card)),
    ):
        yield key, partial(workload.check_slot, slot_us)
    asked = {
        f"synthetic.scenarios.{scenario}.{name}": (statistics, params.synthetic.duration_s)
        for scenario, controllers in params.statistics().items()
        for name, statistics in controllers.items()
    }
    bursty = params.trace_statistics(params.steadiness.bursty)
    asked["steadiness.bursty"] = (bursty, params.steadiness.duration_s)
    for key, (statistics, duration_s) in asked.items():
        yield key, partial(
            synthetic_trace, statistics, duration_s=duration_s, slot_us=slot_us, card=card,
            seed=params.base.seed,
        )  # fmt: skip
    yield "steadiness", partial(_check_stable, params.steadiness.stable_sm, card)


def _check_stable(sm: int, card: Card) -> None:
    if sm > card.sm_count:
        raise InputError("stable_sm", sm, f"allowed: 0 to {card.sm_count} SMs")


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
    chain, step = params.chain(card), params.step(training_card)
    spare: dict[str, list[Any]] = {c.name: [] for c in SPARE.columns}
    rows: list[dict[str, Any]] = []
    for index, (scenario, controller, cell, trace, starts) in enumerate(
        traces(inputs, card.sm_count)
    ):
        own = params.mechanism_of.get(controller, params.default_mechanism)
        at_sites = params.site_mechanism_of.get(controller, own)
        every = scenario != "macro" and controller == params.compared_controller
        for name in dict.fromkeys([own, at_sites, *(params.mechanisms if every else ())]):
            for colocation in (chain, step):
                if scenario == "macro" and colocation is chain:
                    continue
                beside = colocation.on_device(trace, card)
                done = colocation.beside(
                    beside, params.mechanism(name), seed=params.base.seed + index
                )
                rows.append(
                    {
                        "scenario": scenario,
                        "controller": controller,
                        "cell": cell,
                        "mechanism": name,
                        "own": name == own,
                    }
                    | _row(colocation, beside, done, starts)
                )
                if colocation is step and name == at_sites:
                    _append_spare(spare, scenario, controller, name, cell, beside, step, done)
    outputs.table("spare", spare)
    outputs.table("coexistence", {c.name: [r[c.name] for r in rows] for c in COEXISTENCE.columns})
    changed = list(sensitivity(params, card, training_card))
    outputs.table(
        "sensitivity", {c.name: [r[c.name] for r in changed] for c in SENSITIVITY.columns}
    )
    return Result(
        metrics=_metrics(rows)
        | {
            "synthetic": second_reading(params, card, training_card),
            "steadiness": steadiness(params, card, training_card),
            "checks": _checks(params),
        }
    )


def _checks(params: Params) -> dict[str, Any]:
    """Rates of each type, and the worse of them."""
    import torch  # slow, and nothing else here needs it

    from ranloom.spare.checks import measure_detection

    asked = params.checks
    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        measured = measure_detection(
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
        rates[name] = {k: v for k, v in asdict(measured).items() if not math.isnan(v)}
    return {
        "detected_pct": min(r["detected_pct"] for r in rates.values()),
        "false_alarm_pct": max(r["false_alarm_pct"] for r in rates.values()),
        "trials": asked.trials * len(rates),
    } | rates


def _row(colocation: Colocation, trace: Reservation, done: Outcome, starts: int) -> dict[str, Any]:
    power_w = colocation.power_w(done)
    return {
        "workload": colocation.workload.name,
        "device": colocation.card.name,
        "reservation_mean_sm": trace.mean_sm,
        "transitions": done.transitions,
        "spare_share_pct": 100.0 * done.spare_sm_s / done.duration_s / colocation.card.sm_count,
        "useful_tflops": done.useful_tflops,
        "executed_tflops": done.executed_tflops,
        "power_w": power_w,
        "w_per_tflops": power_w / done.useful_tflops if done.useful_tflops else math.inf,
        "efficiency_pct": done.efficiency_pct(colocation.model),
        "violations": done.violations,
        "violation_ms": done.violation_us / 1000.0,
        "decode_starts": starts,
        "violation_pct": 100.0 * done.violations / starts if starts else 0.0,
        "tokens_per_s": colocation.tokens_per_s(done),
    }


def _append_spare(
    spare: dict[str, list[Any]],
    scenario: str,
    controller: str,
    mechanism: str,
    site: int,
    trace: Reservation,
    step: Colocation,
    done: Outcome,
) -> None:
    seconds = done.useful_flops.size
    per_second = round(1e6 / trace.slot_us)
    free = np.repeat(step.card.sm_count - trace.sm, trace.slots)
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
            place["executed_tflops"] = row["executed_tflops"]
            continue
        place["training_tflops"] = row["useful_tflops"]
        for name in ("efficiency_pct", "violations", "violation_ms", "violation_pct"):
            place[name] = row[name]
        place["tokens_per_s"] = row["tokens_per_s"]
    for scenario in metrics.values():
        chain, step = (
            {c: v[name] for c, v in scenario.items()}
            for name in ("useful_tflops", "training_tflops")
        )
        scenario |= useful_ratios(chain) | useful_ratios(step, "training_ratio")
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
        Column("executed_tflops", "float64", "all work that ran, also what started over"),
        Column(
            "power_w",
            "float64",
            "the spare SMs' share of the board's power limit, drawn in full also while they redo "
            "lost work or wait: an upper bound, without any thermal limit of the site",
        ),
        Column(
            "w_per_tflops",
            "float64",
            "that power over useful TFLOPS; infinite where nothing was finished",
        ),
        Column("efficiency_pct", "float64", "share of spare SM-time turned into work"),
        Column("violations", "int64", "decode starts with training still on the RAN's SMs"),
        Column("violation_ms", "float64", "duration of those, in all"),
        Column("decode_starts", "int64", "decode starts of the trace"),
        Column("violation_pct", "float64", "violations per decode start"),
        Column("tokens_per_s", "float64", "training throughput; 0 for the chain"),
    ),
)

SENSITIVITY = Table(
    "sensitivity.parquet",
    "synthetic traces, one constant changed at a time",
    (
        Column("constant", "string", "parameter that is changed, or none"),
        Column("setting", "string", "as set, without (not fitted), halved or doubled"),
        Column("scenario", "string", "scenario of the synthetic traces"),
        Column("workload", "string", "gemm_chain or training_step"),
        Column("weaver_tflops", "float64", "useful work beside weaver, 1e12 operations per second"),
        Column("weaver_over_noctrl", "float64", "ratio of useful work; infinite over none"),
        Column("weaver_over_yinyangran", "float64", "ratio of useful work; infinite over none"),
        Column("weaver_efficiency_pct", "float64", "share of spare SM-time turned into work"),
        Column("weaver_violations", "float64", "mean violations of a trace"),
        Column("noctrl_violations", "float64", "mean violations of a trace"),
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
    outputs={"spare": SPARE, "coexistence": COEXISTENCE, "sensitivity": SENSITIVITY},
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
