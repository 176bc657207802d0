"""A small made-up TRACTOR folder: the real columns, four short logs a scenario, short traces."""

from __future__ import annotations

from pathlib import Path

from ranloom.traffic.tractor import SCENARIOS, UPLOAD_TRACE

KPI_HEADER = (
    "Timestamp,num_ues,IMSI,RNTI,,slicing_enabled,slice_id,slice_prb,power_multiplier,"
    "scheduling_policy,,dl_mcs,dl_n_samples,dl_buffer [bytes],tx_brate downlink [Mbps],"
    "tx_pkts downlink,tx_errors downlink (%),dl_cqi,,ul_mcs,ul_n_samples,ul_buffer [bytes],"
    "rx_brate uplink [Mbps],rx_pkts uplink,rx_errors uplink (%),ul_rssi,ul_sinr,phr,,"
    "sum_requested_prbs,sum_granted_prbs,,dl_pmi,dl_ri,ul_n,ul_turbo_iters"
)
RAW_HEADER = "App name,No.,Time,Source,Destination,Protocol,Length"
PHONE, SERVER = "172.30.1.1", "172.30.1.250"
OURS = {"raw": "raw", "multi": "multi_ue", "single": "single_ue_kpi"}
ORIGINAL = {"raw": "raw", "multi": "logs/Multi-UE", "single": "logs/SingleUE/Trial7/Raw"}


def kpi_row(time_ms: int, sinr_db: object, uplink_mbps: object = 0.0) -> str:
    cells = ["0"] * 36
    for blank in (4, 10, 18, 28, 31):
        cells[blank] = ""
    cells[0], cells[22], cells[26] = str(time_ms), str(uplink_mbps), str(sinr_db)
    return ",".join(cells)


def raw_row(number: int, time_s: float, length: int, source: str = PHONE) -> str:
    target = SERVER if source == PHONE else PHONE
    return f"App,{number},{time_s},{source},{target},UDP,{length}"


def write(path: Path, header: str, rows: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def build(folder: Path, layout: dict[str, str] = OURS) -> Path:
    """Traces of 2 s (UL at 0.0, 0.5 and 1.5 s); logs of ten rows, the first two half a year old.

    UE ``i`` (from 0) starts its fresh rows ``i`` rows late, and sends in every third row.
    """
    traces = {ue.trace for s in SCENARIOS.values() for ue in s.ues} - {"embb_2"} | {UPLOAD_TRACE}
    for trace in sorted(traces):
        rows = [
            raw_row(1, 0.0, 170),
            raw_row(2, 0.25, 999, SERVER),
            raw_row(3, 0.5, 3_170),
            raw_row(4, 1.5, 110),
            raw_row(5, 2.0, 500, SERVER),
        ]
        write(folder / layout["raw"] / f"{trace}.csv", RAW_HEADER, rows)
    rows = [kpi_row(250 * i, 30, rate) for i, rate in enumerate([0.1, 0.0, 0.05])]
    write(folder / layout["single"] / "embb_2.csv", KPI_HEADER, rows)
    for scenario in SCENARIOS.values():
        for i, ue in enumerate(scenario.ues):
            start_ms = 15_000_000_000
            fresh = [
                kpi_row(start_ms + 250 * (i + k), 20 + k if k % 3 == 0 else 0) for k in range(8)
            ]
            path = folder / layout["multi"] / scenario.folder / f"{ue.imsi}_metrics.csv"
            write(path, KPI_HEADER, [kpi_row(0, 40), kpi_row(250, 0), *fresh])
    return folder
