"""Command line: ``python -m ranloom.lut profile | convert | fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel, fit_latencies, fit_table, match_table
from ranloom.gpu.partition import card_of, find_device
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.lut.backends import comparable, read_published_cells
from ranloom.lut.characterise import Allocation
from ranloom.lut.cpu import measure_cpu
from ranloom.lut.importers import ImportOptions, import_profile
from ranloom.lut.measurements import read_measurements, write_measurements
from ranloom.nr.mcs import mcs_table
from ranloom.nr.segmentation import work_table

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Profiles of decode latency.",
    pretty_exceptions_enable=False,
)  # fmt: skip

COARSE_MCS = "0,5,10,15,20,25,27"
COARSE_PRB = "25,52,106,162,217,273"


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
    mcs: Annotated[str, typer.Option(help="MCS indices")] = COARSE_MCS,
    prb: Annotated[str, typer.Option(help="PRBs")] = COARSE_PRB,
    table: Annotated[int, typer.Option(help="MCS table")] = 1,
    iterations: Annotated[int, typer.Option(help="decoder iterations")] = 10,
    repetitions: Annotated[int, typer.Option(help="timed decodes a point")] = 100,
    warm_up: Annotated[int, typer.Option(help="cuda: decodes before those")] = 20,
    message_bits: Annotated[int, typer.Option(help="8 or 16")] = 8,
    seed: Annotated[int, typer.Option(help="of bits and noise")] = 1,
) -> None:
    """Measure decode latencies and write a profile file."""
    points = [
        (m, p)
        for m in numbers(mcs, "mcs", mcs_table(table).n_mcs - 1)
        for p in numbers(prb, "prb", 275)
    ]
    allocation = Allocation(table, n_layers=1, n_symbols=14, n_dmrs_per_prb=12, n_oh=0)
    if backend == "cpu":
        measurements = measure_cpu(
            points,
            allocation,
            DecoderSettings("layered", "offset", message_bits, iterations, early_stop=False),
            repetitions,
            seed,
            lambda m, p, p99: typer.echo(f"MCS {m:2d}  {p:3d} PRB  P99 {p99:9.1f} us"),
        )
    elif backend == "cuda":
        from ranloom.lut.cuda import measure_cuda  # numba decides on import whether it simulates

        found = find_device(device)
        own = card_of(found, card, cards)
        measurements = measure_cuda(
            points,
            numbers(sm, "sm", own.sm_count) if sm else own.levels.tolist(),
            allocation,
            DecoderSettings("flooding", "offset", message_bits, iterations, early_stop=False),
            found,
            own,
            repetitions=repetitions,
            warm_up=warm_up,
            seed=seed,
            progress=lambda m, p, s, p99: typer.echo(
                f"MCS {m:2d}  {p:3d} PRB  {s:3d} SMs  P99 {p99:9.1f} us"
            ),
        )
    else:
        raise InputError("backend", backend, "allowed: cpu, cuda")
    write_measurements(out, measurements)
    typer.echo(f"{len(measurements)} points written to {out}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="log or table")],
    out: Annotated[Path, typer.Option(help="profile file to write (CSV)")],
    sm: Annotated[int, typer.Option(help="SMs that the decoder ran on")],
    table: Annotated[int, typer.Option(help="MCS table")] = 1,
    p99_over_mean: Annotated[float, typer.Option(help="for logs with means only")] = 1.13,
    machine: Annotated[str, typer.Option(help="part of the machine name")] = "",
    form: Annotated[str | None, typer.Option("--format", help="detected if not given")] = None,
) -> None:
    """Turn a log of another stack into a profile file."""
    found = import_profile(source, ImportOptions(sm, p99_over_mean, table, machine), form)
    write_measurements(out, found.measurements)
    for line in found.skipped.lines():
        typer.echo(f"skipped {line}")
    typer.echo(f"{len(found.measurements)} points written to {out}")


@app.command()
def fit(
    card: Annotated[Path, typer.Option(help="device card")],
    source: Annotated[Path | None, typer.Argument(help="profile file (CSV)")] = None,
    published: Annotated[Path | None, typer.Option(help="published figures")] = None,
    budget_us: Annotated[float, typer.Option(help="latency budget")] = 800.0,
    a_us: Annotated[float, typer.Option(help="fixed cost, for thresholds only")] = 200.0,
    p99_over_mean: Annotated[float, typer.Option(help="carried on")] = 1.13,
    table: Annotated[int, typer.Option(help="MCS table")] = 1,
) -> None:
    """Fit a, k and b of the latency model to a profile, or k and b to published thresholds."""
    device = load_card(card)
    work = work_table(275, table=table)
    if source is not None:
        rows = read_measurements(source)
        if rows.mcs.max() >= len(work) or rows.prb.max() > 275:
            raise InputError(str(source), "MCS or PRB", f"allowed: MCS below {len(work)}, 275 PRB")
        cells = work[rows.mcs, rows.prb].astype(np.int64)
        model = fit_latencies(cells, rows.sm, rows.p99_us, p99_over_mean)
        error = model.p99_us(cells, rows.sm) / rows.p99_us - 1.0
        _show(model)
        typer.echo(
            f"{len(rows)} latencies: relative error median {100 * np.median(abs(error)):.1f} %, "
            f"largest {100 * abs(error).max():.1f} %"
        )
        return
    if published is None:
        raise InputError("source", None, "needed: a profile file, or --published")
    points, sm_count = read_published_cells(published)
    if not comparable(device, points, sm_count):
        raise InputError("card", device.name, f"needed: the device of the table, {sm_count} SMs")
    cells = work[points.mcs, points.prb].astype(np.int64)
    model = fit_table(cells, points.min_sm, device.levels, budget_us, a_us, p99_over_mean)
    match = match_table(model, cells, points.min_sm, device.levels, budget_us)
    _show(model)
    typer.echo(f"{match.matched} of {match.cells} cells, least margin {match.min_margin_us:.2f} us")


def _show(model: LatencyModel) -> None:
    typer.echo(f"a_us: {model.a_us:.4g}\nk_us_sm: {model.k_us_sm:.5g}\nb_us: {model.b_us:.5g}")


def main() -> None:
    """Entry point: bad input is one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
