"""From spare SMs to useful compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from ranloom.report import style
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section
from ranloom.report.sections.uplink import short

SCENARIOS = ("scenario_1", "scenario_1_scaled", "scenario_2", "scenario_2_scaled", "stress")
CONTROLLERS = ("noctrl", "yinyangran", "weaver", "weaver_plus")  # constants stand in the figure
COMPARED = ("scenario_1_scaled", "scenario_2_scaled")  # where the partition changes often


def section(data: ReportData) -> Section:
    """The coexistence section."""
    return Section(
        "coexistence",
        "Useful compute beside the RAN",
        (
            "Two workloads run beside each reservation trace: a chain of 64 dependent products "
            "that starts over when the partition changes under it, on the device of the traces, "
            "and a training step that keeps every finished tile, on the device of the training "
            "sites. Tiles are admitted only if they are predicted to end with the slot.",
        ),
        (
            Picture(
                "coexistence",
                _bars(data),
                "Useful throughput of the chain, efficiency of the training step, and share of "
                "decode starts with training still on the RAN's SMs (Tables 5 and 6, Fig. 4c).",
            ),
            Picture(
                "mechanisms",
                _mechanisms(data),
                "The same WEAVER trace under other sharing mechanisms (Table 1): what a change "
                "of the partition costs decides what is left.",
            ),
        ),
        (
            _second_reading(data),
            _table_6(data),
            _steadiness(data),
            _fitted(data),
            _assumed(data),
            _table(data),
        ),
        notes=(
            "Four constants of this section are fitted to Table 5, and named in params.yaml: the "
            "tile efficiency and the relaunch time of the chain (the published 1.4 TFLOPS is about "
            "3 % of what 34 free SMs of a DGX Spark can do), the time of an MPS checkpoint, and "
            "the share of clustered changes in the synthetic traces. One set serves both scenarios "
            "and all controllers; nothing else is fitted. The table of fitted constants shows what "
            "remains without each.",
            "What comes out without any of them: the order of the controllers, a gain of WEAVER "
            "over NoCtrl that grows with the number of changes that it avoids, and efficiencies "
            "above 80 %. What does not: the sizes of 2.91 and 1.76, for which a change must "
            "cost about a second, and most of the 7.5 over YinYangRAN, of which its larger "
            "reservation and 0.3 s a change explain only a part.",
            "Our own traces at published load change less often than the published ones, so "
            "WEAVER gains less over NoCtrl on them. Where NoCtrl changes so often that no chain "
            "of 2.6 s ever ends, its ratio is left out; where WEAVER reserves more than NoCtrl "
            "(wideband), it leaves less to a training step that loses nothing to changes.",
            "Table 6 reports 1.20 times the TFLOPS but 1.07 times the tokens per second of NoCtrl, "
            "so its columns count different work. They imply 35, 31 and 37 GFLOP a token for "
            "WEAVER, NoCtrl and YinYangRAN, where this model needs 24.6, or 32.8 if activations "
            "are recomputed. Here useful TFLOPS and tokens are one count, and executed TFLOPS "
            "(with what started over) stand beside them.",
            "With tiles that survive a re-bind of 10 us NoCtrl loses almost nothing to its "
            "transitions: the published 67 % against 83 % efficiency implies about 0.2 s lost a "
            "change, the second column of the synthetic reading.",
            "A violation lasts at most the overrun of one tile. Without admission by the end of "
            "the slot nearly every growth of the reservation meets a tile in flight, half of all "
            "changes; the published 118 and 26 events are a little above half of that, so they "
            "fit work that is launched ahead of the slot rather than tiles that are held back.",
            "Power is the spare SMs' share of the board's limit (coexistence.parquet: power_w, "
            "w_per_tflops), an upper bound: SMs that wait draw less, and a site may allow less "
            "than the board does. No GPU was at hand; nothing here was measured on one.",
        ),
    )


def _bars(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 3))
    panels = figure.subplots(1, 3)
    shown = (
        ("useful_tflops", "chain: useful TFLOPS"),
        ("efficiency_pct", "training: efficiency (%)"),
        ("violation_pct", "violations (% of decode starts)"),
    )
    known = list(data.metrics["replay_spare"].get(SCENARIOS[0], {}))
    known = [c for c in known if isinstance(data.metrics["replay_spare"][SCENARIOS[0]][c], dict)]
    width = 0.8 / max(len(known), 1)
    for axes, (name, label) in zip(panels, shown, strict=True):
        for i, controller in enumerate(known):
            values = [data.metric("replay_spare", f"{s}.{controller}.{name}") for s in SCENARIOS]
            axes.bar(
                np.arange(len(SCENARIOS)) + (i - (len(known) - 1) / 2) * width,
                [np.nan if v is None else v for v in values],
                width * 0.92,
                color=style.colour(controller),
                label=style.title(controller),
            )
        axes.set_xticks(range(len(SCENARIOS)), [short(s) for s in SCENARIOS], fontsize=7)
        axes.set_title(label)
        axes.grid(visible=False, axis="x")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def _mechanisms(data: ReportData) -> Figure:
    columns = data.table("replay_spare.coexistence", controller="weaver", workload="training_step")
    mechanisms = list(dict.fromkeys(columns["mechanism"][columns["scenario"] != "macro"]))
    figure = Figure(figsize=(9, 2.6))
    panels = figure.subplots(1, len(COMPARED), sharey=True)
    for axes, scenario in zip(panels, COMPARED, strict=True):
        values = [
            float(
                columns["efficiency_pct"][
                    (columns["scenario"] == scenario) & (columns["mechanism"] == mechanism)
                ].mean()
            )
            for mechanism in mechanisms
        ]
        bars = axes.barh(range(len(mechanisms)), values, color=style.BLUE, height=0.6)
        axes.bar_label(bars, fmt="%.0f %%", padding=3)
        axes.set_yticks(range(len(mechanisms)), [m.replace("_", " ") for m in mechanisms])
        axes.set(title=scenario.replace("_", " "), xlabel="efficiency (%)", xlim=(0, 110))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
    return figure


def _second_reading(data: ReportData) -> Grid:
    """Ratios of Table 5 on our own traces and on synthetic ones with the published statistics."""
    rows: list[list[str | float | None]] = []
    for scenario in ("scenario_1", "scenario_2"):
        theirs = data.published["coexistence_useful_tflops"][scenario]
        for other in ("noctrl", "yinyangran"):
            name = f"{scenario}.useful_ratio_weaver_over_{other}"
            rows.append(
                [
                    scenario.replace("_", " "),
                    f"WEAVER over {style.title(other)}",
                    theirs["weaver"] / theirs[other],
                    data.metric("replay_spare", name),
                    data.metric("replay_spare", f"synthetic.{name}"),
                ]
            )
    header = ["scenario", "useful chain throughput", "published", "own traces", "synthetic traces"]
    return Grid("Two readings of Table 5.", header, rows)


def _table_6(data: ReportData) -> Grid:
    """Table 6 beside our own traces and both synthetic readings."""
    theirs = data.published["l40s_training"]
    rows: list[list[str | float | None]] = []
    for controller in ("weaver", "noctrl", "yinyangran"):
        drawn = f"synthetic.scenario_1.{controller}."
        for published, label, own, synthetic in (
            ("efficiency_pct", "efficiency %", "efficiency_pct", "efficiency_pct"),
            ("tflops", "TFLOPS", "training_tflops", "training_tflops"),
            ("tokens_per_s", "token/s", "tokens_per_s", "tokens_per_s"),
            ("violation_events", "violations", "violations", "violations"),
        ):
            loss = f"{drawn}with_loss_{synthetic}"
            late = f"{drawn}unbounded_violations" if label == "violations" else None
            rows.append(
                [
                    style.title(controller),
                    label,
                    theirs[controller].get(published),
                    data.metric("replay_spare", f"scenario_1.{controller}.{own}"),
                    data.metric("replay_spare", f"{drawn}{synthetic}"),
                    data.metric("replay_spare", loss),
                    data.metric("replay_spare", late) if late else None,
                ]
            )
    header = [
        "controller",
        "training step",
        "published",
        "own traces",
        "synthetic",
        "with step_loss_us a change",
        "without slot admission",
    ]
    return Grid("Table 6, scenario 1: own traces, and synthetic ones by reading.", header, rows)


def _steadiness(data: ReportData) -> Grid:
    """Fig. 4c."""
    theirs = data.published["motivation_timeline"]
    rows: list[list[str | float | None]] = []
    for name in ("bursty", "stable"):
        ours = f"steadiness.{name}."
        rows.append(
            [
                name,
                data.metric("replay_spare", f"{ours}mean_sm"),
                data.metric("replay_spare", f"{ours}transitions"),
                theirs[name]["tflops"],
                data.metric("replay_spare", f"{ours}whole_products_tflops"),
                data.metric("replay_spare", f"{ours}tiles_tflops"),
            ]
        )
    header = ["reservation", "mean SM", "transitions", "published", "whole products", "tiles"]
    return Grid(
        "Fig. 4c, TFLOPS beside a bursty and a stable reservation: products that start over when "
        "the partition changes, and tiles that survive. Nothing is fitted.",
        header,
        rows,
    )


def _fitted(data: ReportData) -> Grid:
    """What the ratios of Table 5 are without each fitted constant."""
    columns = data.table("replay_spare.sensitivity", workload="gemm_chain")
    names = ("weaver_tflops", "weaver_over_noctrl", "weaver_over_yinyangran")
    header = ["without", "scenario", "WEAVER TFLOPS", "over NoCtrl", "over YinYangRAN"]
    return Grid(
        "Fitted constants: the chain beside synthetic traces without each of them.",
        header,
        _changed(columns, names, with_setting=False),
    )


def _assumed(data: ReportData) -> Grid:
    """What assumed constants do to the training step."""
    columns = data.table("replay_spare.sensitivity", workload="training_step")
    names = ("weaver_tflops", "weaver_efficiency_pct", "noctrl_violations", "weaver_violations")
    header = [
        "constant",
        "setting",
        "scenario",
        "WEAVER TFLOPS",
        "efficiency %",
        "NoCtrl violations",
        "WEAVER violations",
    ]
    return Grid(
        "Assumed constants: the training step beside synthetic traces, each halved and doubled.",
        header,
        _changed(columns, names, with_setting=True),
    )


def _changed(
    columns: Mapping[str, np.ndarray], names: Sequence[str], *, with_setting: bool
) -> list[list[str | float | int | None]]:
    return [
        [
            columns["constant"][i],
            *([columns["setting"][i]] if with_setting else []),
            columns["scenario"][i].replace("_", " "),
            *(columns[name][i].item() for name in names),
        ]
        for i in range(columns["constant"].size)
    ]


def _table(data: ReportData) -> Grid:
    columns = data.table("replay_spare.coexistence", own=True)
    names = (
        ("reservation_mean_sm", "mean SM"),
        ("transitions", "transitions"),
        ("useful_tflops", "useful TFLOPS"),
        ("executed_tflops", "executed"),
        ("w_per_tflops", "W/TFLOPS"),
        ("efficiency_pct", "efficiency %"),
        ("tokens_per_s", "token/s"),
        ("violations", "violations"),
        ("violation_ms", "violation ms"),
    )
    rows = [
        [
            columns["scenario"][i].replace("_", " "),
            style.title(columns["controller"][i]),
            columns["workload"][i].replace("_", " "),
            columns["device"][i],
            *(columns[name][i].item() for name, _ in names),
        ]
        for i in range(columns["scenario"].size)
        if columns["scenario"][i] in SCENARIOS and columns["controller"][i] in CONTROLLERS
    ]
    header = ["scenario", "controller", "workload", "device", *(label for _, label in names)]
    return Grid(
        "Each workload beside each trace, under the controller's own mechanism.", header, rows
    )
