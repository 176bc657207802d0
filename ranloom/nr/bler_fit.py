"""Fit waterfall curves to a BLER table, and extend them to what the table lacks.

The shipped curves come from the AWGN tables of Sionna (Apache-2.0), which hold measured error
rates of code blocks of 24 to 2000 bits on an SNR grid of 1.6 to 1.8 dB. PUSCH without transform
precoding uses the MCS tables of PDSCH, so the files named ``PDSCH`` are the right ones: those
named ``PUSCH`` follow 38.214 tables 6.1.4.1-1 and -2 (transform precoding), whose indices from
17 on mean other code rates.

``python -m ranloom.nr.bler_fit PDSCH_table1.json 1 data/bler/table1.csv``
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import ndtri

from ranloom.errors import InputError
from ranloom.nr.bler import COLUMNS
from ranloom.nr.mcs import mcs_table

EXTENDED_SIZES = (3840, 8448)
# error rates outside of these bounds say only on which side of the waterfall a point lies
_LOWEST, _HIGHEST = 0.002, 0.998
# weight of "equal at neighbouring sizes" against a point of the table, in 1/dB
_SMOOTHING_PER_DB = 0.5
# from this size on the SNR at half errors no longer depends on the size in the table
_SATURATED_BITS = 1000


@dataclass(frozen=True, eq=False)
class BlerPoints:
    """Measured error rates, one array element a point."""

    mcs: NDArray[np.int64]
    code_block_bits: NDArray[np.int64]
    snr_db: NDArray[np.float64]
    bler: NDArray[np.float64]


@dataclass(frozen=True)
class FittedCurve:
    """One row of a curve file; ``origin`` says ``fitted`` or ``extended``."""

    mcs: int
    code_block_bits: int
    snr50_db: float
    sigma_db: float
    origin: str


def read_sionna_table(path: Path, table: int) -> BlerPoints:
    """Read one of Sionna's BLER tables (category 1: PDSCH; table index, MCS, code block size).

    Raises:
        InputError: the file has another structure.
    """
    try:
        by_mcs = json.loads(path.read_text(encoding="utf-8"))["category"]["1"]["index"][str(table)][
            "MCS"
        ]
        rows = [
            (int(mcs), int(bits), snr, rate)
            for mcs, entry in by_mcs.items()
            for bits, curve in entry["CBS"].items()
            for snr, rate in zip(entry["SNR_db"], curve["BLER"], strict=True)
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), str(error), "allowed: a Sionna PDSCH BLER table") from None
    mcs, bits, snr, rate = zip(*rows, strict=True)
    return BlerPoints(
        np.array(mcs, dtype=np.int64), np.array(bits, dtype=np.int64), np.array(snr), np.array(rate)
    )


def shannon_snr_db(spectral_efficiency: NDArray[np.float64]) -> NDArray[np.float64]:
    """SNR at which a Gaussian channel carries ``spectral_efficiency`` bits per symbol."""
    return np.asarray(10.0 * np.log10(2.0**spectral_efficiency - 1.0), dtype=np.float64)


def fit_curves(points: BlerPoints, table: int) -> list[FittedCurve]:
    """Fit ``Q((snr - snr50) / sigma)`` to measured points.

    Free are one ``snr50`` per MCS and size, one ``sigma`` per modulation order, and one exponent
    of ``sigma ~ size ** -exponent`` for all: large blocks have one point at most inside
    their waterfall, so their width follows from the others. Extended by rule: sizes above the
    largest keep its ``snr50`` and follow the law of ``sigma``; an MCS that is not measured takes
    the gap to Shannon of its nearest three measured MCS of the same modulation (mean over sizes
    of at least 1000 bits).

    Returns:
        Rows for every MCS of the table and every size, ordered by both.
    """
    mcs_numbers = mcs_table(table)
    measured, row = np.unique(points.mcs, return_inverse=True)
    sizes, column = np.unique(points.code_block_bits, return_inverse=True)
    orders, group_of_mcs = np.unique(mcs_numbers.modulation_order, return_inverse=True)
    fitted_groups, group = np.unique(group_of_mcs[points.mcs], return_inverse=True)
    n_curves = len(measured) * len(sizes)
    shannon = shannon_snr_db(mcs_numbers.spectral_efficiency)

    inside = (points.bler > _LOWEST) & (points.bler < _HIGHEST)
    target = ndtri(1.0 - np.where(inside, points.bler, 0.5))
    below, above = points.bler >= _HIGHEST, points.bler <= _LOWEST
    edge = ndtri(_HIGHEST)

    def unpack(
        vector: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        snr50 = vector[:n_curves].reshape(len(measured), len(sizes))
        return snr50, vector[n_curves:-1], float(vector[-1])

    def residuals(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        snr50, log_sigma, exponent = unpack(vector)
        sigma = np.exp(log_sigma[group] - exponent * np.log(points.code_block_bits))
        scaled = (points.snr_db - snr50[row, column]) / sigma
        miss = np.where(inside, scaled - target, 0.0)
        miss += np.where(below, np.maximum(scaled + edge, 0.0), 0.0)
        miss += np.where(above, np.minimum(scaled - edge, 0.0), 0.0)
        return np.concatenate([miss, _SMOOTHING_PER_DB * np.diff(snr50, axis=1).ravel()])

    start = np.concatenate(
        [np.repeat(shannon[measured] + 1.0, len(sizes)), np.full(len(fitted_groups), 2.0), [0.5]]
    )
    snr50, log_sigma, exponent = unpack(least_squares(residuals, start, loss="soft_l1").x)

    # a modulation order without points takes the width of the nearest one that has some
    nearest = [int(np.argmin(abs(fitted_groups - g))) for g in range(len(orders))]
    log_sigma = log_sigma[nearest]
    saturated = sizes >= _SATURATED_BITS
    gap = snr50 - shannon[measured][:, None]

    curves = []
    for mcs in range(mcs_numbers.n_mcs):
        same = np.flatnonzero(group_of_mcs[measured] == fitted_groups[nearest[group_of_mcs[mcs]]])
        close = same[np.argsort(abs(measured[same] - mcs), kind="stable")[:3]]
        own = np.flatnonzero(measured == mcs)
        for bits in sorted({*sizes.tolist(), *EXTENDED_SIZES}):
            at = min(int(np.searchsorted(sizes, bits)), len(sizes) - 1)
            if len(own):
                snr = snr50[own[0], at]
            else:
                snr = shannon[mcs] + gap[close][:, saturated].mean()
            sigma = np.exp(log_sigma[group_of_mcs[mcs]] - exponent * np.log(bits))
            seen = ((points.mcs == mcs) & (points.code_block_bits == bits)).any()
            origin = "fitted" if seen else "extended"
            curves.append(FittedCurve(mcs, bits, float(snr), float(sigma), origin))
    return curves


def write_curves(path: Path, curves: list[FittedCurve], source: str) -> None:
    """Write a curve file; ``source`` becomes its first comment line."""
    lines = [f"# {line}" for line in source.splitlines()] + [",".join(COLUMNS)]
    lines += [
        f"{c.mcs},{c.code_block_bits},{c.snr50_db:.4f},{c.sigma_db:.5f},{c.origin}" for c in curves
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


_SOURCE = (
    "Fitted to measured AWGN error rates of NVIDIA Sionna 2.2 (Apache-2.0, sionna/sys/bler_tables,"
    " {name}): Q((snr - snr50) / sigma).\n"
    "'extended' rows follow the rules of ranloom/nr/bler_fit.py, which wrote this file."
)


def main(source: Path, table: int, target: Path) -> None:
    """Fit the curves of a Sionna table and write them."""
    fitted = fit_curves(read_sionna_table(source, table), table)
    write_curves(target, fitted, _SOURCE.format(name=source.name))


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None
