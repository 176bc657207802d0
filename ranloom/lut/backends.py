"""Backends: where a profile comes from, selected by name.

``model``: the latency model at every MCS and PRB. ``published``: the printed cells, the model in
the gaps. ``import``: a profile file or a log of another stack, the model beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from ranloom.errors import InputError
from ranloom.gpu.card import Card
from ranloom.gpu.latency import LatencyModel, fit_latencies
from ranloom.gpu.partition import SIMULATOR
from ranloom.lut.importers import import_profile
from ranloom.lut.measurements import Measurements
from ranloom.lut.profile import Latencies, Profile, ProfileRequest
from ranloom.lut.table import INFEASIBLE, PROVENANCES, UNPROFILED, Cells, Lut
from ranloom.nr.numerology import MAX_PRB
from ranloom.nr.segmentation import work_table
from ranloom.nr.tbs import Allocation

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
    return Profile(model_latencies(request), cells, request.model)


def read_published_cells(path: Path) -> tuple[Cells, int]:
    """Cells of Fig. 7c of WEAVER: 7 MCS x 6 PRB, DGX Spark, P99 within 800 us.

    Returns:
        The cells, and the SM count of the device that they belong to.

    Raises:
        InputError: the file does not hold them.
    """
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
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


def comparable(card: Card, table: int, cells: Cells, sm_count: int) -> bool:
    """Whether published cells are those of a card and an MCS table.

    The paper names MCS 0 to 28, the range of table 5.1.3.1-1. The card needs as many SMs, and
    levels for all cells.
    """
    fits = card.sm_count == sm_count and bool(np.isin(cells.min_sm, card.levels).all())
    return fits and table == 1


def profile_published(request: ProfileRequest) -> Profile:
    """Backend ``published``: the 42 published cells; other MCS at their PRBs from the model.

    Between those PRBs the table takes the ceiling, as published. No latency is published: the
    latencies are the model's.

    Raises:
        InputError: the card is not the one of the published table.
    """
    published, sm_count = read_published_cells(request.published_path)
    if not comparable(request.card, request.allocation.table, published, sm_count):
        raise InputError(
            "backend published: card, MCS table",
            (request.card.name, request.allocation.table),
            f"allowed: a card of {sm_count} SMs with the levels of the published table, table 1",
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
    kept = Cells(
        published.mcs[inside],
        published.prb[inside],
        published.min_sm[inside],
        published.provenance[inside],
    )
    return Profile(model_latencies(request), _joined(kept, filled), request.model)


def measured_cells(
    measurements: Measurements, card: Card, n_mcs: int, budget_us: float, percentile: int = 99
) -> Cells:
    """Fewest SMs by (MCS, PRB) from measured latencies.

    An SM count is enough if it and every larger one that was measured meet the budget: a lucky
    measurement does not make a promise. Infeasible where no measured SM count is enough.

    Raises:
        InputError: an SM count is no level of the card, or an MCS or PRB lies outside.
    """
    for sm in np.unique(measurements.sm):
        card.check_level(int(sm), "profile: sm")
    outside = (measurements.mcs >= n_mcs) | (measurements.prb > MAX_PRB)
    if outside.any():
        at = int(np.argmax(outside))
        raise InputError(
            "profile (mcs, prb)",
            (int(measurements.mcs[at]), int(measurements.prb[at])),
            f"allowed: MCS 0 to {n_mcs - 1}, up to {MAX_PRB} PRB",
        )
    latency = measurements.p99_us if percentile == 99 else measurements.p50_us
    least: dict[tuple[int, int], int] = {}
    failed: set[tuple[int, int]] = set()
    # from the largest SM count down, until one misses the budget
    for i in np.lexsort((-measurements.sm, measurements.prb, measurements.mcs)).tolist():
        point = int(measurements.mcs[i]), int(measurements.prb[i])
        if latency[i] > budget_us:
            failed.add(point)
            least.setdefault(point, INFEASIBLE)
        elif point not in failed:
            least[point] = int(measurements.sm[i])
    points = np.array(list(least), dtype=np.int64).reshape(-1, 2)
    kind = PROVENANCES.index(measurements.provenance)
    return Cells(
        points[:, 0],
        points[:, 1],
        np.array(list(least.values()), dtype=np.int64),
        np.full(len(points), kind, dtype=np.int8),
    )


def fit_measurements(measurements: Measurements, allocation: Allocation) -> LatencyModel:
    """Latency model of the device that was measured.

    Raises:
        InputError: the latencies do not fix a, k and b.
    """
    work = work_table(MAX_PRB, **allocation.keywords)[measurements.mcs, measurements.prb]
    return fit_latencies(
        work.astype(np.int64), measurements.sm, measurements.p99_us, measurements.p99_over_p50
    )


def profile_import(request: ProfileRequest) -> Profile:
    """Backend ``import``: a profile file or a log; the model where no point lies above.

    The model is that of the request, or with ``fit_source`` one fitted to the latencies, and the
    tail of single decodes with it.

    Raises:
        InputError: the source cannot be used, was simulated, fits neither the card nor the
            allocation, or does not fix a model that is to be fitted to it.
    """
    found = import_profile(request.source_path, request.source_options)
    measurements, how = found.measurements, found.measurements.how
    if SIMULATOR in how.get("device", ""):
        raise InputError(f"{request.source_path}: device", how["device"], "needed: a measurement")
    for key, wanted in (("card", request.card.name), ("allocation", request.allocation.describe())):
        if how.get(key, wanted) != wanted:
            raise InputError(f"{request.source_path}: {key}", how[key], f"needed: {wanted}")
    known = measured_cells(
        measurements, request.card, request.n_mcs, request.budget_us, request.percentile
    )
    tail_sigma = None
    if request.fit_source:
        tail_sigma = measurements.tail_sigma
        try:
            model = fit_measurements(measurements, request.allocation)
        except InputError as error:
            allowed = f"{error.allowed}, or fit_source: false to keep those of the parameters"
            raise InputError(f"{request.source_path}: latencies", error.value, allowed) from None
        request = replace(request, model=model)
    width = max(request.max_prb, int(known.prb.max()))
    bounded = Lut.from_cells(known, request.n_mcs, width, request.card.sm_count)
    covered = _covered(known, request.n_mcs, width)
    # below a measured point its ceiling holds, even where the model promises more
    mcs, prb = np.nonzero(covered & (bounded.min_sm_raw == UNPROFILED))
    ceiling = Cells(
        mcs,
        prb,
        bounded.min_sm[mcs, prb].astype(np.int64),
        np.full(len(mcs), PROVENANCES.index("ceiling"), dtype=np.int8),
    )
    mcs, prb = np.nonzero(~covered[:, 1 : request.max_prb + 1])
    filled = model_cells(request, mcs, prb + 1)
    latencies = Latencies(
        mcs=measurements.mcs.astype(np.int16),
        prb=measurements.prb.astype(np.int16),
        sm=measurements.sm.astype(np.int16),
        p50_us=measurements.p50_us,
        p99_us=measurements.p99_us,
        provenance=np.full(
            len(measurements), PROVENANCES.index(measurements.provenance), dtype=np.int8
        ),
    )
    cells = _joined(_joined(known, ceiling), filled)
    skipped = tuple(found.skipped.lines())
    return Profile(latencies, cells, request.model, tail_sigma, how, skipped)


def _covered(cells: Cells, n_mcs: int, max_prb: int) -> NDArray[np.bool_]:
    """Whether some cell lies at or above a place in both dimensions; column 0 is False."""
    covered = np.zeros((n_mcs, max_prb + 1), dtype=np.bool_)
    covered[cells.mcs, cells.prb] = True
    covered = np.logical_or.accumulate(covered[::-1], axis=0)[::-1]
    covered = np.logical_or.accumulate(covered[:, ::-1], axis=1)[:, ::-1]
    covered[:, 0] = False
    return covered


def _joined(first: Cells, second: Cells) -> Cells:
    return Cells(
        np.concatenate([first.mcs, second.mcs]),
        np.concatenate([first.prb, second.prb]),
        np.concatenate([first.min_sm, second.min_sm]),
        np.concatenate([first.provenance, second.provenance]),
    )


BACKENDS: dict[str, Backend] = {
    "model": profile_model,
    "published": profile_published,
    "import": profile_import,
}
