"""A second workspace with other parameters, so that the main results stay as they are.

It consists of links to the main tree, its own ``params.yaml``, ``dvc.lock`` and ``outs/``, and the
main DVC cache. Code and data are therefore always those of the main tree.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline import params
from pipeline.registry import OUTS, Registry
from pipeline.stage import UNKNOWN, Fault, FromParam
from pipeline.store import WORKSPACES

PRESETS = "presets"
TITLE = ".title"
"""File of a workspace with overrides: what it is, for people; the name of its folder is a hash."""

_TITLE_LENGTH = 200  # MLflow takes names of runs up to 250 characters

_LOCK = "dvc.lock"
_OWN = frozenset({OUTS, params.PARAMS, "dvc.yaml", _LOCK, "build"})


def place(
    root: Path,
    registry: Registry,
    preset: str | None,
    overrides: Mapping[str, Any],
    target: Path | None = None,
) -> Path:
    """Make or refresh a workspace; its results of earlier runs are kept.

    Args:
        root: root of the main workspace.
        registry: all declarations.
        preset: name of ``presets/<name>.yaml``, an overlay of ``params.yaml``.
        overrides: dotted parameter name to value, laid over the preset.
        target: folder of the workspace; by default ``.ranloom/`` and a name that tells the preset
            and the overrides.

    Returns:
        Root of the workspace; the main one where neither preset nor overrides are given.

    Raises:
        RefusedError: there is no such preset, or a key that ``params.yaml`` lacks.
    """
    if preset is None and not overrides:
        return root
    document = _overlaid(root, preset, overrides)
    target = target or root / WORKSPACES / _name(preset, overrides)
    target.mkdir(parents=True, exist_ok=True)
    _link(root, target)
    _keep_paths(document, root, target, registry)
    stream = io.StringIO()
    YAML().dump(document, stream)
    _write(target / params.PARAMS, stream.getvalue())
    _write(target / "dvc.yaml", (root / "dvc.yaml").read_text(encoding="utf-8"))
    shutil.copyfile(root / ".dvcignore", target / ".dvcignore")
    (target / ".dvc").mkdir(exist_ok=True)
    _write(target / ".dvc" / "config", _dvc_config(root))
    if overrides:
        _write(target / TITLE, _title(preset, overrides))
    return target


def title(root: Path) -> str | None:
    """Preset and overrides of a workspace, for people; ``None`` where nothing is overridden."""
    path = root / TITLE
    return path.read_text(encoding="utf-8") if path.exists() else None


def seed(source: Path, target: Path, stages: Iterable[str]) -> None:
    """Let a new workspace begin with the results of some stages of another.

    Args:
        source: root of a workspace of the same repository.
        target: root of the other; left as it is once it has results of its own.
        stages: whose results hold there, too; the others are not taken over.
    """
    if (target / _LOCK).exists() or not (source / _LOCK).exists():
        return
    lock = params.load(source / _LOCK)
    locked = lock.get("stages", {})
    lock["stages"] = {name: locked[name] for name in stages if name in locked}
    for name in lock["stages"]:
        shutil.copytree(source / OUTS / name, target / OUTS / name, dirs_exist_ok=True)
    stream = io.StringIO()
    YAML().dump(lock, stream)
    _write(target / _LOCK, stream.getvalue())  # last: half a copy counts as none


def presets(root: Path) -> list[str]:
    """Names of the presets."""
    return sorted(path.stem for path in (root / PRESETS).glob("*.yaml"))


def _name(preset: str | None, overrides: Mapping[str, Any]) -> str:
    if not overrides:
        return preset or ""
    text = json.dumps(dict(overrides), sort_keys=True, default=str)
    return f"{preset or 'main'}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _title(preset: str | None, overrides: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}={overrides[key]}" for key in sorted(overrides))
    whole = f"{preset or 'main'}: {text}"
    return whole if len(whole) <= _TITLE_LENGTH else whole[: _TITLE_LENGTH - 1] + "…"


def _overlaid(root: Path, preset: str | None, overrides: Mapping[str, Any]) -> Any:
    params.load(root / params.PARAMS)  # refuses what the round trip below would let pass
    document = YAML().load((root / params.PARAMS).read_text(encoding="utf-8"))
    faults: list[Fault] = []
    if preset is not None:
        path = root / PRESETS / f"{preset}.yaml"
        if preset not in presets(root):
            known = ", ".join(presets(root)) or "there is none"
            raise params.RefusedError([Fault("preset", preset, f"known: {known}")])
        _merge(document, params.load(path), f"{PRESETS}/{path.name}: ", faults)
    for key, value in overrides.items():
        block, _, last = key.rpartition(".")
        try:
            node = params.lookup(document, block) if block else document
        except KeyError:
            node = {}
        _merge(node, {last: value}, f"override: {key.removesuffix(last)}", faults)
    if faults:
        raise params.RefusedError(faults)
    return document


def _merge(document: Any, overlay: Mapping[str, Any], where: str, faults: list[Fault]) -> None:
    for key, value in overlay.items():
        if key not in document:
            faults.append(
                Fault(f"{where}{key}", UNKNOWN, "only what params.yaml has can be changed")
            )
        elif isinstance(value, Mapping) and isinstance(document[key], Mapping):
            _merge(document[key], value, f"{where}{key}.", faults)
        else:
            document[key] = value


def _link(root: Path, target: Path) -> None:
    """Link every visible top-level entry of the main tree, drop links that lead nowhere."""
    (root / "mlruns").mkdir(exist_ok=True)  # the runs of all workspaces are compared in one store
    wanted = {p.name for p in root.iterdir() if not p.name.startswith(".")} - _OWN
    for entry in target.iterdir():
        if entry.is_symlink() and (entry.name not in wanted or not entry.exists()):
            entry.unlink()
    for name in sorted(wanted):
        link = target / name
        if link.exists() and not link.is_symlink():
            where = str(link.relative_to(root) if link.is_relative_to(root) else link)
            raise params.RefusedError(
                [Fault(where, "a file or folder", f"a link to {name}: move it away")]
            )
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(root / name, target))


def _keep_paths(document: Any, root: Path, target: Path, registry: Registry) -> None:
    """Make users' relative paths absolute where they would lead elsewhere from the workspace."""
    keys = {
        source.key
        for stage in registry.values()
        for source in stage.inputs.values()
        if isinstance(source, FromParam)
    }
    for key in sorted(keys):
        block, _, last = key.rpartition(".")
        with contextlib.suppress(KeyError):
            value = str(params.lookup(document, key))
            if (root / value).exists() and not (target / value).exists():
                params.lookup(document, block)[last] = str((root / value).resolve())


def _dvc_config(root: Path) -> str:
    """Configuration of DVC for a workspace without git, sharing the main cache."""
    cache = root / ".dvc" / "cache"
    for name in ("config", "config.local"):
        config = configparser.ConfigParser(interpolation=None)
        config.read(root / ".dvc" / name, encoding="utf-8")
        if config.has_option("cache", "dir"):
            cache = root / ".dvc" / config.get("cache", "dir")
    return (
        "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"
        f"[cache]\n    dir = {cache.resolve()}\n"
    )


def _write(path: Path, text: str) -> None:
    """Write unless the file already says so, which spares DVC a new hash."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
