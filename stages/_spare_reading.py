"""Second reading of ``replay_spare``: synthetic traces, sensitivity to constants, steadiness."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.spare.budget import from_changes
from ranloom.spare.colocation import Colocation
from ranloom.spare.second_reading import (
    Beside,
    draw,
    mean_useful_tflops,
    means,
    useful_ratios,
)
from ranloom.spare.synthetic import synthetic_trace
from stages._spare_params import Params

#: Assumed constants that are halved and doubled, and the most that each may be.
ASSUMED = {"bandwidth_share": 1.0, "dispatch_us": 1000.0, "jitter_sigma": 2.0}


def without_fit(params: Params) -> dict[str, dict[str, Any]]:
    """Constants fitted to Table 5, and the changes that take each of them out."""
    return {
        "relaunch_us": {"gemm_chain": {"relaunch_us": 0.0}},
        "burst_share": {"synthetic": {"burst_share": 0.0}},
        "checkpoint_us": {
            "mechanisms": {name: {"checkpoint_us": 0.0} for name in params.mechanisms}
        },
        "gemm_chain.tile_efficiency": {"gemm_chain": {"tile_efficiency": params.tile_efficiency}},
    }


def beside_drawn(params: Params, card: Card, traces: int) -> Beside:
    """Traces drawn as the parameters say."""
    asked = params.synthetic
    drawn = draw(
        params.statistics(),
        traces,
        duration_s=asked.duration_s,
        slot_us=asked.slot_us,
        card=card,
        seed=params.base.seed,
    )
    return Beside(drawn, card, params.mechanism_for, params.base.seed)


def second_reading(params: Params, card: Card, training_card: Card) -> dict[str, Any]:
    """Metrics beside synthetic traces, by scenario and controller."""
    beside = beside_drawn(params, card, params.synthetic.traces)
    chain, step = params.chain(card), params.step(training_card)
    chains, steps = beside.outcomes(chain), beside.outcomes(step)
    lossy = beside.outcomes(step.with_loss(params.synthetic.step_loss_us))
    unbounded = beside.outcomes(step, slot_bounded=False)
    found: dict[str, Any] = {}
    for scenario, controllers in beside.traces.items():
        place = found[scenario] = {}
        for controller, traces in controllers.items():
            late = means(step, unbounded[scenario][controller])
            with_loss = means(step, lossy[scenario][controller])
            done = chains[scenario][controller]
            place[controller] = {
                "useful_tflops": mean_useful_tflops(done),
                "executed_tflops": float(np.mean([d.executed_tflops for d in done])),
                "mean_sm": float(np.mean([t.mean_sm for t in traces])),
                "transitions": float(np.mean([t.transitions for t in traces])),
                **means(step, steps[scenario][controller]),
                **{f"with_loss_{name}": value for name, value in with_loss.items()},
                **{f"unbounded_{name}": late[name] for name in ("violations", "violation_ms")},
            }
        place |= useful_ratios({c: place[c]["useful_tflops"] for c in controllers})
    return found


def sensitivity(params: Params, card: Card, training_card: Card) -> Iterator[dict[str, Any]]:
    """Rows of ``sensitivity.parquet``: one constant changed at a time."""
    traces = params.synthetic.sensitivity_traces
    as_set = beside_drawn(params, card, traces)
    chain, step = params.chain(card), params.step(training_card)
    yield from _rows("none", "as set", as_set, chain)
    yield from _rows("none", "as set", as_set, step)
    for name, change in without_fit(params).items():
        changed = params.changed(change)
        drawn = beside_drawn(changed, card, traces) if name == "burst_share" else as_set
        beside = replace(drawn, mechanism_of=changed.mechanism_for)
        yield from _rows(name, "without", beside, changed.chain(card))
    for name, most in ASSUMED.items():
        for setting, factor in (("halved", 0.5), ("doubled", 2.0)):
            changed = params.changed({name: min(getattr(params, name) * factor, most)})
            with suppress(InputError):  # tiles that then take longer than a slot leave no row
                yield from list(_rows(name, setting, as_set, changed.step(training_card)))


def _rows(
    constant: str, setting: str, beside: Beside, colocation: Colocation
) -> Iterator[dict[str, Any]]:
    for scenario, done in beside.outcomes(colocation).items():
        useful = {c: mean_useful_tflops(d) for c, d in done.items()}
        found = {c: means(colocation, d) for c, d in done.items()}
        ratios = useful_ratios(useful)
        yield {
            "constant": constant,
            "setting": setting,
            "scenario": scenario,
            "workload": colocation.workload.name,
            "weaver_tflops": useful["weaver"],
            "weaver_over_noctrl": ratios.get("useful_ratio_weaver_over_noctrl", math.inf),
            "weaver_over_yinyangran": ratios.get("useful_ratio_weaver_over_yinyangran", math.inf),
            "weaver_efficiency_pct": found["weaver"]["efficiency_pct"],
            "weaver_violations": found["weaver"]["violations"],
            "noctrl_violations": found["noctrl"]["violations"],
        }


def steadiness(params: Params, card: Card, training_card: Card) -> dict[str, Any]:
    """Metrics of WEAVER Fig. 4c: the training step beside a bursty and a stable reservation.

    With products that start over when the partition changes under them (kernels that were not cut
    into tiles, as in that figure), and with tiles that survive.
    """
    asked = params.steadiness
    bursty = synthetic_trace(
        params.trace_statistics(asked.bursty),
        duration_s=asked.duration_s,
        slot_us=params.synthetic.slot_us,
        card=card,
        seed=params.base.seed,
    )
    stable = from_changes(
        np.array([0]),
        np.array([asked.stable_sm]),
        bursty.n_slots,
        bursty.slot_us,
        sm_max=card.sm_count,
        where="steadiness.stable_sm",
    )
    tiled = params.step(training_card)
    whole = replace(tiled, workload=replace(tiled.workload, restart="gemm"))
    mechanism = params.mechanism(params.default_mechanism)
    found: dict[str, Any] = {}
    for name, trace in (("bursty", bursty), ("stable", stable)):
        on_device = tiled.on_device(trace, card)
        found[name] = {"mean_sm": trace.mean_sm, "transitions": trace.transitions}
        for kind, colocation in (("whole_products", whole), ("tiles", tiled)):
            done = colocation.beside(on_device, mechanism, seed=params.base.seed)
            found[name][f"{kind}_tflops"] = done.useful_tflops
    return found
