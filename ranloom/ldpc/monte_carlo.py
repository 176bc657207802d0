"""BLER of this library's decoder in white Gaussian noise, as curves that the MAC can use.

``python -m ranloom.ldpc.monte_carlo data/bler/decoder_table1.csv`` measures all MCS of a table at
several code block sizes, fits waterfalls as for the shipped curves, and prints how far the two
are apart; with ``--compare`` it only does the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.encoder import encode
from ranloom.ldpc.modulation import demodulate, modulate
from ranloom.ldpc.rate_matching import recover, selected_positions
from ranloom.nr.bler import BlerCurves, bler_curves
from ranloom.nr.bler_fit import BlerPoints, fit_curves, shannon_snr_db, write_curves
from ranloom.nr.mcs import mcs_table
from ranloom.nr.segmentation import MAX_CODE_BLOCK_BITS, Segmentation, segment

SIZES = (100, 500, 1000, 2000, 3840, 8448)  # code block bits with CRC


@dataclass(frozen=True)
class SweepSettings:
    """How much to simulate.

    Args:
        blocks: code blocks a point.
        step_db: SNR step, as a multiple of ``1 / sqrt(size)`` in dB.
        low, high: error rates between which a sweep runs.
        seed: of bits and noise.
    """

    blocks: int = 200
    step_db: float = 6.0
    low: float = 0.02
    high: float = 0.98
    seed: int = 38212


def single_block(code_block_bits: int, code_rate: float) -> Segmentation | None:
    """Segmentation whose only code block has a size with its CRC; None if no base graph fits."""
    crc_bits = 24 if code_block_bits > 3848 else 16
    blocks = segment(code_block_bits - crc_bits, code_rate)
    return blocks if code_block_bits <= MAX_CODE_BLOCK_BITS[blocks.base_graph] else None


def block_errors(
    mcs: int, code_block_bits: int, snr_db: float, n_blocks: int, settings: DecoderSettings,
    rng: np.random.Generator, table: int = 1,
) -> int | None:  # fmt: skip
    """Code blocks in error, of ``n_blocks`` sent once over white Gaussian noise.

    Args:
        mcs: MCS index.
        code_block_bits: size of the block with its CRC, K'.
        snr_db: symbol energy over noise power.
        n_blocks: blocks.
        settings: decoder settings.
        rng: of bits and noise.
        table: MCS table.

    Returns:
        Blocks with a wrong information bit; None where the size does not fit the base graph.
    """
    rows = mcs_table(table)
    rate, order = float(rows.code_rate[mcs]), int(rows.modulation_order[mcs])
    blocks = single_block(code_block_bits, rate)
    if blocks is None:
        return None
    graph, z = base_graph(blocks.base_graph), blocks.lifting_size
    sent_bits = order * round(code_block_bits / rate / order)
    information = np.zeros((n_blocks, blocks.code_block_bits), dtype=np.uint8)
    information[:, :code_block_bits] = rng.integers(0, 2, (n_blocks, code_block_bits))
    positions = selected_positions(graph, z, code_block_bits, sent_bits, order, 0)
    symbols = modulate(encode(information, graph, z)[:, positions], order)
    noise_power = 10.0 ** (-snr_db / 10.0)
    noise = rng.normal(0.0, np.sqrt(noise_power / 2.0), (2, *symbols.shape))
    llr = demodulate(symbols + noise[0] + 1j * noise[1], order, noise_power)
    words = np.stack(
        [recover(row, positions, graph, z, code_block_bits, filler_llr=np.inf) for row in llr]
    )
    n_rows = int(graph.rows_needed(sent_bits, blocks.filler_bits, z))
    found = decode(settings.quantise(words), graph, z, settings, n_rows)
    wrong = found.words[:, :code_block_bits] != information[:, :code_block_bits]
    return int(wrong.any(axis=1).sum())


def sweep(
    mcs_indices: Iterable[int],
    sizes: Iterable[int],
    settings: DecoderSettings,
    amount: SweepSettings,
    table: int = 1,
) -> BlerPoints:
    """Error rates through the waterfall of each MCS and code block size.

    From one decibel above Shannon the SNR goes down until nearly all blocks fail, then up
    until nearly none does.
    """
    points: list[tuple[int, int, float, float]] = []
    shannon = shannon_snr_db(mcs_table(table).spectral_efficiency)
    sizes = tuple(sizes)
    for mcs in mcs_indices:
        for size in sizes:
            rng = np.random.default_rng(np.random.SeedSequence([amount.seed, table, mcs, size]))
            step = amount.step_db / np.sqrt(size)
            start = float(shannon[mcs]) + 1.0
            for direction in (-1, 1):
                snr = start if direction < 0 else start + step
                while True:
                    errors = block_errors(mcs, size, snr, amount.blocks, settings, rng, table)
                    if errors is None:
                        break
                    rate = errors / amount.blocks
                    points.append((mcs, size, snr, rate))
                    if (rate > amount.high) if direction < 0 else (rate < amount.low):
                        break
                    snr += direction * step
    columns = [np.array(column) for column in zip(*points, strict=True)]
    return BlerPoints(columns[0], columns[1], columns[2], columns[3])


def decibels_apart(ours: BlerCurves, others: BlerCurves, code_block_bits: int) -> NDArray[Any]:
    """How much more SNR ours needs for half of the blocks, dB, float64[n_mcs]."""
    mcs = np.arange(len(ours.snr50_db))
    bits = np.full(len(mcs), code_block_bits)
    return ours.at(mcs, bits)[0] - others.at(mcs, bits)[0]


def main(
    target: Annotated[Path, typer.Argument(help="curve file to write (CSV)")],
    table: Annotated[int, typer.Option(help="MCS table")] = 1,
    blocks: Annotated[int, typer.Option(min=1, help="code blocks a point")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="of bits and noise")] = 38212,
    others: Annotated[Path | None, typer.Option(help="curves to compare with")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="measure nothing")] = False,
) -> None:
    """Measure BLER curves, fit them, write them, and say how far they lie from others."""
    against = others or Path(f"data/bler/table{table}.csv")
    shipped = bler_curves(against, table)
    if not compare:
        settings = DecoderSettings("layered", "offset", 16, iterations=10)
        amount = SweepSettings(blocks=blocks, seed=seed)
        points = sweep(range(mcs_table(table).n_mcs), SIZES, settings, amount, table)
        source = (
            f"Monte Carlo of ranloom.ldpc: layered offset min-sum, 10 iterations, "
            f"{len(points.mcs)} points of {blocks} blocks,\nseed {seed}; "
            "fitted like the shipped curves: Q((snr - snr50) / sigma)."
        )
        write_curves(target, fit_curves(points, table), source)
    ours = bler_curves(target, table)
    for size in SIZES[1:]:
        apart = decibels_apart(ours, shipped, size)
        typer.echo(
            f"{size:5d} bits: {apart.mean():+.2f} dB on average over MCS, "
            f"{apart.min():+.2f} to {apart.max():+.2f} dB, than {against.name}"
        )


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None
