from __future__ import annotations

import shutil

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.traffic import tractor
from tests.traffic import tractor_folder as made

S1_UE1 = "multi_ue/Trial2/multi4/1010123456002_metrics.csv"


@pytest.fixture
def folder(tmp_path):
    return made.build(tmp_path / "tractor")


@pytest.fixture
def kpi(tmp_path):
    return lambda rows: made.write(tmp_path / "log.csv", made.KPI_HEADER, rows)


@pytest.fixture
def raw(tmp_path):
    return lambda rows: made.write(tmp_path / "trace.csv", made.RAW_HEADER, rows)


def test_a_raw_trace_gives_its_uplink_payload(folder):
    trace = tractor.read_packet_trace(folder / "raw" / "embb_3.csv")
    assert trace.arrivals.time_us.tolist() == [0, 500_000, 500_000, 500_000, 1_500_000]
    assert trace.arrivals.size_bytes.tolist() == [100, 1500, 1500, 100, 40]
    assert trace.arrivals.duration_us == 2_000_001  # downlink counts for the length
    assert (trace.records, trace.split_records) == (3, 1)


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([made.raw_row(1, 1.0, 100), made.raw_row(2, 0.5, 100)], ": row 3, Time"),
        ([made.raw_row(1, -1.0, 100)], ": row 2, Time"),
        ([made.raw_row(1, 0.0, 100), made.raw_row(2, 0.1, 69)], ": row 3, Length"),
        ([made.raw_row(1, 0.0, 100), made.raw_row(2, 0.1, -100)], ": row 3, Length"),
        ([made.raw_row(1, 0.0, 100, made.SERVER)], ""),
        ([made.raw_row(1, 0.0, 100), "App,2,soon,a,b,UDP,100"], ": row 3, Time"),
        ([made.raw_row(1, 0.0, 100), "App,2,0.1,172.3"], ": row 3"),
        ([], ""),
    ],
)
def test_a_bad_raw_trace_is_refused_with_file_and_row(raw, rows, where):
    path = raw(rows)
    with pytest.raises(InputError) as caught:
        tractor.read_packet_trace(path)
    assert caught.value.where == f"{path}{where}"


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([made.kpi_row(500, 30), made.kpi_row(250, 30)], ": row 3, Timestamp"),
        ([made.kpi_row(0, 30), made.kpi_row(250, "nan")], ": row 3, ul_sinr"),
        ([made.kpi_row(0, "n/a")], ": row 2, ul_sinr"),
        ([made.kpi_row(0, 30, -0.1)], ": row 2, rx_brate uplink [Mbps]"),
        ([made.kpi_row(0, 30), made.kpi_row(250, 30)[:40]], ": row 3"),
        ([], ""),
    ],
)
def test_a_bad_kpi_log_is_refused_with_file_and_row(kpi, rows, where):
    path = kpi(rows)
    with pytest.raises(InputError) as caught:
        tractor.read_kpi_log(path)
    assert caught.value.where == f"{path}{where}"


def test_a_kpi_log_without_its_columns_is_refused(tmp_path):
    path = made.write(tmp_path / "log.csv", "Timestamp,ul_mcs", ["1,2"])
    with pytest.raises(InputError, match=r"columns Timestamp, ul_sinr, rx_brate uplink"):
        tractor.read_kpi_log(path)


def test_duplicated_rows_are_dropped_and_counted(kpi):
    log = tractor.read_kpi_log(kpi([made.kpi_row(t, t) for t in (1, 2, 2, 2, 3)]))
    assert log.time_ms.tolist() == [1, 2, 3]
    assert log.duplicate_rows == 2


def test_idle_rows_hold_the_last_active_value(kpi):
    log = tractor.read_kpi_log(kpi([made.kpi_row(i, s) for i, s in enumerate([0, 7, 0, 0, 9, 0])]))
    assert tractor.held_sinr(log).tolist() == [7, 7, 7, 7, 9, 9]
    silent = tractor.read_kpi_log(kpi([made.kpi_row(0, 0)]))
    with pytest.raises(InputError, match="0 in every row"):
        tractor.held_sinr(silent)


