"""Profiling: the lookup table, latency and utilisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ranloom.report import style
from ranloom.report.data import ReportData
from ranloom.report.page import Grid, Picture, Section
from ranloom.training.model_shapes import model_shape

GEMM_TOKENS = 2048  # batch 4, sequence 512: the training beside the RAN in WEAVER table 6
_TIERS = ("#eef3f8", "#cfe0ee", "#9cc3de", "#5b9fcb", "#1f78b4", "#0b4f80", "#7a7f87")


def section(data: ReportData) -> Section:
    """The profiling section."""
    m = data.metrics["profile_lut"]
    shares, block, model = m["characterisation"], m["roofline"], m["latency_model"]
    sources = {kind: n for kind, n in m["provenance"].items() if n}
    return Section(
        "profiling",
        "Profiling and the lookup table",
        (
            f"How many SMs must decode a slot of a given MCS and width within the budget. The "
            f"latency model matches {m['model_cells_matched']} of the {m['cells_published']} "
            f"published cells (P99 in us = {model['a_us']:.4g} + {model['k_us_sm']:.4g} W / SMs + "
            f"{model['b_us']:.3g} W, where W is code blocks x lifting size; smallest margin "
            f"{m['model_min_margin_us']:.3g} us); the monotone "
            f"envelope that the controllers use matches {m['envelope_cells_matched']}. Cells of "
            f"the table by source: {', '.join(f'{n} {kind}' for kind, n in sources.items())}.",
            f"{m['infeasible_pairs']} (MCS, PRB) pairs fit on no number of SMs within the budget. "
            "They are explicit in the table, never a silent maximum.",
            f"Of a millisecond the median decode on all SMs leaves {shares['slack_pct_min']:.0f} "
            f"to {shares['slack_pct_max']:.0f} %. A block of base graph 1 at Z = 128 takes "
            f"{block['bg1_z128_ops']:.3g} operations and {block['bg1_z128_bytes']:.3g} bytes, "
            f"{block['bg1_z128_ops_per_byte']:.2f} operations a byte: far left of every ridge "
            "point, memory-bound on any of these devices.",
        ),
        (
            Picture(
                "lut",
                _heat_map(data),
                "Fewest SMs by MCS and PRB (raw table). Framed: the published cells; a red frame "
                "marks a cell that differs from the paper (Fig. 7c).",
            ),
            Picture(
                "latency",
                _latency(data),
                "P99 decode latency by PRB for several MCS, on few, twice as many and all SMs "
                "(Fig. 7a-b). The dashed line is the budget.",
            ),
            Picture(
                "utilisation",
                _utilisation(data),
                "Latency, SM, arithmetic and memory-bandwidth utilisation by MCS and PRB on the "
                "whole device, over one millisecond (Fig. 1).",
            ),
            Picture(
                "roofline",
                _roofline(data),
                "Left: arithmetic against bandwidth utilisation of decodes, by transport block "
                "size, and the roofline bound of the matrix products of OPT layers at 2,048 "
                "tokens (Fig. 2). A decode lies below the diagonal, a product above. Right: "
                "attainable throughput by arithmetic intensity on each device card.",
            ),
            Picture(
                "reservation",
                _reservation(data),
                "One slot of MCS 15 and 162 PRB on all SMs and on 16 (Fig. 12): the median decode, "
                "after what the slot takes beside it. What stands free above each line can be "
                "shared in space.",
            ),
        ),
        (
            Grid(
                "Ridge points of the roofline, FP16 tensor peak over memory bandwidth",
                ("device", "SMs", "FP16 TFLOPS", "GB/s", "ridge, op/B"),
                _ridges(data),
            ),
        ),
        notes=_notes(m["reservation"]),
    )


def _notes(effect: Mapping[str, float]) -> tuple[str, ...]:
    notes = (
        "No model that grows with decoder work can match all 42 cells: the published value falls "
        "from 32 SMs at MCS 25 to 24 at MCS 27 for 162 PRB.",
        "Fitted: a, k and b of the latency, P99 over mean, the time beside the decode, and the "
        "instructions behind an operation (to the published 12 % of arithmetic utilisation). "
        "SM and bandwidth utilisation, slack and roofline follow from base graph, code rate and "
        "device card.",
    )
    if not effect:
        return notes
    return (
        *notes,
        "Appendix A.2 reports 820 us for MCS 15 and 162 PRB on 16 SMs, above the 800 us that its "
        "own table cell claims. Both hold if 820 us is the median slot and the budget is on the "
        f"P99 of the decode alone: {effect['p99_us_16']:.0f} us on 16 and "
        f"{effect['p99_us_48']:.0f} us on 48 SMs; with the time beside the decode the slot takes "
        f"{effect['slot_us_16']:.0f} and {effect['slot_us_48']:.0f} us (published 820 and 550). "
        "Three times fewer SMs slow the decode down by "
        f"{effect['slowdown_16_over_48']:.2f}, the slot by "
        f"{effect['slot_slowdown_16_over_48']:.2f} (published 1.5).",
        f"While it decodes on 48 SMs a slot uses {effect['gbu_pct_48']:.0f} % of the bandwidth and "
        f"{effect['acu_pct_48']:.0f} % of the arithmetic rate; appendix A.2 says 65 and 40 %. Its "
        "40 % over 550 us would be 22 % of a millisecond, more than the 12 % that section 3.1 "
        "gives as the largest of all configurations: only one of them can be met.",
    )


def _ridges(data: ReportData) -> list[tuple[str, int, float, float, float]]:
    cards = data.table("profile_lut.cards")
    order = np.argsort(-cards["ridge_ops_per_byte"])
    return [
        (
            str(cards["card"][i]),
            int(cards["sm_count"][i]),
            round(float(cards["fp16_tensor_tflops"][i]), 1),
            round(float(cards["memory_bandwidth_gb_per_s"][i])),
            round(float(cards["ridge_ops_per_byte"][i])),
        )
        for i in order
    ]


def _grid(columns: dict[str, np.ndarray], value: str) -> NDArray[np.float64]:
    grid = np.full((int(columns["mcs"].max()) + 1, int(columns["prb"].max()) + 1), np.nan)
    grid[columns["mcs"], columns["prb"]] = columns[value]
    return grid


def _heat_map(data: ReportData) -> Figure:
    raw = _grid(data.table("profile_lut.lut"), "min_sm_raw")
    levels = np.unique(raw[np.isfinite(raw)])
    edges = [*(levels - 4), levels[-1] + 4, levels[-1] + 12]
    shown = np.where(np.isfinite(raw), raw, levels[-1] + 8)
    figure = Figure(figsize=(9, 3.6))
    axes = figure.add_subplot()
    image = axes.imshow(
        shown[:, 1:],
        origin="lower",
        aspect="auto",
        extent=(0.5, raw.shape[1] - 0.5, -0.5, raw.shape[0] - 0.5),
        cmap=ListedColormap(_TIERS[: len(levels) + 1]),
        norm=BoundaryNorm(edges, len(levels) + 1),
        interpolation="nearest",
    )
    bar = figure.colorbar(image, ax=axes, ticks=[*levels, levels[-1] + 8], pad=0.01)
    bar.ax.set_yticklabels([*(f"{int(level)} SM" for level in levels), "none"])
    published = data.published["min_sm_lut"]
    for prb, row in zip(published["prb"], published["min_sm"], strict=True):
        for mcs, value in zip(published["mcs"], row, strict=True):
            if prb >= raw.shape[1]:
                continue
            same = raw[mcs, prb] == value
            axes.add_patch(
                Rectangle(
                    (prb - 2.5, mcs - 0.5),
                    5,
                    1,
                    fill=False,
                    lw=1.0 if same else 2.0,
                    ec=style.INK if same else style.RED,
                )
            )
    axes.set(xlabel="PRB", ylabel="MCS index", title="Fewest SMs that meet the budget")
    axes.grid(visible=False)
    return figure


def _latency(data: ReportData) -> Figure:
    columns = data.table("profile_lut.latency")
    figure = Figure(figsize=(9, 3))
    panels = figure.subplots(1, 3, sharey=True)
    shades = (style.SKY, style.BLUE, style.GREEN, style.ORANGE, style.RED)
    levels = np.unique(columns["sm"])
    for axes, sm in zip(
        panels, (levels[0], levels[min(1, len(levels) - 1)], levels[-1]), strict=True
    ):
        for mcs, shade in zip((5, 10, 15, 20, 27), shades, strict=True):
            keep = (columns["sm"] == sm) & (columns["mcs"] == mcs)
            axes.plot(
                columns["prb"][keep], columns["p99_us"][keep], color=shade, label=f"MCS {mcs}"
            )
        budget = data.published["min_sm_lut"]["budget_us"]
        axes.axhline(budget, color=style.INK, ls="--", lw=0.8)
        axes.set(title=f"{sm} SMs", xlabel="PRB", ylim=(0, 2000))
    panels[0].set_ylabel("P99 latency (us)")
    panels[0].legend(loc="upper left")
    return figure


def _utilisation(data: ReportData) -> Figure:
    columns = data.table("profile_lut.characterisation")
    figure = Figure(figsize=(9, 5))
    kinds = (
        ("p99_us", "P99 decode latency (us)"),
        ("smu_pct", "SM utilisation (%)"),
        ("acu_pct", "arithmetic utilisation (%)"),
        ("gbu_pct", "memory-bandwidth utilisation (%)"),
    )
    for axes, (name, title) in zip(figure.subplots(2, 2).ravel(), kinds, strict=True):
        grid = _grid(columns, name)[:, 1:]
        image = axes.imshow(
            grid.T,
            origin="lower",
            aspect="auto",
            extent=(-0.5, grid.shape[0] - 0.5, 0.5, grid.shape[1] + 0.5),
            cmap="viridis",
            interpolation="nearest",
        )
        figure.colorbar(image, ax=axes, pad=0.02)
        axes.set(title=title, xlabel="MCS index", ylabel="PRB")
        axes.grid(visible=False)
    return figure


def _gemms(peak_tflops: float, gb_per_s: float) -> dict[str, tuple[list[float], list[float]]]:
    """Bandwidth and arithmetic utilisation, in %, of the products of an OPT layer at the roofline.

    FP16 operands, each read or written once.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name in ("opt-1.3b", "opt-6.7b", "opt-13b", "opt-70b"):
        h = model_shape(name).width
        points: tuple[list[float], list[float]] = ([], [])
        for k, n in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)):
            ops = 2.0 * GEMM_TOKENS * k * n
            moved = 2.0 * (GEMM_TOKENS * k + k * n + GEMM_TOKENS * n)
            compute_s, memory_s = ops / (peak_tflops * 1e12), moved / (gb_per_s * 1e9)
            longest = max(compute_s, memory_s)
            points[0].append(100.0 * memory_s / longest)
            points[1].append(100.0 * compute_s / longest)
        found[name] = points
    return found


