"""Measure the facts that ``tractor_like`` generates from.

``python -m ranloom.traffic.fit_tractor FOLDER [OUT.yaml]`` reads a TRACTOR folder and writes
``data/traffic/tractor_like.yaml``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.traffic import burst_model
from ranloom.traffic.tractor import (
    KPI_PERIOD_US,
    READINGS,
    SCENARIOS,
    UPLOAD_TRACE,
    KpiLog,
    held_sinr,
    read_scenario_logs,
    read_trace,
)
from ranloom.traffic.tractor_like import Facts, SinrFacts, UeFacts, write_facts

EXTRA_TRACES = (UPLOAD_TRACE, "urllc_04_16")  # heavy uplink that no UE of Table 10 plays
PROVENANCE = {
    "traces": "TRACTOR, Groen et al., IEEE ICC 2024",
    "repository": "https://github.com/genesys-neu/TRACTOR",
    "commit": "f2f052cbf541e25f561fae0a9ae8dbe4a9931702",
    "licence": "MIT",
    "packets": "UL records, Length - 70, split at 1500 bytes; burst gap 100 ms, train gap 1 ms",
    "sinr": "ul_sinr at 250 ms; mean and std over rows with a transmission",
}
_LAG_ROWS = 1_000_000 // KPI_PERIOD_US  # the coherence time is fitted at a lag of one second


def fit(folder: Path) -> Facts:
    """Facts of a TRACTOR folder.

    Raises:
        InputError: a file is missing or unusable.
    """
    scenarios, traces = {}, {}
    for name, files in SCENARIOS.items():
        logs, stale = read_scenario_logs(folder, name)
        scenarios[name] = tuple(
            UeFacts(
                ue.trace,
                {
                    reading: sinr_facts(log if reading == "as_published" else log.rows(~old))
                    for reading in READINGS
                },
            )
            for ue, log, old in zip(files.ues, logs, stale, strict=True)
        )
        traces.update(dict.fromkeys(ue.trace for ue in files.ues))
    traces.update(dict.fromkeys(EXTRA_TRACES))
    profiles = {name: burst_model.fit(read_trace(folder, name)[0]) for name in sorted(traces)}
    return Facts(PROVENANCE, profiles, scenarios)


def sinr_facts(log: KpiLog) -> SinrFacts:
    """SINR statistics of one log."""
    active = log.active
    if not active.any():
        raise InputError(
            str(log.path), "ul_sinr 0 in every row", "needed: a UE that sent at least once"
        )
    runs = np.count_nonzero(active & ~np.append(False, active[:-1]))
    correlation = _autocorrelation(held_sinr(log), _LAG_ROWS)
    coherence_s = KPI_PERIOD_US * 1e-6
    if correlation > 0:
        coherence_s = max(coherence_s, _LAG_ROWS * KPI_PERIOD_US * 1e-6 / -np.log(correlation))
    return SinrFacts(
        mean_db=float(log.sinr_db[active].mean()),
        std_db=float(log.sinr_db[active].std()),
        coherence_s=float(coherence_s),
        active_share=float(active.mean()),
        active_run_rows=float(active.sum() / runs),
    )


def _autocorrelation(series: NDArray[np.float64], lag: int) -> float:
    """Autocorrelation at a lag; 0 for a constant or a series too short for it."""
    centred = series - series.mean()
    power = float(centred @ centred)
    if series.size <= lag or power == 0.0:
        return 0.0
    return float(centred[:-lag] @ centred[lag:]) / power


def main(arguments: list[str]) -> int:
    """Command line: folder of the traces, optional output file."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m ranloom.traffic.fit_tractor FOLDER [OUT.yaml]\n")
        return 2
    out = Path(arguments[1]) if len(arguments) == 2 else Path("data/traffic/tractor_like.yaml")
    try:
        write_facts(fit(Path(arguments[0])), out)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