def test_rows_before_a_long_pause_are_stale(kpi):
    times = [0, 250, 10_000, 10_250, 10_000_000, 10_000_250, 10_010_000]
    log = tractor.read_kpi_log(kpi([made.kpi_row(t, 30) for t in times]))
    assert tractor.stale_rows(log).tolist() == [True] * 4 + [False] * 3


def test_a_kpi_log_stands_in_for_a_missing_trace(folder):
    flow, split, note = tractor.read_trace(folder, "embb_2")
    # 0.1 Mbit/s for 250 ms are 3,125 bytes, 0.05 are 1,563 (rounded): packets spread over the row.
    assert flow.size_bytes.tolist() == [1500, 1500, 125, 1500, 62]
    assert flow.time_us.tolist() == [0, 83_333, 166_666, 500_000, 625_000]
    assert flow.duration_us == 750_000
    assert split == 0
    assert "embb_2 is missing" in note
    made.write(folder / "raw" / "embb_2.csv", made.RAW_HEADER, [made.raw_row(1, 0.0, 170)])
    assert tractor.read_trace(folder, "embb_2")[2] is None


@pytest.mark.parametrize("layout", [made.OURS, made.ORIGINAL])
def test_a_scenario_is_assembled_from_either_layout(tmp_path, layout):
    folder = made.build(tmp_path / "any", layout)
    real = tractor.load_scenario(folder, "scenario_2", 4_000_000)
    assert real.arrivals.n_ue == real.channel.n_ue == 4
    assert real.arrivals.duration_us == 4_000_000
    assert real.channel.duration_us == 4_000_000
    # Traces of 2.000001 s start a second time within 4 s; UE 2's log of 0.75 s repeats.
    assert np.count_nonzero(real.arrivals.ue == 0) == 10
    assert real.counts == {
        "split_records": 3,
        "stale_rows": 8,
        "duplicate_rows": 0,
        "looped_ues": 4,
    }
    assert any("embb_2 is missing" in note for note in real.notes)
    assert any("stale rows" in note and "dropped" in note for note in real.notes)


def test_cleaned_puts_all_ues_on_one_clock(folder):
    real = tractor.load_scenario(folder, "scenario_1", 2_500_000)
    # UE 1's fresh rows: 20 0 0 23 0 0 26 0 from 0 ms; the last UE appears three rows later.
    assert real.channel.sinr_db[0].tolist() == [23, 23, 23, 26, 26] * 2
    assert real.channel.sinr_db[3].tolist() == [20, 20, 20, 23, 23, 23, 26, 26, 20, 20]


def test_as_published_keeps_every_row(folder):
    real = tractor.load_scenario(folder, "scenario_1", 2_750_000, "as_published")
    assert real.channel.sinr_db[0].tolist() == [40, 0, 20, 0, 0, 23, 0, 0, 26, 0, 40]


def test_segments_decide_what_is_stale_where_they_are_given(folder):
    header = "scenario,ue,imsi,trace,row_start,row_end,stale"
    imsis = [f"101012345600{n}" for n in range(2, 6)]
    rows = [
        f"{trial},1,{imsi},t,{a},{b},{stale}"
        for trial in ("Trial2", "Trial3")
        for imsi in imsis
        for a, b, stale in ((0, 1, True), (2, 4, True), (5, 9, False))
    ]
    path = made.write(folder / "multi_ue" / "segments.csv", header, rows)
    assert tractor.load_scenario(folder, "scenario_1", 10).counts["stale_rows"] == 4 * 5
    for bad, where in (
        ([*rows[:-1], rows[-1].replace("False", "no")], f"{path}: row {len(rows) + 1}, stale"),
        ([*rows[:-1], rows[-1].replace(",9,", ",4,")], f"{path}: row {len(rows) + 1}, row_end"),
        (rows[3:], str(path)),
        ([rows[0].replace(",1,True", ",99,True"), *rows[1:]], str(path)),
    ):
        made.write(path, header, bad)
        with pytest.raises(InputError) as caught:
            tractor.load_scenario(folder, "scenario_1", 10)
        assert caught.value.where == where


