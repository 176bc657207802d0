"""Commit to DVC, without a re-run, edits that cannot have changed any result.

Such an edit touched only comments, docstrings or formatting: the syntax tree without docstrings
equals that of the version in git whose hash stands in ``dvc.lock``.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline import dvc, render
from pipeline.fingerprint import Entry, Pipeline, locked_entries, locked_outs, path_hash
from pipeline.registry import Registry


def main(root: Path, registry: Registry) -> int:
    """Prove and commit; all changed stages or none.

    Returns:
        Exit code: 0 when committed or nothing had changed, 1 when refused (reasons on stderr).
    """
    stale = render.stale(root, registry)
    if stale:
        print(f"{', '.join(stale)}: run `python -m stages render` first", file=sys.stderr)
        return 1
    changed, objections = examine(root, registry)
    if objections:
        print("\n".join(objections), file=sys.stderr)
        print("not committed: `dvc repro` has to run these stages", file=sys.stderr)
        return 1
    if not changed:
        print("nothing to commit: dvc.lock matches the tree")
        return 0
    dvc.call(root, "commit", "--force", "--quiet", *changed)
    for name, files in changed.items():
        print(f"{name}: committed {', '.join(files)}")
    return 0


def examine(root: Path, registry: Registry) -> tuple[dict[str, list[str]], list[str]]:
    """Compare the tree with ``dvc.lock``.

    Returns:
        The changed files of each stage whose entry no longer holds, and why stages have to run
        again; without such a reason every change is proven to be harmless.
    """
    pipeline = Pipeline(root)
    changed: dict[str, list[str]] = {}
    objections: list[str] = []
    for name, locked in locked_entries(root).items():
        if name not in registry:
            continue
        try:
            live = pipeline.live(name)
        except FileNotFoundError as error:
            objections.append(f"{name}: {error.filename} is missing")
            continue
        if live == locked:
            continue
        changed[name] = [dep for dep in live.deps if live.deps[dep] != locked.deps.get(dep)]
        objections += [f"{name}: {reason}" for reason in _objections(root, name, live, locked)]
    return changed, objections


def _objections(root: Path, name: str, live: Entry, locked: Entry) -> Iterator[str]:
    """Why a stage has to run again; nothing where the edit is proven to be harmless."""
    if live.command != locked.command:
        yield "its command changed"
    if live.params != locked.params:
        yield "its parameters changed"
    if live.deps.keys() != locked.deps.keys():
        yield "its list of dependencies changed"
    for dep in live.deps.keys() & locked.deps.keys():
        if live.deps[dep] == locked.deps[dep]:
            continue
        if not dep.endswith(".py"):
            yield f"{dep} changed and is no Python file"
        elif (old := committed_version(root, dep, locked.deps[dep])) is None:
            yield f"{dep} changed, and no version in git has the hash of dvc.lock"
        elif not same_program(old, (root / dep).read_text(encoding="utf-8")):
            yield f"{dep} changed in more than comments, docstrings and formatting"
    for path, md5 in locked_outs(root, name).items():
        if not (root / path).exists():
            yield f"{path} is missing: `dvc checkout` first"
        elif path_hash(root / path, root) != md5:
            yield f"{path} differs from dvc.lock"


def committed_version(root: Path, path: str, md5: str) -> str | None:
    """Text of the version of a file in git's history that has a given MD5."""
    revisions = _git(root, "log", "--all", "--format=%H", "--", path).decode().split()
    for revision in revisions:
        content = _git(root, "show", f"{revision}:./{path}")
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content.decode("utf-8")
    return None


def same_program(old: str, new: str) -> bool:
    """Whether two sources differ in comments, docstrings and formatting at most."""
    try:
        return _skeleton(old) == _skeleton(new)
    except SyntaxError:
        return False


def _skeleton(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""
