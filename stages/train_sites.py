"""Stage ``train_sites``: training on spare compute, simulated at scale and live on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.io import Inputs, Outputs
from pipeline.stage import Fault, File, FromParam, FromRepo, FromStage, Plot, Result, Stage
from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.training.layer_profile import ProfiledLayers, read_profile
from ranloom.training.links import read_links
from ranloom.training.runtime.supervise import start_server
from ranloom.training.simulator.comparison import WEAVER
from ranloom.training.simulator.experiment import SystemRun
from stages._train_orderings import NEUTRAL, flip_metrics, order_systems
from stages._train_params import Params
from stages._train_sim import (
    PUBLISHED,
    RECONCILED,
    Sites,
    adapt,
    adapt_reconciled,
    agree,
    both,
    circuits,
    compare,
    micro_batches,
    scale,
    scale_metrics,
)
from stages._train_tables import (
    CAPACITY,
    DECISIONS,
    ORDERINGS,
    SCALING,
    STEPS,
    THROUGHPUT,
    TIMELINE,
    columns,
    decision_rows,
    step_rows,
    throughput_row,
    timeline_rows,
)


def check(params: Params, files: Mapping[str, Path]) -> Iterator[Fault]:
    """Faults of parameters that depend on each other, and of the links file."""
    block = "params.yaml: train_sites"
    load_card(files["card"])
    if params.live.text_source == "file":
        from ranloom.training.data import load_corpus

        live = params.live
        load_corpus(str(files["text"]), 0, live.generated_samples, live.sequence)
    yield from _unprofiled(params, files["layer_profile"])
    try:
        sites = read_links(files["links"]).sites
        if params.sim.sites > sites:
            yield Fault(f"{block}.sim.sites", params.sim.sites, f"allowed: up to {sites} (links)")
    except InputError as error:
        yield Fault(error.where, error.value, error.allowed)
    for name, durations in (
        ("sim", params.sim.duration_s),
        (RECONCILED, params.reconciled.duration_s),
    ):
        for model in (*params.sim.models, *params.orderings.models):
            if model not in durations:
                where = f"{block}.{name}.duration_s"
                yield Fault(where, model, "allowed: a duration for every model")
    ordered = params.orderings
    if WEAVER not in ordered.systems:
        allowed = f"allowed: {WEAVER} among them, with which the others are compared"
        yield Fault(f"{block}.orderings.systems", ordered.systems, allowed)
    for name in ("systems", *NEUTRAL):
        values = getattr(ordered, name)
        if len(set(values)) < len(values):
            yield Fault(f"{block}.orderings.{name}", values, "allowed: each once")
    if not any(params.sim.step_samples % m == 0 for m in params.sim.micro_batch_samples):
        sizes = params.sim.micro_batch_samples
        yield Fault(f"{block}.sim.micro_batch_samples", sizes, "allowed: a divisor of step_samples")
    for name in ("drop_left", "drop_length_s", "repair_s"):
        low, high = getattr(params.dynamic, name)
        if not 0 <= low <= high:
            yield Fault(f"{block}.dynamic.{name}", [low, high], "allowed: least, then largest")
    live = params.live
    places = live.stages * live.replicas
    if len(live.budget_shares) != places:
        shares = live.budget_shares
        yield Fault(f"{block}.live.budget_shares", shares, f"allowed: one a site, {places}")
    if live.cut_site >= places:
        yield Fault(f"{block}.live.cut_site", live.cut_site, f"allowed: 0 to {places - 1}")
    if live.faults.kill_site >= places:
        site = live.faults.kill_site
        yield Fault(f"{block}.live.faults.kill_site", site, f"allowed: 0 to {places - 1}")
    if live.stages > live.layers:
        yield Fault(f"{block}.live.stages", live.stages, f"allowed: up to {live.layers} (layers)")
    if live.width % live.heads:
        yield Fault(f"{block}.live.heads", live.heads, f"allowed: a divisor of {live.width}")


def _unprofiled(params: Params, path: Path) -> Iterator[Fault]:
    """Micro-batches that will be tried and that the layer profile lacks."""
    if params.layers.source == "card":
        return
    profile, sequence = read_profile(path), params.sim.sequence
    for model, sizes in micro_batches(params).items():
        lacking = [m for m in sorted(sizes) if not profile.has(model, m, sequence)]
        if lacking:
            allowed = f"needed: embedding, block and head of these micro-batches x {sequence}"
            yield Fault(f"{path}: {model}", lacking, allowed)


def sites_of(params: Params, inputs: Inputs) -> Sites:
    """What the sites are, from the files that describe them."""
    card, profiled = load_card(inputs.path("card")), None
    if params.layers.source == "profile":
        usable_tflops = card.fp16_tensor_tflops * params.layers.efficiency
        profiled = ProfiledLayers(read_profile(inputs.path("layer_profile")), usable_tflops)
    links = read_links(inputs.path("links"))
    measured = Sites(card, links, inputs.columns("spare"), profiled)
    return measured.under(**vars(params.conditions))


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Simulate, scale up, and train for real."""
    start_server()  # imports torch for the live run while all else is computed
    sites = sites_of(params, inputs)
    metrics: dict[str, Any] = {"fitted_constants": 0}
    throughput: list[dict[str, Any]] = []
    steps: list[tuple[str, SystemRun]] = []
    points: list[dict[str, Any]] = []
    orderings: list[dict[str, Any]] = []
    for name, assumptions in both(params).items():
        mine = metrics if name == PUBLISHED else metrics.setdefault(RECONCILED, {})
        suffix = "" if name == PUBLISHED else f"_{RECONCILED}"
        sim: dict[str, Any] = {}
        for experiment, done in compare(
            params, assumptions, sites, params.sim.models, params.sim.systems
        ):
            row = throughput_row(experiment, name, done)
            throughput.append(row)
            steps.append((f"throughput{suffix}", done))
            kept = ("tokens_per_s", "peak_share_pct", "cv_pct", "drop_pct")
            sim.setdefault(done.model, {})[done.name] = {key: row[key] for key in kept}
        mine["sim"] = sim
        found = scale(params, assumptions, sites)
        points.extend({"assumptions": name, **row} for row in found)
        mine["scale"] = scale_metrics(params, found)
        ordered = order_systems(params, assumptions, sites)
        orderings.extend({"assumptions": name, **row} for row in ordered)
        mine["flips"] = flip_metrics(ordered)
    windows = circuits(params, inputs.columns("windows"))
    metrics["dynamic"], runs, tflops = adapt(params, sites, windows)
    metrics[RECONCILED]["dynamic"], more = adapt_reconciled(params, sites)
    metrics[RECONCILED]["fitted_constants"] = 1
    metrics["agreement"] = agree(params, sites) | inputs.json("real_change")["agreement"]
    steps.extend(("dynamic", done) for done in runs)
    steps.extend((f"dynamic_{RECONCILED}", done) for done in more)
    _held_out(metrics, inputs.path("published"))
    outputs.table("throughput", columns(THROUGHPUT, throughput))
    outputs.table("steps", columns(STEPS, step_rows(params, steps)))
    outputs.table("timeline", columns(TIMELINE, timeline_rows(params, runs)))
    outputs.table("scaling", columns(SCALING, points))
    outputs.table("orderings", columns(ORDERINGS, orderings))
    outputs.table("decisions", columns(DECISIONS, decision_rows(runs[0])))
    seconds = tflops.shape[1]
    outputs.table(
        "capacity",
        {
            "site": np.repeat(np.arange(len(tflops)), seconds),
            "second": np.tile(np.arange(seconds), len(tflops)),
            "tflops": tflops.ravel(),
        },
    )
    metrics["reference"] = _reference(params, outputs)
    from stages._train_live import measure_live  # torch takes seconds to import, `check` need not

    measured = {"real": measure_live(params, sites.spare, outputs)}
    return Result(metrics, measured)


