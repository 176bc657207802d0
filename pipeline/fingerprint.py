"""Identity of a stage execution: command, dependency hashes and parameters.

The same identity can be had twice: *live*, from ``dvc.yaml`` and the files as a stage
starts, and afterwards from ``dvc.lock``. Both give the same fingerprint, which is what
links an MLflow run to a DVC stage without either knowing the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import PathSpec

from pipeline import params
from pipeline.stage import Fault

_TEMPLATE = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True)
class Entry:
    """What identifies one execution of a stage.

    Args:
        command: the shell command of the stage.
        deps: path as written in ``dvc.yaml`` to MD5 (``<md5>.dir`` for a folder).
        params: tracked parameter key to value.
    """

    command: str
    deps: Mapping[str, str]
    params: Mapping[str, Any]


def fingerprint(entry: Entry) -> str:
    """SHA-256 over command, dependency hashes and parameters of a stage."""
    return _digest({"cmd": entry.command, "deps": dict(entry.deps), "params": dict(entry.params)})


def pipeline_key(entries: Mapping[str, Entry], outs: Iterable[str]) -> str:
    """SHA-256 over all stages, without deps that are another stage's outs.

    It depends only on what is known before the first stage starts, so every stage of one
    ``dvc repro`` computes the same key.

    Args:
        entries: stage name to entry, for all stages.
        outs: paths of all outs of the pipeline.
    """
    produced = set(outs)
    return _digest(
        {
            name: {
                "cmd": entry.command,
                "deps": {p: h for p, h in entry.deps.items() if not _inside(p, produced)},
                "params": dict(entry.params),
            }
            for name, entry in entries.items()
        }
    )


class Pipeline:
    """``dvc.yaml`` and ``params.yaml`` of a workspace, with templates resolved."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._params = params.load(root / "params.yaml")
        self._stages: dict[str, Any] = params.load(root / "dvc.yaml")["stages"]
        self._hashes: dict[str, str] = {}

    @property
    def stages(self) -> list[str]:
        """Stage names in the order of ``dvc.yaml``."""
        return list(self._stages)

    @property
    def outs(self) -> list[str]:
        """Paths of all outs and metrics of all stages."""
        return [
            next(iter(out)) if isinstance(out, Mapping) else out
            for stage in self._stages.values()
            for kind in ("outs", "metrics", "plots")
            for out in stage.get(kind, ())
        ]

    def outs_of(self, stage: str) -> list[str]:
        """Paths of the outs of one stage, metrics included."""
        declared = self._stages[stage]
        return [
            next(iter(out)) if isinstance(out, Mapping) else out
            for kind in ("outs", "metrics")
            for out in declared.get(kind, ())
        ]

    def live(self, stage: str, *, with_outs: bool = True) -> Entry:
        """Entry of a stage as its files are now.

        Args:
            stage: stage name.
            with_outs: hash also deps that are outs of other stages; without them the
                entry serves only for the pipeline key.

        Raises:
            FileNotFoundError: a dependency is missing.
        """
        declared = self._stages[stage]
        produced = set(self.outs)
        deps = {}
        for dep in map(self._resolve, declared.get("deps", ())):
            if with_outs or not _inside(dep, produced):
                deps[dep] = self._hash(dep)
        values = {key: _lookup(self._params, key) for key in declared.get("params", ())}
        return Entry(self._resolve(declared["cmd"]), deps, values)

    def entries(self) -> dict[str, Entry]:
        """Entries of all stages as the files are now, without what other stages make."""
        return {name: self.live(name, with_outs=False) for name in self._stages}

    def key(self) -> str:
        """Pipeline key of the workspace as it is now."""
        return pipeline_key(self.entries(), self.outs)

    def _resolve(self, text: str) -> str:
        return _TEMPLATE.sub(lambda m: str(_lookup(self._params, m.group(1).strip())), text)

    def _hash(self, dep: str) -> str:
        if dep not in self._hashes:
            self._hashes[dep] = path_hash(self.root / dep, self.root)
        return self._hashes[dep]


def locked_entries(root: Path) -> dict[str, Entry]:
    """Entries of all stages in ``dvc.lock``; empty where there is none.

    Raises:
        RefusedError: the file is no YAML, as after a merge with conflicts.
    """
    return {
        name: Entry(
            stage["cmd"],
            {dep["path"]: dep["md5"] for dep in stage.get("deps", ())},
            {k: v for keys in stage.get("params", {}).values() for k, v in keys.items()},
        )
        for name, stage in _locked_stages(root).items()
    }


def locked_outs(root: Path, stage: str) -> dict[str, str]:
    """Path to MD5 of the outs of one stage in ``dvc.lock``."""
    locked = _locked_stages(root).get(stage, {})
    return {out["path"]: out["md5"] for out in locked.get("outs", ()) if "md5" in out}


def path_hash(path: Path, root: Path | None = None) -> str:
    """MD5 of a file, or of a folder the way DVC does it (``.dir``).

    Args:
        path: file or folder.
        root: the workspace, in whose folders DVC leaves out what ``.dvcignore`` names and the
            files of version control; ``None`` where the path is known to hold neither.
    """
    if not path.is_dir():
        return file_md5(path)
    path = Path(os.path.normpath(path))
    ignored = _ignored(root) if root is not None and path.is_relative_to(root) else None
    listing = sorted(
        (
            {"md5": file_md5(file), "relpath": file.relative_to(path).as_posix()}
            for file in path.rglob("*")
            if file.is_file()
            and not (ignored and ignored.match_file(file.relative_to(root or path).as_posix()))
        ),
        key=lambda item: item["relpath"],
    )
    return hashlib.md5(_json(listing, separators=None), usedforsecurity=False).hexdigest() + ".dir"


def _ignored(root: Path) -> PathSpec:
    file = root / ".dvcignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return PathSpec.from_lines("gitignore", [".hg/", ".git/", ".git", ".dvc/", *lines])


def file_md5(path: Path) -> str:
    """MD5 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _locked_stages(root: Path) -> dict[str, Any]:
    lock = root / "dvc.lock"
    stages = params.load(lock).get("stages", {}) if lock.exists() else {}
    if not isinstance(stages, dict):
        raise params.RefusedError([Fault(f"{lock.name}: stages", stages, "a mapping of stages")])
    return stages


def _inside(path: str, produced: set[str]) -> bool:
    return path in produced or any(path.startswith(out + "/") for out in produced)


def _lookup(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _digest(document: Any) -> str:
    return hashlib.sha256(_json(document, separators=(",", ":"))).hexdigest()


def _json(document: Any, separators: tuple[str, str] | None) -> bytes:
    return json.dumps(document, sort_keys=True, separators=separators).encode()
