"""Cached machine code must not outlive the sources that it was made from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
from ranloom.mac.draws import uniform
from ranloom.mac.kernel import kernel, sources_digest
print(uniform(1, 0, 0, 0), len(uniform.stats.cache_hits), sources_digest())
"""


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The library without its compiled code."""
    shutil.copytree(
        root / "ranloom", tmp_path / "ranloom", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


def run(folder: Path) -> tuple[float, int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=folder, capture_output=True, text=True, check=True
    )
    value, hits, digest = done.stdout.split()
    return float(value), int(hits), digest


def test_an_edit_of_another_kernel_invalidates_the_cache(copy: Path) -> None:
    value, hits, digest = run(copy)
    assert hits == 0
    assert run(copy) == (value, 1, digest)
    other = copy / "ranloom/mac/harq.py"
    other.write_text(other.read_text() + "\n_CHANGED = 1\n")
    again, hits, changed = run(copy)
    assert (again, hits) == (value, 0)
    assert changed != digest
