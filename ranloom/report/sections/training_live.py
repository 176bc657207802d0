"""The live run: loss and work of the sites over time, and what happened to them (Figs. 15, 16)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ranloom.report import style
from ranloom.report.data import Columns, ReportData
from ranloom.report.page import Picture

NOTES = "train_sites.live_notes"
_HAPPENED = {
    "site_lost": "site lost",
    "recovered": "coordinator back",
    "layout_commit": "layout changed",
    "rebalanced": "MLR",
}


def pictures(data: ReportData) -> tuple[Picture, ...]:
    """Figures of the live run; none where it left no notes."""
    path = data.tables.get(NOTES)
    if path is None or not path.is_file():
        return ()
    notes = data.table(NOTES)
    figure = Figure(figsize=(9, 4.2))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 3])
    _loss(above, notes)
    _work(below, notes)
    return (
        Picture(
            "training_live",
            figure,
            "The live run: mean loss of each step (above; Fig. 15), and every committed stage task "
            "by the site that holds its gradient (below; Fig. 16). Hollow: it ran elsewhere than "
            "planned. Lines: what happened meanwhile.",
        ),
    )


def _loss(axes: Axes, notes: Columns) -> None:
    steps = notes["kind"] == "step_loss"
    axes.plot(notes["time_s"][steps], notes["value"][steps], "o-", ms=3, color=style.BLUE)
    axes.set(ylabel="loss", title="Live run of site processes")


def _work(axes: Axes, notes: Columns) -> None:
    moved = {
        (step, stage, number): site
        for step, stage, number, site in _rows(notes, notes["kind"] == "rerouted")
    }
    commits = _rows(notes, notes["kind"] == "committed")
    times = notes["time_s"][notes["kind"] == "committed"]
    for stage, colour in ((0, style.SKY), (1, style.BLUE)):
        for elsewhere in (False, True):
            keep = [
                (row[1] % 2 == stage) and ((moved.get(row[:3]) == row[3]) is elsewhere)
                for row in commits
            ]
            axes.plot(
                times[keep],
                [row[3] for row, kept in zip(commits, keep, strict=True) if kept],
                "o",
                ms=4,
                color=colour,
                mfc="white" if elsewhere else colour,
                label=f"{'odd' if stage else 'even'} stage{', rerouted' if elsewhere else ''}",
            )
    for (kind, what), line in zip(_HAPPENED.items(), ("-", "--", ":", "-."), strict=True):
        for index, time_s in enumerate(notes["time_s"][notes["kind"] == kind]):
            axes.axvline(time_s, color=style.RED, lw=0.9, ls=line, label="" if index else what)
    sites = np.unique([row[3] for row in commits])
    axes.set_yticks(sites, [f"site {site}" for site in sites])
    axes.invert_yaxis()
    axes.set_xlabel("time (s)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=4, fontsize=7)


def _rows(notes: Columns, keep: np.ndarray) -> list[tuple[int, int, int, int]]:
    """(step, stage, micro-batch, site) of some notes."""
    columns = (notes[name][keep].tolist() for name in ("step", "stage", "micro_batch", "site"))
    return list(zip(*columns, strict=True))
