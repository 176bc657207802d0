"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces, logs and topologies, which are not part of the repository."""
    folder = Path(os.environ.get("RANLOOM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not present: set RANLOOM_DATA (looked in {folder})")
    return folder
