"""Figures of the transport section."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ranloom.report import names, style
from ranloom.report.data import ReportData
from ranloom.transport.baselines import (
    AGGREGATE_ALWAYS_WINDOW,
    AGGREGATE_SELECTIVE,
    STRATEGIES,
)

BOTH = "both_workloads"
CALENDARS = (AGGREGATE_SELECTIVE, AGGREGATE_ALWAYS_WINDOW, BOTH)
BOUGHT = {
    "no": "windows buy nothing",
    "speed": "windows buy an earlier finish",
    "deadline": "windows buy deadlines met",
}
_SHADES = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.RED)


def gantt(data: ReportData) -> Figure:
    """Windows by sending node over time."""
    calendars = {name: data.table("plan_windows.windows", strategy=name) for name in CALENDARS}
    sources = {name: sorted(set(c["source"])) for name, c in calendars.items()}
    heights = [max(len(rows), 2) for rows in sources.values()]
    figure = Figure(figsize=(9, 0.17 * sum(heights) + 1.6))
    panels = figure.subplots(len(calendars), 1, sharex=True, height_ratios=heights)
    ends = [float(c["end_s"].max()) for c in calendars.values() if c["end_s"].size]
    shortest = 0.004 * max(ends, default=1.0)
    for axes, (name, columns) in zip(panels, calendars.items(), strict=True):
        for i in range(columns["start_s"].size):
            row = sources[name].index(columns["source"][i])
            start_s, end_s = float(columns["start_s"][i]), float(columns["end_s"][i])
            shade = _SHADES[int(columns["wavelength"][i]) % len(_SHADES)]
            axes.barh(row, max(end_s - start_s, shortest), left=start_s, height=0.7, color=shade)
        axes.set_yticks(range(len(sources[name])), sources[name], fontsize=6)
        axes.invert_yaxis()
        axes.set_title(f"{names.title(name)}: {columns['start_s'].size} windows")
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel(f"time (s); windows are drawn at least {shortest:.2g} s wide")
    return figure


def strategies(data: ReportData) -> Figure:
    """What each strategy misses, sets up and holds."""
    known = STRATEGIES
    figure = Figure(figsize=(9, 0.36 * len(known) + 1.1))
    panels = figure.subplots(1, 4, sharey=True)
    shown = (
        ("missed_bytes", "missed (GB)", 1e-9),
        ("setups", "set-ups", 1.0),
        ("circuit_seconds", "circuit time (s)", 1.0),
        ("last_finish_s", "last finish (s)", 1.0),
    )
    for axes, (name, label, factor) in zip(panels, shown, strict=True):
        values = [data.metric("plan_windows", f"{s}.{name}") for s in known]
        bars = axes.barh(
            range(len(known)),
            [np.nan if v is None else v * factor for v in values],
            color=[style.colour(s) for s in known],
            height=0.65,
        )
        axes.bar_label(bars, fmt="%.4g", padding=2, fontsize=7)
        axes.set_title(label)
        axes.margins(x=0.28)
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(known)), [names.title(s) for s in known])
    panels[0].invert_yaxis()
    return figure


def sweep(data: ReportData) -> Figure:
    """What windows buy over set-up time and packet rate."""
    columns = data.table("plan_windows.sweep", rank_factor=1.0)
    most = columns["gnbs"] == columns["gnbs"].max()
    columns = {name: values[most] for name, values in columns.items()}
    setups, rates = np.unique(columns["setup_s"]), np.unique(columns["packet_gbps"])
    jobs = np.unique(columns["jobs"])
    kinds = ("no", "speed", "deadline")
    figure = Figure(figsize=(9, 3.1))
    panels = figure.subplots(1, jobs.size, sharey=True, squeeze=False)[0]
    shades = ListedColormap(("#e9ecef", style.SKY, style.BLUE))
    for axes, count in zip(panels, jobs, strict=True):
        grid = np.full((setups.size, rates.size), np.nan)
        ratio = np.full((setups.size, rates.size), np.nan)
        for i in np.flatnonzero(columns["jobs"] == count):
            at = (
                np.searchsorted(setups, columns["setup_s"][i]),
                np.searchsorted(rates, columns["packet_gbps"][i]),
            )
            grid[at] = kinds.index(columns["pays"][i])
            ratio[at] = columns["break_even_bytes"][i] / columns["median_bytes"][i]
        axes.imshow(grid, origin="lower", aspect="auto", cmap=shades, vmin=0, vmax=2)
        axes.contour(np.log10(ratio), levels=[0.0], colors=style.RED, linewidths=1.5)
        axes.set_xticks(range(rates.size), [f"{r:.3g}" for r in rates], fontsize=7)
        axes.set_yticks(range(setups.size), [f"{s:.3g}" for s in setups], fontsize=7)
        axes.set(title=f"{count} jobs", xlabel="packet (Gb/s)")
        axes.grid(visible=False)
    panels[0].set_ylabel("set-up (s)")
    handles = [Patch(color=shades(i), label=BOUGHT[kind]) for i, kind in enumerate(kinds)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def break_even(data: ReportData) -> Figure:
    """Theory's line and the simulated size, for each granted packet rate."""
    columns = data.table("plan_windows.sweep")
    figure = Figure(figsize=(9, 3.6))
    axes = figure.subplots()
    rates = np.unique(columns["packet_gbps"])
    for k, rate in enumerate(rates):
        mine = (columns["packet_gbps"] == rate) & np.isfinite(
            columns["break_even_bytes"].astype(np.float64)
        )
        setup, first = np.unique(columns["setup_s"][mine], return_index=True)
        theory = columns["break_even_bytes"][mine][first].astype(np.float64)
        simulated = columns["break_even_simulated_bytes"][mine][first].astype(np.float64)
        shade = _SHADES[k % len(_SHADES)]
        axes.loglog(setup, theory, color=shade, label=f"{1000 * rate:.4g} Mb/s of packets")
        axes.loglog(setup, simulated, "o", color=shade, markersize=5, markerfacecolor="white")
    sizes = np.unique(columns["median_bytes"])
    for size in sizes:
        axes.axhline(size, color=style.INK, linewidth=0.8, linestyle="--")
        label = f"median transfer {size / 1e6:.0f} MB"
        axes.annotate(
            label,
            (1.0, size),
            xycoords=("axes fraction", "data"),
            fontsize=7,
            ha="right",
            va="bottom",
        )
    axes.set(xlabel="set-up time (s)", ylabel="break-even size (bytes)")
    axes.legend(title="lines: theory, circles: simulated", title_fontsize=8, loc="lower right")
    return figure


