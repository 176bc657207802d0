"""Latencies from the logs of other stacks.

* OAI ``nr_ulsim -P``: mean ULSCH decoding time of each SNR point; the slowest point counts.
* OAI block-test tables (CSV): mean ULSCH decoding time by MCS, bandwidth and layers.
* srsRAN gNB logs: one line a PUSCH, with the time of its whole processing.

None of them says how many SMs it ran on, so the caller does. The first two give means only: the
median is taken to be the mean, the 99th percentile the mean times a given ratio. Lines that
cannot be used are counted by reason, and the first of each kind is kept to be shown.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ranloom.commented_csv import header_names
from ranloom.errors import InputError
from ranloom.lut.measurements import Measurements, from_cells, read_measurements
from ranloom.nr.mcs import mcs_table
from ranloom.nr.tbs import tbs_table

_TO_US = {"us": 1.0, "µs": 1.0, "usec": 1.0, "ms": 1e3, "msec": 1e3, "s": 1e6, "ns": 1e-3}
_TIME = r"(?P<time>\d+(?:\.\d+)?)\s*(?P<unit>us|µs|usec|msec|ms|ns|s)\b"


@dataclass(frozen=True)
class ImportOptions:
    """What a log does not say.

    Args:
        sm: SMs that the decoder ran on.
        p99_over_mean: ratio for logs that only give means.
        table: MCS table of the profile; other tables are skipped.
        machine: part of the machine name, for tables that hold several; empty for all.
        n_layers: layers of the profile; in tables that name them, others are skipped.
    """

    sm: int
    p99_over_mean: float
    table: int = 1
    machine: str = ""
    n_layers: int = 1


@dataclass
class Skipped:
    """Lines that were not used: reason to (count, first such line)."""

    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, reason: str, line: str) -> None:
        """Count one line."""
        count, first = self.reasons.get(reason, (0, line.strip()[:160]))
        self.reasons[reason] = (count + 1, first)

    def lines(self) -> list[str]:
        """One line a reason, for people."""
        return [f"{n} x {why}, first: {first}" for why, (n, first) in self.reasons.items()]


@dataclass(frozen=True)
class Imported:
    """An imported profile and what was left out of it."""

    measurements: Measurements
    skipped: Skipped


def import_nr_ulsim(lines: Iterable[str], options: ImportOptions, where: str) -> Imported:
    """Latencies from the output of OAI's ``nr_ulsim -P``; several runs may follow each other.

    Raises:
        InputError: there is no usable decoding time.
    """
    skipped, cells = Skipped(), _Cells(options)
    n_prb: int | None = None
    mcs: int | None = None
    tables: list[int] = []
    for line in lines:
        if found := re.search(r"num_rbs:\s*(\d+)", line):
            n_prb, mcs = int(found[1]), None
        if found := re.search(r"MCS:\s*(\d+), mod order:\s*(\d+), code_rate:\s*(\d+)", line):
            mcs = int(found[1])
            tables = _tables_with(mcs, int(found[2]), int(found[3]))
        if "ULSCH total decoding time" not in line:
            continue
        found = re.search(_TIME + r"\s*\(\s*(?P<trials>\d+)\s*trials\)", line)
        if not found:
            skipped.add("unreadable decoding time", line)
        elif n_prb is None or mcs is None:
            skipped.add("decoding time before any MCS and num_rbs", line)
        elif options.table not in tables:
            found_in = f"MCS table {tables[0]}" if tables else "no MCS table of 38.214"
            skipped.add(f"MCS {mcs} is of {found_in}, not of table {options.table}", line)
        elif int(found["trials"]) == 0:
            skipped.add("zero trials", line)
        else:
            mean_us = float(found["time"]) * _TO_US[found["unit"]]
            cells.add_mean(mcs, n_prb, mean_us, int(found["trials"]))
    return cells.imported(skipped, where, "ULSCH total decoding time")


# columns of a block-test table under which a time was taken
_CONDITIONS = ("machine", "snr_db", "mcs", "bw_mhz", "prb", "layers", "antennas")


def import_oai_block_tests(lines: Iterable[str], options: ImportOptions, where: str) -> Imported:
    """Latencies from a table of OAI block tests (CSV).

    Needs the columns ``machine``, ``mcs``, ``prb``, ``layers`` and ``ulsch_decoding_us``.

    Raises:
        InputError: a column is missing, several machines match, two rows contradict each other,
            or no row is usable.
    """
    reader = csv.DictReader(lines)
    needed = ("machine", "mcs", "prb", "layers", "ulsch_decoding_us")
    missing = [n for n in needed if n not in (reader.fieldnames or ())]
    if missing:
        raise InputError(where, missing, f"needed columns: {', '.join(needed)}")
    skipped, cells = Skipped(), _Cells(options)
    machines: set[str] = set()
    seen: dict[tuple[str, ...], float] = {}
    conditions = [n for n in reader.fieldnames or () if n in _CONDITIONS]
    for row in reader:
        line = ",".join(str(v) for v in row.values())
        if options.machine not in row["machine"]:
            skipped.add("another machine", line)
        elif row["layers"] != str(options.n_layers):
            skipped.add(f"another number of layers than {options.n_layers}", line)
        elif not row["ulsch_decoding_us"]:
            skipped.add("no decoding time", line)
        else:
            try:
                key = int(row["mcs"]), int(row["prb"])
                mean_us = float(row["ulsch_decoding_us"])
            except ValueError:
                skipped.add("not a number", line)
                continue
            same = tuple(row[name] for name in conditions)
            if seen.setdefault(same, mean_us) != mean_us:
                raise InputError(
                    f"{where}: {', '.join(conditions)}", same, "allowed: each once, or alike"
                )
            machines.add(row["machine"])
            cells.add_mean(*key, mean_us, 1)
    if len(machines) > 1:
        raise InputError(
            f"{where}: machine", sorted(machines), "allowed: one; choose by part of name"
        )
    return cells.imported(skipped, where, "row with ulsch_decoding_us")


_SRSRAN_ORDER = {"QPSK": 2, "16QAM": 4, "64QAM": 6, "256QAM": 8}
_SRSRAN_PUSCH = re.compile(
    r"PUSCH: .*?prb=\[(?P<first>\d+), ?(?P<end>\d+)\) symb=\[(?P<from>\d+), ?(?P<to>\d+)\)"
    r" mod=(?P<mod>\w+) rv=(?P<rv>\d) tbs=(?P<tbs>\d+) .*?\bt=" + _TIME
)
# DMRS resource elements per PRB that srsRAN configures: 1 to 3 symbols, all or half of the REs
_DMRS_PER_PRB = (12, 24, 36, 6, 18)


def import_srsran(lines: Iterable[str], options: ImportOptions, where: str) -> Imported:
    """Latencies from PUSCH lines of an srsRAN gNB log.

    The MCS is not printed: it is the one of the table whose transport block has the printed size
    (in bytes), modulation, PRBs and symbols.

    Raises:
        InputError: there is no usable PUSCH line.
    """
    skipped, cells = Skipped(), _Cells(options)
    for line in lines:
        if "PUSCH:" not in line:
            skipped.add("no PUSCH line", line)
            continue
        found = _SRSRAN_PUSCH.search(line)
        if not found:
            skipped.add("PUSCH line without prb, modulation, tbs or t", line)
            continue
        n_prb = int(found["end"]) - int(found["first"])
        symbols = int(found["to"]) - int(found["from"])
        mcs = _mcs_of_size(
            8 * int(found["tbs"]), n_prb, symbols, _SRSRAN_ORDER.get(found["mod"], 0), options.table
        )
        if mcs is None:
            skipped.add(f"no MCS of table {options.table} gives this transport block", line)
        else:
            cells.add_sample(mcs, n_prb, float(found["time"]) * _TO_US[found["unit"]])
    return cells.imported(skipped, where, "PUSCH line with a time")


def _mcs_of_size(tbs_bits: int, n_prb: int, symbols: int, order: int, table: int) -> int | None:
    if not 1 <= n_prb <= 275:
        return None
    rows = mcs_table(table)
    for dmrs in _DMRS_PER_PRB:
        if 12 * symbols <= dmrs:
            continue
        sizes = tbs_table(n_prb, table=table, n_symbols=symbols, n_dmrs_per_prb=dmrs)[:, n_prb]
        fits = np.flatnonzero((sizes == tbs_bits) & (rows.modulation_order == order))
        if len(fits):
            return int(fits[0])
    return None


def _tables_with(mcs: int, order: int, printed_rate: int) -> list[int]:
    """MCS tables whose row ``mcs`` has this order and rate, printed in 1/1024 or 1/10240."""
    found = []
    for table in (1, 2, 3):
        rows = mcs_table(table)
        if mcs < rows.n_mcs and int(rows.modulation_order[mcs]) == order:
            rate = float(rows.code_rate[mcs])
            if any(abs(rate - printed_rate / unit) < 1e-3 for unit in (1024, 10240)):
                found.append(table)
    return found


class _Cells:
    """Latencies gathered by (MCS, PRB)."""

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._means: dict[tuple[int, int], tuple[float, int]] = {}
        self._samples: dict[tuple[int, int], list[float]] = {}

    def add_mean(self, mcs: int, n_prb: int, mean_us: float, trials: int) -> None:
        """The slowest mean of a cell counts, with its trials."""
        self._means[mcs, n_prb] = max(self._means.get((mcs, n_prb), (0.0, 0)), (mean_us, trials))

    def add_sample(self, mcs: int, n_prb: int, latency_us: float) -> None:
        """Single latencies of a cell become percentiles."""
        self._samples.setdefault((mcs, n_prb), []).append(latency_us)

    def imported(self, skipped: Skipped, where: str, needed: str) -> Imported:
        """All that was gathered."""
        ratio, cells = self._options.p99_over_mean, {}
        for (mcs, n_prb), (mean, trials) in self._means.items():
            cells[mcs, n_prb, self._options.sm] = (mean, mean * ratio, trials)
        for (mcs, n_prb), values in self._samples.items():
            p50, p99 = np.quantile(values, [0.5, 0.99], method="higher")
            cells[mcs, n_prb, self._options.sm] = (float(p50), float(p99), len(values))
        if not cells:
            why = f"; skipped {'; '.join(skipped.lines())}" if skipped.reasons else ""
            raise InputError(where, "no latency", f"needed: at least one {needed}{why}")
        how = {"source": Path(where).name, "sm": str(self._options.sm)}
        if self._means:
            how["p99_over_mean"] = f"{ratio:g} (assumed)"
        return Imported(from_cells(cells, "imported", how), skipped)


_LINE_IMPORTERS: dict[str, Callable[[Iterable[str], ImportOptions, str], Imported]] = {
    "nr_ulsim": import_nr_ulsim,
    "oai_block_tests": import_oai_block_tests,
    "srsran": import_srsran,
}
FORMATS = ("csv", *_LINE_IMPORTERS)


def detect_format(text: str) -> str | None:
    """Format of a file by its content; None if it is none of the known ones."""
    if "ulsch_decoding_us" in text:
        return "oai_block_tests"
    if "PUSCH: rnti=" in text:
        return "srsran"
    if "ULSCH total decoding time" in text or "[ULSIM]" in text:
        return "nr_ulsim"
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return "csv" if rows and {"mcs", "prb"} <= set(header_names(rows[0])) else None


def import_profile(path: Path, options: ImportOptions, form: str | None = None) -> Imported:
    """Read a profile file or a log of a known format.

    Args:
        path: the file.
        options: what a log does not say; a profile file says it all.
        form: one of ``FORMATS``; None to detect it.

    Raises:
        InputError: the file is missing, of no known format, or holds no latency.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        raise InputError(str(path), "no such file", "allowed: a profile or a log") from None
    form = form or detect_format(text)
    if form not in FORMATS:
        raise InputError(
            str(path), form or "format not recognised", f"allowed formats: {', '.join(FORMATS)}"
        )
    if form == "csv":
        return Imported(read_measurements(path), Skipped())
    return _LINE_IMPORTERS[form](text.splitlines(), options, str(path))
