"""The command line: profile on this CPU, convert a log, fit; bad input is one line and code 2."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from pipeline.io import Inputs, Outputs
from pipeline.params import build
from ranloom.lut.__main__ import main
from ranloom.lut.measurements import read_measurements
from stages.profile_lut import STAGE


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
    assert "p99_over_mean: 1.13\n# fitted to 42 thresholds\n" in output
    assert "41 of 42 cells matched, least margin 8.22 us" in output
    assert "missed: MCS 27, 162 PRB by 89.32 us" in output


def profile_of_a_model(path):
    """MCS 15: W = 960, 1920 and 2816 at 52, 106 and 162 PRB; T = 100 + 2 W / s + 0.01 W."""
    rows = ["mcs,prb,sm,p50_us,p99_us"]
    for prb, work in ((52, 960), (106, 1920), (162, 2816)):
        latencies = {s: 100 + 2 * work / s + 0.01 * work for s in (8, 16, 48)}
        rows += [f"15,{prb},{s},{t / 1.25},{t}" for s, t in latencies.items()]
    path.write_text("\n".join(rows) + "\n")


def test_fit_to_latencies(lut_command, tmp_path):
    profile = tmp_path / "profile.csv"
    profile_of_a_model(profile)
    code, output, _ = lut_command(
        "fit", str(profile), "--card", "data/cards/dgx_spark.yaml", "--budget-us", "500"
    )
    assert code == 0
    assert "a_us: 100\nk_us_sm: 2\nb_us: 0.01\np99_over_mean: 1.25\n" in output
    assert "9 latencies: relative error median 0.0 %" in output
    assert "# base.plant.tail_sigma: 0.0959," in output  # ln(1.25) / 2.3263
    # 8, 16, 48 SMs: 349.6, 229.6, 149.6 us; 599.2, 359.2, 199.2; 832.2, 480.2, 245.5
    assert "3 of 3 cells matched, least margin 19.84 us" in output
    # where no measured SM count is enough, the model must say so, too
    code, output, _ = lut_command(
        "fit", str(profile), "--card", "data/cards/dgx_spark.yaml", "--budget-us", "200"
    )
    assert "3 of 3 cells matched, least margin 0.80 us" in output


def test_fit_to_another_allocation_is_refused(lut_command, tmp_path):
    profile = tmp_path / "profile.csv"
    profile_of_a_model(profile)
    text = "# allocation: MCS table 1, 2 layer(s), 14 symbols, 12 DMRS REs, overhead 0\n"
    profile.write_text(text + profile.read_text())
    command = ("fit", str(profile), "--card", "data/cards/dgx_spark.yaml")
    code, _, error = lut_command(*command)
    assert code == 2
    assert "allocation: 'MCS table 1, 2 layer(s)" in error
    assert lut_command(*command, "--layers", "2")[0] == 0


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
        (("profile", "--out", "data"), "out: 'data'"),
        (("profile", "--out", "x", "--repetitions", "0"), "repetitions: 0"),
        (("profile", "--out", "x", "--layers", "5"), "n_layers: 5"),
        (("fit", "data/profiles/cpu_numba.csv", "--card", "data/cards/dgx_spark.yaml"), "sm: 1 "),
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


def cuda_profile(root, out, script, *options):
    """``profile --backend cuda`` of two small blocks in a process where numba simulates."""
    small = ["--mcs", "3", "--prb", "1,2", "--iterations", "1", "--repetitions", "1"]
    command = ["profile", "--backend", "cuda", *small, "--warm-up", "0", "--out", str(out)]
    arguments = [*command, *options]
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=root,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_cuda_backend_runs_on_the_simulator(root, tmp_path):
    """The whole path but the device: partitions, launches, file. No time in it means anything."""
    card = tmp_path / "card.yaml"
    spark = (root / "data/cards/dgx_spark.yaml").read_text()
    card.write_text(spark.replace("GB10 ", "simulator ").replace(": GB10", ": simulator"))
    out = tmp_path / "cuda.csv"
    script = "from ranloom.lut.__main__ import main; main()"
    options = ("--sm", "8,48", "--card", str(card), "--schedule", "flooding")
    done = cuda_profile(root, out, script, *options)
    assert done.returncode == 0, done.stderr
    found = read_measurements(out)
    assert found.sm.tolist() == [8, 48, 8, 48]
    assert "no measurement of any GPU" in found.how["device"]
    assert found.how["decoder"] == "flooding offset int8, 1 iterations, early stop False"


# numba simulates, but the library that knows devices says that there is one
ON_A_GPU = """
import os, sys
import numba.cuda
del os.environ["NUMBA_ENABLE_CUDASIM"]
from tests.gpu import fake_cuda_core
sys.modules.update(fake_cuda_core.modules())
numba.cuda.external_stream = lambda handle: numba.cuda.stream()
from ranloom.lut.__main__ import main
main()
"""


def test_profile_of_a_device_goes_into_the_pipeline_unchanged(root, tmp_path):
    """``--device auto`` finds the device and its card; the file is a source of the stage."""
    out = tmp_path / "cuda.csv"
    done = cuda_profile(root, out, ON_A_GPU, "--device", "auto")
    assert done.returncode == 0, done.stderr
    how = read_measurements(out).how
    assert (how["device"], how["card"]) == ("NVIDIA GB10", "DGX Spark")
    assert how["repetitions"] == "1 after 0 to warm up"

    document = YAML(typ="safe", pure=True).load((root / "params.yaml").read_text())
    document["profile_lut"] |= {"backend": "import", "source_path": str(out)}
    params = build(STAGE, document)
    paths = {
        "card": root / "data/cards/dgx_spark.yaml",
        "cards": root / "data/cards",
        "published": root / "data/published/weaver.yaml",
        "source": out,
    }
    assert list(STAGE.check(params, paths)) == []
    metrics = STAGE.run(params, Inputs(paths), Outputs(STAGE, tmp_path)).metrics
    assert metrics["provenance"]["measured"] == 2
    levels = pq.read_table(tmp_path / "latency.parquet")["sm"].to_pylist()
    assert levels == 2 * list(range(8, 49, 8))
    assert json.loads((tmp_path / "source.json").read_text())["how"]["device"] == "NVIDIA GB10"


@pytest.mark.parametrize(
    ("simulate", "args", "message"),
    [
        (True, ("--card", "data/cards/h200.yaml"), "device: 'numba CUDA simulator'"),
        (True, (), "needed: a device card for it in data/cards"),
        (False, (), "needed: an NVIDIA GPU with its driver"),
    ],
)
def test_a_device_that_is_not_the_card_is_refused(
    lut_command, monkeypatch, simulate, args, message
):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1" if simulate else "0")
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    code, _, error = lut_command("profile", "--backend", "cuda", "--out", "x", *args)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
