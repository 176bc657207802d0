"""The command line: profile on this CPU, convert a log, fit; bad input is one line and code 2."""

import os
import subprocess
import sys

import pytest

from ranloom.lut.__main__ import main
from ranloom.lut.measurements import read_measurements


@pytest.fixture
def lut_command(root, monkeypatch, capsys):
    """Runs the command in this process; returns exit code, output and error output."""
    monkeypatch.chdir(root)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["lut", *args])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return left.value.code, shown.out, shown.err

    return run


def test_cpu_profile_is_a_profile_file(lut_command, tmp_path):
    out = tmp_path / "cpu.csv"
    code, _, error = lut_command(
        "profile", "--out", str(out), "--mcs", "5,9-10", "--prb", "6", "--repetitions", "3"
    )
    assert code == 0, error
    found = read_measurements(out)
    assert found.mcs.tolist() == [5, 9, 10]
    assert found.sm.tolist() == [1, 1, 1]
    assert found.provenance == "measured"
    assert (found.p50_us > 0).all()
    assert "10 iterations" in found.how["decoder"]


def test_fit_to_the_published_thresholds(lut_command):
    code, output, _ = lut_command(
        "fit", "--card", "data/cards/dgx_spark.yaml", "--published", "data/published/weaver.yaml"
    )
    assert code == 0
    assert "41 of 42 cells, least margin 8.22 us" in output


def test_fit_to_latencies(lut_command, tmp_path):
    profile = tmp_path / "profile.csv"
    rows = ["mcs,prb,sm,p50_us,p99_us"]
    # MCS 15: W = 960, 1920 and 2816 at 52, 106 and 162 PRB; T = 100 + 2 W / s + 0.01 W
    for prb, work in ((52, 960), (106, 1920), (162, 2816)):
        rows += [f"15,{prb},{s},1,{100 + 2 * work / s + 0.01 * work}" for s in (8, 16, 48)]
    profile.write_text("\n".join(rows) + "\n")
    code, output, _ = lut_command("fit", str(profile), "--card", "data/cards/dgx_spark.yaml")
    assert code == 0
    assert "a_us: 100\nk_us_sm: 2\nb_us: 0.01\n" in output
    assert "9 latencies: relative error median 0.0 %" in output


def test_convert_shows_what_it_skipped(lut_command, tmp_path):
    log = tmp_path / "run.log"
    log.write_text(
        "[ULSIM]: num_rbs: 25\n[ULSIM]: MCS: 9, mod order: 2, code_rate: 6790\n"
        "|__ ULSCH total decoding time  0.00 us (0 trials)\n"
        "|__ ULSCH total decoding time  300.00 us (10 trials)\n"
    )
    out = tmp_path / "profile.csv"
    code, output, _ = lut_command("convert", str(log), "--out", str(out), "--sm", "16")
    assert code == 0
    assert "skipped 1 x zero trials, first: |__ ULSCH total decoding time  0.00 us" in output
    found = read_measurements(out)
    assert (found.mcs[0], found.prb[0], found.sm[0], found.p50_us[0]) == (9, 25, 16, 300.0)
    assert found.provenance == "imported"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("profile", "--out", "x", "--mcs", "0,40"), "mcs: '0,40'"),
        (("profile", "--out", "x", "--prb", "a"), "prb: 'a'"),
        (("profile", "--out", "x", "--backend", "fpga"), "backend: 'fpga'"),
        (("fit", "--card", "none.yaml"), "none.yaml: 'no such file'"),
        (("convert", "none.log", "--out", "x", "--sm", "48"), "none.log: 'no such file'"),
    ],
)
def test_bad_input_is_one_line(lut_command, args, message):
    code, _, error = lut_command(*args)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_it_starts_as_a_module(root):
    done = subprocess.run(
        [sys.executable, "-m", "ranloom.lut", "fit", "--card", "none.yaml"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "none.yaml: 'no such file'" in done.stderr
    assert "Traceback" not in done.stderr


def test_cuda_backend_runs_on_the_simulator(root, tmp_path):
    """The whole path but the device: partitions, launches, file. No time in it means anything."""
    card = tmp_path / "card.yaml"
    spark = (root / "data/cards/dgx_spark.yaml").read_text()
    card.write_text(spark.replace("GB10 ", "simulator ").replace(": GB10", ": simulator"))
    out = tmp_path / "cuda.csv"
    options = [
        "--mcs",
        "1",
        "--prb",
        "1",
        "--sm",
        "8,48",
        "--iterations",
        "1",
        "--repetitions",
        "1",
        "--warm-up",
        "0",
    ]
    command = [sys.executable, "-m", "ranloom.lut", "profile", "--backend", "cuda", *options]
    done = subprocess.run(
        [*command, "--card", str(card), "--out", str(out)],
        cwd=root,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = read_measurements(out)
    assert found.sm.tolist() == [8, 48]
    assert "no measurement of any GPU" in found.how["device"]


@pytest.mark.parametrize(
    ("simulate", "args", "message"),
    [
        (True, ("--card", "data/cards/h200.yaml"), "device: 'numba CUDA simulator'"),
        (True, (), "needed: a device card for it in data/cards"),
        (False, (), "needed: a CUDA GPU"),
    ],
)
def test_a_device_that_is_not_the_card_is_refused(
    lut_command, monkeypatch, simulate, args, message
):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1" if simulate else "0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, error = lut_command("profile", "--backend", "cuda", "--out", "x", *args)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
