"""The commands for several hosts: namespaces over a bad link, or several loopback addresses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from ruamel.yaml import YAML
from safetensors import safe_open

from ranloom.errors import InputError
from ranloom.training.__main__ import main
from ranloom.training.checkpoint import load_checkpoint
from ranloom.training.runtime.chaos import SETTINGS, SMALL_SETUP
from ranloom.training.runtime.journal import read_journal
from ranloom.training.runtime.proof import prove
from ranloom.training.runtime.run_file import read_identity, read_run_file, write_keys
from tests.training.runtime.hosts import two_hosts


def write_run_file(folder, **changes):
    document = {
        "setup": asdict(SMALL_SETUP),
        "settings": asdict(replace(SETTINGS, micro_batch_limit=18, lease_s=5.0)),
        "boundaries": [0, 2, 4],
        "replicas": 1,
        "sites": 2,
        "checkpoints": str(folder / "checkpoints"),
        "heartbeat_s": 0.2,
        "give_up_s": 120.0,
        **changes,
    }
    path = folder / "run.yaml"
    with path.open("w") as file:
        YAML().dump(document, file)
    return path


def start(host, *arguments):
    return subprocess.Popen(
        [*host.prefix, sys.executable, "-m", "ranloom.training", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def command(monkeypatch):
    """Runs a command in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ranloom.training", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return run


def test_a_run_over_two_hosts_that_loses_its_coordinator(tmp_path, command):
    run = write_run_file(tmp_path)
    keys = tmp_path / "keys"
    write_keys(keys, 2)
    assert (keys / "site-1.secret.json").stat().st_mode & 0o777 == 0o600
    with two_hosts(delay_s=0.01, loss=0.02) as (near, far, link):
        notes = _train(run, tmp_path, keys, near, far, link)
    if link is not None:
        assert link.carried > 0
        assert link.lost > 0
    assert '"recovered"' in notes.read_text()
    copies = [load_checkpoint(path) for path in tmp_path.glob("site-*/final-site-*.safetensors")]
    journals = [read_journal(path) for path in tmp_path.glob("site-*/site-*.jsonl")]
    proof = prove(SMALL_SETUP, 18, copies, journals)
    assert proof.holds, proof.audit.faults

    target = tmp_path / "opt.safetensors"
    assert command("export", tmp_path / "checkpoints", target) == 0
    with safe_open(target, framework="pt") as file:
        tensor = file.get_tensor("model.decoder.layers.3.fc1.weight")
    assert tensor.equal(proof.weights["layers.3.fc1.weight"])


def _train(run, folder, keys, near, far, link):
    """Coordinator and first site on one host, second site on the other; the notes of the run."""

    def coordinator():
        where = ("--folder", folder / "coordinator", "--bind", f"tcp://{near.address}:*")
        return start(near, "coordinator", run, "--keys", keys, *where)

    processes = [coordinator()]
    address_file = folder / "coordinator" / "coordinator.address"
    try:
        wait_for(address_file.exists)
        for number, host in enumerate((near, far)):
            where = ("--folder", folder / f"site-{number}", "--bind", f"tcp://{host.address}:*")
            what = ("--number", number, "--tflops", 2e-5, "--coordinator", address_file.read_text())
            processes.append(start(host, "site", run, "--keys", keys, *where, *what))
        notes = folder / "coordinator" / "notes.jsonl"
        wait_for(lambda: notes.exists() and "step_reduced" in notes.read_text())
        if link is not None:
            link.cut(seconds=1.0)
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        processes[0] = coordinator()
        for process in processes:
            assert process.wait(timeout=120) == 0, process.stdout.read()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
    return notes


def wait_for(condition, patience_s=120.0):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_bad_run_file_is_one_line_and_exit_code_two(tmp_path, command, capsys):
    run = write_run_file(tmp_path, replicas="two")
    assert command("coordinator", run, "--folder", tmp_path / "out", "--trusted") == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "replicas: 'two'" in output
    assert not (tmp_path / "out").exists()
    # Whoever gives no keys has to say that the links are trusted.
    run = write_run_file(tmp_path)
    assert command("coordinator", run, "--folder", tmp_path / "out") == 2
    assert "--keys" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ((), "--tflops"),
        (("--tflops", 1.0, "--budget-from", "tcp://127.0.0.1:5570"), "--tflops"),
        (("--budget-from", "tcp://127.0.0.1:5570"), "feed.tflops_per_sm: 0.0"),
        (("--budget-from", "tcp://127.0.0.1:5570", "--card", "none.yaml"), "none.yaml"),
        (("--budget-from", "10.0.0.1:5570", "--tflops-per-sm", 1.0), "10.0.0.1:5570"),
    ],
)
def test_a_site_has_one_budget_given_or_followed(tmp_path, command, capsys, options, where):
    to = ("--coordinator", "tcp://127.0.0.1:7000", "--folder", tmp_path / "out", "--trusted")
    assert command("site", write_run_file(tmp_path), "--number", 0, *to, *options) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert where in output


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"extra": 1}, "extra"),
        ({"settings": {}}, "settings"),
        ({"setup": asdict(SMALL_SETUP) | {"model": {"layers": 0}}}, "setup.model"),
        ({"boundaries": [0, "x"]}, "boundaries"),
    ],
)
def test_faults_of_a_run_file_are_named(tmp_path, changes, where):
    with pytest.raises(InputError, match="allowed") as caught:
        read_run_file(write_run_file(tmp_path, **changes))
    assert where in caught.value.where


def test_other_files_are_no_run_files(tmp_path):
    with pytest.raises(InputError, match="missing"):
        read_run_file(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(InputError, match="YAML"):
        read_run_file(tmp_path / "broken.yaml")


def test_keys_are_checked(tmp_path):
    write_keys(tmp_path, 1)
    identity = read_identity(tmp_path, "site-0")
    assert identity.keys is not None
    assert "secret" not in repr(identity)
    assert identity.keys.secret not in repr(identity)
    with pytest.raises(InputError, match="site-7"):
        read_identity(tmp_path, "site-7")
    (tmp_path / "site-0.secret.json").write_text(json.dumps({"secret": "short"}))
    with pytest.raises(InputError, match="secret key"):
        read_identity(tmp_path, "site-0")
    (tmp_path / "public.json").write_text("[]")
    with pytest.raises(InputError, match=r"public\.json"):
        read_identity(tmp_path, "site-0")
    assert read_identity(None, "site-0").keys is None
