"""Federated rounds: what the gNB's aggregation does to traffic and to the sum."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ranloom.report import style
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section

STRATEGIES = {"per_ue": style.ORANGE, "aggregate": style.BLUE}
POLICIES = {
    "wait": style.GREEN,
    "drop": style.RED,
    "carry_over": style.BLUE,
    "carry_discount": style.SKY,
}
FATES = {
    "delivered": style.BLUE,
    "carried": style.SKY,
    "dropped": style.RED,
    "duplicate": style.GREY,
}


def section(data: ReportData) -> Section:
    """The federated section."""
    m = data.metrics["aggregate_updates"]
    fewer = m["flows_per_ue"] / m["flows_aggregated"] if m["flows_aggregated"] else float("nan")
    smaller = m["bytes_per_ue_flows"] / m["bytes_aggregated"] if m["bytes_aggregated"] else 0.0
    return Section(
        "federated",
        "Federated rounds aggregated at the gNB",
        (
            "UEs train a LoRA adapter and upload it over what the foreground traffic leaves of "
            "the simulated uplink. A gNB sums what arrives by its cut-off and sends one bounded "
            f"aggregate a wave. Here {m['flows_per_ue']:,} flows become "
            f"{m['flows_aggregated']:,} ({fewer:.1f} times fewer), and "
            f"{smaller:.1f} times fewer bytes leave the gNBs.",
            "Aggregation in two levels equals flat federated averaging of the same updates to "
            f"{m['exact_max_rel_error']:.1e} (relative, float64). Weights are "
            f"{'conserved' if m['weight_conserved'] else 'NOT conserved'} over all fates.",
        ),
        (
            Picture(
                "flows",
                _flows(data),
                "Bytes released into transport over time, one flow a UE against one aggregate a "
                "wave, and the same as a cumulative curve.",
            ),
            Picture(
                "fates",
                _fates(data),
                "Left: what became of the updates of each round. Right: upload time over the "
                "left-over uplink, all UEs.",
            ),
            Picture(
                "quality",
                _quality(data),
                "Accuracy of a small decoder fine-tuned through this uplink, against simulated "
                "time, mean over seeds with their range. Slow devices hold the last labels nearly "
                "alone, so a policy that drops late updates never learns these.",
            ),
        ),
        (_errors(data), _final(data)),
        notes=(
            "Of the second paper only the abstract is public. The round model, the cut-off rules "
            "and the wave bounds are this project's; its argument (fewer, bounded, schedulable "
            "transfers) is what is tested.",
            "Averaging the LoRA factors A and B is not averaging their product: the statement is "
            "equality with flat averaging of the factors.",
        ),
    )


def _flows(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 3))
    rate, total = figure.subplots(1, 2)
    columns = data.table("aggregate_updates.transfers")
    end_s = float(columns["release_s"].max())
    bins = np.linspace(0, end_s, 121)
    for strategy, shade in STRATEGIES.items():
        keep = columns["strategy"] == strategy
        order = np.argsort(columns["release_s"][keep], kind="stable")
        release_s = columns["release_s"][keep][order]
        gigabytes = columns["bytes"][keep][order] / 1e9
        label = f"{strategy.replace('_', ' ')}: {release_s.size} flows"
        rate.hist(release_s, bins, weights=gigabytes, histtype="step", color=shade, label=label)
        total.step(release_s, np.cumsum(gigabytes), where="post", color=shade, label=label)
    rate.set(xlabel="release time (s)", ylabel=f"GB per {bins[1]:.0f} s", title="released")
    total.set(xlabel="release time (s)", ylabel="GB", title="released so far")
    total.legend(loc="upper left")
    return figure


def _fates(data: ReportData) -> Figure:
    columns = data.table("aggregate_updates.updates")
    figure = Figure(figsize=(9, 2.8))
    bars, uploads = figure.subplots(1, 2)
    labels = sorted(
        {(str(j), int(r)) for j, r in zip(columns["job"], columns["round"], strict=True)}
    )
    bottom = np.zeros(len(labels))
    for fate, shade in FATES.items():
        counts = np.array(
            [
                np.count_nonzero(
                    (columns["job"] == j) & (columns["round"] == r) & (columns["fate"] == fate)
                )
                for j, r in labels
            ]
        )
        bars.bar(range(len(labels)), counts, bottom=bottom, color=shade, label=fate, width=0.7)
        bottom += counts
    bars.set_xticks(range(len(labels)), [f"{j}\nround {r}" for j, r in labels], fontsize=7)
    bars.set(ylabel="updates", title="fate")
    bars.margins(y=0.22)
    bars.legend(ncols=4, fontsize=7, loc="upper center")
    bars.grid(visible=False, axis="x")
    seconds = columns["upload_s"][np.isfinite(columns["upload_s"].astype(float))].astype(float)
    uploads.hist(seconds, 60, color=style.BLUE)
    uploads.set(xlabel="upload (s)", ylabel="updates", title=f"median {np.median(seconds):.1f} s")
    return figure


def _quality(data: ReportData) -> Figure:
    figure = Figure(figsize=(9, 3))
    panels = figure.subplots(1, 2, sharey=True)
    columns = data.table("aggregate_updates.quality")
    end_s = float(columns["time_s"].max())
    grid = np.linspace(0.0, end_s, 121)
    titles = {"accuracy": "all labels", "slow_class_accuracy": "labels of the slow devices"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for policy, shade in POLICIES.items():
            runs = []
            for seed in np.unique(columns["seed"]):
                mine = (columns["strategy"] == policy) & (columns["seed"] == seed)
                order = np.argsort(columns["time_s"][mine], kind="stable")
                time_s = columns["time_s"][mine][order]
                # The last model that was ready by then; before the first one there is none.
                at = np.searchsorted(time_s, grid, side="right") - 1
                values = columns[name][mine][order][np.maximum(at, 0)]
                runs.append(np.where(at >= 0, values, np.nan))
            curve = np.array(runs)
            label = policy.replace("_", " ")
            axes.plot(grid, curve.mean(axis=0), color=shade, label=label)
            axes.fill_between(
                grid, curve.min(axis=0), curve.max(axis=0), color=shade, alpha=0.15, linewidth=0
            )
        axes.set(xlabel="simulated time (s)", title=title)
    panels[0].set_ylabel("accuracy")
    panels[0].legend(loc="lower right")
    return figure


def _final(data: ReportData) -> Grid:
    found = data.metrics["aggregate_updates"]["quality"]
    rows = [
        [
            policy.replace("_", " "),
            *(found[policy][k] for k in ("accuracy", "accuracy_sd", "slow_class_accuracy")),
            *(found[policy][k] for k in ("round_s", "updates_per_round")),
        ]
        for policy in POLICIES
    ]
    return Grid(
        "Late updates at the end of the time: mean over seeds.",
        ["policy", "accuracy", "sd", "slow-class accuracy", "round s", "updates a round"],
        rows,
    )


def _errors(data: ReportData) -> Grid:
    m = data.metrics["aggregate_updates"]
    shipped = m.get("shipped", {})
    payload = m.get("payload", {})
    rows = [
        [
            dtype,
            payload.get(f"{dtype}_rms_rel_error"),
            shipped.get(f"{dtype}_max_rel_error"),
        ]
        for dtype in ("fp64", "fp32", "fp16", "int8")
    ]
    return Grid(
        "What a wire format costs: an update as sent by a UE, and the average when the gNBs ship "
        "their sums in it.",
        ["format", "update: rms relative error", "average: largest relative error"],
        rows,
    )
