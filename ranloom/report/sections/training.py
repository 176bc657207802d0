"""Elastic training: live proof, simulated timeline, baselines, scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ranloom.report import names, style
from ranloom.report.data import ReportData, lookup
from ranloom.report.page import Grid, Picture, Section
from ranloom.report.prediction import contradictions, near_share, predictions
from ranloom.report.sections import orderings, training_live


def section(data: ReportData) -> Section:
    """The training section."""
    return Section(
        "training",
        "Elastic training over the sites",
        (
            "The same coordinator core drives a live run of site processes and a simulation on "
            "virtual time. A micro-batch counts in all pipeline stages or in none, and each sample "
            "at most once, wherever its work ran.",
            _live_text(data),
            _prediction_text(data),
        ),
        (
            Picture(
                "training_timeline",
                _timeline(data),
                "Stage tasks of the first simulated steps by site. Outlined: work that ran "
                "elsewhere than planned.",
            ),
            Picture(
                "throughput",
                _throughput(data),
                "Predicted throughput on the eight-site testbed (Fig. 11): published inputs, then "
                "the reconciled assumptions; crosses: published values.",
            ),
            Picture(
                "steps",
                _steps(data),
                "Throughput of each closed step over simulated time, relative to the system's mean "
                "(Fig. 14), published inputs. Systems that close fewer than three steps in the run "
                "are left out: there is no spread to see.",
            ),
            Picture(
                "scaling",
                _scaling(data),
                "Predicted throughput of OPT-13B by number of sites (Table 7): published inputs "
                "above, reconciled assumptions below; crosses: published values.",
            ),
            *orderings.pictures(data),
            *training_live.pictures(data),
        ),
        tuple(
            grid
            for grid in (
                _table(data),
                _prediction_grid(data),
                _memory_grid(data),
                _halves_grid(data),
                orderings.grid(data),
            )
            if grid.rows
        ),
        notes=(*_orderings(data), *contradictions(data)),
    )


_SETS = (("", "published inputs"), ("reconciled.", "reconciled"))
_ASSUMPTIONS = {"published": "published inputs", "reconciled": "reconciled"}
_SETTINGS = {"rescaled": "testbed rescaled", "typical": "typical star"}


def _prediction_text(data: ReportData) -> str:
    """What the two sets are, and how far each comes."""
    found = predictions(data)
    first, count = near_share(found, reconciled=False)
    second, held_out = near_share(found, reconciled=True)
    fitted = data.metric("train_sites", "reconciled.fitted_constants")
    agreed = data.metric("train_sites", "agreement.event_vs_closed_max_pct")
    text = (
        "Two sets of assumptions stand side by side. The first takes every input as published (B* "
        "of 32 samples, sequence 512, Tables 11 and 12) and fits nothing: "
        f"{100 * first:.0f} % of {count} published figures are predicted within 20 %. The second, "
        "reconciled, assumes a global batch of 2,048 samples, untied embedding and head in host "
        "memory, and sums that are partly exchanged while the pipeline works; "
        f"{fitted or 0:.0f} constant is fitted, to WEAVER's OPT-1.3B and Typical-128 rates alone: "
        f"{100 * second:.0f} % of {held_out} held-out figures are within 20 %."
    )
    if agreed is not None:
        text += f" Closed form and event mode differ by at most {agreed:.1f} % where both apply."
    if (real := data.metric("train_sites", "agreement.real_change_max_pct")) is not None:
        text += (
            " What a straggler, rerouting, halved bandwidth or other boundaries do to the step "
            f"time of real processes is predicted within {real:.1f} % (bench/real_change.py; "
            "measured once, not in this run)."
        )
    return text


def _prediction_grid(data: ReportData) -> Grid:
    def ratio(value: float | None, published: float) -> str | None:
        return None if not value or not published else f"{value / published:.2f}"

    def rate(what: str, value: float | None) -> float | str | None:
        """A placement that does not fit trains nothing: said, not shown as a rate of 0."""
        return "does not fit" if value == 0.0 and "sites" in what else value

    return Grid(
        "Published training figures against predictions; * marks what the constant was fitted to.",
        ["source", "figure", "published", "published inputs", "ratio", "reconciled", "ratio"],
        [
            [
                one.source,
                one.what + (" *" if one.fitted else ""),
                one.published,
                rate(one.what, one.predicted),
                ratio(one.predicted, one.published),
                rate(one.what, one.reconciled),
                ratio(one.reconciled, one.published),
            ]
            for one in predictions(data)
        ],
    )


def _memory_grid(data: ReportData) -> Grid:
    """Table 8: what fits, under both sets."""
    theirs = data.published["large_models_512_sites"]
    rows = []
    for model, systems in theirs.items():
        for system, values in systems.items():
            ours = [
                data.metric("train_sites", f"{prefix}scale.large.{model}.{system}.oom")
                for prefix, _ in _SETS
            ]
            if None not in ours:
                said = ["out of memory" if value else "fits" for value in ours]
                published = "out of memory" if values.get("oom") else "fits"
                rows.append([model.upper(), names.title(system), published, *said])
    return Grid(
        "Who fits 48 GB at 512 sites (Table 8). Confidant keeps a weight copy for each micro-batch "
        "in work, at least one a stage: 2 bytes a parameter of the whole model on its first site.",
        ["model", "system", "published", "published inputs", "reconciled"],
        rows,
    )


def _halves_grid(data: ReportData) -> Grid:
    """What the scheduler and what elastic training bring, each without the other."""
    rates = lookup(data.metrics["train_sites"], "reconciled.dynamic.halves") or {}
    controllers = list(dict.fromkeys(c for row in rates.values() for c in row))
    return Grid(
        "Changing capacity, OPT-13B: token/s by scheduler (across) and by elastic or static "
        "training (down), reconciled assumptions.",
        ["training", *(names.title(controller) for controller in controllers)],
        [[name, *(row.get(c) for c in controllers)] for name, row in rates.items()],
    )


def _orderings(data: ReportData) -> list[str]:
    """Where the published ordering, WEAVER first, does not hold in this run."""
    notes = []
    for prefix, words in _SETS:
        for model, values in (lookup(data.metrics["train_sites"], f"{prefix}sim") or {}).items():
            rates = {s: v["tokens_per_s"] for s, v in values.items() if "tokens_per_s" in v}
            idle = [names.title(s) for s, rate in rates.items() if rate == 0]
            if idle:
                notes.append(f"{model.upper()}: {', '.join(idle)} finished no step in the run.")
            faster = [s for s, rate in rates.items() if rate > rates["weaver"]]
            if faster:
                who = ", ".join(
                    f"{names.title(s)} ({rates[s] / rates['weaver']:.2f}x)" for s in faster
                )
                notes.append(
                    f"{model.upper()}, {words}: not WEAVER but {who} is fastest in this simulation."
                )
    for name, words in (("published", "published inputs"), ("reconciled", "reconciled")):
        columns = data.table("train_sites.scaling", model="opt-13b", oom=False, assumptions=name)
        for setting in ("rescaled", "typical"):
            flips = []
            for sites in np.unique(columns["sites"]):
                keep = (columns["setting"] == setting) & (columns["sites"] == sites)
                systems, speeds = columns["system"][keep], columns["tokens_per_s"][keep]
                rates = dict(zip(systems, speeds, strict=True))
                best = max(rates, key=rates.__getitem__, default="weaver")
                if best != "weaver" and "weaver" in rates:
                    ratio = rates[best] / rates["weaver"]
                    flips.append(f"{names.title(best)} {ratio:.2f}x at {sites} sites")
            if flips:
                notes.append(
                    f"OPT-13B, {setting}, {words}: the paper has WEAVER first, here it is "
                    f"{', '.join(flips)}. Confidant* gets the same spare compute and never flushes."
                )
    return notes


def _live_text(data: ReportData) -> str:
    def real(name: str) -> float | None:
        return data.metric("train_sites", f"real.{name}")

    error, lost, doubled, moved = (
        real(n) for n in ("weights_rel_error", "samples_lost", "samples_doubled", "reroutes")
    )
    if error is None:
        return "The live run left no measurements."
    return (
        f"Live run: the final weights differ from one-process SGD on the same samples by "
        f"{error:.1e} (relative norm, float64); {lost:.0f} samples lost and {doubled:.0f} doubled "
        f"by an independent count, after {moved:.0f} reroutes."
    )


def _timeline(data: ReportData) -> Figure:
    columns = data.table("train_sites.timeline", system="weaver")
    sites = np.unique(columns["site"])
    figure = Figure(figsize=(9, 0.32 * sites.size + 1.1))
    axes = figure.add_subplot()
    for direction, shade in (("forward", style.SKY), ("backward", style.BLUE)):
        keep = columns["direction"] == direction
        rows = np.searchsorted(sites, columns["site"][keep])
        start_s, end_s = columns["start_s"][keep], columns["end_s"][keep]
        moved = columns["rerouted"][keep].astype(bool)
        edges = [style.RED if m else shade for m in moved]
        widths = [0.8 if m else 0.0 for m in moved]  # a rim would hide short tasks
        axes.barh(
            rows,
            end_s - start_s,
            left=start_s,
            height=0.8,
            color=shade,
            edgecolor=edges,
            linewidth=widths,
            label=direction,
        )
    axes.set_yticks(range(sites.size), [f"site {s}" for s in sites])
    axes.invert_yaxis()
    axes.set(xlabel="simulated time (s)", title="WEAVER, first steps")
    axes.grid(visible=False, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    return figure


def _throughput(data: ReportData) -> Figure:
    panels = [
        (words, model, values)
        for prefix, words in _SETS
        for model, values in (lookup(data.metrics["train_sites"], f"{prefix}sim") or {}).items()
    ]
    width = max(1, (len(panels) + 1) // 2)
    figure = Figure(figsize=(9, 5.4))
    drawn = figure.subplots(2, width, squeeze=False).ravel()
    for axes, (words, model, values) in zip(drawn, panels, strict=False):
        known = [s for s, v in values.items() if isinstance(v, dict) and "tokens_per_s" in v]
        bars = axes.bar(
            range(len(known)),
            [values[s]["tokens_per_s"] for s in known],
            color=[style.colour(s) for s in known],
            width=0.65,
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
        for place, system in enumerate(known):
            theirs = lookup(data.published, f"testbed_training.{model}.{system}_tokens_per_s")
            if theirs is not None:
                axes.plot(place, theirs, "x", ms=7, mew=1.6, color=style.INK)
        axes.set_xticks(
            range(len(known)), [names.title(s) for s in known], rotation=30, ha="right", fontsize=8
        )
        axes.set(title=f"{model.upper()}, {words}", ylabel="token/s")
        axes.grid(visible=False, axis="x")
    return figure


def _steps(data: ReportData) -> Figure:
    columns = data.table("train_sites.steps", experiment="throughput")
    model = columns["model"][0]
    figure = Figure(figsize=(9, 2.8))
    axes = figure.add_subplot()
    highest = 1.0
    for system in dict.fromkeys(columns["system"]):
        keep = (columns["system"] == system) & (columns["model"] == model)
        seconds = columns["end_s"][keep] - columns["start_s"][keep]
        if seconds.size < 3:
            continue
        rate = columns["tokens"][keep] / seconds
        highest = max(highest, float((rate / rate.mean()).max()))
        axes.plot(
            columns["end_s"][keep],
            rate / rate.mean(),
            color=style.colour(system),
            lw=0.9,
            marker="o" if seconds.size < 60 else None,
            ms=3,
            label=f"{names.title(system)}, {seconds.size} steps",
        )
    axes.set(xlabel="simulated time (s)", ylabel="throughput / mean", ylim=(0, 1.1 * highest))
    axes.set_title(str(model).upper())
    if axes.lines:
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _scaling(data: ReportData) -> Figure:
    published = data.published["scaling_opt_13b_ktokens_per_s"]
    figure = Figure(figsize=(9, 5.4))
    grid = figure.subplots(2, 2)
    for row, assumptions in zip(grid, ("published", "reconciled"), strict=True):
        columns = data.table(
            "train_sites.scaling", model="opt-13b", oom=False, assumptions=assumptions
        )
        for axes, setting in zip(row, ("rescaled", "typical"), strict=True):
            mine = columns["setting"] == setting
            for system in dict.fromkeys(columns["system"][mine]):
                keep = mine & (columns["system"] == system)
                order = np.argsort(columns["sites"][keep])
                axes.plot(
                    columns["sites"][keep][order],
                    columns["tokens_per_s"][keep][order] / 1000,
                    "o-",
                    ms=3,
                    color=style.colour(system),
                    label=names.title(system),
                )
                theirs = lookup(published, f"{setting}.{system}")
                if theirs is not None:
                    axes.plot(published["sites"], theirs, "x", ms=6, color=style.colour(system))
            axes.set(
                title=f"{_SETTINGS[setting]}, {_ASSUMPTIONS[assumptions]}",
                ylabel="thousand token/s",
                ylim=(0, None),
                xscale="log",
            )
            axes.set_xticks(published["sites"], [str(count) for count in published["sites"]])
            axes.minorticks_off()
    for axes in grid[1]:
        axes.set(xlabel="sites")
    drawn: dict[str, Any] = {}
    for axes in grid.ravel():
        handles, labels = axes.get_legend_handles_labels()
        drawn.update(zip(labels, handles, strict=True))
    (cross,) = grid[0][0].plot([], [], "x", ms=6, color=style.INK)
    figure.legend(
        [*drawn.values(), cross],
        [*drawn, "published, in the system's colour"],
        loc="outside lower center",
        ncols=4,
    )
    return figure


def _table(data: ReportData) -> Grid:
    rows = [
        [
            words,
            model.upper(),
            names.title(system),
            *(v.get(n) for n in ("tokens_per_s", "peak_share_pct", "cv_pct", "drop_pct")),
        ]
        for prefix, words in _SETS
        for model, values in (lookup(data.metrics["train_sites"], f"{prefix}sim") or {}).items()
        for system, v in values.items()
        if isinstance(v, dict)
    ]
    header = [
        "assumptions",
        "model",
        "system",
        "token/s",
        "share of peak, %",
        "CoV of step rates, %",
        "slow steps, %",
    ]
    return Grid(
        "Simulated systems on the eight-site testbed; a slow step is below 80 % of the mean.",
        header,
        rows,
    )
