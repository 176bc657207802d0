"""A small project that is built, run and checked by the same programs as the real one."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "toy_project"
CLI = "from stages.__main__ import ranloom; ranloom()"


def clean_environment(folder: Path) -> dict[str, str]:
    """Environment without the user's settings: a git hook's ``GIT_DIR`` would lead git elsewhere.

    Args:
        folder: where DVC keeps what it shares between projects.
    """
    foreign = ("RANLOOM_", "DVC_", "GIT_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{who}_NAME": "toy" for who in ("AUTHOR", "COMMITTER")}
    env |= {f"GIT_{who}_EMAIL": "toy@example.org" for who in ("AUTHOR", "COMMITTER")}
    env["DVC_SITE_CACHE_DIR"] = str(folder / "dvc-site")
    return env


class Project:
    """A folder with its own stages and the real pipeline, under git and DVC."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            **clean_environment(root.parent),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(root),
            "RANLOOM_TRACKING": "off",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    @classmethod
    def create(cls, root: Path) -> Project:
        """Lay a project out, rendered and committed, not yet run."""
        shutil.copytree(SOURCES, root)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "pipeline", root / "pipeline", ignore=ignore)
        for name in ("ranloom/__init__.py", "ranloom/errors.py"):
            shutil.copy(ROOT / name, root / name)
        for name in ("stages/__init__.py", "stages/__main__.py", ".gitignore", ".dvcignore"):
            shutil.copy(ROOT / name, root / name)
        (root / ".dvc").mkdir()
        for name in ("config", ".gitignore"):
            shutil.copy(ROOT / ".dvc" / name, root / ".dvc" / name)
        (root / "mlruns").mkdir()
        (root / "mlruns" / ".gitignore").write_text("*\n!.gitignore\n")
        project = cls(root)
        project.run("git", "init", "-q", "-b", "main")
        project.stages("render")
        project.commit()
        return project

    def run(self, *command: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess:
        """Run a program in the project and check its exit code."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if code is not None and done.returncode != code:
            said = f"{done.stdout}\n{done.stderr}"
            raise AssertionError(f"{command}: exit code {done.returncode}, not {code}\n{said}")
        return done

    def stages(self, *arguments: str, code: int = 0, **env: str) -> subprocess.CompletedProcess:
        """``python -m stages``."""
        return self.run(sys.executable, "-m", "stages", *arguments, code=code, **env)

    def ranloom(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
        """The command line."""
        return self.run(sys.executable, "-c", CLI, *arguments, code=code)

    def dvc(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
        """A DVC command."""
        return self.run(sys.executable, "-m", "dvc", *arguments, code=code)

    def reproduced(self, *arguments: str) -> list[str]:
        """Names of the stages that ``dvc repro`` runs."""
        said = self.dvc("repro", *arguments).stdout
        return [
            line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage")
        ]

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in a process group of its own."""
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def commit(self) -> None:
        """Commit everything to git."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state")

    def set(self, key: str, value: Any) -> None:
        """Change one parameter."""
        path = self.root / "params.yaml"
        document = YAML().load(path.read_text())
        *blocks, last = key.split(".")
        node = document
        for block in blocks:
            node = node[block]
        node[last] = value
        YAML().dump(document, path)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text in a file."""
        path = self.root / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def outs(self) -> dict[str, str]:
        """Every file under ``outs/`` with its hash."""
        folder = self.root / "outs"
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def wait_until(ready: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition; a deadline only bounds a hanging test."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes], signum: int = signal.SIGKILL) -> None:
    """Send a signal to one process and wait for it."""
    process.send_signal(signum)
    process.wait(60)
