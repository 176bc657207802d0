"""Imports run one way; the rules stand in pyproject.toml."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import stages
from pipeline.registry import discover

PACKAGES = ("ranloom", "pipeline", "stages", "flows")


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports_command as c; c()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_contracts_hold(root: Path) -> None:
    done = lint(root)
    assert done.returncode == 0, done.stdout
    assert ", 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("ranloom/nr/extra.py", "import pipeline.stage", "Top level"),
        ("pipeline/extra.py", "import ranloom.errors", "Top level"),
        ("pipeline/extra.py", "import stages", "Top level"),
        ("ranloom/report/extra.py", "import mlflow", "The library knows nothing"),
        ("ranloom/mac/extra.py", "def f():\n    import prefect", "The library knows nothing"),
        ("ranloom/nr/extra.py", "import ranloom.lut", "Inside the library"),
        ("ranloom/gpu/extra.py", "import ranloom.traffic", "Inside the library"),
    ],
)
def test_a_violation_is_found(root: Path, tmp_path: Path, file, line, contract) -> None:
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / package, tmp_path / package, ignore=ignore)
    shutil.copy(root / "pyproject.toml", tmp_path)
    (tmp_path / file).write_text(f"{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    broken = [text for text in done.stdout.splitlines() if text.endswith("BROKEN")]
    assert len(broken) == 1
    assert broken[0].startswith(contract)


def other_stages(graph: grimp.ImportGraph, names: list[str]) -> list[tuple[str, str]]:
    """Pairs of stages of which the first imports the second, directly or not."""
    modules = [f"stages.{name}" for name in names]
    return [
        (module, other)
        for module in modules
        for other in sorted(graph.find_upstream_modules(module) & set(modules))
    ]


def test_a_stage_knows_no_other_stage() -> None:
    """They meet through files; what several share stands in a module of its own, ``_name.py``."""
    graph = grimp.build_graph("stages", cache_dir=None)
    names = list(discover(stages))
    assert other_stages(graph, names) == []
    graph.add_import(importer=f"stages.{names[0]}", imported="stages._shared")
    assert other_stages(graph, names) == []
    graph.add_import(importer="stages._shared", imported=f"stages.{names[1]}")
    assert other_stages(graph, names) == [(f"stages.{names[0]}", f"stages.{names[1]}")]