def topology_map(data: ReportData) -> Figure:
    """Fibres and the windows on them, one panel a calendar."""
    figure = Figure(figsize=(9, 3.5))
    panels = figure.subplots(1, len(CALENDARS))
    for axes, name in zip(panels, CALENDARS, strict=True):
        columns = data.table("plan_windows.links", strategy=name)
        ends = _places(columns)
        lines = list(zip(ends["a"], ends["b"], strict=True))
        count = columns["windows"].astype(np.float64)
        widths = 0.5 + 4.0 * count / max(1.0, float(count.max()))
        shade = np.where(count > 0, style.BLUE, "#b9bec6")
        axes.add_collection(LineCollection(lines, linewidths=widths, colors=shade, zorder=1))
        for side in ("a", "b"):
            place = np.array(ends[side])
            for kind, marker, size in (("gnb", "o", 8), ("aggregation", "s", 14), ("hub", "*", 90)):
                here = columns[f"{side}_kind"] == kind
                axes.scatter(*place[here].T, s=size, marker=marker, color=style.INK, zorder=2)
        axes.set_title(f"{names.title(name)}\n{int(count.max())} windows on the busiest fibre")
        axes.set_axis_off()
        axes.set_aspect("equal", adjustable="datalim")
        axes.autoscale_view()
    return figure


def _places(columns: dict[str, np.ndarray]) -> dict[str, list[tuple[float, float]]]:
    """Both ends of each fibre in the plane: km east and north, or a circle without places."""
    at = {
        side: [columns[f"{side}_{k}"].astype(np.float64) for k in ("lon", "lat")] for side in "ab"
    }
    known = all(np.isfinite(values).all() for pair in at.values() for values in pair)
    if known:
        squeeze = np.cos(np.deg2rad(np.mean(at["a"][1])))
        return {side: list(zip(lon * squeeze, lat, strict=True)) for side, (lon, lat) in at.items()}
    nodes = sorted({*columns["a"], *columns["b"]})
    angle = {name: 2 * np.pi * k / len(nodes) for k, name in enumerate(nodes)}
    return {
        side: [(float(np.cos(angle[n])), float(np.sin(angle[n]))) for n in columns[side]]
        for side in "ab"
    }


def jitter(data: ReportData) -> Figure:
    """Miss rates on shifted releases."""
    columns = data.table("plan_windows.jitter")
    figure = Figure(figsize=(6, 2.8))
    axes = figure.subplots()
    at = np.arange(columns["sd_s"].size)
    for side, (kind, label, shade) in enumerate(
        (
            ("kept", "windows as planned", style.ORANGE),
            ("replanned", "re-planned", style.BLUE),
        )
    ):
        mean, worst = columns[f"{kind}_missed_pct"], columns[f"{kind}_worst_pct"]
        place = at + 0.38 * (side - 0.5)
        bars = axes.bar(place, mean, 0.36, color=shade, label=label)
        axes.errorbar(place, mean, yerr=(0 * mean, worst - mean), fmt="none", ecolor=style.INK)
        axes.bar_label(bars, fmt="%.3g", label_type="center", fontsize=7)
    axes.set_xticks(at, [f"{value:g}" for value in columns["sd_s"]])
    axes.set(xlabel="standard deviation of the shifts (s)", ylabel="demands missed (%)")
    axes.legend(loc="upper left")
    axes.grid(visible=False, axis="x")
    return figure
