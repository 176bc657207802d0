"""The TRACTOR traces: uplink packets, per-UE KPI logs, and the two scenarios of WEAVER's Table 10.

Source: Groen et al., "TRACTOR: Traffic Analysis and Classification Tool for Open RAN", ICC 2024;
repository genesys-neu/TRACTOR, MIT. ``docs/traces.md`` says how to get the files.

Two kinds of files:

* raw packet traces, captured on a phone, ``App name,No.,Time,Source,Destination,Protocol,Length``.
  The phone is 172.30.1.1; TRACTOR's own traffic generator sends ``Length - 70`` bytes a record.
* KPI logs of the base station (SCOPE), one row a UE and 250 ms. ``ul_sinr`` is 0 in every row in
  which the UE did not send, so a plain mean says how often it sent rather than how well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic import arrivals as flows
from ranloom.traffic.arrivals import MAX_PACKET_BYTES, Arrivals
from ranloom.traffic.channel import SinrTrace, replay
from ranloom.traffic.csv_table import existing, read_columns, refuse_rows

UPLINK_SOURCE = "172.30.1.1"
HEADER_BYTES = 70  # what the traffic generator of TRACTOR takes off a record
KPI_PERIOD_US = 250_000
SEGMENT_GAP_MS = 5_000  # rows further apart belong to different runs of the base station
STALE_GAP_MS = 3_600_000  # rows before such a pause belong to another experiment
READINGS = ("cleaned", "as_published")

RAW_FOLDERS = ("raw",)
SINGLE_UE_FOLDERS = ("single_ue_kpi", "logs/SingleUE/Trial7/Raw")
MULTI_UE_FOLDERS = ("multi_ue", "logs/Multi-UE")
UPLOAD_TRACE = "embb_05_18_b"  # a large file sent to OneDrive: 2.0 Mbit/s mean over 66 s

_TIME, _SINR, _RATE = "Timestamp", "ul_sinr", "rx_brate uplink [Mbps]"


@dataclass(frozen=True)
class ScenarioUe:
    """One line of Table 10: which trace the UE plays and which KPI log is its channel."""

    trace: str
    imsi: str


@dataclass(frozen=True)
class ScenarioFiles:
    """One scenario of Table 10: folder of its KPI logs, and its UEs."""

    folder: str
    ues: tuple[ScenarioUe, ...]


def _table_10(folder: str, *traces: str) -> ScenarioFiles:
    imsis = (f"101012345600{n}" for n in range(2, 6))
    return ScenarioFiles(folder, tuple(map(ScenarioUe, traces, imsis)))


# Traces by UE as in ``output_multi4.txt`` of each folder.
SCENARIOS: Mapping[str, ScenarioFiles] = {
    "scenario_1": _table_10("Trial2/multi4", "mmtc_11_18", "embb_04_10", "mmtc_11_18", "embb_3"),
    "scenario_2": _table_10("Trial3/multi4", "embb_11_18", "embb_2", "mmtc_11_18", "embb_06_09"),
}


@dataclass(frozen=True, eq=False)
class PacketTrace:
    """Uplink of one raw trace.

    Args:
        arrivals: one UE; the duration is that of the whole capture, downlink included.
        records: uplink records in the file.
        split_records: records above 1,500 bytes, each split into packets.
    """

    arrivals: Arrivals
    records: int
    split_records: int


@dataclass(frozen=True, eq=False)
class KpiLog:
    """One UE's KPI rows.

    Args:
        path: the file.
        time_ms: [n] Unix time, ascending.
        sinr_db: [n] ``ul_sinr``, 0 where nothing was sent.
        uplink_mbps: [n] ``rx_brate uplink``: transport blocks received, padding included.
        duplicate_rows: rows dropped because their time stamp repeated the one before.
    """

    path: Path
    time_ms: NDArray[np.int64]
    sinr_db: NDArray[np.float64]
    uplink_mbps: NDArray[np.float64]
    duplicate_rows: int

    @property
    def active(self) -> NDArray[np.bool_]:
        """[n] rows in which the UE sent."""
        return np.asarray(self.sinr_db != 0.0)

    def rows(self, keep: NDArray[np.bool_]) -> KpiLog:
        """The log reduced to some rows."""
        return KpiLog(
            self.path,
            self.time_ms[keep],
            self.sinr_db[keep],
            self.uplink_mbps[keep],
            self.duplicate_rows,
        )


@dataclass(frozen=True, eq=False)
class TractorScenario:
    """Traffic and channel of one scenario, with what was done to the files.

    Args:
        arrivals: packets of the four UEs over the window.
        channel: SINR of the four UEs over the window.
        counts: ``split_records``, ``stale_rows``, ``duplicate_rows``, ``looped_ues``.
        notes: one line for everything that was replaced, dropped or repeated.
    """

    arrivals: Arrivals
    channel: SinrTrace
    counts: Mapping[str, int]
    notes: tuple[str, ...]


def read_packet_trace(path: Path) -> PacketTrace:
    """Uplink packets of a raw trace.

    Raises:
        InputError: unreadable file (see ``read_columns``), time stamps that run backwards, a
            length below the 70 header bytes, no uplink record.
    """
    columns = read_columns(path, {"Time": float, "Source": str, "Length": int})
    time_s, length = columns["Time"], columns["Length"]
    refuse_rows(path, "Time", time_s, time_s < 0, "at least 0")
    backwards = np.diff(time_s, prepend=time_s[:1]) < 0
    refuse_rows(path, "Time", time_s, backwards, "times in ascending order")
    short = length < HEADER_BYTES
    refuse_rows(path, "Length", length, short, f"at least {HEADER_BYTES} (headers alone)")
    uplink = (columns["Source"] == UPLINK_SOURCE) & (length > HEADER_BYTES)
    if not np.any(uplink):
        raise InputError(str(path), "no uplink record", f"needed: rows with Source {UPLINK_SOURCE}")
    time_us = np.rint(time_s * 1e6).astype(np.int64)
    records = Arrivals(
        time_us[uplink],
        np.zeros(int(uplink.sum()), np.int16),
        (length[uplink] - HEADER_BYTES).astype(np.int32),
        n_ue=1,
        duration_us=int(time_us[-1]) + 1,
    )
    arrivals, split = records.split_records(MAX_PACKET_BYTES)
    return PacketTrace(arrivals, int(uplink.sum()), split)


def read_kpi_log(path: Path) -> KpiLog:
    """KPI rows of one UE; rows that repeat a time stamp are dropped and counted.

    Raises:
        InputError: unreadable file (see ``read_columns``; NaN is one), time stamps that run
            backwards, a negative rate.
    """
    columns = read_columns(path, {_TIME: int, _SINR: float, _RATE: float})
    step_ms = np.diff(columns[_TIME], prepend=columns[_TIME][0] - 1)
    refuse_rows(path, _TIME, columns[_TIME], step_ms < 0, "times in ascending order")
    refuse_rows(path, _RATE, columns[_RATE], columns[_RATE] < 0, "at least 0")
    log = KpiLog(path, columns[_TIME], columns[_SINR], columns[_RATE], int(np.sum(step_ms == 0)))
    return log.rows(step_ms > 0)


def read_segments(path: Path) -> dict[tuple[str, str], NDArray[np.int64]]:
    """Stale row ranges from ``segments.csv``: (trial, imsi) to [k, 2] first and last row.

    Raises:
        InputError: unreadable file, a range that runs backwards, a stale mark not True or False.
    """
    wanted = {"scenario": str, "imsi": str, "row_start": int, "row_end": int, "stale": str}
    columns = read_columns(path, wanted)
    stale = columns["stale"]
    refuse_rows(path, "stale", stale, ~np.isin(stale, ("True", "False")), "True or False")
    backwards = (columns["row_end"] < columns["row_start"]) | (columns["row_start"] < 0)
    refuse_rows(path, "row_end", columns["row_end"], backwards, "a row from row_start on")
    ranges = np.column_stack([columns["row_start"], columns["row_end"]])
    keys = list(zip(columns["scenario"], columns["imsi"], strict=True))
    return {
        key: ranges[(stale == "True") & np.array([k == key for k in keys])]
        for key in dict.fromkeys(keys)
    }


def stale_rows(log: KpiLog) -> NDArray[np.bool_]:
    """[n] rows of an earlier experiment in one log, found by their time stamps alone.

    A pause above ``SEGMENT_GAP_MS`` separates segments; every segment before the last pause above
    ``STALE_GAP_MS`` is stale.
    """
    pauses = np.flatnonzero(np.diff(log.time_ms) > STALE_GAP_MS)
    first_fresh = int(pauses[-1]) + 1 if pauses.size else 0
    return np.arange(log.time_ms.size) < first_fresh


def held_sinr(log: KpiLog) -> NDArray[np.float64]:
    """[n] SINR with idle zeros replaced by the last active row (before the first one: by it).

    Raises:
        InputError: no row of the log is active.
    """
    active = np.flatnonzero(log.active)
    if active.size == 0:
        raise InputError(
            str(log.path), f"{_SINR} 0 in every row", "needed: a UE that sent at least once"
        )
    last = np.searchsorted(active, np.arange(log.time_ms.size), side="right") - 1
    return np.asarray(log.sinr_db[active[np.maximum(last, 0)]])


def kpi_arrivals(log: KpiLog) -> Arrivals:
    """Packets that stand in for a missing trace: each row's bytes, spread evenly over its 250 ms.

    An upper bound: the logged rate counts transport blocks with their padding. Over the UEs whose
    packets are known it is 5 to 14 times their payload.
    """
    row_bytes = np.rint(log.uplink_mbps * 1e6 * (KPI_PERIOD_US * 1e-6) / 8.0).astype(np.int64)
    pieces = -(-row_bytes // MAX_PACKET_BYTES)
    row = np.repeat(np.arange(row_bytes.size), pieces)
    within = np.arange(row.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    last = within == pieces[row] - 1
    size = np.where(last, row_bytes[row] - within * MAX_PACKET_BYTES, MAX_PACKET_BYTES)
    start_us = (log.time_ms - log.time_ms[0]) * 1000
    time_us = start_us[row] + within * KPI_PERIOD_US // pieces[row]
    if row.size == 0:
        raise InputError(
            str(log.path), f"{_RATE} 0 in every row", "needed: a UE that sent at least once"
        )
    duration_us = int(start_us[-1]) + KPI_PERIOD_US
    return flows.from_unsorted(time_us, np.zeros(row.size), size, 1, duration_us)


def find(folder: Path, subfolders: tuple[str, ...], name: str) -> Path:
    """First ``folder/subfolder/name`` that exists.

    Raises:
        InputError: none does.
    """
    for subfolder in subfolders:
        if (folder / subfolder / name).is_file():
            return folder / subfolder / name
    places = " or ".join(f"{subfolder}/{name}" for subfolder in subfolders)
    raise InputError(str(folder), f"no {name}", f"needed: a TRACTOR folder with {places}")


def read_trace(folder: Path, trace: str) -> tuple[Arrivals, int, str | None]:
    """Uplink of a trace by name: its packets, or its KPI log where the packets are missing.

    Returns:
        One-UE arrivals, number of split records, a note if the KPI log stands in.
    """
    try:
        path = find(folder, RAW_FOLDERS, f"{trace}.csv")
    except InputError:
        if not any((folder / sub / f"{trace}.csv").is_file() for sub in SINGLE_UE_FOLDERS):
            raise
        path = find(folder, SINGLE_UE_FOLDERS, f"{trace}.csv")
        log = read_kpi_log(path)
        note = f"trace {trace} is missing: its KPI log stands in, padding included ({path.name})"
        return kpi_arrivals(log), 0, note
    packets = read_packet_trace(path)
    return packets.arrivals, packets.split_records, None


def read_scenario_logs(folder: Path, scenario: str) -> tuple[list[KpiLog], list[NDArray[np.bool_]]]:
    """KPI logs of a scenario's UEs, and which of their rows are stale.

    ``segments.csv`` beside the logs decides where it is present, else ``stale_rows``.
    """
    files = SCENARIOS[scenario]
    logs, stale = [], []
    for ue in files.ues:
        path = find(folder, MULTI_UE_FOLDERS, f"{files.folder}/{ue.imsi}_metrics.csv")
        log = read_kpi_log(path)
        segments = path.parents[2] / "segments.csv"
        if segments.is_file():
            ranges = read_segments(segments).get((files.folder.split("/")[0], ue.imsi))
            if ranges is None:
                raise InputError(
                    str(segments), "no rows", f"needed: segments of {files.folder} {ue.imsi}"
                )
            if ranges.size and ranges.max() >= log.time_ms.size + log.duplicate_rows:
                allowed = f"needed: rows of {path.name}, which has {log.time_ms.size}"
                raise InputError(str(segments), int(ranges.max()), allowed)
            row = np.arange(log.time_ms.size)
            marked = [(row >= first) & (row <= last) for first, last in ranges]
            stale.append(np.any(marked, axis=0) if marked else np.zeros(row.size, bool))
        else:
            stale.append(stale_rows(log))
        logs.append(log)
    return logs, stale


def scenario_channel(
    logs: list[KpiLog], stale: list[NDArray[np.bool_]], duration_us: int, reading: str
) -> SinrTrace:
    """SINR of a scenario's UEs under one reading of the logs, looped to the window.

    ``as_published``: every row from the first, 250 ms each, zeros and stale rows included; its
    mean over a whole file is the "Avg. UL SINR" of Table 10.
    ``cleaned``: stale rows out; idle rows hold the last active value; all UEs on one wall clock
    that starts when the last of them appears.

    Raises:
        InputError: unknown reading, or a UE without an active row.
    """
    if reading not in READINGS:
        raise InputError("reading", reading, "needed: " + " or ".join(READINGS))
    if reading == "as_published":
        grid = [np.arange(log.time_ms.size, dtype=np.int64) * KPI_PERIOD_US for log in logs]
        return replay(grid, [log.sinr_db for log in logs], duration_us, KPI_PERIOD_US)
    fresh = [log.rows(~old) for log, old in zip(logs, stale, strict=True)]
    start_ms = max(int(log.time_ms[0]) for log in fresh)
    times, values = [], []
    for log in fresh:
        sinr = held_sinr(log)
        later = log.time_ms > start_ms
        at_start = sinr[max(int(np.searchsorted(log.time_ms, start_ms, side="right")) - 1, 0)]
        times.append(np.concatenate([[0], (log.time_ms[later] - start_ms) * 1000]))
        values.append(np.concatenate([[at_start], sinr[later]]))
    return replay(times, values, duration_us, KPI_PERIOD_US)


def load_scenario(
    folder: Path, scenario: str, duration_us: int, reading: str = "cleaned"
) -> TractorScenario:
    """Traffic and channel of ``scenario_1`` or ``scenario_2`` from a TRACTOR folder.

    Packets keep their original timing; a trace shorter than the window is looped.

    Args:
        folder: this project's layout (``raw``, ``multi_ue``, ``single_ue_kpi``) or the TRACTOR
            repository (``raw``, ``logs/Multi-UE``, ``logs/SingleUE/Trial7/Raw``).
        scenario: key of ``SCENARIOS``.
        duration_us: window.
        reading: of the KPI logs, see ``scenario_channel``.

    Raises:
        InputError: a folder or file that is missing or unusable.
    """
    existing(folder, "folder")
    ues = SCENARIOS[scenario].ues
    notes, parts = [], []
    counts = {"split_records": 0, "stale_rows": 0, "duplicate_rows": 0, "looped_ues": 0}
    for n, ue in enumerate(ues, start=1):
        uplink, split, note = read_trace(folder, ue.trace)
        counts["split_records"] += split
        if note:
            notes.append(f"UE {n}: {note}")
        if uplink.duration_us < duration_us:
            counts["looped_ues"] += 1
            notes.append(f"UE {n}: trace {ue.trace} of {uplink.duration_us / 1e6:.0f} s is looped")
        parts.append(uplink.loop_to(duration_us))
    logs, stale = read_scenario_logs(folder, scenario)
    for n, (log, old) in enumerate(zip(logs, stale, strict=True), start=1):
        counts["stale_rows"] += int(old.sum())
        counts["duplicate_rows"] += log.duplicate_rows
        if old.any():
            fate = "dropped" if reading == "cleaned" else "kept"
            notes.append(f"UE {n}: {int(old.sum())} stale rows of {log.path.name} {fate}")
        if log.duplicate_rows:
            notes.append(f"UE {n}: {log.duplicate_rows} duplicated rows of {log.path.name} dropped")
    channel = scenario_channel(logs, stale, duration_us, reading)
    return TractorScenario(flows.stack(parts), channel, counts, tuple(notes))
