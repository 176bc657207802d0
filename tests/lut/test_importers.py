"""Importers: values typed in from the samples, variants of the formats, and what is refused."""

import pytest

from ranloom.errors import InputError
from ranloom.lut.importers import (
    ImportOptions,
    detect_format,
    import_nr_ulsim,
    import_oai_block_tests,
    import_profile,
    import_srsran,
)
from ranloom.lut.measurements import read_measurements, write_measurements

OPTIONS = ImportOptions(sm=48, p99_over_mean=1.2)

ULSIM = """\
[ULSIM]: CDM groups: 1, dmrs_config_type: 0, num_rbs: 25, nb_symb_sch: 12, start_symbol 0
[ULSIM]: MCS: 9, mod order: 2, code_rate: 6790
|__ ULSCH total decoding time              375.65 us (295 trials)		(110.82 total [ms])
|__ ULSCH total decoding time              381.78 us (254 trials)		( 96.97 total [ms])
"""

BLOCKS = """\
machine,snr_db,mcs,bw_mhz,prb,layers,antennas,ulsch_decoding_us
Box A,20,15,40,106,1,1,81.85
Box A,20,15,40,106,2,2,121.25
Box A,30,25,40,106,1,1,
Box B,20,15,40,106,1,1,97.61
"""

PUSCH = (
    "2023-06-07T20:54:24 [UL-PHY1 ] [D] [   584.9] PUSCH: rnti=0x4601 h_id=0 prb=[4, 10) "
    "symb=[0, 14) mod=64QAM rv=0 tbs=544 crc=OK iter=2.0 snr=31.8dB t=135.0us\n"
)


def rows(found):
    m = found.measurements
    return list(
        zip(
            m.mcs.tolist(), m.prb.tolist(), m.sm.tolist(), m.p50_us, m.p99_us, m.trials, strict=True
        )
    )


def test_nr_ulsim_takes_the_slowest_point():
    found = import_nr_ulsim(ULSIM.splitlines(), OPTIONS, "log")
    assert rows(found) == [(9, 25, 48, 381.78, pytest.approx(381.78 * 1.2), 254)]
    assert found.measurements.provenance == "imported"
    assert found.skipped.lines() == []


def test_nr_ulsim_units_and_further_runs():
    text = ULSIM.replace("381.78 us", "0.39 ms") + ULSIM.replace("num_rbs: 25", "num_rbs: 50")
    found = import_nr_ulsim(text.splitlines(), OPTIONS, "log")
    assert [r[:4] for r in rows(found)] == [(9, 25, 48, 390.0), (9, 50, 48, 381.78)]


def test_nr_ulsim_counts_what_it_skips():
    text = (
        "|__ ULSCH total decoding time   1.00 us (5 trials)\n"
        + ULSIM
        + "|__ ULSCH total decoding time              0.00 us (  0 trials)\n"
        + "|__ ULSCH total decoding time              broken\n"
        + "[ULSIM]: MCS: 25, mod order: 8, code_rate: 8850\n"
        + "|__ ULSCH total decoding time   784.71 us (100 trials)\n"
    )
    found = import_nr_ulsim(text.splitlines(), OPTIONS, "log")
    assert rows(found)[0][3] == 381.78
    assert {why: n for why, (n, _) in found.skipped.reasons.items()} == {
        "decoding time before any MCS and num_rbs": 1,
        "zero trials": 1,
        "unreadable decoding time": 1,
        "MCS 25 is of MCS table 2, not of table 1": 1,
    }
    assert "first: |__ ULSCH total decoding time              0.00 us" in "\n".join(
        found.skipped.lines()
    )


def test_nr_ulsim_of_the_256qam_table():
    text = ULSIM.replace(
        "MCS: 9, mod order: 2, code_rate: 6790", "MCS: 25, mod order: 8, code_rate: 8850"
    )
    found = import_nr_ulsim(text.splitlines(), ImportOptions(48, 1.2, table=2), "log")
    assert rows(found)[0][:3] == (25, 25, 48)


ZERO_TRIALS = ULSIM.replace("295 trials", "0 trials").replace("254 trials", "0 trials")


