"""The scenarios of the project: who sends what over which channel, for one cell and one window.

Builders are pure: the same arguments and files give the same packets. Every random stream is a
child of ``SeedSequence([seed, scenario, cell, ...])``, so scenarios and cells stay independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ranloom.errors import InputError
from ranloom.traffic import arrivals as flows
from ranloom.traffic import channel as channels
from ranloom.traffic import csv_trace, generators, tractor, tractor_like
from ranloom.traffic.arrivals import Arrivals
from ranloom.traffic.channel import SinrTrace
from ranloom.traffic.csv_table import existing

SOURCES = ("generator", "tractor", "csv")
_STREAM = {"scenario_1": 1, "scenario_2": 2, "stress": 3, "macro": 4, "uploads": 5}


@dataclass(frozen=True, eq=False)
class Scenario:
    """Offered traffic and channel of one cell.

    Args:
        name: scenario.
        cell: index of the cell, 0 for single-cell scenarios.
        arrivals: packets.
        channel: SINR of the same UEs; covers the duration of the arrivals.
        counts: ``split_records``, ``stale_rows``, ``duplicate_rows``, ``looped_ues``.
        notes: one line for everything that was replaced, dropped or repeated.

    Raises:
        InputError: arrivals and channel differ in UEs or the channel is too short.
    """

    name: str
    cell: int
    arrivals: Arrivals
    channel: SinrTrace
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.channel.n_ue != self.arrivals.n_ue:
            where = f"{self.name}: UEs of the channel"
            raise InputError(
                where, self.channel.n_ue, f"needed: {self.arrivals.n_ue} as in the traffic"
            )
        if self.channel.duration_us < self.arrivals.duration_us:
            where = f"{self.name}: duration of the channel in us"
            raise InputError(
                where, self.channel.duration_us, f"needed: {self.arrivals.duration_us} or more"
            )

    @property
    def n_ue(self) -> int:
        """Number of UEs."""
        return self.arrivals.n_ue

    @property
    def duration_us(self) -> int:
        """Length of the window."""
        return self.arrivals.duration_us


@dataclass(frozen=True)
class Source:
    """Where the traffic of the single-cell scenarios comes from.

    Args:
        kind: ``generator``, ``tractor`` or ``csv``.
        path: the generator's facts (YAML), the TRACTOR folder, or a folder with packets and
            optionally channels: ``<scenario>.csv`` and ``<scenario>_sinr.csv``, else
            ``traffic.csv`` and ``traffic_sinr.csv``; or one CSV file of packets for all scenarios.
        reading: of the TRACTOR KPI logs, ``cleaned`` or ``as_published``.
        csv_sinr_db: constant SINR of a CSV source without a channel file.

    Raises:
        InputError: unknown kind or reading, or nothing at the path.
    """

    kind: str
    path: Path
    reading: str = "cleaned"
    csv_sinr_db: float = 20.0

    def __post_init__(self) -> None:
        if self.kind not in SOURCES:
            raise InputError("source", self.kind, "needed: " + " or ".join(SOURCES))
        if self.reading not in tractor.READINGS:
            raise InputError("reading", self.reading, "needed: " + " or ".join(tractor.READINGS))
        if self.kind == "csv" and self.path.is_file():
            return
        existing(self.path, "file" if self.kind == "generator" else "folder")


def scenario_1(
    source: Source,
    *,
    seed: int,
    duration_s: float,
    load_factor: float = 1.0,
    uploaders: int = 0,
    sinr_offset_db: float = 0.0,
) -> Scenario:
    """Scenario 1 of Table 10: four static UEs, background and video streaming (TRACTOR Trial2).

    Args:
        source: where traffic and channel come from.
        seed: root of the random streams (generator only).
        duration_s: window; the paper's is 600.
        load_factor: multiplies every UE's bytes, see ``Arrivals.scale``.
        uploaders: this many UEs, from the first on, also send a large file (trace ``embb_05_18_b``,
            2.0 Mbit/s each before the load factor). Not for a CSV source.
        sinr_offset_db: added to every SINR sample; the unpublished noise offset of Eq. 13.

    Raises:
        InputError: a parameter out of range, or a file that is missing or unusable.
    """
    return _table_10_scenario(
        "scenario_1", source, seed, duration_s, load_factor, uploaders, sinr_offset_db
    )


def scenario_2(
    source: Source,
    *,
    seed: int,
    duration_s: float,
    load_factor: float = 1.0,
    uploaders: int = 0,
    sinr_offset_db: float = 0.0,
) -> Scenario:
    """Scenario 2 of Table 10: streaming, browsing and a walking UE (TRACTOR Trial3).

    Arguments and errors as in ``scenario_1``.
    """
    return _table_10_scenario(
        "scenario_2", source, seed, duration_s, load_factor, uploaders, sinr_offset_db
    )


def stress(
    source: Source,
    *,
    seed: int,
    duration_s: float,
    load_factor: float = 1.0,
    n_ue: int = 3,
    stagger_s: float = 0.0,
    sinr_offset_db: float = 0.0,
) -> Scenario:
    """The D-ITG stress of D.1.3: 800 kbit/s a UE and a 20 s burst of 3.6 Mbit/s in every 90 s.

    The channel is that of the first UEs of scenario 2: the paper varies it "based on the production
    O-RAN traffic" without saying which.

    Args:
        source: ``generator`` and ``tractor`` differ in the channel alone; ``csv`` replaces both.
        seed: root of the random streams.
        duration_s: window.
        load_factor: multiplies every UE's bytes, see ``Arrivals.scale``.
        n_ue: UEs, 1 to 4. Not for a CSV source.
        stagger_s: how much later the burst of each next UE starts; 0 gives the 13.2 Mbit/s peak.
        sinr_offset_db: added to every SINR sample.

    Raises:
        InputError: a parameter out of range, or a file that is missing or unusable.
    """
    duration_us = window_us(duration_s)
    if source.kind == "csv":
        return _csv_scenario("stress", source, duration_us, load_factor, sinr_offset_db)
    if not 1 <= n_ue <= 4:
        raise InputError("n_ue", n_ue, "needed: 1 to 4")
    traffic_rng, channel_rng = streams(seed, "stress")
    arrivals = generators.steady_with_burst(n_ue, duration_us, traffic_rng, stagger_s=stagger_s)
    if source.kind == "generator":
        ues = tractor_like.read_facts(source.path).ues("scenario_2")[:n_ue]
        channel = tractor_like.generate_channel(ues, duration_us, source.reading, channel_rng)
    else:
        real = tractor.load_scenario(source.path, "scenario_2", duration_us, source.reading)
        channel = SinrTrace(real.channel.sinr_db[:n_ue], real.channel.period_us)
    channel = channel.shift(sinr_offset_db)
    return Scenario("stress", 0, arrivals.scale(load_factor), channel, _no_counts())


def uploads(
    source: Source,
    *,
    seed: int,
    duration_s: float,
    n_ue: int,
    load_factor: float = 1.0,
    sinr_offset_db: float = 0.0,
    name: str = "wideband",
) -> Scenario:
    """UEs that all send large files (trace ``embb_05_18_b``), each at its own place in the trace.

    The channel of UE ``i`` is that of UE ``i mod 4`` of scenario 2 (drawn anew by the generator).

    Args:
        source: where traffic and channel come from.
        seed: root of the random streams (generator only).
        duration_s: window.
        n_ue: UEs. Not for a CSV source.
        load_factor: multiplies every UE's bytes, see ``Arrivals.scale``.
        sinr_offset_db: added to every SINR sample.
        name: of the scenario, and of its file for a CSV source.

    Raises:
        InputError: a parameter out of range, or a file that is missing or unusable.
    """
    duration_us = window_us(duration_s)
    if source.kind == "csv":
        return _csv_scenario(name, source, duration_us, load_factor, sinr_offset_db)
    if n_ue < 1:
        raise InputError("n_ue", n_ue, "needed: at least 1")
    traffic_rng, channel_rng = streams(seed, "uploads")
    arrivals, split = _upload(source, n_ue, duration_us, traffic_rng)
    if source.kind == "generator":
        four = tractor_like.read_facts(source.path).ues("scenario_2")
        ues = tuple(four[i % len(four)] for i in range(n_ue))
        channel = tractor_like.generate_channel(ues, duration_us, source.reading, channel_rng)
    else:
        logged = tractor.load_scenario(source.path, "scenario_2", duration_us, source.reading)
        sinr_db = logged.channel.sinr_db[np.arange(n_ue) % logged.channel.n_ue]
        channel = SinrTrace(sinr_db, logged.channel.period_us)
    counts = _no_counts() | {"split_records": split}
    channel = channel.shift(sinr_offset_db)
    return Scenario(name, 0, arrivals.scale(load_factor), channel, counts)


def _table_10_scenario(
    name: str,
    source: Source,
    seed: int,
    duration_s: float,
    load_factor: float,
    uploaders: int,
    sinr_offset_db: float,
) -> Scenario:
    duration_us = window_us(duration_s)
    if source.kind == "csv":
        if uploaders:
            raise InputError("uploaders", uploaders, "needed: 0 for a CSV source")
        return _csv_scenario(name, source, duration_us, load_factor, sinr_offset_db)
    n_ue = len(tractor.SCENARIOS[name].ues)
    if not 0 <= uploaders <= n_ue:
        raise InputError("uploaders", uploaders, f"needed: 0 to {n_ue}")
    traffic_rng, channel_rng, upload_rng = streams(seed, name, children=3)
    if source.kind == "generator":
        facts = tractor_like.read_facts(source.path)
        ues = facts.ues(name)
        profiles = tuple(ue.trace for ue in ues)
        arrivals = tractor_like.generate_arrivals(facts, profiles, duration_us, traffic_rng)
        channel = tractor_like.generate_channel(ues, duration_us, source.reading, channel_rng)
        counts, notes = _no_counts(), tuple[str, ...]()
    else:
        real = tractor.load_scenario(source.path, name, duration_us, source.reading)
        arrivals, channel, counts = real.arrivals, real.channel, dict(real.counts)
        notes = real.notes
    if uploaders:
        upload, split = _upload(source, uploaders, duration_us, upload_rng)
        counts["split_records"] += split
        wide = Arrivals(upload.time_us, upload.ue, upload.size_bytes, arrivals.n_ue, duration_us)
        arrivals = flows.merge([arrivals, wide])
    arrivals, channel = arrivals.scale(load_factor), channel.shift(sinr_offset_db)
    return Scenario(name, 0, arrivals, channel, counts, notes)


def _upload(
    source: Source, n_ue: int, duration_us: int, rng: np.random.Generator
) -> tuple[Arrivals, int]:
    """Large uploads of some UEs: drawn independently, or the trace from evenly spread places."""
    if source.kind == "generator":
        facts = tractor_like.read_facts(source.path)
        profiles = (tractor.UPLOAD_TRACE,) * n_ue
        return tractor_like.generate_arrivals(facts, profiles, duration_us, rng), 0
    trace, split, _ = tractor.read_trace(source.path, tractor.UPLOAD_TRACE)
    starts_us = [i * trace.duration_us // n_ue for i in range(n_ue)]
    return flows.stack([trace.rotate(start).loop_to(duration_us) for start in starts_us]), split


def _csv_scenario(
    name: str, source: Source, duration_us: int, load_factor: float, sinr_offset_db: float
) -> Scenario:
    path = _csv_file(source.path, name)
    trace, split = csv_trace.read_arrivals(path)
    counts = _no_counts() | {"split_records": split}
    notes = []
    if trace.duration_us < duration_us:
        counts["looped_ues"] = trace.n_ue
        notes.append(f"{path.name} of {trace.duration_us / 1e6:.1f} s is looped")
    arrivals = trace.loop_to(duration_us).scale(load_factor)
    sinr_path = path.with_name(f"{path.stem}_sinr.csv")
    if sinr_path.is_file() and source.path.is_dir():  # beside a single file it is no declared input
        channel = csv_trace.read_sinr(sinr_path, trace.n_ue, duration_us)
    else:
        channel = channels.constant(np.full(trace.n_ue, source.csv_sinr_db), duration_us)
        notes.append(f"no {sinr_path.name}: constant SINR of {source.csv_sinr_db:g} dB")
    return Scenario(name, 0, arrivals, channel.shift(sinr_offset_db), counts, tuple(notes))


def _csv_file(path: Path, name: str) -> Path:
    """The file of a scenario: its own in a folder, else the one for all."""
    if path.is_file():
        return path
    for file in (path / f"{name}.csv", path / "traffic.csv"):
        if file.is_file():
            return file
    raise InputError(str(path), f"no {name}.csv", f"needed: {name}.csv or traffic.csv")


def streams(seed: int, name: str, *more: int, children: int = 2) -> tuple[np.random.Generator, ...]:
    """Independent random streams of one scenario (and cell, hour, ... in ``more``)."""
    if seed < 0:
        raise InputError("seed", seed, "needed: at least 0")
    root = np.random.SeedSequence([seed, _STREAM[name], *more])
    return tuple(np.random.default_rng(child) for child in root.spawn(children))


def window_us(duration_s: float) -> int:
    """A duration in whole microseconds."""
    if not (np.isfinite(duration_s) and 1e-3 <= duration_s <= 1e7):
        raise InputError("duration_s", duration_s, "needed: 0.001 to 1e7 s")
    return round(duration_s * 1e6)


def _no_counts() -> dict[str, int]:
    return {"split_records": 0, "stale_rows": 0, "duplicate_rows": 0, "looped_ues": 0}