def _held_out(metrics: dict[str, Any], published: Path) -> None:
    """Share of the published figures within 20 %, of those that nothing was fitted to."""
    from ranloom.report.data import ReportData, load_published
    from ranloom.report.prediction import near_share, predictions

    found = predictions(ReportData({"train_sites": metrics}, {}, {}, load_published(published)))
    name = "heldout_within_20pct_share"
    metrics[name] = near_share(found, reconciled=False)[0]
    metrics[RECONCILED][name] = near_share(found, reconciled=True)[0]


def _reference(params: Params, outputs: Outputs) -> dict[str, Any]:
    """One-process training of the live model, every step with the micro-batches planned for it."""
    from safetensors.torch import save_file

    from ranloom.training.reference import train_reference
    from stages._train_live import live_setup

    setup = live_setup(params)
    corpus = setup.corpus()
    size = params.live.step_micro_batches
    merged = {step: range(step * size, (step + 1) * size) for step in range(params.live.steps)}
    order = setup.order(corpus)
    done = train_reference(setup.model, setup.optimizer, corpus, order, merged, setup.seed)
    save_file(dict(sorted(done.weights.items())), outputs.path("checkpoint"))
    return {"first_loss": done.losses[0], "final_loss": done.losses[-1]}


STAGE = Stage(
    name="train_sites",
    title="Training across sites on spare compute",
    params=Params,
    inputs={
        "spare": FromStage("replay_spare", "spare"),
        "windows": FromStage("plan_windows", "windows"),
        "published": FromRepo("data/published/weaver.yaml"),
        "real_change": FromRepo("data/measured/real_change.json"),  # of bench/real_change.py
        "card": FromParam("train_sites.card"),
        "links": FromParam("train_sites.links"),
        "layer_profile": FromParam("train_sites.layers.profile_path"),
        "text": FromParam("train_sites.live.text_path"),
    },
    outputs={
        "scaling": SCALING,
        "throughput": THROUGHPUT,
        "orderings": ORDERINGS,
        "steps": STEPS,
        "timeline": TIMELINE,
        "decisions": DECISIONS,
        "capacity": CAPACITY,
        "checkpoint": File(
            "checkpoint.safetensors",
            "weights of the live model after one-process training, every step as planned",
        ),
    },
    run=run,
    check=check,
    measured=True,
    headline=(
        "sim.opt-1.3b.weaver.tokens_per_s",
        "sim.opt-6.7b.weaver.tokens_per_s",
        "dynamic.air_handled_pct",
    ),
    plots=(
        Plot(
            "throughput",
            "system",
            "tokens_per_s",
            "Tokens per second",
            {"model": "opt-1.3b", "assumptions": "published"},
        ),
    ),
)
