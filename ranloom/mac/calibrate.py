"""Choice of the parameters of ``weaver`` from trials on calibration loads (paper, App. B.3).

Two kinds of trials: a sweep of threshold and patience round the published values, as the paper
describes it, and a multi-objective search (Optuna's tree-structured Parzen estimator) that starts
from them and may change the step as well. Objectives, all to be small: transitions, mean
reservation, 95th percentile of delay and missed deadlines, each at its worst load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ranloom.errors import InputError
from ranloom.mac.bar import Limits, Verdict, judge
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.controllers.weaver import WeaverParams
from ranloom.mac.kpis import CellKpis, cell_kpis
from ranloom.mac.lanes import run_lanes
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


@dataclass(frozen=True)
class Search:
    """What the search may choose from.

    Args:
        trials: settings that it tries.
        thresholds_bytes: lowest and highest threshold.
        patiences: lowest and highest patience, in the unit of the published setting.
        steps_sm: steps.

    Raises:
        InputError: an empty range.
    """

    trials: int
    thresholds_bytes: tuple[int, int]
    patiences: tuple[int, int]
    steps_sm: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("thresholds_bytes", "patiences"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise InputError(f"search.{name}", (low, high), "needed: 1 <= lowest <= highest")
        if self.trials < 0 or not self.steps_sm:
            raise InputError("search", (self.trials, self.steps_sm), "needed: trials and steps")


class Bench:
    """Loads to try settings on, with the uncontrolled scheduler run once on each.

    Args:
        model: the cell.
        loads: name and traffic of each load.
        limits: what a setting has to meet.
        seed: root of block errors and decode tails, the same for all.
    """

    def __init__(
        self, model: CellModel, loads: Sequence[tuple[str, Scenario]], limits: Limits, seed: int
    ) -> None:
        self._model, self._loads, self._limits, self._seed = model, tuple(loads), limits, seed
        self._noctrl = self._run(ControllerSpec("noctrl"))

    def _run(self, spec: ControllerSpec) -> list[CellKpis]:
        k_us_sm = self._model.plant_config.k_us_sm

        def one(scenario: Scenario) -> CellKpis:
            traffic = scenario.arrivals, scenario.channel
            return cell_kpis([simulate(self._model, *traffic, spec, self._seed)], k_us_sm)

        return run_lanes([partial(one, scenario) for _, scenario in self._loads])

    def try_setting(self, params: WeaverParams) -> list[Trial]:
        """A setting on every load."""
        found = self._run(ControllerSpec("weaver", weaver=params))
        return [
            Trial(name, params, kpis, noctrl, judge(kpis, noctrl, self._limits))
            for (name, _), kpis, noctrl in zip(self._loads, found, self._noctrl, strict=True)
        ]


Objectives = tuple[float, float, float, float]
OBJECTIVES = ("transitions_share", "mean_sm_pct", "delay_p95_ms", "deadlines_pct")


def objectives(trials: Sequence[Trial]) -> Objectives:
    """What a setting is judged by, each at its worst load; all to be small.

    Args:
        trials: one setting on every load.

    Returns:
        Transitions as a share of ``noctrl``'s, and against ``noctrl``: mean reservation in per
        cent, 95th percentile of delay in ms, overdue feedback and decodes above 1 ms in points.
    """
    return (
        max(1.0 / t.verdict.transitions_ratio for t in trials),
        max(t.verdict.mean_sm_pct for t in trials),
        max(t.verdict.delay_p95_ms for t in trials),
        max(t.verdict.decode_over_1ms_pct - t.verdict.harq_met_pct for t in trials),
    )


def pareto(points: Sequence[Objectives]) -> list[bool]:
    """Which points no other point beats: at most as large in all, smaller in one."""
    return [
        not any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )
        for point in points
    ]


def search(bench: Bench, published: WeaverParams, space: Search, seed: int) -> list[Trial]:
    """Settings that a multi-objective search tries, each on every load.

    Args:
        bench: the loads.
        published: the setting that it starts from; it keeps all parameters that are not searched.
        space: what may change.
        seed: of the search.
    """
    if space.trials == 0:
        return []
    import optuna  # slow to import

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["minimize"] * len(OBJECTIVES),
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(4, space.trials // 4)),
    )
    found: list[Trial] = []

    def objective(trial: optuna.Trial) -> Objectives:
        params = replace(
            published,
            backlog_threshold_bytes=trial.suggest_int(
                "threshold_bytes", *space.thresholds_bytes, log=True
            ),
            patience=trial.suggest_int("patience", *space.patiences, log=True),
            step_sm=trial.suggest_categorical("step_sm", list(space.steps_sm)),
        )
        trials = bench.try_setting(params)
        found.extend(trials)
        return objectives(trials)

    study.optimize(objective, n_trials=space.trials)
    return found


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
