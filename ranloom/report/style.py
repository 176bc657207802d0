"""Look of the figures, one for all: colours mean the same everywhere."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ranloom.processes import cores, die_with_parent

# Okabe and Ito's palette: told apart by colour-blind readers too.
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, YELLOW, GREY = "#cc79a7", "#56b4e9", "#f0e442", "#8a8f98"
INK = "#20242b"

COLOURS = {
    "noctrl": ORANGE,
    "weaver": BLUE,
    "weaver_plus": SKY,
    "yinyangran": GREEN,
    "const_8": "#b9bec6",
    "const_16": GREY,
    "weaver_never": PURPLE,
    "offline": INK,
    "weaver_circuits": SKY,
    "confidant": ORANGE,
    "confidant_star": RED,
    "asteroid": GREEN,
    "dtfm": PURPLE,
    "static": GREY,
    "diloco": YELLOW,
    "aggregate_selective": BLUE,
    "aggregate_packet": SKY,
    "aggregate_always_window": GREEN,
    "per_ue_packet": ORANGE,
    "per_ue_static_circuits": RED,
}
"""Colour of a controller, training system or transport strategy."""

_SETTINGS = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
}


def colour(name: str) -> str:
    """Colour of a controller, system or strategy; grey where none is set."""
    return COLOURS.get(name, GREY)


@contextmanager
def styled() -> Iterator[None]:
    """Settings in force while figures are drawn."""
    with mpl.rc_context(_SETTINGS):
        yield


def save(figures: Mapping[Path, Figure]) -> None:
    """Write figures as PNG files, on all cores.

    Forked processes have the figures already, so none is sent to them.

    Args:
        figures: file to what it shows; each folder must be there.

    Raises:
        RuntimeError: a figure could not be drawn; its error is on stderr.
    """
    todo, parent = list(figures.items()), os.getpid()
    lanes = min(cores(), len(todo))

    def draw(lane: int) -> None:
        die_with_parent(parent)
        for path, figure in todo[lane::lanes]:
            _print(figure, path)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=draw, args=(i,), daemon=True) for i in range(lanes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("figures could not be drawn")


def _print(figure: Figure, path: Path) -> None:
    # No time stamp and no version, so that equal figures are equal files.
    figure.dpi = mpl.rcParams["savefig.dpi"]
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})  # savefig lays out twice