@pytest.mark.parametrize(
    "text", ["", "SNR 0.0: n_errors (1/1)\n", ULSIM.split("|__")[0], ZERO_TRIALS]
)
def test_log_without_decoding_times_is_one_line(text):
    with pytest.raises(InputError, match="at least one ULSCH total decoding time") as refused:
        import_nr_ulsim(text.splitlines(), OPTIONS, "run.log")
    assert str(refused.value).startswith("run.log: ")
    assert "\n" not in str(refused.value)


def test_block_tests():
    found = import_oai_block_tests(
        BLOCKS.splitlines(), ImportOptions(48, 1.2, machine="Box A"), "blocks.csv"
    )
    assert [r[:4] for r in rows(found)] == [(15, 106, 48, 81.85)]
    assert {why: n for why, (n, _) in found.skipped.reasons.items()} == {
        "another number of layers than 1": 1,
        "no decoding time": 1,
        "another machine": 1,
    }
    with pytest.raises(InputError, match=r"Box A.*Box B.*allowed: one"):
        import_oai_block_tests(BLOCKS.splitlines(), OPTIONS, "blocks.csv")
    with pytest.raises(InputError, match="needed columns"):
        import_oai_block_tests(["a,b", "1,2"], OPTIONS, "blocks.csv")
    in_ms = BLOCKS.replace("decoding_us", "decoding_ms")
    with pytest.raises(InputError, match=r"'ulsch_decoding_us'.*needed columns"):
        import_oai_block_tests(in_ms.splitlines(), OPTIONS, "blocks.csv")
    two_layers = ImportOptions(48, 1.2, machine="Box A", n_layers=2)
    assert rows(import_oai_block_tests(BLOCKS.splitlines(), two_layers, "b"))[0][3] == 121.25


def test_block_tests_that_contradict_themselves():
    box_a = ImportOptions(48, 1.2, machine="Box A")
    first = BLOCKS.splitlines()[1]
    alike = [*BLOCKS.splitlines(), first]
    assert rows(import_oai_block_tests(alike, box_a, "blocks.csv"))[0][3] == 81.85
    with pytest.raises(InputError, match=r"mcs, .*'Box A', '20', '15', .* each once, or alike"):
        import_oai_block_tests([*alike, first.replace("81.85", "90")], box_a, "blocks.csv")
    # the same block at another SNR is another measurement: the slowest counts
    found = import_oai_block_tests(
        [*alike, first.replace("A,20", "A,25").replace("81.85", "90")], box_a, "blocks.csv"
    )
    assert rows(found)[0][3] == 90.0


def test_srsran_finds_the_mcs_from_the_size():
    # 544 bytes on 6 PRB x 144 REs at 64QAM: MCS 26 of table 1, 873/1024
    later = PUSCH.replace("t=135.0us", "t=141.5us uci_t=0.0us ret_t=0.0us")
    renamed = PUSCH.replace("snr=", "sinr=").replace("t=135.0us", "t=0.12ms")
    other = PUSCH.replace("tbs=544", "tbs=545")
    text = PUSCH + later + renamed + other + "[PHY] PUCCH: rnti=0x4605 t=23.6us\n"
    found = import_srsran(text.splitlines(), OPTIONS, "gnb.log")
    assert rows(found) == [(26, 6, 48, 135.0, 141.5, 3)]
    assert {why: n for why, (n, _) in found.skipped.reasons.items()} == {
        "no MCS of table 1 gives this transport block": 1,
        "no PUSCH line": 1,
    }
    with pytest.raises(InputError, match="at least one PUSCH line with a time"):
        import_srsran(["nothing"], OPTIONS, "gnb.log")


def test_formats_are_told_apart():
    assert detect_format(ULSIM) == "nr_ulsim"
    assert detect_format(BLOCKS) == "oai_block_tests"
    assert detect_format(PUSCH) == "srsran"
    assert detect_format("# a\nmcs,prb,sm,p50_us,p99_us\n") == "csv"
    assert detect_format("\nMCS, PRB, sm, p50_us, p99_us\n") == "csv"
    assert detect_format("hello\n") is None


