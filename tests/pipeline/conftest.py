"""A toy project under git and DVC, and a template store (making one takes 2 s)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.registry import Registry, discover
from pipeline.store import Store
from tests.pipeline import toy_chain
from tests.pipeline.workbench import SOURCES, Project, clean_environment

ROOT = Path(__file__).resolve().parents[2]


class Toy:
    """The toy project: its folder, its DVC commands, its store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = clean_environment(root.parent)
        self.env["PYTHONPATH"] = str(ROOT)
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(self, *command: str, check: bool = True, **env: str) -> subprocess.CompletedProcess:
        """Run a command in the project."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def dvc(self, *args: str, check: bool = True, **env: str) -> subprocess.CompletedProcess:
        """Run a DVC command."""
        return self.run(sys.executable, "-m", "dvc", *args, check=check, **env)

    def repro(self, *args: str, check: bool = True) -> subprocess.CompletedProcess:
        """Rebuild."""
        return self.dvc("repro", *args, check=check)

    def commit(self) -> None:
        """Commit everything to git."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state", "--allow-empty")

    def set_param(self, key: str, value: Any) -> None:
        """Change one parameter."""
        yaml = YAML(typ="safe", pure=True)
        path = self.root / "params.yaml"
        tree = yaml.load(path)
        *parents, last = key.split(".")
        node = tree
        for part in parents:
            node = node[part]
        node[last] = value
        yaml.dump(tree, path)

    def store(self) -> Store:
        """The project's store."""
        return Store.open(self.root)

    def runs(self, kind: str) -> list[Any]:
        """All runs of a kind (``stage`` or ``pipeline``), newest first."""
        store = self.store()
        return list(
            store.client.search_runs([store.experiment_id], f"tags.`ranloom.kind` = '{kind}'")
        )


@pytest.fixture(scope="session")
def toy_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project that has not run yet."""
    toy = Toy(tmp_path_factory.mktemp("template") / "toy")
    toy.root.mkdir()
    shutil.copy(toy_chain.__file__, toy.root / "toy_chain.py")
    (toy.root / "dvc.yaml").write_text(toy_chain.DVC_YAML)
    (toy.root / "params.yaml").write_text(toy_chain.PARAMS_YAML)
    (toy.root / "data").mkdir()
    (toy.root / "data" / "in.csv").write_text("1\n")
    for name in toy_chain.STAGES:
        (toy.root / "outs" / name).mkdir(parents=True)
        (toy.root / "outs" / name / ".gitignore").write_text("*.parquet\n")
    (toy.root / ".gitignore").write_text("mlruns/\n__pycache__/\n")
    (toy.root / ".dvcignore").write_text("__pycache__\n")
    toy.run("git", "init", "-q", "-b", "main")
    toy.dvc("init", "-q")
    toy.dvc("config", "core.analytics", "false")
    toy.commit()
    return toy.root


@pytest.fixture
def toy(toy_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A fresh toy project with an empty store."""
    return copied(toy_template, tmp_path, monkeypatch)


def copied(template: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A copy of a toy project whose runs are tracked in its own store."""
    for name in ("RANLOOM_STORE", "RANLOOM_TRACKING"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(template, folder / "toy")
    return Toy(folder / "toy")


@pytest.fixture(scope="session")
def tracked_template(toy_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy project after ``dvc repro``, its runs in its store: 10 s of CPU time."""
    root = tmp_path_factory.mktemp("tracked") / "toy"
    shutil.copytree(toy_template, root)
    Toy(root).repro()
    return root


@pytest.fixture
def tracked(tracked_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A copy of it; only its runs' artifacts stay in the folder of the template."""
    return copied(tracked_template, tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def project_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two stages that has not run yet."""
    return Project.create(tmp_path_factory.mktemp("project") / "project").root


@pytest.fixture
def project(project_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A fresh copy of it, untracked."""
    monkeypatch.setenv("RANLOOM_TRACKING", "off")
    shutil.copytree(project_template, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


@pytest.fixture(scope="session")
def toy_registry() -> Registry:
    """The stages of that project, for tests that need no process of their own."""
    spec = importlib.util.spec_from_file_location(
        "toy_stages", SOURCES / "stages" / "__init__.py", submodule_search_locations=[]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    package.__path__ = [str(SOURCES / "stages")]
    sys.modules["toy_stages"] = package
    return discover(package)


@pytest.fixture(scope="session")
def built_template(project_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after ``dvc repro``, committed."""
    root = tmp_path_factory.mktemp("built") / "project"
    shutil.copytree(project_template, root)
    project = Project(root)
    assert project.reproduced() == ["draw", "total"]
    project.commit()
    return root


@pytest.fixture
def built(built_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of the built project, untracked."""
    monkeypatch.setenv("RANLOOM_TRACKING", "off")
    shutil.copytree(built_template, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")
