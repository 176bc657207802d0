"""Which files of the repository decide what a stage computes: its module and what that imports."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import grimp

PACKAGES = ("ranloom", "pipeline", "stages")

FRAME = ("pipeline/documents.py", "pipeline/io.py", "pipeline/stage.py")
"""The part of the pipeline through which every stage reads and writes. The rest (runner, tracking,
command line) moves files and talks about them; an edit there must not re-run the chain."""


def code_dependencies(root: Path, stage: str) -> list[str]:
    """Files that a stage's result depends on, relative to the root, sorted.

    The stage's module, everything of ``ranloom`` that it imports, directly or not, and the
    pipeline's frame. Imports inside functions count, those under ``TYPE_CHECKING`` do not.

    Args:
        root: root of the workspace.
        stage: name of the stage.
    """
    graph = _graph(str(root))
    module = f"stages.{stage}"
    found = {module, *graph.find_upstream_modules(module)}
    while True:
        packages = {m[:i] for m in found for i, c in enumerate(m) if c == "."}
        grown = found | packages
        for package in packages - found:
            grown |= graph.find_upstream_modules(package)
        if grown == found:
            break
        found = grown
    files = {_file(root, m) for m in found if not m.startswith("pipeline.") and m != "pipeline"}
    files = {f for f in files if not (f.endswith("/__init__.py") and _is_bare(root / f))}
    return sorted({*files, *FRAME})


@cache
def _graph(_root: str) -> grimp.ImportGraph:
    return grimp.build_graph(
        *PACKAGES,
        exclude_type_checking_imports=True,
        cache_dir=None,
        include_external_packages=False,
    )


def _file(root: Path, module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (root / path).is_dir() else f"{path}.py"


def _is_bare(path: Path) -> bool:
    """Whether a package file holds nothing but its docstring."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)
