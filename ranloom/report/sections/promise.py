"""Who keeps the promise at which load, how far from the best, and what counts as a transition."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ranloom.report import names, style
from ranloom.report.data import Columns, ReportData
from ranloom.report.page import Grid, Picture, Section

OFFLINE_SCENARIOS = ("scenario_1_scaled", "scenario_2_scaled", "wideband")
ONLINE = ("noctrl", "weaver", "weaver_plus", "yinyangran")
DWELL_SCENARIO = "scenario_2_scaled"
SHAMS = ("const_8", "const_16", "weaver_never")  # each has to fail the promise as a whole
_LIMITS = {
    "transitions": "transitions",
    "mean_sm": "mean reservation",
    "delay_p95": "p95 delay",
    "throughput": "throughput",
    "harq_met": "HARQ feedback in time",
    "decode_over_1ms": "decodes above 1 ms",
}
_SETTINGS = {
    "patience_unit": "patience counted in",
    "patience_count": "patience counted",
    "succeed_when_served": "success when all is served",
    "never_lower_on_ramp_up": "never lower on a ramp up",
    "sum_backlog": "backlog",
    "high_tier_cap_sm": "cap of the high tier, SMs",
    "backlog_threshold_bytes": "backlog threshold, bytes",
    "patience": "patience, slots",
    "prb_tolerance": "tolerance, PRBs",
    "max_iterations": "most passes",
    "step_sm": "step, SMs",
    "delay_threshold_ms": "delay threshold, ms",
}
_TTI_MARKERS = ("o", "s", "^", "D", "v")


def section(data: ReportData) -> Section:
    """The section on controllers over loads."""
    verdicts = data.table("compare_controllers.verdicts")
    return Section(
        "promise",
        "Who keeps the promise, and at which load",
        (
            "A controller keeps its promise at a load if, against NoCtrl, it makes several times "
            "fewer transitions at hardly more SMs and delay, and misses no more deadlines. Each "
            "load is drawn several times and judged on the packets of all draws together: the 95th "
            "percentile of one window hangs on its few largest bursts.",
            "Constants and an infinite threshold must not keep it at all loads. At a light load, "
            "where the smallest reservation carries everything in time, they may. "
            f"{_shams(verdicts)}",
        ),
        (
            Picture(
                "promise",
                _promise(verdicts),
                "Each load at NoCtrl's mean reservation: fewer transitions (left, the dashed line "
                "is the promise), mean reservation and p95 delay against NoCtrl. Filled: all "
                "limits met. Bars: 95 % confidence interval over draws of the added delay.",
            ),
            Picture(
                "offline",
                _offline(data),
                "Distance from the yardstick. Lines: reservations that no controller can beat if "
                "every byte is decoded at most 10 (50) ms later than without control, knowing the "
                "future. A controller left of a line delays some bytes by more.",
            ),
            Picture(
                "calibration",
                _calibration(data),
                "Settings of WEAVER, each at its worst load: sweep and multi-objective search. "
                "Ringed: on the Pareto front. Star: chosen.",
            ),
            Picture(
                "counting",
                _counting(data),
                "The same run of NoCtrl under other conventions: transitions by sampling period "
                "and SM quantum (left, one table query a slot), by definition of demand (right).",
            ),
            Picture(
                "dwell",
                _dwell(data),
                "How long spare SMs last: spare over time as a distribution (left), and the share "
                "of time in stretches of at least some length without a transition (right).",
            ),
            Picture(
                "shared_gpu",
                _shared_gpu(data),
                "Sites of the macro scenario on one GPU: partitions side by side, or one partition "
                "for the blocks of all. Lines: mean; dots: 99.9th percentile.",
            ),
        ),
        (_passed(data), _yardstick(data), _table(verdicts), _variants(data)),
        notes=_notes(verdicts),
    )


def _by(columns: Columns, **where: object) -> dict[str, np.ndarray]:
    keep = np.ones(len(next(iter(columns.values()))), bool)
    for name, value in where.items():
        keep &= columns[name] == value
    return {name: values[keep] for name, values in columns.items()}


def _labels(verdicts: Columns) -> list[str]:
    return list(dict.fromkeys(verdicts["controller"].tolist()))


def load_name(load: str) -> str:
    """A load in print."""
    return load.replace("_", " ").replace(" x", ", load x", 1)


def _shams(verdicts: Columns) -> str:
    found = [
        f"{names.title(str(name))} at {load_name(str(load))}"
        for load, name, missed, in_range in zip(
            verdicts["load"],
            verdicts["controller"],
            verdicts["missed"],
            verdicts["in_range"],
            strict=True,
        )
        if in_range and not missed and name in SHAMS
    ]
    return f"Here they do: {'; '.join(found)}." if found else "Here none does."


def _passed(data: ReportData) -> Grid:
    metrics = data.metrics["compare_controllers"]
    rows: list[list[str | float | int | None]] = [
        [
            names.title(name),
            value["scaled_passed"],
            value["others_passed"],
            value.get("least_transitions_ratio"),
        ]
        for name, value in metrics.items()
        if isinstance(value, dict) and name != "noctrl"
    ]
    return Grid(
        "Loads at which all limits are met, of those where NoCtrl's mean lies in the range.",
        [
            "controller",
            f"scaled TRACTOR loads, of {metrics['scaled_in_range']}",
            f"other loads, of {metrics['others_in_range']}",
            "least times fewer transitions, scaled loads",
        ],
        rows,
    )


def _yardstick(data: ReportData) -> Grid:
    rows: list[list[str | float | int | None]] = []
    for scenario in OFFLINE_SCENARIOS:
        runs = data.metrics["generate_traces"].get(scenario, {})
        if "offline" not in runs:
            continue
        best, before = runs["offline"], runs["noctrl"]["transitions"]
        rows.append(
            [
                scenario.replace("_", " "),
                before,
                best["transitions_lower"],
                best["transitions_upper"],
                before / max(best["transitions_lower"], 1),
                *(runs[c]["transitions"] if c in runs else None for c in ONLINE[1:3]),
            ]
        )
    return Grid(
        "Fewest transitions that anyone could make who knows the future, with every byte decoded "
        "at most 10 ms later than without control, at the allowed mean reservation.",
        [
            "scenario",
            "transitions of NoCtrl",
            "fewest: at least",
            "fewest: found",
            "times fewer, at most",
            *(f"transitions of {names.title(c)}" for c in ONLINE[1:3]),
        ],
        rows,
    )


def _promise(verdicts: Columns) -> Figure:
    figure = Figure(figsize=(9, 3.4))
    panels = figure.subplots(1, 3)
    shown = (
        ("transitions_ratio", "times fewer transitions"),
        ("mean_sm_pct", "mean reservation (%)"),
        ("delay_p95_added_ms", "p95 delay (ms)"),
    )
    for label in _labels(verdicts):
        if label == "noctrl":
            continue
        rows = _by(verdicts, controller=label)
        passes = rows["missed"].astype(str) == ""
        shade = style.colour(label)
        for axes, (name, _) in zip(panels, shown, strict=True):
            face = np.where(passes, shade, "white")
            if name == "delay_p95_added_ms":
                axes.errorbar(
                    rows["noctrl_mean_sm"], rows[name], rows["delay_p95_added_ms_pm"],
                    fmt="none", ecolor=shade, elinewidth=0.7, alpha=0.6,
                )  # fmt: skip
            axes.scatter(
                rows["noctrl_mean_sm"], rows[name], s=26, c=face, edgecolors=shade, zorder=3,
                label=names.title(label),
            )  # fmt: skip
    for axes, (_, label) in zip(panels, shown, strict=True):
        axes.set(xlabel="NoCtrl's mean reservation (SM)", title=label)
    panels[0].set_yscale("log")
    panels[0].axhline(4, ls="--", color=style.INK, lw=0.8)
    panels[1].axhline(2, ls="--", color=style.INK, lw=0.8)
    panels[2].axhline(10, ls="--", color=style.INK, lw=0.8)
    panels[2].set_yscale("symlog", linthresh=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def _offline(data: ReportData) -> Figure:
    fronts = data.table("generate_traces.offline")
    known = [s for s in OFFLINE_SCENARIOS if s in fronts["scenario"]]
    figure = Figure(figsize=(9, 3.3))
    panels = np.atleast_1d(figure.subplots(1, len(known)))
    for axes, scenario in zip(panels, known, strict=True):
        runs = data.metrics["generate_traces"][scenario]
        top = 1.6 * runs["noctrl"]["mean_sm"]
        rows = _by(fronts, scenario=scenario)
        for delay, line in zip(np.unique(rows["delay_ms"]), ("-", "--", ":", "-."), strict=False):
            own = _by(rows, delay_ms=delay)
            order = np.argsort(own["mean_sm"])
            inside = own["mean_sm"][order] <= top
            axes.plot(
                own["mean_sm"][order][inside], own["transitions"][order][inside], line,
                color=style.INK, marker=".", ms=4, label=f"offline, {delay:g} ms",
            )  # fmt: skip
        for controller in ONLINE:
            if controller in runs and runs[controller]["mean_sm"] <= top:
                axes.plot(
                    runs[controller]["mean_sm"], runs[controller]["transitions"], "o", ms=7,
                    color=style.colour(controller), label=names.title(controller),
                )  # fmt: skip
        axes.set(title=scenario.replace("_", " "), xlabel="mean reservation (SM)", yscale="log")
    panels[0].set_ylabel("transitions")
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=6)
    return figure


def _calibration(data: ReportData) -> Figure:
    rows = data.table("calibrate_scheduler.settings")
    figure = Figure(figsize=(9, 3.2))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, label) in zip(
        panels,
        (("mean_sm_pct", "mean reservation (%)"), ("delay_p95_ms", "p95 delay (ms)")),
        strict=True,
    ):
        for how, shade in (("sweep", style.GREY), ("search", style.BLUE)):
            own = _by(rows, how=how)
            axes.scatter(
                own[name], own["transitions_share"], s=20, color=shade, alpha=0.7, label=how,
                edgecolors=np.where(own["on_front"], style.INK, "none"),
            )  # fmt: skip
        best = _by(rows, chosen=True)
        axes.plot(
            best[name], best["transitions_share"], "*", ms=13, color=style.RED, label="chosen"
        )  # fmt: skip
        axes.set(xlabel=f"{label} against NoCtrl")
    panels[1].set_xscale("symlog", linthresh=10)
    low, high = panels[1].get_xlim()
    panels[1].set_xlim(min(low, -10), max(high, 10))  # a scale within the linear part has no ticks
    panels[0].set(ylabel="transitions, share of NoCtrl's", yscale="log")
    panels[0].legend()
    return figure


def _counting(data: ReportData) -> Figure:
    rows = data.table("compare_controllers.transition_counts", hold_empty=False)
    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2, sharey=True)
    plain = _by(rows, demand="slot_total")
    for quantum, marker in zip(np.unique(plain["quantum_sm"]), _TTI_MARKERS, strict=False):
        own = _by(plain, quantum_sm=quantum)
        left.plot(own["every_ul_slots"], own["transitions"], marker=marker, label=f"{quantum} SM")
    per_block = _by(rows, demand="per_block")["quantum_sm"]
    quantum = per_block[0] if len(per_block) else rows["quantum_sm"].max()
    for demand, marker in zip(("slot_total", "per_block", "work"), _TTI_MARKERS, strict=False):
        own = _by(rows, demand=demand, quantum_sm=quantum)
        if len(own["demand"]):
            name = demand.replace("_", " ")
            right.plot(own["every_ul_slots"], own["transitions"], marker=marker, label=name)
    for axes, title in ((left, "SM quantum"), (right, "definition of demand")):
        axes.set(xscale="log", yscale="log", xlabel="reservation may change every (UL slots)")
        axes.legend(title=title)
    left.set_ylabel("transitions")
    return figure


def _dwell(data: ReportData) -> Figure:
    closing = data.table("generate_traces.scenarios", scenario=DWELL_SCENARIO)
    slot_ms = closing["slot_us"][0] / 1e3
    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2)
    for controller in ONLINE:
        rows = data.table(
            "generate_traces.reservations", scenario=DWELL_SCENARIO, controller=controller
        )
        if not len(rows["slot"]):
            continue
        held = np.diff(rows["slot"], append=closing["slots"][0]).astype(np.float64)
        shade, name = style.colour(controller), names.title(controller)
        _cumulative(left, closing["sm_max"][0] - rows["sm"], held, shade, name)
        order = np.argsort(held)
        beyond = held[order][::-1].cumsum()[::-1] / held.sum()
        right.step(held[order] * slot_ms, beyond, where="pre", color=shade, label=name)
    left.set(xlabel="spare SMs", ylabel="share of time with at most", ylim=(0, 1.02))
    right.set(xlabel="time between transitions (ms)", ylabel="share of time in longer ones")
    right.set_xscale("log")
    right.legend()
    return figure


def _cumulative(axes: Axes, value: np.ndarray, weight: np.ndarray, shade: str, name: str) -> None:
    order = np.argsort(value)
    axes.step(
        value[order], weight[order].cumsum() / weight.sum(), where="post", color=shade, label=name
    )


def _shared_gpu(data: ReportData) -> Figure:
    rows = data.table("generate_traces.shared_gpu")
    figure = Figure(figsize=(7, 3.2))
    axes = figure.subplots()
    for controller in dict.fromkeys(rows["controller"].tolist()):
        for sharing, line in (("summed", "-"), ("pooled", "--")):
            own = _by(rows, controller=controller, sharing=sharing)
            shade = style.colour(controller)
            name = f"{names.title(controller)}, {sharing}"
            axes.plot(own["cells"], own["mean_sm"], line, color=shade, label=name)
            axes.plot(own["cells"], own["p999_sm"], "o", color=shade, ms=4, alpha=0.6)
    axes.axhline(
        data.table("generate_traces.scenarios")["sm_max"][0], ls=":", color=style.INK, lw=0.8
    )
    axes.set(xlabel="cells on the GPU", ylabel="SM")
    axes.legend()
    return figure


def _table(verdicts: Columns) -> Grid:
    columns = (
        "noctrl_mean_sm", "noctrl_transitions", "transitions", "transitions_pm",
        "transitions_ratio", "mean_sm_pct", "delay_p95_added_ms", "delay_p95_added_ms_pm",
        "throughput_pct",
    )  # fmt: skip
    rows: list[list[str | float | int | None]] = [
        [
            load_name(str(verdicts["load"][i])),
            names.title(str(verdicts["controller"][i])),
            *(round(float(verdicts[c][i]), 3) for c in columns),
            ", ".join(_LIMITS[m] for m in str(verdicts["missed"][i]).split()) or "none",
        ]
        for i in range(len(verdicts["load"]))
        if verdicts["controller"][i] != "noctrl"
    ]
    return Grid(
        "Every load: figures a draw with half the width of their 95 % interval (±), and limits "
        "missed on all draws together.",
        ["load", "controller", "mean reservation of NoCtrl, SMs", "transitions of NoCtrl",
         "transitions", "±", "times fewer", "mean reservation, change in %",
         "p95 delay added, ms", "±", "throughput, change in %", "limits missed"],
        rows,
    )  # fmt: skip


def _variants(data: ReportData) -> Grid:
    rows = data.table("compare_controllers.weaver_variants")
    cells: list[list[str | float | int | None]] = [
        [
            _setting(str(rows["setting"][i])),
            int(rows["transitions"][i]),
            *(
                round(float(rows[c][i]), 3)
                for c in ("mean_sm", "delay_p95_ms", "passes_1_to_3_pct")
            ),
        ]
        for i in range(len(rows["setting"]))
    ]
    return Grid(
        "Algorithm 1 with one parameter changed at a time, literal readings of its gaps among "
        "them, on one draw of scenario 2 scaled.",
        [
            "setting",
            "transitions",
            "mean reservation, SMs",
            "p95 delay, ms",
            "slots with 1 to 3 passes, %",
        ],
        cells,
    )


def _setting(setting: str) -> str:
    """What differs from the calibrated setting, in words."""
    name, given, value = setting.partition("=")
    if not given:
        return names.title(name)
    shown = {"False": "no", "True": "yes", "ul_slots": "uplink slots", "literal": "at every pass"}
    return f"{_SETTINGS.get(name, name.replace('_', ' '))}: {shown.get(value, value.strip('[]'))}"


def _notes(verdicts: Columns) -> tuple[str, ...]:
    hard = [
        f"{load_name(str(load))} ({names.title(str(name))}: {ratio:.1f} times fewer)"
        for load, name, ratio, missed in zip(
            verdicts["load"],
            verdicts["controller"],
            verdicts["transitions_ratio"],
            verdicts["missed"],
            strict=True,
        )
        if "transitions" in str(missed).split() and name in ("weaver", "weaver_plus")
    ]
    lost = "; ".join(hard) if hard else "none of the loads above"
    return (
        f"Too many transitions: {lost}. Short hard bursts at a high MCS pass the last level of the "
        "5-bit buffer status report (150 kB): the gNB no longer knows how much waits, and the only "
        "safe answer is the whole carrier. With the 8-bit report WEAVER+ smooths them; Algorithm 1 "
        "looks at a byte threshold alone and gains little.",
        "A step of 8 SMs costs two transitions on the way down from 24, a step of 16 one; on 100 "
        "MHz, where bursts ask for 48, five against three. That is why the published step loses "
        "against NoCtrl there.",
        "The yardstick counts decoder work in fluid form and knows when NoCtrl decoded it; grant "
        "sizes, block errors and reports are left out, so it is a bound for that model, not a "
        "schedule.",
        "Not reproduced: the over-the-air rows of Table 2, and RSSI replay (Eq. 12), whose column "
        "is zero throughout the published traces.",
    )
