"""Choice of the parameters of ``weaver`` from trials on calibration loads (paper, App. B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ranloom.mac.bar import Limits, Verdict, judge
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.kpis import CellKpis, cell_kpis
from ranloom.mac.model import CellModel
from ranloom.mac.simulate import simulate
from ranloom.traffic.scenario import Scenario

RULE = (
    "fewest limits missed over all loads (transitions left out), then fewest transitions in all, "
    "then nearest to the published values"
)


@dataclass(frozen=True)
class Trial:
    """One setting on one load.

    Attributes:
        load: name of the load.
        params: the setting.
        kpis: its figures.
        noctrl: figures of the uncontrolled scheduler on that load.
        verdict: comparison of the two.
    """

    load: str
    params: WeaverParams
    kpis: CellKpis
    noctrl: CellKpis
    verdict: Verdict


@dataclass(frozen=True)
class Choice:
    """The chosen setting.

    Attributes:
        params: the setting.
        missed: limits that it misses over all loads, transitions left out.
        transitions: its transitions over all loads.
        why: one sentence.
    """

    params: WeaverParams
    missed: int
    transitions: int
    why: str


def settings(
    published: WeaverParams, thresholds_bytes: Sequence[int], patiences: Sequence[int]
) -> list[WeaverParams]:
    """Every pair of threshold and patience, the published one among them."""
    pairs = {(published.backlog_threshold_bytes, published.patience)}
    pairs |= {(b, p) for b in thresholds_bytes for p in patiences}
    return [replace(published, backlog_threshold_bytes=b, patience=p) for b, p in sorted(pairs)]


def run_trials(
    model: CellModel,
    loads: Sequence[tuple[str, Scenario]],
    candidates: Sequence[WeaverParams],
    limits: Limits,
    seed: int,
) -> list[Trial]:
    """Run every setting on every load, and ``noctrl`` once on each.

    Args:
        model: the cell.
        loads: name and traffic of each load.
        candidates: settings.
        limits: what a setting has to meet.
        seed: root of block errors and decode tails, the same for all.
    """
    trials = []
    k_us_sm = model.plant_config.k_us_sm
    for name, scenario in loads:
        traffic = scenario.arrivals, scenario.channel
        noctrl = cell_kpis([simulate(model, *traffic, ControllerSpec("noctrl"), seed)], k_us_sm)
        for params in candidates:
            spec = ControllerSpec("weaver", weaver=params)
            kpis = cell_kpis([simulate(model, *traffic, spec, seed)], k_us_sm)
            trials.append(Trial(name, params, kpis, noctrl, judge(kpis, noctrl, limits)))
    return trials


def choose(trials: Sequence[Trial], published: WeaverParams) -> Choice:
    """Pick the setting by ``RULE``.

    Args:
        trials: every setting on every load.
        published: the published values.
    """
    by_setting: dict[WeaverParams, list[Trial]] = {}
    for trial in trials:
        by_setting.setdefault(trial.params, []).append(trial)

    def distance(params: WeaverParams) -> tuple[float, float]:
        ratio = params.backlog_threshold_bytes / published.backlog_threshold_bytes
        return abs(params.patience / published.patience - 1.0), abs(ratio - 1.0)

    def rank(params: WeaverParams) -> tuple[int, int, float, float]:
        own = by_setting[params]
        missed = sum(len([m for m in t.verdict.missed if m != "transitions"]) for t in own)
        return (missed, sum(t.kpis.transitions for t in own), *distance(params))

    best = min(by_setting, key=rank)
    missed, transitions = rank(best)[:2]
    noctrl = sum(t.noctrl.transitions for t in by_setting[best])
    published_rank = rank(published)
    why = (
        f"{RULE}: of {len(by_setting)} settings on {len(by_setting[best])} loads, threshold "
        f"{best.backlog_threshold_bytes} bytes and patience {best.patience} {best.patience_unit} "
        f"miss {missed} limits with {transitions} transitions (noctrl {noctrl}); the published "
        f"values miss {published_rank[0]} with {published_rank[1]}"
    )
    return Choice(best, missed, transitions, why)
