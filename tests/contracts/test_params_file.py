"""``params.yaml`` and the presets: complete, explained, accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import stages
from pipeline import workspace
from pipeline.check import check
from pipeline.params import load
from pipeline.registry import discover
from ranloom.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def test_the_repository_passes_its_own_check(root: Path) -> None:
    assert check(root, discover(stages), InputError) == []


@pytest.mark.parametrize("preset", workspace.presets(ROOT))
def test_presets_are_accepted(root: Path, preset: str, tmp_path: Path) -> None:
    registry = discover(stages)
    place = workspace.place(root, registry, preset, {}, tmp_path / preset)
    assert check(place, registry, InputError) == []
    assert load(place / "params.yaml") != load(root / "params.yaml")


def test_every_key_has_its_reason(root: Path) -> None:
    """A comment on the line of the key, or above it or above one of the blocks it stands in."""
    lines = (root / "params.yaml").read_text(encoding="utf-8").splitlines()
    document = YAML().load("\n".join(lines))
    silent = [name for name, row in keys(document, "") if not explained(lines, row)]
    assert silent == []


def keys(node: Mapping[str, Any], where: str) -> Iterator[tuple[str, int]]:
    for key, value in node.items():
        name = f"{where}{key}"
        if isinstance(value, Mapping) and value:
            yield from keys(value, f"{name}.")
        else:
            yield name, node.lc.key(key)[0]  # type: ignore[attr-defined]


def explained(lines: list[str], row: int) -> bool:
    """Whether the line, the one above, or an enclosing block below the top level says why."""
    indent = len(lines[row]) - len(lines[row].lstrip())
    while True:
        if "#" in lines[row] or (row > 0 and lines[row - 1].lstrip().startswith("#")):
            return True
        outer = row
        while outer > 0:
            outer -= 1
            text = lines[outer]
            if text.strip() and len(text) - len(text.lstrip()) < indent:
                break
        indent = len(lines[outer]) - len(lines[outer].lstrip())
        if indent == 0:
            return False
        row = outer
