"""Optical windows: the calendar, the strategies, and where windows pay."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ranloom.report import style
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section

CALENDARS = ("aggregate_selective", "aggregate_always_window")
BOUGHT = {
    "no": "windows buy nothing",
    "speed": "windows buy an earlier finish",
    "deadline": "windows buy deadlines met",
}
_COLUMNS = (
    ("missed_bytes", "missed bytes"),
    ("setups", "set-ups"),
    ("circuit_seconds", "circuit s"),
    ("last_finish_s", "last finish s"),
    ("utilisation_pct", "circuit use %"),
    ("background_delay_p99_ms", "background p99 ms"),
    ("energy_kj", "energy kJ"),
)


def strategies(data: ReportData) -> list[str]:
    """Strategies that were planned, in the order of the metrics."""
    tree = data.metrics["plan_windows"]
    return [name for name, value in tree.items() if isinstance(value, dict) and "flows" in value]


def section(data: ReportData) -> Section:
    """The transport section."""
    m = data.metrics["plan_windows"]
    return Section(
        "transport",
        "Transfers planned in optical windows",
        (
            "Each transfer goes by packet or in a window: a circuit that is set up for it, alone "
            "or shared with others, and released afterwards. The planner minimises missed bytes, "
            "then set-ups, then circuit time.",
            f"An independent validator found {m['validator_errors']} faults in the calendars of "
            f"all strategies and refused {100 * m['validator_catches']:.4g} % of deliberately "
            "broken ones.",
        ),
        (
            Picture(
                "calendar",
                _gantt(data),
                "Calendars: windows by gNB, coloured by wavelength. The selective strategy sets up "
                "a window only where packet transfer would miss the deadline.",
            ),
            Picture(
                "strategies",
                _strategies(data),
                "What each strategy misses, how often it sets circuits up, how long it holds them, "
                "and when the last transfer ends.",
            ),
            Picture(
                "break_even",
                _sweep(data),
                "What windows buy, by set-up time and packet capacity left to transfers, for 1 to "
                "16 concurrent jobs. The line is the break-even size Ts / (1/Rp - 1/Rc) equal to "
                "the median aggregate: windows are faster below it.",
            ),
        ),
        (_table(data),),
        notes=(
            "With slow set-up or ample packet capacity windows do not pay: the selective strategy "
            "then uses none, and always-window is worse than packet. The sweep shows where.",
        ),
    )


def _gantt(data: ReportData) -> Figure:
    calendars = {name: data.table("plan_windows.windows", strategy=name) for name in CALENDARS}
    sources = {name: sorted(set(c["source"])) for name, c in calendars.items()}
    heights = [max(len(rows), 2) for rows in sources.values()]
    figure = Figure(figsize=(9, 0.17 * sum(heights) + 1.6))
    panels = figure.subplots(len(calendars), 1, sharex=True, height_ratios=heights)
    shades = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.RED)
    ends = [float(c["end_s"].max()) for c in calendars.values() if c["end_s"].size]
    shortest = 0.004 * max(ends, default=1.0)
    for axes, (name, columns) in zip(panels, calendars.items(), strict=True):
        for i in range(columns["start_s"].size):
            row = sources[name].index(columns["source"][i])
            start_s, end_s = float(columns["start_s"][i]), float(columns["end_s"][i])
            shade = shades[int(columns["wavelength"][i]) % len(shades)]
            axes.barh(row, max(end_s - start_s, shortest), left=start_s, height=0.7, color=shade)
        axes.set_yticks(range(len(sources[name])), sources[name], fontsize=6)
        axes.invert_yaxis()
        axes.set_title(f"{style.title(name)}: {columns['start_s'].size} windows")
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel(f"time (s); windows are drawn at least {shortest:.2g} s wide")
    return figure


def _strategies(data: ReportData) -> Figure:
    known = strategies(data)
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
    panels[0].set_yticks(range(len(known)), [style.title(s) for s in known])
    panels[0].invert_yaxis()
    return figure


def _sweep(data: ReportData) -> Figure:
    columns = data.table("plan_windows.sweep")
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
    handles = [
        Patch(color=shades(i), label=f"windows buy {BOUGHT[kind]}") for i, kind in enumerate(kinds)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _table(data: ReportData) -> Grid:
    rows = [
        [style.title(s), *(data.metric("plan_windows", f"{s}.{c}") for c, _ in _COLUMNS)]
        for s in strategies(data)
    ]
    return Grid("All strategies.", ["strategy", *(label for _, label in _COLUMNS)], rows)
