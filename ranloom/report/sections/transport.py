"""Optical windows: the calendar, the strategies, and where windows pay."""

from __future__ import annotations

from ranloom.report import names
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section
from ranloom.report.sections import transport_figures as figures
from ranloom.transport.baselines import STRATEGIES

_COLUMNS = (
    ("missed_bytes", "missed bytes"),
    ("setups", "set-ups"),
    ("circuit_seconds", "circuit s"),
    ("last_finish_s", "last finish s"),
    ("utilisation_pct", "circuit use %"),
    ("background_delay_p99_ms", "background p99 ms"),
    ("energy_kj", "energy kJ"),
)
_EVENTS = {
    "slip": "releases slip",
    "setup_failure": "a set-up fails as well",
    "fibre_cut": "the busiest fibre is cut as well",
}


def section(data: ReportData) -> Section:
    """The transport section."""
    m = data.metrics["plan_windows"]
    both = m[figures.BOTH]
    return Section(
        "transport",
        "Transfers planned in optical windows",
        (
            "Each transfer goes by packet or in a window: a circuit that is set up for it, alone "
            "or shared with others, and released afterwards. The planner minimises missed bytes, "
            "then set-ups, then circuit time.",
            f"An independent validator found {m['validator_errors']} faults in the calendars of "
            f"all strategies and refused {100 * m['validator_catches']:.4g} % of deliberately "
            "broken ones. The selective plan is within "
            f"{m['gap']['setups_pct']:.3g} % of a lower bound in set-ups and "
            f"{m['gap']['circuit_seconds_pct']:.3g} % in circuit time.",
            f"The same calendar can carry elastic training: {both['training_demands']} gradient "
            f"sums and layout copies ({both['training_bytes'] / 1e9:.0f} GB) beside the "
            f"aggregates need {both['setups']} windows and {both['circuit_seconds']:.3g} s of "
            f"light, and miss {100 * both['missed_bytes'] / both['offered_bytes']:.3g} % of the "
            f"bytes; planned one after the other they need {both['apart_setups']} windows and "
            f"{both['apart_circuit_seconds']:.3g} s.",
        ),
        (
            Picture(
                "calendar",
                figures.gantt(data),
                "Calendars: windows by sending node, coloured by wavelength. The selective "
                "strategy sets up a window only where packet transfer would miss the deadline; "
                "the last calendar serves federated rounds and training.",
            ),
            Picture(
                "topology_map",
                figures.topology_map(data),
                "The same calendars on the map: the wider a fibre, the more windows pass it. "
                "Star: hub, squares: offices, dots: gNBs.",
            ),
            Picture(
                "strategies",
                figures.strategies(data),
                "What each strategy misses, how often it sets circuits up, how long it holds them, "
                "and when the last transfer ends.",
            ),
            Picture(
                "break_even",
                figures.break_even(data),
                "Size from which a circuit with an exposed set-up arrives before packets: theory "
                "Ts / (1/Rp - 1/Rc) beside the planner's window against the fluid simulation "
                f"(largest deviation {m['sweep']['break_even_max_error_pct']:.2g} %). Windows pay "
                "in speed for transfers above the line.",
            ),
            Picture(
                "windows_pay",
                figures.sweep(data),
                "What windows buy, by set-up time and packet capacity left to transfers, for "
                "concurrent jobs. The line is the break-even size equal to the median aggregate: "
                "windows are faster below it.",
            ),
            Picture(
                "jitter",
                figures.jitter(data),
                "The selective plan when all releases are shifted at random: mean and worst draw. "
                "Re-planning keeps what is lit and moves the rest.",
            ),
        ),
        (_table(data), _replanning(data), _where_not(data)),
        notes=(
            "With slow set-up or ample packet capacity windows do not pay: the selective strategy "
            "then uses none, and always-window is worse than packet. The sweep shows where.",
            "Planned on the 95 % quantile of each release, the selective strategy may set up "
            "windows that knowing the releases would have saved: "
            f"{m['forecast']['regret_setups']} here, for {m['forecast']['regret_pct']:.3g} % more "
            "missed bytes than the oracle; planned on the median "
            f"{m['forecast']['p50_regret_setups']}, for {m['forecast']['p50_regret_pct']:.3g} %.",
        ),
    )


def _table(data: ReportData) -> Grid:
    rows = [
        [names.title(s), *(data.metric("plan_windows", f"{s}.{c}") for c, _ in _COLUMNS)]
        for s in (*STRATEGIES, figures.BOTH)
    ]
    return Grid(
        "All strategies for the aggregates, and the selective one for aggregates and training.",
        ["strategy", *(label for _, label in _COLUMNS)],
        rows,
    )


def _replanning(data: ReportData) -> Grid:
    found = data.metrics["plan_windows"]["replan"]
    rows = [
        [
            label,
            found[event]["kept_missed_bytes"],
            found[event]["missed_bytes"],
            found[event]["kept_setups"],
            found[event]["setups"],
            found[event]["replannings"],
        ]
        for event, label in _EVENTS.items()
    ]
    return Grid(
        "The selective plan while it is carried out: falling back to packets only, and planned "
        "anew at each event.",
        [
            "event",
            "missed bytes, kept",
            "missed bytes, re-planned",
            "set-ups, kept",
            "set-ups, re-planned",
            "re-plannings",
        ],
        rows,
    )


def _where_not(data: ReportData) -> Grid:
    """Points of the sweep by what windows buy, for each set-up time."""
    columns = data.table("plan_windows.sweep")
    rows: list[list[str | float | int | None]] = []
    for setup in sorted(set(columns["setup_s"].tolist())):
        mine = columns["setup_s"] == setup
        counts = [int((columns["pays"][mine] == kind).sum()) for kind in figures.BOUGHT]
        worse = columns["window_missed_pct"][mine] > columns["packet_missed_pct"][mine]
        rows.append([f"{setup:g}", int(mine.sum()), *counts, int(worse.sum())])
    return Grid(
        "Where windows do not pay: points of the sweep over packet share, jobs, LoRA rank and "
        "number of gNBs.",
        ["set-up s", "points", *figures.BOUGHT.values(), "always-window misses more than packet"],
        rows,
    )