def _roofline(data: ReportData) -> Figure:
    cards = data.table("profile_lut.cards")
    roofline = data.metrics["profile_lut"]["roofline"]
    own = int(np.argmin(abs(cards["ridge_ops_per_byte"] - roofline["ridge_ops_per_byte"])))
    peak, rate = (
        float(cards[name][own]) for name in ("fp16_tensor_tflops", "memory_bandwidth_gb_per_s")
    )
    figure = Figure(figsize=(9, 3.4))
    left, right = figure.subplots(1, 2)
    usage = data.table("profile_lut.characterisation")
    image = left.scatter(
        usage["gbu_pct"],
        usage["acu_pct"],
        c=usage["tbs_bits"] / usage["tbs_bits"].max(),
        s=3,
        cmap="viridis",
        rasterized=True,
    )
    figure.colorbar(image, ax=left, label="transport block size, of the largest")
    marks = "osD^"
    for mark, (name, (gbu, acu)) in zip(marks, _gemms(peak, rate).items(), strict=True):
        left.plot(gbu, acu, mark, color=style.RED, ms=4, label=name, mfc="none")
    left.plot((0, 100), (0, 100), color=style.INK, lw=0.8, ls="--")
    left.set(xlabel="bandwidth utilisation (%)", ylabel="arithmetic utilisation (%)")
    left.set(xlim=(0, 105), ylim=(0, 105), title=str(cards["card"][own]))
    left.legend(loc="center right", title="matrix products")
    intensity = np.geomspace(0.1, 3000, 200)
    shades = (style.BLUE, style.ORANGE, style.GREEN, style.RED, style.PURPLE, style.SKY)
    for i in range(len(cards["card"])):
        bound = np.minimum(
            cards["fp16_tensor_tflops"][i],
            intensity * cards["memory_bandwidth_gb_per_s"][i] / 1e3,
        )
        shade = shades[i % len(shades)]
        right.loglog(intensity, bound, color=shade, label=str(cards["card"][i]))
    right.axvline(roofline["bg1_z128_ops_per_byte"], color=style.INK, ls="--", lw=0.8)
    right.annotate(
        "LDPC decoding",
        (roofline["bg1_z128_ops_per_byte"], 0.04),
        xytext=(4, 0),
        textcoords="offset points",
    )
    right.set(xlabel="operations per byte", ylabel="attainable TFLOPS", title="rooflines")
    right.legend(loc="lower right")
    return figure


