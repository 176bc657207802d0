"""Command line: ``python -m ranloom.lut profile | convert | fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.gpu.latency import fit_table, match_table
from ranloom.gpu.partition import card_of, find_device
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.lut.backends import (
    comparable,
    fit_measurements,
    measured_cells,
    read_published_cells,
)
from ranloom.lut.cpu import CpuDecodes
from ranloom.lut.importers import ImportOptions, import_profile
from ranloom.lut.measure import Decodes, measure
from ranloom.lut.measurements import read_measurements, write_measurements
from ranloom.nr.mcs import mcs_table
from ranloom.nr.numerology import MAX_PRB
from ranloom.nr.segmentation import work_table
from ranloom.nr.tbs import Allocation

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Profiles of decode latency.",
    pretty_exceptions_enable=False,
)  # fmt: skip

COARSE_PRB = "25,52,106,162,217,273"

Layers = Annotated[int, typer.Option(help="spatial layers")]
Symbols = Annotated[int, typer.Option(help="OFDM symbols of the allocation")]
Dmrs = Annotated[int, typer.Option(help="DMRS resource elements per PRB")]
Overhead = Annotated[int, typer.Option(help="configured overhead, resource elements per PRB")]
Table = Annotated[int, typer.Option(help="MCS table")]


def coarse_mcs(table: int) -> list[int]:
    """Every fifth MCS, and the last two: the highest one bounds all others."""
    last = mcs_table(table).n_mcs - 1
    return [*range(0, last - 1, 5), last - 1, last]


def numbers(text: str, where: str, highest: int) -> list[int]:
    """Comma-separated whole numbers, ranges as ``a-b``.

    Raises:
        InputError: something else.
    """
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
    except ValueError:
        raise InputError(where, text, "allowed: numbers like 0,5,10-12") from None
    if not found or not 0 <= min(found) <= max(found) <= highest:
        raise InputError(where, text, f"allowed: numbers from 0 to {highest}")
    return found


@app.command()
def profile(
    out: Annotated[Path, typer.Option(help="profile file to write (CSV)")],
    backend: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    device: Annotated[str, typer.Option(help="cuda: auto, or its number")] = "auto",
    card: Annotated[Path | None, typer.Option(help="cuda: device card, else by name")] = None,
    cards: Annotated[Path, typer.Option(help="cuda: folder of cards")] = Path("data/cards"),
    sm: Annotated[str, typer.Option(help="cuda: SM counts, all levels if empty")] = "",
    mcs: Annotated[str, typer.Option(help="MCS indices, every fifth if empty")] = "",
    prb: Annotated[str, typer.Option(help="PRBs")] = COARSE_PRB,
    table: Table = 1,
    layers: Layers = 1,
    symbols: Symbols = 14,
    dmrs: Dmrs = 12,
    overhead: Overhead = 0,
    schedule: Annotated[str, typer.Option(help="layered or flooding")] = "layered",
    iterations: Annotated[int, typer.Option(help="decoder iterations, all run")] = 10,
    message_bits: Annotated[int, typer.Option(help="8 or 16")] = 8,
    repetitions: Annotated[int, typer.Option(help="timed decodes a cell")] = 100,
    warm_up: Annotated[int, typer.Option(help="decodes before those")] = 10,
    seed: Annotated[int, typer.Option(help="of bits and noise")] = 1,
) -> None:
    """Measure decode latencies and write a profile file."""
    if out.is_dir():
        raise InputError("out", str(out), "needed: the name of a file")
    highest = mcs_table(table).n_mcs - 1
    rows = numbers(mcs, "mcs", highest) if mcs else coarse_mcs(table)
    points = [(m, p) for m in rows for p in numbers(prb, "prb", MAX_PRB)]
    settings = DecoderSettings(schedule, "offset", message_bits, iterations, early_stop=False)
    decodes: Decodes
    if backend == "cpu":
        decodes = CpuDecodes(settings)
    elif backend == "cuda":
        from ranloom.lut.cuda import CudaDecodes  # numba decides on import whether it simulates

        found = find_device(device)
        own = card_of(found, card, cards)
        levels = numbers(sm, "sm", own.sm_count) if sm else own.levels.tolist()
        decodes = CudaDecodes(settings, found, own, levels)
    else:
        raise InputError("backend", backend, "allowed: cpu, cuda")
    measurements = measure(
        points,
        Allocation(table, layers, symbols, dmrs, overhead),
        decodes,
        repetitions=repetitions,
        warm_up=warm_up,
        seed=seed,
        progress=lambda m, p, level, p99: typer.echo(
            f"MCS {m:2d}  {p:3d} PRB  {level:3d} {'core' if backend == 'cpu' else 'SMs'}  "
            f"P99 {p99:9.1f} us"
        ),
    )
    write_measurements(out, measurements)
    typer.echo(f"{len(measurements)} cells written to {out}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="log or table")],
    out: Annotated[Path, typer.Option(help="profile file to write (CSV)")],
    sm: Annotated[int, typer.Option(help="SMs that the decoder ran on")],
    table: Table = 1,
    layers: Layers = 1,
    p99_over_mean: Annotated[float, typer.Option(help="for logs with means only")] = 1.13,
    machine: Annotated[str, typer.Option(help="part of the machine name")] = "",
    form: Annotated[str | None, typer.Option("--format", help="detected if not given")] = None,
) -> None:
    """Turn a log of another stack into a profile file."""
    found = import_profile(source, ImportOptions(sm, p99_over_mean, table, machine, layers), form)
    write_measurements(out, found.measurements)
    for line in found.skipped.lines():
        typer.echo(f"skipped {line}")
    typer.echo(f"{len(found.measurements)} cells written to {out}")


@app.command()
def fit(
    card: Annotated[Path, typer.Option(help="device card")],
    source: Annotated[Path | None, typer.Argument(help="profile file (CSV)")] = None,
    published: Annotated[Path | None, typer.Option(help="published figures")] = None,
    budget_us: Annotated[float, typer.Option(help="latency budget")] = 800.0,
    a_us: Annotated[float, typer.Option(help="fixed cost, for thresholds only")] = 200.0,
    p99_over_mean: Annotated[float, typer.Option(help="carried on, for thresholds only")] = 1.13,
    table: Table = 1,
    layers: Layers = 1,
    symbols: Symbols = 14,
    dmrs: Dmrs = 12,
    overhead: Overhead = 0,
) -> None:
    """Fit a, k and b of the latency model to a profile, or k and b to published thresholds."""
    device, allocation = load_card(card), Allocation(table, layers, symbols, dmrs, overhead)
    work = work_table(MAX_PRB, **allocation.keywords)
    if source is not None:
        rows = read_measurements(source)
        taken_as = rows.how.get("allocation", allocation.describe())
        if taken_as != allocation.describe():
            raise InputError(
                f"{source}: allocation", taken_as, f"needed: {allocation.describe()} (see options)"
            )
        cells = measured_cells(rows, device, len(work), budget_us)
        latency_work = work[rows.mcs, rows.prb].astype(np.int64)
        levels = np.unique(rows.sm)  # other levels of the card were not measured
        model = fit_measurements(rows, allocation)
        error = abs(model.p99_us(latency_work, rows.sm) / rows.p99_us - 1.0)
        fitted_to = (
            f"{len(rows)} latencies: relative error median {100 * np.median(error):.1f} %, "
            f"largest {100 * error.max():.1f} %\n"
            f"# base.plant.tail_sigma: {rows.tail_sigma:.3g}, scatter of single decodes"
        )
    elif published is not None:
        cells, sm_count = read_published_cells(published)
        if not comparable(device, table, cells, sm_count):
            raise InputError(
                "card", device.name, f"needed: the device of the table, {sm_count} SMs; MCS table 1"
            )
        levels, fitted_to = device.levels, f"{len(cells.mcs)} thresholds"
        cell_work = work[cells.mcs, cells.prb].astype(np.int64)
        model = fit_table(cell_work, cells.min_sm, levels, budget_us, a_us, p99_over_mean)
    else:
        raise InputError("source", None, "needed: a profile file, or --published")
    match = match_table(model, work[cells.mcs, cells.prb], cells.min_sm, levels, budget_us)
    typer.echo(
        f"a_us: {model.a_us:.4g}\nk_us_sm: {model.k_us_sm:.5g}\nb_us: {model.b_us:.5g}\n"
        f"p99_over_mean: {model.p99_over_mean:.4g}\n"
        f"# fitted to {fitted_to}\n"
        f"# fewest SMs within {budget_us:g} us: {match.matched} of {match.cells} cells matched, "
        f"least margin {match.min_margin_us:.2f} us"
    )
    for i in np.flatnonzero(match.margins_us < 0).tolist():
        typer.echo(
            f"# missed: MCS {cells.mcs[i]}, {cells.prb[i]} PRB by {-match.margins_us[i]:.2f} us"
        )


def main() -> None:
    """Entry point: bad input is one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
