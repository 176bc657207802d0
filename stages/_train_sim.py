"""Simulations of ``train_sites``, under two sets of assumptions.

``published``: every input as the paper states it, no constant fitted. ``reconciled``: the published
figures contradict their own inputs (the report shows the arithmetic); these assumptions bring them
closer, with constants fitted by ``bench/fit_reconciled.py``. It is never shown without the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ranloom.gpu.card import Card
from ranloom.training.baselines.confidant import Confidant
from ranloom.training.baselines.policy import Reaction
from ranloom.training.capacity_traces import draw_failures, draw_traces, trace_pool, with_drops
from ranloom.training.layer_profile import ProfiledLayers
from ranloom.training.links import Links
from ranloom.training.model_shapes import HOST_OPTIMIZER, MIXED_PRECISION_ADAM, model_shape
from ranloom.training.placement import PlacementProblem
from ranloom.training.scaling import (
    ScalePoint,
    StarTopology,
    replicated,
    rescaled_links,
    single_pipeline,
)
from ranloom.training.simulator.agreement import event_against_closed
from ranloom.training.simulator.comparison import (
    WEAVER,
    Compared,
    adaptation,
    costs_by_size,
    figures,
    run_baseline,
    run_weaver,
)
from ranloom.training.simulator.experiment import Experiment, SystemRun
from ranloom.training.simulator.network import CircuitWindow
from stages._train_params import CapacityParams, Params

PUBLISHED, RECONCILED = "published", "reconciled"
CIRCUITS = "weaver_circuits"
_PERFECT = "confidant_star"


@dataclass(frozen=True)
class Sites:
    """What the sites are.

    Args:
        card: their device.
        links: of the testbed.
        spare: columns of ``spare.parquet``.
        profiled: times of the layers; None for the operations of their shape.
    """

    card: Card
    links: Links
    spare: Mapping[str, np.ndarray]
    profiled: ProfiledLayers | None = None

    def under(self, bandwidth_factor: float, added_latency_ms: float, spare_share: float) -> Sites:
        """The same sites with other links between them and less spare compute.

        Args:
            bandwidth_factor: on the bandwidth of every pair.
            added_latency_ms: on the latency of every pair, one way.
            spare_share: of the usable compute that is left.
        """
        usable_tflops = spare_share * self.spare["usable_tflops"]
        return replace(
            self,
            links=self.links.changed(bandwidth_factor, added_latency_ms / 1000.0),
            spare={**self.spare, "usable_tflops": usable_tflops},
        )

    def first(self, count: int) -> Links:
        """Links of the first sites."""
        some = np.ix_(range(count), range(count))
        links = self.links
        return Links(
            links.name,
            links.bandwidth_gbps[some],
            links.latency_s[some],
            links.coordinator_latency_s[:count],
        )

    def traces(self, params: Params, system: str, count: int, seconds: int) -> np.ndarray:
        """Independent draws for a system's sites, from the traces of its way to share the GPU.

        Confidant* harvests all spare compute: it gets WEAVER's.
        """
        mine = system.startswith(WEAVER) or system == _PERFECT
        own = params.sim.weaver if mine else params.sim.baselines
        return self.drawn(params, own, count, seconds)

    def drawn(self, params: Params, own: CapacityParams, count: int, seconds: int) -> np.ndarray:
        """Independent draws from the traces of one way to share the GPU."""
        pool = trace_pool(self.spare, params.sim.scenarios, own.controller, own.mechanism)
        return draw_traces(pool, count, seconds, params.base.seed)


@dataclass(frozen=True)
class Assumptions:
    """What the two sets differ in.

    Args:
        step_samples: B*, samples of a step.
        epoch_samples: samples between two averagings of Confidant's copies.
        tied: whether embedding and head are one weight, exchanged in every step.
        ends_on_host: whether embeddings and head take no device memory.
        hidden_share: share of the pipeline's time behind which sums are exchanged.
        duration_s: virtual time by model.
    """

    step_samples: int
    epoch_samples: int
    tied: bool
    ends_on_host: bool
    hidden_share: float
    duration_s: Mapping[str, float]


def both(params: Params) -> dict[str, Assumptions]:
    """The two sets, the published inputs first."""
    sim, fit = params.sim, params.reconciled
    epoch = params.baselines.epoch_steps * sim.step_samples
    return {
        PUBLISHED: Assumptions(
            sim.step_samples, epoch, sim.tied_embeddings, False, 0.0, sim.duration_s
        ),
        RECONCILED: Assumptions(
            fit.step_samples,
            fit.step_samples,
            fit.tied_embeddings,
            fit.ends_on_host,
            fit.hidden_share,
            fit.duration_s,
        ),
    }


def experiment_of(
    params: Params, assumptions: Assumptions, sites: Sites, links: Links, model: str, seconds: float
) -> Experiment:
    """A model on sites under a set of assumptions."""
    sim = params.sim
    return Experiment(
        shape=model_shape(model),
        sizes=HOST_OPTIMIZER if sim.optimizer_on_host else MIXED_PRECISION_ADAM,
        sequence=sim.sequence,
        step_samples=assumptions.step_samples,
        activation=links,
        sync=links,
        windows=(),
        chunks=sim.reduce_chunks,
        memory_bytes=int(sites.card.memory_gb * 1e9 * sim.memory_share),
        peak_tflops=sites.card.fp16_tensor_tflops,
        duration_s=seconds,
        plan_seconds=sim.plan_seconds,
        tied=assumptions.tied,
        task_overhead_s=sim.task_overhead_ms / 1000.0,
        budget_period_s=sim.budget_period_s,
        ends_on_host=assumptions.ends_on_host,
        hidden_share=assumptions.hidden_share,
        profiled=sites.profiled,
    )


def compared_of(params: Params, assumptions: Assumptions, least_replicas: int) -> Compared:
    """What the systems are given under a set of assumptions."""
    sim, baselines = params.sim, params.baselines
    return Compared(
        settings=params.control.settings(1, assumptions.step_samples),
        micro_batch_samples=sim.micro_batch_samples,
        least_replicas=least_replicas,
        least_sites=sim.least_sites,
        unmerged_limits=sim.unmerged_limits,
        reaction=Reaction(
            baselines.slowdown, baselines.detect_s, baselines.plan_s, baselines.quiet_s
        ),
        storage_gbps=baselines.storage_gbps,
        epoch_samples=assumptions.epoch_samples,
        copy_memory_share=baselines.copy_memory_share,
        local_steps=baselines.local_steps,
        population=baselines.population,
        trials=baselines.trials,
        seed=params.base.seed,
    )


def compare(
    params: Params,
    assumptions: Assumptions,
    sites: Sites,
    models: Sequence[str],
    systems: Sequence[str],
) -> Iterator[tuple[Experiment, SystemRun]]:
    """Section 7.2.1: every system on the testbed with its own plan, on the fast path."""
    links = sites.first(params.sim.sites)
    compared = compared_of(params, assumptions, params.sim.least_replicas)
    for model in models:
        duration_s = assumptions.duration_s[model]
        experiment = experiment_of(params, assumptions, sites, links, model, duration_s)
        for name in systems:
            tflops = sites.traces(params, name, links.sites, int(np.ceil(duration_s)))
            if name == WEAVER:
                yield experiment, run_weaver(experiment, compared, tflops, compiled=True)
            else:
                yield experiment, run_baseline(experiment, compared, tflops, name, compiled=True)


def circuits(params: Params, table: Mapping[str, np.ndarray]) -> tuple[CircuitWindow, ...]:
    """Planned windows as bandwidth between training sites: the first source nodes are the sites.

    A circuit to the hub adds its rate from its site to every other one while it carries light.
    """
    sites = params.sim.sites
    mine = np.flatnonzero(table["strategy"] == params.circuits.strategy)
    nodes = sorted({str(table["source"][row]) for row in mine})[:sites]
    number = {node: site for site, node in enumerate(nodes)}
    found = []
    for row in mine:
        site = number.get(str(table["source"][row]))
        if site is not None:
            start_s = float(table["start_s"][row] + table["setup_s"][row])
            end_s = float(table["end_s"][row])
            for other in range(sites):
                if other != site and end_s > start_s:
                    window = (site, other, start_s, end_s, params.circuits.gbps)
                    found.append(CircuitWindow(*window))
    return tuple(found)


# --- changing capacity ---------------------------------------------------------------------------


def _dynamic_case(
    params: Params, assumptions: Assumptions, sites: Sites
) -> tuple[Experiment, Compared, np.ndarray]:
    """Section 7.2.2: same traces, GPU sharing and first layout for all; capacity drops on top."""
    dynamic = params.dynamic
    links = sites.first(params.sim.sites)
    experiment = replace(
        experiment_of(params, assumptions, sites, links, dynamic.model, dynamic.duration_s),
        sizes=HOST_OPTIMIZER if dynamic.optimizer_on_host else MIXED_PRECISION_ADAM,
    )
    tflops = with_drops(
        sites.traces(params, WEAVER, links.sites, int(np.ceil(dynamic.duration_s))),
        dynamic.drops,
        dynamic.drop_left,
        dynamic.drop_length_s,
        params.base.seed,
    )
    return experiment, compared_of(params, assumptions, dynamic.least_replicas), tflops


def _dynamic_metrics(
    params: Params, experiment: Experiment, runs: Sequence[SystemRun], tflops: np.ndarray
) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for done in runs:
        found = figures(experiment, done, len(tflops))
        metrics[done.name] = {
            "tokens_per_s": found.tokens_per_s,
            "peak_share_pct": found.peak_share_pct,
            "cv_pct": found.cv_pct,
        }
    threshold = params.dynamic.shift_threshold
    return {**metrics, **vars(adaptation(runs[0], tflops, threshold))}


def adapt(
    params: Params, sites: Sites, windows: tuple[CircuitWindow, ...]
) -> tuple[dict[str, Any], list[SystemRun], np.ndarray]:
    """Published inputs, on the event path; WEAVER once more with planned windows under its sums."""
    experiment, compared, tflops = _dynamic_case(params, both(params)[PUBLISHED], sites)
    weaver = run_weaver(experiment, compared, tflops, record_tasks=True)
    lit = replace(experiment, windows=windows)
    runs = [weaver, run_weaver(lit, compared, tflops, CIRCUITS)]
    for name in params.dynamic.systems:
        runs.append(run_baseline(experiment, compared, tflops, name, weaver.plan, True))
    return _dynamic_metrics(params, experiment, runs, tflops), runs, tflops


def adapt_reconciled(params: Params, sites: Sites) -> tuple[dict[str, Any], list[SystemRun]]:
    """Steps of B* that take the published 2 to 8 s, which sums on the measured links cannot.

    Also Table 14: the thresholds of rerouting and rebalancing.
    """
    fit, dynamic = params.reconciled, params.dynamic
    assumptions = replace(
        both(params)[RECONCILED],
        step_samples=params.sim.step_samples,
        epoch_samples=both(params)[PUBLISHED].epoch_samples,
    )
    experiment, compared, tflops = _dynamic_case(params, assumptions, sites)
    experiment = replace(experiment, sync=experiment.sync.at(fit.dynamic_sync_gbps))
    weaver = run_weaver(experiment, compared, tflops, compiled=True)
    runs = [weaver]
    for name in dynamic.systems:
        runs.append(run_baseline(experiment, compared, tflops, name, weaver.plan, compiled=True))
    metrics = _dynamic_metrics(params, experiment, runs, tflops)
    if dynamic.failures:
        drawn = (len(tflops), dynamic.duration_s, dynamic.failures, dynamic.repair_s)
        failures = draw_failures(*drawn, params.base.seed)
        kept = replace(compared.settings, checkpoint_steps=dynamic.checkpoint_steps)
        failing = replace(compared, settings=kept)
        # both on the event path, which hides no sums: only the failures differ
        rates = [
            run_weaver(experiment, failing, tflops, failures=some).applied_tokens_per_s(
                params.sim.sequence, dynamic.duration_s
            )
            for some in ((), failures)
        ]
        metrics["weaver_failures"] = {
            "failures": dynamic.failures,
            "unfailing_tokens_per_s": rates[0],
            "tokens_per_s": rates[1],
        }
    settings = compared.settings
    variants = [
        ("slack_fraction", value, replace(settings, slack_fraction=value))
        for value in dynamic.air_slacks
    ] + [
        ("mlr_threshold", value, replace(settings, mlr_threshold=value))
        for value in dynamic.mlr_thresholds
    ]
    for knob, value, varied in variants:
        changed = replace(compared, settings=varied)
        done = run_weaver(experiment, changed, tflops, compiled=True)
        found = figures(experiment, done, len(tflops))
        handled = adaptation(done, tflops, dynamic.shift_threshold).air_handled_pct
        metrics.setdefault(f"by_{knob}", {})[f"{100 * value:.0f}_pct"] = {
            "tokens_per_s": found.tokens_per_s,
            "cv_pct": found.cv_pct,
            "mlr_events": done.replans,
            "air_handled_pct": handled,
        }
    metrics["halves"] = _halves(params, experiment, compared, sites)
    return metrics, runs


def _halves(
    params: Params, experiment: Experiment, compared: Compared, sites: Sites
) -> dict[str, dict[str, float]]:
    """Elastic and static training, each on the reservations of several schedulers.

    Along a row: what the scheduler brings; down a column: what elastic training brings.
    """
    dynamic = params.dynamic
    found: dict[str, dict[str, float]] = {}
    for own in dynamic.halves:
        tflops = with_drops(
            sites.drawn(params, own, params.sim.sites, int(np.ceil(dynamic.duration_s))),
            dynamic.drops,
            dynamic.drop_left,
            dynamic.drop_length_s,
            params.base.seed,
        )
        elastic = run_weaver(experiment, compared, tflops, compiled=True)
        rigid = run_baseline(experiment, compared, tflops, "static", elastic.plan, compiled=True)
        for name, done in (("elastic", elastic), ("static", rigid)):
            rate = figures(experiment, done, len(tflops)).tokens_per_s
            found.setdefault(name, {})[own.controller] = rate
    return found


def agree(params: Params, sites: Sites) -> dict[str, float]:
    """Closed form against event mode, where links are alike and on the measured ones."""
    star = StarTopology(**vars(params.scaling.star)).links(params.sim.sites)
    measured = sites.first(params.sim.sites)
    assumptions = both(params)[PUBLISHED]
    worst = {}
    for name, networks in (("", (star, measured.at(1.0))), ("uneven_", (measured,))):
        found = [
            one.difference_pct
            for links in networks
            for samples in _AGREED_SAMPLES
            for one in event_against_closed(
                experiment_of(params, assumptions, sites, links, params.sim.models[0], 1.0),
                compared_of(params, assumptions, 1).settings,
                _AGREED_TFLOPS,
                samples,
                range(1, links.sites + 1),
            )
        ]
        worst[f"event_vs_closed_{name}max_pct"] = max(found)
    return worst


_AGREED_TFLOPS = 100.0
_AGREED_SAMPLES = (1, 4)


def micro_batches(params: Params) -> dict[str, set[int]]:
    """Sizes of micro-batches that are tried, by model."""
    tried: dict[str, set[int]] = {}
    for model in (*params.sim.models, *params.orderings.models, params.dynamic.model):
        tried.setdefault(model, set()).update(params.sim.micro_batch_samples)
    for model in (params.scaling.model, *params.scaling.large_models):
        tried.setdefault(model, set()).update(params.scaling.micro_batch_samples)
    tried[params.sim.models[0]].update(_AGREED_SAMPLES)
    return tried


# --- hundreds of sites ---------------------------------------------------------------------------


def scale(params: Params, assumptions: Assumptions, sites: Sites) -> list[dict[str, Any]]:
    """Section 7.2.3, in closed form."""
    scaling = params.scaling
    wanted = [(scaling.model, count) for count in scaling.sites]
    wanted += [(model, max(scaling.sites)) for model in scaling.large_models]
    star = StarTopology(**vars(scaling.star))
    rows: list[dict[str, Any]] = []
    for model, count in wanted:
        for setting in ("rescaled", "typical"):
            links = (
                star.links(count) if setting == "typical" else rescaled_links(sites.links, count)
            )
            experiment = experiment_of(params, assumptions, sites, links, model, 1.0)
            for system in (WEAVER, "confidant_star", "confidant"):
                tflops = sites.traces(params, system, count, params.sim.plan_seconds)
                known = np.maximum(tflops.mean(axis=1), 1e-6)
                point = _point(params, assumptions, experiment, system, known)
                rows.append(
                    {
                        "setting": setting,
                        "sites": count,
                        "model": model,
                        "system": system,
                        "tokens_per_s": point.tokens_per_s,
                        "peak_gb": point.peak_bytes / 1e9,
                        "oom": point.oom,
                        "stages": point.stages,
                        "replicas": point.replicas,
                        "micro_batch_samples": point.micro_batch_samples,
                    }
                )
    return rows


def _point(
    params: Params,
    assumptions: Assumptions,
    experiment: Experiment,
    system: str,
    tflops: np.ndarray,
) -> ScalePoint:
    """One system on one deployment; Confidant* may also be a plain Confidant."""
    scaling = params.scaling
    own = system == WEAVER
    problem = PlacementProblem(
        sites=tuple(range(len(tflops))),
        seconds_per_flop=1.0 / (tflops * 1e12),
        memory_bytes=np.full(len(tflops), experiment.memory_bytes, dtype=np.int64),
        activation=experiment.activation,
        sync=experiment.sync,
        step_samples=assumptions.step_samples if own else assumptions.epoch_samples,
        tied=experiment.tied,
        fanout=params.control.reduce_fanout,
        chunks=params.sim.reduce_chunks,
        full_pipelines=not own,
        hidden_share=assumptions.hidden_share if own else 0.0,
    )
    lengths = [p for p in scaling.stages if p <= min(experiment.shape.layers, len(tflops))]
    sizes = scaling.micro_batch_samples
    costs_of = costs_by_size(experiment, max(params.sim.unmerged_limits) if own else 0)
    found = []
    if system != "confidant":
        found.append(replicated(problem, costs_of, experiment.sequence, lengths, sizes))
    if not own:
        compared = replace(compared_of(params, assumptions, 1), micro_batch_samples=sizes)
        planner = compared.baseline("confidant")
        if not isinstance(planner, Confidant):
            raise TypeError(f"confidant is planned by {type(planner).__name__}")
        found.append(single_pipeline(problem, costs_of, experiment.sequence, lengths, planner))
    return max(found, key=lambda one: (not one.oom, one.tokens_per_s, -one.peak_bytes))


def scale_metrics(params: Params, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metrics of section 7.2.3."""
    metrics: dict[str, Any] = {"large": {}}
    for row in points:
        ktokens = row["tokens_per_s"] / 1000.0
        if row["model"] == params.scaling.model:
            place = metrics.setdefault(row["setting"], {}).setdefault(str(row["sites"]), {})
            place[row["system"]] = {"ktokens_per_s": ktokens}
        else:
            place = metrics["large"].setdefault(row["model"], {}).setdefault(row["system"], {})
            place[f"{row['setting']}_ktokens_per_s"] = ktokens
            place["ktokens_per_s"] = max(ktokens, place.get("ktokens_per_s", 0.0))
            place["peak_gb"] = row["peak_gb"]
            place["oom"] = row["oom"]
    return metrics
