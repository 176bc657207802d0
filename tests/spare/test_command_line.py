"""``python -m ranloom.spare bench``: what runs without a GPU, and what is refused in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ranloom.spare import __main__ as command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(root)
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def run(*arguments: str, command_name: str = "bench") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ranloom.spare", command_name, *arguments])
        with pytest.raises(SystemExit) as left:
            command.main()
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out, shown.err

    return run


def test_virtual_run(bench: Run, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    code, shown, _ = bench("--seconds", "0.5", "--out", str(out))
    assert code == 0
    found = json.loads(out.read_text())
    assert found == json.loads(shown)
    assert found["device"] == "virtual: modelled times, no measurement"
    assert found["slots"] == 1000
    assert found["decode_starts"] == 200
    assert found["rebinds"] == 11  # ten changes, and the first binding
    assert found["useful_tflops"] > 100.0
    assert found["max_violation_us"] <= max(found["wave_us"].values())
    again = json.loads(bench("--seconds", "0.5")[1])
    assert again == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cuda"), "device: 'auto' is not usable; needed: a"),
        (("--device", "cuda:3"), "device: '3' is not usable; needed: a"),
        (("--device", "tpu"), "device: 'tpu' is not usable; allowed: cuda, cuda:NUMBER, virtual"),
        (("--variant", "graph"), "variant: 'graph'"),
        (("--dtype", "int8"), "dtype: 'int8'"),
        (("--variant", "persistent"), "allowed with persistent: float32"),
        (("--seconds", "0"), "seconds: 0.0"),
        (("--contexts", "17"), "green contexts: 17"),
        (("--card", "nowhere.yaml"), "nowhere.yaml: 'no such file'"),
        (("--tile-k", "1024", "--efficiency", "0.01"), "tiling: '128x128x1024'"),
        (("--mean-sm", "30"), "synthetic trace: mean_sm"),
        (("--peak-sm", "56"), "peak_sm: 56 is not usable; allowed: 0 to 48 SMs"),
        (("--quiet-sm", "-8"), "quiet_sm: -8"),
        (("--slot-us", "0"), "slot_us: 0.0"),
        (("--slot-us", "nan"), "slot_us: nan"),
        (("--changes-per-s", "-1"), "transitions: -2"),
        (("--tile-m", "0"), "tiling: '0x128x1024'"),
        (("--m", "-1"), "product: '-1x1024x1024x1'"),
        (("--efficiency", "0"), "efficiency: 0.0"),
        (("--bandwidth-share", "2"), "bandwidth_share: 2.0"),
        (("--ahead", "0"), "executor: waves ahead: 0"),
        (("--jitter-sigma", "-1"), "jitter_sigma: -1.0"),
    ],
)
def test_refusals_are_one_line(bench: Run, arguments: tuple[str, ...], message: str) -> None:
    code, shown, error = bench(*arguments)
    assert code == 2
    assert shown == ""
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("publish", ("--address", "tcp://0.0.0.0:5570", "--lead-slots", "15"), "lead_slots: 15"),
        ("publish", ("--address", "x", "--reservations", "none.parquet"), "none.parquet: "),
        ("publish", ("--address", "x", "--slot-us", "0"), "slot_us"),
        ("watch", ("--address", "tcp://example.org:5570"), "budget channel: address"),
        ("watch", ("--address", "tcp://127.0.0.1:1", "--lease-s", "0"), "budget view: lease_s"),
        ("watch", ("--address", "tcp://127.0.0.1:1", "--window-s", "0"), "a window of slots"),
    ],
)
def test_channel_commands_refuse_in_one_line(
    bench: Run, name: str, arguments: tuple[str, ...], message: str
) -> None:
    code, shown, error = bench(*arguments, command_name=name)
    assert code == 2
    assert shown == ""
    assert message in error
    assert len(error.strip().splitlines()) == 1
