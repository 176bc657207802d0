"""The guard that watches the chain does notice a connection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GUARD


@pytest.mark.parametrize(
    ("program", "noted"),
    [
        ("import socket; socket.socket().connect(('192.0.2.1', 9))", "192.0.2.1"),
        ("import urllib.request as u; u.urlopen('http://name.invalid/')", "name.invalid"),
        ("import socket; socket.socket().connect(('127.0.0.1', 9))", ""),
    ],
)
def test_the_guard_notes_what_leaves_the_machine(program: str, noted: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.touch()
    (tmp_path / "sitecustomize.py").write_text(GUARD.format(calls=str(calls)))
    quick = "import socket; socket.setdefaulttimeout(0.1); " + program
    subprocess.run(
        [sys.executable, "-c", quick],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert calls.read_text().rstrip().endswith(noted)
    assert bool(calls.read_text()) == bool(noted)
