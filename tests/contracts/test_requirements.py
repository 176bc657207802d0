"""The lock file: universal, without anything that only one machine or index has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def lines(root: Path) -> list[str]:
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture(scope="module")
def locked(lines: list[str]) -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in lines:
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_no_local_versions_hashes_indexes_or_paths(root: Path) -> None:
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    for forbidden in ("+", "--", "sha256", "file:", "/", "@"):
        assert forbidden not in text, forbidden


def test_no_gpu_packages(locked: dict[str, list[Requirement]]) -> None:
    """torch's own metadata brings them where they are needed."""
    assert [n for n in locked if re.match(r"nvidia|cuda|triton|pytorch-triton", n)] == []


def test_every_version_is_exact(lines: list[str]) -> None:
    for line in lines:
        (pin,) = Requirement(line).specifier
        assert pin.operator == "=="
        assert "*" not in pin.version


def test_the_versions_that_must_not_move(lines: list[str]) -> None:
    assert "mlflow==3.17.2" in lines
    assert "torch==2.13.0" in lines


def test_everything_declared_is_locked(root: Path, locked: dict[str, list[Requirement]]) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for text in declared:
        requirement = Requirement(text)
        (pin,) = locked[canonicalize_name(requirement.name)]
        version = next(iter(pin.specifier)).version
        assert requirement.specifier.contains(version), text
        assert pin.marker is None, f"{text} is needed everywhere"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(("system", "platform"), [("Linux", "linux"), ("Darwin", "darwin")])
def test_one_version_for_each_environment(locked, python, system, platform) -> None:
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.5",
        "platform_system": system,
        "sys_platform": platform,
    }
    for name, pins in locked.items():
        fitting = [p for p in pins if p.marker is None or p.marker.evaluate(environment)]
        assert len(fitting) <= 1, name
