"""Where the published ordering of the training systems, WEAVER first, flips."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ranloom.report import names, style
from ranloom.report.data import ReportData, lookup
from ranloom.report.page import Grid, Picture

TABLE = "train_sites.orderings"

_WEAVER = "weaver"
_SETS = {"published": ("", "published inputs"), "reconciled": ("reconciled.", "reconciled")}
_CONDITIONS = {
    "bandwidth_factor": "bandwidth between sites, factor",
    "added_latency_ms": "latency added between sites, ms",
    "spare_share": "share of the spare compute",
}
_MEASURED = {"bandwidth_factor": 1.0, "added_latency_ms": 0.0, "spare_share": 1.0}
_LINEAR_MS = 10.0

Rates = Mapping[str, np.ndarray]
"""System to its rate at each value, ``value`` to the values [K]."""


def pictures(data: ReportData) -> tuple[Picture, ...]:
    """Rates over WEAVER's by condition; nothing where no condition was changed."""
    drawn = [
        (name, condition, rates)
        for name in _SETS
        for condition in _CONDITIONS
        if (rates := _rates(data, name, condition))
    ]
    if not drawn:
        return ()
    wide = len({condition for _, condition, _ in drawn})
    figure = Figure(figsize=(9, 5.4))
    panels = figure.subplots(-(-len(drawn) // wide), wide, squeeze=False, sharey="row").ravel()
    for axes, (name, condition, rates) in zip(panels, drawn, strict=False):
        _draw(axes, condition, rates)
        axes.set_title(_SETS[name][1])
    for axes in panels[::wide]:
        axes.set_ylabel("token/s over WEAVER's")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7)
    caption = (
        f"{_model(data)} on the eight-site testbed as one condition changes: above 1 a system is "
        "faster than WEAVER. Grey: as in this run. Every system plans anew at each point, "
        "so that curves are not smooth. Confidant* averages its weights once an epoch, longer than "
        "what is simulated: where every site holds the whole model, bandwidth costs it nothing."
    )
    return (Picture("orderings", figure, caption),)


def _draw(axes: Axes, condition: str, rates: Rates) -> None:
    for system, found in rates.items():
        if system != "value":
            ours = rates[_WEAVER]
            ratio = np.where(found > 0.0, found, np.nan) / np.where(ours > 0.0, ours, np.nan)
            label, colour = names.title(system), style.colour(system)
            axes.plot(rates["value"], ratio, "o-", ms=3, color=colour, label=label)
    axes.axvline(_MEASURED[condition], color=style.GREY, lw=4, alpha=0.3, zorder=0)
    axes.set(xlabel=_CONDITIONS[condition], yscale="log")
    if condition == "added_latency_ms":
        axes.set_xscale("symlog", linthresh=_LINEAR_MS)
    else:
        axes.set_xscale("log")
    axes.set_xticks(rates["value"], [f"{value:g}" for value in rates["value"]])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def grid(data: ReportData) -> Grid:
    """Where WEAVER is first, who is elsewhere, and where places change."""
    rows = []
    for name, (prefix, words) in _SETS.items():
        for condition, label in _CONDITIONS.items():
            if rates := _rates(data, name, condition):
                places = lookup(data.metrics["train_sites"], f"{prefix}flips.{condition}") or {}
                turned = [f"{names.title(s)} {at:.3g}" for s, at in places.items()]
                fastest = fastest_at(rates)
                first = fastest.pop(_WEAVER, [])
                rows.append(
                    [
                        words,
                        label,
                        _list(first) or "nowhere",
                        "; ".join(f"{names.title(s)} at {_list(v)}" for s, v in fastest.items()),
                        ", ".join(turned) or "none",
                    ]
                )
    return Grid(
        "Where the published ordering flips. WEAVER is published as the fastest; the last column "
        "is where it and another system change places, next to the measured testbed, read between "
        "the simulated points.",
        ["assumptions", "condition", "WEAVER first at", "else first", "changes places with"],
        rows,
    )


def fastest_at(rates: Rates) -> dict[str, list[float]]:
    """System to the values at which it is the fastest; equal ones all are."""
    systems = [system for system in rates if system != "value"]
    found: dict[str, list[float]] = {}
    for index, value in enumerate(rates["value"].tolist()):
        best = max(float(rates[system][index]) for system in systems)
        for system in systems:
            if rates[system][index] == best:
                found.setdefault(system, []).append(value)
    return found


def _rates(data: ReportData, assumptions: str, condition: str) -> Rates:
    columns = data.table(TABLE, assumptions=assumptions, condition=condition)
    found: dict[str, np.ndarray] = {}
    for system in dict.fromkeys(columns["system"]):
        mine = columns["system"] == system
        order = np.argsort(columns["value"][mine])
        found["value"] = columns["value"][mine][order]
        found[str(system)] = columns["tokens_per_s"][mine][order]
    return found if _WEAVER in found else {}


def _model(data: ReportData) -> str:
    return str(data.table(TABLE)["model"][0]).upper()


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