def test_real_samples(shared_data):
    folder = shared_data / "oai"
    ulsim = import_profile(folder / "nr_ulsim.P.25prb_mcs9_snr0-3.log", OPTIONS)
    assert [r[:4] for r in rows(ulsim)] == [(9, 25, 48, 381.78)]
    table_2 = ImportOptions(48, 1.2, table=2)
    wide = import_profile(folder / "nr_ulsim.P.273prb_mcs25_qam256.log", table_2)
    assert [r[:4] for r in rows(wide)] == [(25, 273, 48, 784.71)]
    spark = ImportOptions(48, 1.2, machine="DGX Spark")
    blocks = import_profile(folder / "oai_kpi_block_tests.csv", spark)
    assert [r[:4] for r in rows(blocks)] == [
        (15, 106, 48, 97.61),
        (15, 273, 48, 168.85),
        (25, 106, 48, 92.56),
        (25, 273, 48, 178.25),
    ]
    pusch = import_profile(folder / "srsran_gnb_pusch.log", OPTIONS)
    assert {r[1] for r in rows(pusch)} == {3, 6, 7, 267}
    assert pusch.skipped.reasons["no PUSCH line"][0] == 4


CSV = "# device: box\nmcs,prb,sm,p50_us,p99_us,trials\n5,52,16,300,350,100\n5,52,48,250,280,100\n"


def write(tmp_path, text):
    path = tmp_path / "profile.csv"
    path.write_text(text)
    return path


def test_profile_file_round_trip(tmp_path):
    first = read_measurements(write(tmp_path, CSV))
    assert len(first) == 2
    assert first.how == {"device": "box"}
    assert first.provenance == "imported"
    write_measurements(tmp_path / "again.csv", first)
    again = read_measurements(tmp_path / "again.csv")
    assert again.how == first.how
    assert again.p99_us.tolist() == [350.0, 280.0]
    # order of rows does not matter, equal duplicates are one
    lines = CSV.splitlines()
    shuffled = "\n".join([*lines[:2], lines[3], lines[2], lines[3]]) + "\n"
    assert read_measurements(write(tmp_path, shuffled)).sm.tolist() == [16, 48]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace("p99_us", "p99_ms"), r"column: 'p99_ms' .* needed: p99_us"),
        (lambda t: t.replace("sm,", "gpu,"), r"\['sm'\] .* needed columns"),
        (lambda t: t.replace("300,350", "x,350"), r"data row 1.* allowed: numbers"),
        (lambda t: t.replace("300,350", "400,350"), "p50_us <= p99_us"),
        (lambda t: t.replace("300,350,100", "300,350,0"), "trials: 0"),
        (lambda t: t.replace("5,52,48", "5,52,16"), "data row 2.*each cell once"),
        (lambda t: t.replace("5,52,48", "5,0,48"), "prb and sm from 1"),
        (lambda t: t.replace("300,350", "0.3,0.4").replace("250,280", "0.2,0.3"), "milliseconds"),
        (lambda t: "\n".join(t.splitlines()[:2]) + "\n", "no data row"),
        (lambda t: "", "needed columns"),
    ],
)
def test_bad_profile_file_is_one_line(tmp_path, edit, message):
    with pytest.raises(InputError, match=message) as refused:
        read_measurements(write(tmp_path, edit(CSV)))
    assert "\n" not in str(refused.value)


def test_missing_or_unknown_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        import_profile(tmp_path / "none.log", OPTIONS)
    with pytest.raises(InputError, match="format not recognised"):
        import_profile(write(tmp_path, "hello\n"), OPTIONS)
    with pytest.raises(InputError, match="allowed formats"):
        import_profile(write(tmp_path, CSV), OPTIONS, form="xml")


def test_profiles_of_spreadsheets_are_read(tmp_path):
    """A byte order mark, capitals, blanks, an empty line, further columns."""
    path = tmp_path / "profile.csv"
    text = (
        "\ufeff# device: Box A\n\nMCS, PRB, SM, p50_us, p99_us, note\n 5, 25, 8, 300, 350, slow\n"
    )
    path.write_text(text, encoding="utf-8")
    found = import_profile(path, OPTIONS)
    assert rows(found) == [(5, 25, 8, 300.0, 350.0, 1)]
    assert found.measurements.how["device"] == "Box A"
