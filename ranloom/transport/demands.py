"""Transfer demands: what has to be where by when.

Planning computes in whole nanoseconds (int64), so that comparisons are exact; tables and
messages carry seconds. A release is rounded up and a deadline down: never optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ranloom.errors import InputError
from ranloom.transport.topology import Topology

NS_PER_S = 1_000_000_000
#: Longest plan: a year. Keeps every sum of times far from the end of int64.
_MAX_S = 366 * 86_400.0
_MAX_BYTES = 10**15

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def to_ns(seconds: float) -> int:
    """Nanoseconds of a duration in seconds, to the nearest."""
    return round(seconds * NS_PER_S)


def to_s(ns: npt.ArrayLike) -> FloatArray:
    """Seconds of times in nanoseconds."""
    return np.asarray(ns, dtype=np.float64) / NS_PER_S


@dataclass(frozen=True)
class Demands:
    """Demands as columns, all of length n.

    Args:
        ids: identifier of each demand (int or str), unique.
        source: name of the sending node.
        destination: name of the receiving node.
        bytes: payload in bytes.
        release_ns: earliest time at which the payload is complete at the source.
        deadline_ns: latest time at which its last byte is of use at the destination.
    """

    ids: npt.NDArray[Any]
    source: npt.NDArray[Any]
    destination: npt.NDArray[Any]
    bytes: IntArray
    release_ns: IntArray
    deadline_ns: IntArray

    def __len__(self) -> int:
        return len(self.bytes)

    def take(self, rows: npt.NDArray[Any]) -> Demands:
        """The demands of these rows (indices or mask)."""
        return Demands(
            self.ids[rows],
            self.source[rows],
            self.destination[rows],
            self.bytes[rows],
            self.release_ns[rows],
            self.deadline_ns[rows],
        )

    @staticmethod
    def joined(parts: Sequence[Demands]) -> Demands:
        """All demands of several sets, in their order; ids have to differ between them."""
        names = ("ids", "source", "destination", "bytes", "release_ns", "deadline_ns")
        return Demands(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def pairs(self) -> list[tuple[str, str]]:
        """[n] (source, destination) of each demand."""
        return list(zip(self.source.tolist(), self.destination.tolist(), strict=True))

    def released(self, release_ns: IntArray) -> Demands:
        """The same demands with other release times."""
        return replace(self, release_ns=release_ns)


@dataclass(frozen=True)
class ForecastDemands:
    """Demands whose release is a forecast: planned on quantiles, executed on what happens.

    Args:
        realised: the demands with the release that occurs.
        p50_ns: announced median of the release.
        p95_ns: announced 95 % quantile of the release.
    """

    realised: Demands
    p50_ns: IntArray
    p95_ns: IntArray

    def __len__(self) -> int:
        return len(self.realised)

    def planned(self, quantile: str) -> Demands:
        """The demands as the planner sees them.

        A quantile at or behind the deadline says that the demand will probably be late;
        planning on it would give the demand up, so the median stands in, and where that is
        behind the deadline too, the demand keeps it and is planned as missed.

        Args:
            quantile: ``p50`` or ``p95``.
        """
        if quantile not in ("p50", "p95"):
            raise InputError("forecast quantile", quantile, "p50 or p95")
        p50 = self.p50_ns
        late = self.p95_ns >= self.realised.deadline_ns
        release = p50 if quantile == "p50" else np.where(late, p50, self.p95_ns)
        return self.realised.released(np.asarray(release, dtype=np.int64))


def demands_from_columns(columns: Mapping[str, Any], where: str) -> ForecastDemands:
    """Demands from columns of ``transfers.parquet``.

    Args:
        columns: ``demand_id``, ``source``, ``destination``, ``bytes``, ``release_p50_s``,
            ``release_p95_s``, ``release_s``, ``deadline_s``; more are ignored.
        where: file name for error messages.

    Raises:
        InputError: a column is missing or of another length, an id occurs twice, bytes are
            not positive, a time is negative, not finite or beyond a year, quantiles are
            out of order, or a median release lies behind the deadline.
    """
    needed = (
        "demand_id",
        "source",
        "destination",
        "bytes",
        "release_p50_s",
        "release_p95_s",
        "release_s",
        "deadline_s",
    )
    for name in needed:
        if name not in columns:
            raise InputError(where, f"no column {name}", f"columns {', '.join(needed)}")
    ids = np.asarray(columns["demand_id"])
    n = len(ids)
    for name in needed:
        if len(columns[name]) != n:
            raise InputError(f"{where}: {name}", len(columns[name]), f"{n} rows like demand_id")
    values, counts = np.unique(ids, return_counts=True)
    if n and counts.max() > 1:
        raise InputError(f"{where}: demand_id", str(values[counts.argmax()]), "each id once")

    size = _numbers(columns["bytes"], f"{where}: bytes")
    _each(size, (size > 0) & (size <= _MAX_BYTES), f"{where}: bytes", "1 to 1e15 bytes")
    times = {}
    for name in ("release_p50_s", "release_p95_s", "release_s", "deadline_s"):
        times[name] = _numbers(columns[name], f"{where}: {name}")
        good = (times[name] >= 0) & (times[name] <= _MAX_S)
        _each(times[name], good, f"{where}: {name}", f"0 to {_MAX_S:.0f} s")
    _each(
        times["release_p95_s"],
        times["release_p95_s"] >= times["release_p50_s"],
        f"{where}: release_p95_s",
        "at least release_p50_s",
    )
    deadline_ns = np.floor(times["deadline_s"] * NS_PER_S).astype(np.int64)
    p50_ns, p95_ns, release_ns = (
        np.ceil(times[name] * NS_PER_S).astype(np.int64)
        for name in ("release_p50_s", "release_p95_s", "release_s")
    )
    _each(
        times["deadline_s"],
        deadline_ns > p50_ns,
        f"{where}: deadline_s",
        "later than the median release",
    )
    return ForecastDemands(
        Demands(
            ids,
            np.asarray(columns["source"], dtype=object),
            np.asarray(columns["destination"], dtype=object),
            size.astype(np.int64),
            release_ns,
            deadline_ns,
        ),
        p50_ns,
        p95_ns,
    )


def require_nodes(demands: Demands, topology: Topology, where: str) -> None:
    """Refuse demands whose ends are no nodes, or the same node.

    Raises:
        InputError: names the row.
    """
    for name, ends in (("source", demands.source), ("destination", demands.destination)):
        for row, node in enumerate(ends):
            topology.require((node,), f"{where}: {name}, row {row}")
    for row in np.flatnonzero(demands.source == demands.destination)[:1]:
        raise InputError(
            f"{where}: destination, row {row}", demands.source[row], "another node than the source"
        )


def _numbers(values: Any, where: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(where, list(values)[:3], "numbers") from None


def _each(values: FloatArray, good: BoolArray, where: str, allowed: str) -> None:
    bad = np.flatnonzero(~good)
    if len(bad):
        raise InputError(f"{where}, row {bad[0]}", float(values[bad[0]]), allowed)
