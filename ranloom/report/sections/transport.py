"""Optical windows: the calendar, the strategies, and where windows pay."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ranloom.report import style
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section

OURS = "aggregate_selective"
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
    return [name for name, value in tree.items() if isinstance(value, dict) and "setups" in value]


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
                "Calendar of the selective strategy: windows by gNB, set-up time hatched, colour "
                "by wavelength.",
            ),
            Picture(
                "strategies",
                _strategies(data),
                "What each strategy misses, how often it sets circuits up, how long it holds them, "
                "and when the last transfer ends.",
            ),
        ),
        (_table(data),),
        notes=(
            "With slow set-up or ample packet capacity windows do not pay: the selective strategy "
            "then uses none, and always-window is worse than packet. The sweep shows where.",
        ),
    )


def _gantt(data: ReportData) -> Figure:
    columns = data.table("plan_windows.windows", strategy=OURS)
    shown = OURS
    if not columns["start_s"].size:  # selective may well choose no window at all
        shown = "aggregate_always_window"
        columns = data.table("plan_windows.windows", strategy=shown)
    sources = sorted(set(columns["source"]))
    figure = Figure(figsize=(9, max(2.4, 0.19 * len(sources) + 1.0)))
    axes = figure.add_subplot()
    shades = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.RED)
    shortest = 0.004 * float(np.ptp(columns["end_s"])) if len(sources) else 0.0
    for i in range(columns["start_s"].size):
        row = sources.index(columns["source"][i])
        start_s, end_s, setup_s = (float(columns[c][i]) for c in ("start_s", "end_s", "setup_s"))
        shade = shades[int(columns["wavelength"][i]) % len(shades)]
        axes.barh(row, max(end_s - start_s, shortest), left=start_s, height=0.7, color=shade)
        axes.barh(
            row,
            setup_s,
            left=start_s,
            height=0.7,
            facecolor="none",
            edgecolor="white",
            hatch="////",
        )
    axes.set_yticks(range(len(sources)), sources, fontsize=7)
    axes.invert_yaxis()
    title = f"{style.title(shown)}: {columns['start_s'].size} windows"
    axes.set(xlabel="time (s)", title=f"{title} (drawn at least {shortest:.2g} s wide)")
    axes.grid(visible=False, axis="y")
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
        axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
        axes.set_title(label)
        axes.margins(x=0.28)
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(known)), [style.title(s) for s in known])
    panels[0].invert_yaxis()
    return figure


def _table(data: ReportData) -> Grid:
    rows = [
        [style.title(s), *(data.metric("plan_windows", f"{s}.{c}") for c, _ in _COLUMNS)]
        for s in strategies(data)
    ]
    return Grid("All strategies.", ["strategy", *(label for _, label in _COLUMNS)], rows)