@pytest.mark.parametrize(
    "missing",
    [
        "raw/embb_3.csv",
        "multi_ue/Trial2/multi4/1010123456004_metrics.csv",
        "raw",
        "multi_ue",
        "",
    ],
)
def test_a_missing_file_or_folder_is_named(folder, missing):
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=str(folder)) as caught:
        tractor.load_scenario(folder, "scenario_1", 1_000_000)
    assert "\n" not in str(caught.value)


def test_a_truncated_log_is_named(folder):
    text = (folder / S1_UE1).read_text()
    (folder / S1_UE1).write_text(text[:-30])
    with pytest.raises(InputError, match=r"1010123456002_metrics.csv: row 11"):
        tractor.load_scenario(folder, "scenario_1", 1_000_000)


def test_an_unknown_reading_is_refused(folder):
    with pytest.raises(InputError, match="cleaned or as_published"):
        tractor.load_scenario(folder, "scenario_1", 1_000_000, "raw")


# ---- the real files ----


@pytest.fixture(scope="module")
def real_folder(shared_data):
    folder = shared_data / "tractor"
    if not folder.is_dir():
        pytest.skip(f"no TRACTOR files in {shared_data}")
    return folder


@pytest.mark.parametrize(
    ("scenario", "published_db"),
    [("scenario_1", [13.1, 2.3, 3.3, 6.0]), ("scenario_2", [20.7, 5.5, 4.2, 12.2])],
)
def test_table_10_averages_are_means_over_all_rows(real_folder, scenario, published_db):
    logs, _ = tractor.read_scenario_logs(real_folder, scenario)
    found = [log.sinr_db.mean() for log in logs]
    assert found == pytest.approx(published_db, abs=0.06)
    whole = tractor.scenario_channel(
        logs[1:2], [np.zeros(logs[1].time_ms.size, bool)], 250_000 * logs[1].time_ms.size,
        "as_published",
    )  # fmt: skip
    assert whole.sinr_db.mean() == pytest.approx(published_db[1], abs=0.06)


@pytest.mark.parametrize("scenario", tractor.SCENARIOS)
def test_both_rules_find_the_same_stale_rows(real_folder, scenario):
    logs, stale = tractor.read_scenario_logs(real_folder, scenario)
    assert [int(s.sum()) for s in stale] == [5342, 0, 0, 0]
    for log, marked in zip(logs, stale, strict=True):
        assert np.array_equal(tractor.stale_rows(log), marked)


@pytest.mark.parametrize("scenario", tractor.SCENARIOS)
def test_the_scenarios_play_the_traces_of_the_run(real_folder, scenario):
    files = tractor.SCENARIOS[scenario]
    log = real_folder / "multi_ue" / files.folder / "output_multi4.txt"
    expected = [f"Using trace: ./raw/{ue.trace}.csv for {ue.imsi}" for ue in files.ues]
    assert sorted(log.read_text().splitlines()) == sorted(expected)


def test_real_traces_have_the_known_sizes(real_folder):
    # Counted once with awk: UL rows, sum of Length - 70, rows above 1,570.
    for name, records, total, split in (
        ("embb_04_10", 1_865, 365_094, 2),
        ("mmtc_11_18", 2_585, 449_950, 33),
        ("embb_05_18_b", 2_498, 16_398_496, 1_769),
    ):
        trace = tractor.read_packet_trace(real_folder / "raw" / f"{name}.csv")
        assert (trace.records, trace.arrivals.total_bytes, trace.split_records) == (
            records,
            total,
            split,
        )


def test_real_scenarios_load(real_folder):
    one = tractor.load_scenario(real_folder, "scenario_1", 600_000_000)
    assert one.counts["looped_ues"] == 1  # embb_04_10 is 295 s long
    assert one.channel.sinr_db.shape == (4, 2_400)
    assert one.channel.sinr_db.min() > 0  # no idle zero left
    assert one.arrivals.offered_mbps < 0.05  # light, as the research says
    two = tractor.load_scenario(real_folder, "scenario_2", 600_000_000, "as_published")
    assert two.counts["stale_rows"] == 5_342
    assert any("kept" in note for note in two.notes)
    assert (two.channel.sinr_db == 0).any()
