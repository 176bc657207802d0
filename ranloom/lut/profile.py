"""What a profile is, and the backends that make one.

A backend turns a :class:`ProfileRequest` into a :class:`Profile`: decode latencies by MCS, PRB
and SM count, and the fewest SMs that meet the budget. Every row carries its provenance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.table import INFEASIBLE, PROVENANCES, Cells, Lut


@dataclass(frozen=True, eq=False)
class ProfileRequest:
    """What to profile.

    Args:
        work: int32[n_mcs, max_prb + 1], code blocks x lifting size.
        card: the device.
        budget_us: latency budget.
        percentile: 99 or 50, which latency must meet the budget.
        model: latency model, for the ``model`` backend and wherever a profile has gaps.
        published_path: the published figures, for the ``published`` backend.
    """

    work: NDArray[np.int32]
    card: Card
    budget_us: float
    percentile: int
    model: LatencyModel
    published_path: Path

    @property
    def n_mcs(self) -> int:
        """Number of MCS indices."""
        return int(self.work.shape[0])

    @property
    def max_prb(self) -> int:
        """Widest allocation."""
        return int(self.work.shape[1]) - 1


@dataclass(frozen=True, eq=False)
class Latencies:
    """Decode latencies, one row a (MCS, PRB, SM count).

    Attributes:
        mcs: int16[n].
        prb: int16[n].
        sm: int16[n].
        p50_us: float64[n].
        p99_us: float64[n].
        provenance: int8[n], index into ``PROVENANCES``.
    """

    mcs: NDArray[np.int16]
    prb: NDArray[np.int16]
    sm: NDArray[np.int16]
    p50_us: NDArray[np.float64]
    p99_us: NDArray[np.float64]
    provenance: NDArray[np.int8]

    def to_columns(self) -> dict[str, Any]:
        """Columns of ``latency.parquet``."""
        return {
            "mcs": self.mcs,
            "prb": self.prb,
            "sm": self.sm,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "provenance": [PROVENANCES[p] for p in self.provenance],
        }


@dataclass(frozen=True, eq=False)
class Profile:
    """Result of a backend.

    Args:
        latencies: every latency known.
        cells: fewest SMs by (MCS, PRB).
    """

    latencies: Latencies
    cells: Cells

    def lut(self, request: ProfileRequest) -> Lut:
        """Lookup table of this profile."""
        return Lut.from_cells(self.cells, request.n_mcs, request.max_prb, request.card.sm_count)


Backend = Callable[[ProfileRequest], Profile]


def model_latencies(request: ProfileRequest) -> Latencies:
    """Latencies of the model over the full grid, ordered by MCS, PRB, SM count."""
    levels = request.card.levels
    mcs, prb, sm = np.meshgrid(
        np.arange(request.n_mcs), np.arange(1, request.max_prb + 1), levels, indexing="ij"
    )
    work = request.work[mcs, prb]
    return Latencies(
        mcs=mcs.ravel().astype(np.int16),
        prb=prb.ravel().astype(np.int16),
        sm=sm.ravel().astype(np.int16),
        p50_us=request.model.p50_us(work, sm).ravel(),
        p99_us=request.model.p99_us(work, sm).ravel(),
        provenance=np.full(mcs.size, PROVENANCES.index("model"), dtype=np.int8),
    )


def model_cells(request: ProfileRequest, mcs: NDArray[np.int64], prb: NDArray[np.int64]) -> Cells:
    """Fewest SMs by the model at given points."""
    # the model scales its median by a constant, so a budget on it scales the other way
    scale = 1.0 if request.percentile == 99 else request.model.p99_over_mean
    sm = request.model.min_sm(
        request.work[mcs, prb], request.card.levels, request.budget_us * scale, INFEASIBLE
    )
    return Cells(mcs, prb, sm, np.full(len(mcs), PROVENANCES.index("model"), dtype=np.int8))


def profile_model(request: ProfileRequest) -> Profile:
    """Backend ``model``: the latency model at every MCS and PRB."""
    mcs, prb = np.meshgrid(
        np.arange(request.n_mcs), np.arange(1, request.max_prb + 1), indexing="ij"
    )
    cells = model_cells(request, mcs.ravel(), prb.ravel())
    return Profile(model_latencies(request), cells)


def read_published_cells(path: Path) -> tuple[Cells, int]:
    """Cells of Fig. 7c of WEAVER: 7 MCS x 6 PRB, DGX Spark, P99 within 800 us.

    Returns:
        The cells, and the SM count of the device that they belong to.

    Raises:
        InputError: the file does not hold them.
    """
    try:
        document = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        table, sm_count = document["min_sm_lut"], int(document["ran_cell"]["sm_count"])
        mcs, prb = np.meshgrid(table["mcs"], table["prb"])
        sm = np.array(table["min_sm"], dtype=np.int64).reshape(mcs.shape)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            str(path),
            f"{type(error).__name__}: {error}",
            "needed: min_sm_lut with mcs, prb, min_sm",
        ) from None
    cells = Cells(
        mcs.ravel().astype(np.int64),
        prb.ravel().astype(np.int64),
        sm.ravel(),
        np.full(mcs.size, PROVENANCES.index("published"), dtype=np.int8),
    )
    return cells, sm_count


def comparable(card: Card, cells: Cells, sm_count: int) -> bool:
    """Whether published cells are those of a card: as many SMs, and levels for all of them."""
    return card.sm_count == sm_count and bool(np.isin(cells.min_sm, card.levels).all())


def profile_published(request: ProfileRequest) -> Profile:
    """Backend ``published``: the 42 published cells; other MCS at their PRBs from the model.

    Between those PRBs the table takes the ceiling, as published. No latency is published: the
    latencies are the model's.

    Raises:
        InputError: the card is not the one of the published table.
    """
    published, sm_count = read_published_cells(request.published_path)
    if not comparable(request.card, published, sm_count):
        raise InputError(
            "backend published: card",
            request.card.name,
            f"allowed: a card of {sm_count} SMs with the levels of the published table",
        )
    inside = (published.prb <= request.max_prb) & (published.mcs < request.n_mcs)
    mcs, prb = np.meshgrid(np.arange(request.n_mcs), np.unique(published.prb), indexing="ij")
    known = set(zip(published.mcs.tolist(), published.prb.tolist(), strict=True))
    missing = np.array(
        [
            (m, p)
            for m, p in zip(mcs.ravel().tolist(), prb.ravel().tolist(), strict=True)
            if (m, p) not in known and p <= request.max_prb
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    filled = model_cells(request, missing[:, 0], missing[:, 1])
    cells = Cells(
        np.concatenate([published.mcs[inside], filled.mcs]),
        np.concatenate([published.prb[inside], filled.prb]),
        np.concatenate([published.min_sm[inside], filled.min_sm]),
        np.concatenate([published.provenance[inside], filled.provenance]),
    )
    return Profile(model_latencies(request), cells)


BACKENDS: dict[str, Backend] = {"model": profile_model, "published": profile_published}
