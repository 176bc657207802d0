"""The uplink cell: reservations, transitions, delay, spare compute by hour and site."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ranloom.report import names, style
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section

SCENARIOS = (
    "scenario_1",
    "scenario_1_scaled",
    "scenario_2",
    "scenario_2_scaled",
    "stress",
    "wideband",
)
TIMELINE_SCENARIO = "scenario_2_scaled"  # at the published load weaver never leaves the floor
SHOWN_WINDOW = "scenario_1_scaled"  # the same load as the first of compare_controllers
_COLUMNS = (
    ("mean_sm", "mean reservation, SMs"),
    ("transitions", "transitions"),
    ("harq_met_pct", "HARQ feedback in time, %"),
    ("decode_over_1ms_pct", "decodes above 1 ms, %"),
    ("throughput_mbps", "throughput, Mbit/s"),
    ("delay_mean_ms", "mean delay, ms"),
    ("delay_p95_ms", "p95 delay, ms"),
    ("jitter_ms", "jitter, ms"),
    ("loss_pct", "packet loss, %"),
)


def section(data: ReportData) -> Section:
    """The uplink section."""
    return Section(
        "uplink",
        "The uplink cell and its SM reservation",
        (
            "Each controller serves the same packets through the same channel; decode latency "
            "comes from the transport blocks of the slot and the reservation in force, never "
            "from the controller's own table. A transition is a change of the reservation from "
            "one uplink slot to the next.",
        ),
        (
            Picture(
                "timeline",
                _timeline(data),
                "Demand and reservation over 200 uplink slots of scenario 2 at scaled load "
                "(Fig. 10). Ticks mark transitions.",
            ),
            Picture(
                "controllers",
                _controllers(data),
                "Transitions, mean reservation and p95 delay of each controller.",
            ),
            Picture(
                "ramps",
                _ramps(data),
                "Backlog against reservation in the same stretch: under WEAVER the reservation "
                "follows the backlog that it cannot absorb, not each slot.",
            ),
            Picture(
                "distributions",
                _distributions(data),
                "Scenario 2 scaled. Left: packets of each UE that are later than a delay (solid "
                "WEAVER, dotted NoCtrl). Middle: margin of decodes below the budget of 800 µs. "
                "Right: PRBs and MCS of busy slots under WEAVER.",
            ),
            Picture(
                "spare_by_hour",
                _spare_by_hour(data),
                "Spare SMs of six sites over a day: left by hour, right as a map (Fig. 3).",
            ),
        ),
        (_against_noctrl(data), _table(data)),
        notes=_notes(data),
    )


def _notes(data: ReportData) -> tuple[str, ...]:
    published = data.published
    loss_pct = published["application_kpis"]["d_itg_three_ues"]["packet_loss_pct"][0]
    carried = published["application_kpis"]["d_itg_three_ues"]["throughput_sum_mbps"][0]
    stress = published["traffic_scenarios"]["d_itg_stress"]
    mean_kbps = stress["steady_kbps"] + 1000 * stress["burst_mbps"] * stress["burst_s"] / 90
    floor = data.metric("generate_traces", "scenario_1.noctrl.mean_sm")
    load = data.metric("generate_traces", "scenario_1.noctrl.throughput_mbps")
    lost = data.metric("generate_traces", "stress.noctrl.loss_pct") or 0.0
    yinyang = published["stability"]["scenario_1"]["yinyangran"]["mean_sm"]
    widest = max(published["min_sm_lut"]["min_sm"][3])
    wide = data.metric("generate_traces", "wideband.noctrl.mean_sm") or 0.0
    return (
        f"Scenarios 1 and 2 carry the load of the TRACTOR uplink. It is light ({load:.2g} Mbit/s "
        f"in scenario 1), so the reservation seldom leaves the smallest partition (mean "
        f"{floor:.4g} SM without control). The scaled scenarios multiply the load; the factor is a "
        "parameter.",
        f"Table 3 reports {carried} Mbit/s at {loss_pct} % loss, which implies "
        f"{carried / (1 - loss_pct / 100):.1f} Mbit/s offered. The described traffic, "
        f"{stress['ues']} UEs with one burst of {stress['burst_s']} s in 90 s, offers "
        f"{stress['ues'] * mean_kbps / 1000:.1f} Mbit/s, of which this cell loses {lost:.2g} %.",
        f"The published YinYangRAN mean of {yinyang} SM exceeds what the published table can ask "
        f"for one slot of 106 PRBs ({widest} SM): demand there was not one lookup per slot.",
        "YinYangRAN holds each second at its peak. Its surplus over WEAVER (first table) is least "
        "where the load is so light that in most seconds no slot asks for more than the smallest "
        "partition: neither controller can then hold less.",
        *_one_window(data),
        "Where short hard bursts at a high MCS dominate (wideband), delaying them costs delay and "
        "smoothing them costs SMs. WEAVER+ is this project's variant for that regime. NoCtrl holds "
        f"{wide:.1f} SMs on average there; the next section says how few transitions anyone could "
        "make.",
    )


def _one_window(data: ReportData) -> tuple[str, ...]:
    """What one window says of delay, beside independent draws of the same load."""
    runs = data.metrics["generate_traces"].get(SHOWN_WINDOW, {})
    rows = data.table("compare_controllers.verdicts", controller="weaver", scenario="scenario_1")
    if not {"noctrl", "weaver"} <= runs.keys() or not len(rows["load"]):
        return ()
    added_ms = runs["weaver"]["delay_p95_ms"] - runs["noctrl"]["delay_p95_ms"]
    mean_ms, pm_ms = rows["delay_p95_added_ms_mean"][0], rows["delay_p95_added_ms_pm"][0]
    return (
        f"The p95 delay of one window hangs on its few largest bursts: WEAVER adds {added_ms:+.1f} "
        f"ms in {SHOWN_WINDOW.replace('_', ' ')}, and {mean_ms:+.1f} ± {pm_ms:.1f} ms (95 % "
        f"interval) over {rows['draws'][0]} draws of load x{rows['load_factor'][0]:g}.",
    )


def controllers(data: ReportData, scenario: str) -> list[str]:
    """Controllers that ran in a scenario, in the order of the metrics."""
    tree = data.metrics["generate_traces"].get(scenario, {})
    return [
        name for name, value in tree.items() if isinstance(value, dict) and "harq_met_pct" in value
    ]


def _against_noctrl(data: ReportData) -> Grid:
    """WEAVER and WEAVER+ by scenario, and what YinYangRAN reserves beyond WEAVER."""
    rows: list[list[str | float | int | None]] = []
    for scenario in SCENARIOS:
        runs = data.metrics["generate_traces"].get(scenario, {})
        if not {"noctrl", "weaver"} <= runs.keys():
            continue
        before = runs["noctrl"]
        for name in ("weaver", "weaver_plus"):
            if name not in runs:
                continue
            after = runs[name]
            peaks = runs.get("yinyangran") if name == "weaver" else None
            rows.append(
                [
                    scenario.replace("_", " "),
                    names.title(name),
                    before["transitions"],
                    after["transitions"],
                    before["transitions"] / after["transitions"] if after["transitions"] else None,
                    100 * (after["mean_sm"] / before["mean_sm"] - 1),
                    after["delay_p95_ms"] - before["delay_p95_ms"],
                    peaks["mean_sm"] / after["mean_sm"] if peaks else None,
                ]
            )
    return Grid(
        "WEAVER and WEAVER+ against NoCtrl.",
        [
            "scenario",
            "controller",
            "transitions of NoCtrl",
            "transitions",
            "times fewer",
            "mean reservation, change in %",
            "p95 delay added, ms",
            "mean reservation of YinYangRAN over this",
        ],
        rows,
    )


def _timeline(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 4))
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, controller in zip(panels, ("noctrl", "weaver"), strict=True):
        columns = data.table(
            "generate_traces.timeline", scenario=TIMELINE_SCENARIO, controller=controller
        )
        slot, sm = columns["ul_slot"] - columns["ul_slot"].min(), columns["reserved_sm"]
        shade = style.colour(controller)
        axes.fill_between(slot, sm, step="post", color=shade, alpha=0.25, lw=0)
        axes.step(slot, sm, where="post", color=shade, label="reserved")
        axes.plot(slot, columns["demand_sm"], ".", ms=3, color=style.INK, label="demand")
        changes = np.flatnonzero(np.diff(sm)) + 1
        axes.plot(slot[changes], np.full(changes.size, -1.5), "|", ms=7, color=style.RED)
        axes.set(
            title=f"{names.title(controller)}: {changes.size} transitions, mean {sm.mean():.1f} SM",
            ylabel="SM",
        )
    panels[0].legend(loc="upper right", ncols=2)
    panels[1].set_xlabel("uplink slot")
    return figure


def _ramps(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 3))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, controller in zip(panels, ("noctrl", "weaver"), strict=True):
        rows = data.table(
            "generate_traces.timeline", scenario=TIMELINE_SCENARIO, controller=controller
        )
        slot = rows["ul_slot"] - rows["ul_slot"].min()
        axes.fill_between(
            slot, rows["backlog_bytes"] / 1e3, step="mid", color=style.GREY, alpha=0.4
        )
        axes.set(title=names.title(controller), xlabel="uplink slot")
        twin = axes.twinx()
        twin.step(slot, rows["reserved_sm"], where="post", color=style.colour(controller))
        twin.set(ylim=(0, 50), ylabel="reserved SM")
        twin.grid(visible=False)
    panels[0].set_ylabel("backlog (kB)")
    return figure


def _distributions(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 3))
    delay, margin, heat = figure.subplots(1, 3)
    shades = (style.BLUE, style.ORANGE, style.GREEN, style.RED, style.PURPLE, style.SKY)
    for controller, line in (("weaver", "-"), ("noctrl", ":")):
        rows = data.table(
            "generate_traces.distributions", scenario=TIMELINE_SCENARIO, controller=controller
        )
        of_kind = {kind: rows["kind"] == kind for kind in ("delay", "margin", "prb_mcs")}
        for ue in np.unique(rows["ue"][of_kind["delay"]]):
            own = of_kind["delay"] & (rows["ue"] == ue)
            name = f"UE {ue + 1}" if controller == "weaver" else None
            shade = shades[ue % len(shades)]
            delay.plot(rows["x"][own], rows["share"][own], line, color=shade, label=name)
        own = of_kind["margin"]
        margin.step(
            rows["x"][own], rows["share"][own], where="post", color=style.colour(controller),
            label=names.title(controller),
        )  # fmt: skip
        if controller == "weaver":
            own = of_kind["prb_mcs"]
            drawn = heat.scatter(
                rows["x"][own], rows["y"][own], c=rows["share"][own], s=22, marker="s",
                cmap="Blues", norm="log", edgecolors=style.GREY, linewidths=0.3,
            )  # fmt: skip
            figure.colorbar(drawn, ax=heat, label="share of busy slots")
    delay.set(
        xscale="log", yscale="log", xlabel="delay (ms)", ylabel="packets later", ylim=(1e-4, 1)
    )
    delay.legend()
    margin.set(yscale="log", xlabel="margin below the budget (µs)", ylabel="share of decodes")
    margin.legend()
    heat.set(xlabel="PRBs", ylabel="average MCS")
    return figure


def _controllers(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 3))
    panels = figure.subplots(1, 3)
    shown = (
        ("transitions", "transitions"),
        ("mean_sm", "mean reservation (SM)"),
        ("delay_p95_ms", "p95 delay (ms)"),
    )
    for axes, (name, label) in zip(panels, shown, strict=True):
        known = controllers(data, SCENARIOS[0])
        width = 0.8 / len(known)
        for i, controller in enumerate(known):
            values = [data.metric("generate_traces", f"{s}.{controller}.{name}") for s in SCENARIOS]
            axes.bar(
                np.arange(len(SCENARIOS)) + (i - (len(known) - 1) / 2) * width,
                [np.nan if v is None else v for v in values],
                width * 0.92,
                color=style.colour(controller),
                label=names.title(controller),
            )
        axes.set_xticks(range(len(SCENARIOS)), [short(s) for s in SCENARIOS], fontsize=7)
        axes.set_title(label)
        axes.grid(visible=False, axis="x")
    panels[0].set_yscale("symlog", linthresh=10)
    panels[2].set_yscale("log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def short(scenario: str) -> str:
    """Name of a scenario that fits under an axis."""
    return scenario.replace("scenario_", "s").replace("_", "\n")


def _spare_by_hour(data: ReportData) -> Figure:
    columns = data.table("generate_traces.cells", scenario="macro", controller="weaver")
    cells = np.unique(columns["cell"])
    figure = Figure(figsize=(9, 3.2))
    lines, image = figure.subplots(1, 2, width_ratios=(1, 1.1))
    grid = np.full((cells.size, 24), np.nan)
    grid[np.searchsorted(cells, columns["cell"]), columns["hour"]] = columns["spare_pct"]
    shades = (style.BLUE, style.ORANGE, style.GREEN, style.RED, style.PURPLE, style.SKY)
    for i, cell in enumerate(cells):
        lines.plot(grid[i], color=shades[i % len(shades)], label=f"site {cell}")
    lines.set(xlabel="hour", ylabel="spare SMs (%)", title="by hour", xlim=(0, 23), ylim=(0, 100))
    lines.legend(ncols=2, loc="lower left")
    drawn = image.imshow(grid, aspect="auto", cmap="Blues", interpolation="nearest")
    image.set(xlabel="hour", ylabel="site", title="by site and hour")
    image.set_yticks(range(cells.size), [str(c) for c in cells])
    image.grid(visible=False)
    figure.colorbar(drawn, ax=image, label="spare SMs (%)", pad=0.02)
    return figure


def _table(data: ReportData) -> Grid:
    rows = [
        [
            scenario.replace("_", " "),
            names.title(controller),
            *(data.metric("generate_traces", f"{scenario}.{controller}.{c}") for c, _ in _COLUMNS),
        ]
        for scenario in SCENARIOS
        for controller in controllers(data, scenario)
    ]
    return Grid(
        "All scenarios and controllers.",
        ["scenario", "controller", *(label for _, label in _COLUMNS)],
        rows,
    )
