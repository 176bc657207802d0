"""Who is fastest in ``train_sites`` as one condition of the testbed changes, the others kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ranloom.training.orderings import flips, nearest
from ranloom.training.simulator.comparison import WEAVER, figures
from stages._train_params import Params
from stages._train_sim import Assumptions, Sites, compare

NEUTRAL = {"bandwidth_factor": 1.0, "added_latency_ms": 0.0, "spare_share": 1.0}
"""Conditions and the value of each that leaves the testbed as the run has it."""

FACTORS = frozenset({"bandwidth_factor", "spare_share"})
"""Conditions whose steps are ratios."""


def order_systems(params: Params, assumptions: Assumptions, sites: Sites) -> list[dict[str, Any]]:
    """Rate of every system at each value of each condition.

    By the fast path of the simulator, as the comparison on the testbed; at every point each system
    plans anew for what it finds there.
    """
    known: dict[tuple[float, ...], dict[str, float]] = {}
    rows = []
    for condition, value in _points(params):
        changed = {**NEUTRAL, condition: value}
        key = tuple(changed.values())
        if key not in known:
            known[key] = _rates(params, assumptions, sites.under(**changed))
        for system, tokens_per_s in known[key].items():
            row = {"condition": condition, "value": value, "system": system}
            rows.append({**row, "model": params.orderings.model, "tokens_per_s": tokens_per_s})
    return rows


def _points(params: Params) -> Iterator[tuple[str, float]]:
    for condition in NEUTRAL:
        for value in getattr(params.orderings, condition):
            yield condition, value


def _rates(params: Params, assumptions: Assumptions, sites: Sites) -> dict[str, float]:
    asked = params.orderings
    runs = compare(params, assumptions, sites, (asked.model,), asked.systems)
    return {
        done.name: figures(experiment, done, experiment.activation.sites).tokens_per_s
        for experiment, done in runs
    }


def flip_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Where WEAVER and another system change places, by condition and system.

    The one nearest to the testbed as it is, if there are several; without an entry they keep their
    places over all values.
    """
    found: dict[str, dict[str, float]] = {}
    for condition, neutral in NEUTRAL.items():
        rates: dict[str, dict[float, float]] = {}
        for row in rows:
            if row["condition"] == condition:
                rates.setdefault(row["system"], {})[row["value"]] = row["tokens_per_s"]
        ours = rates.pop(WEAVER, {})
        for system, theirs in rates.items():
            log, values = condition in FACTORS, sorted(ours)
            places = flips(values, [ours[v] for v in values], [theirs[v] for v in values], log)
            at = nearest(places, neutral, log)
            if at is not None:
                found.setdefault(condition, {})[system] = at
    return found