def _reservation(data: ReportData) -> Figure:
    effect = data.table("profile_lut.reservation")
    figure = Figure(figsize=(9, 2.8))
    panels = figure.subplots(1, 2, sharey=True)
    fewer = int(np.argmin(abs(effect["sm"].astype(int) - 16)))
    for axes, row in zip(panels, (len(effect["sm"]) - 1, fewer), strict=True):
        end = effect["slot_us"][row]
        start = end - effect["decode_us"][row]
        kinds = (("smu_pct", "SM", style.BLUE), ("gbu_pct", "memory bandwidth", style.GREEN),
                 ("acu_pct", "arithmetic", style.ORANGE))  # fmt: skip
        for name, label, shade in kinds:
            share = effect[name][row]
            axes.plot(
                (0, start, start, end, end, 1000),
                (0, 0, share, share, 0, 0),
                color=shade,
                label=label,
            )
        axes.fill_between((0, 1000), 100, 0, color="#f1f3f5", zorder=0)
        title = f"{effect['sm'][row]} SMs: slot of {end:.0f} us"
        axes.set(title=title, xlabel="time in the slot (us)", xlim=(0, 1000), ylim=(0, 105))
    panels[0].set_ylabel("% of the device")
    panels[1].legend(loc="upper right")
    return figure
