"""Edits of comments, docstrings and formatting need no re-run; all others do."""

from __future__ import annotations

import pytest

from pipeline.ast_commit import examine, same_program
from pipeline.fingerprint import locked_entries, path_hash

SOURCE = '''\
"""Module."""

X = [1, 2]  # two


def f(a: int) -> int:
    """Doc."""
    return a + 1  # plus


class C:
    """Only a docstring."""
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Module."""\n', ""),
        ('"""Doc."""', '"""Another,\n\n    longer.\n    """'),
        ("  # two", ""),
        ("[1, 2]", "[\n    1,\n    2,\n]"),
        ('    """Only a docstring."""', "    pass"),
        ('"""Doc."""\n', '"""Doc."""\n\n    # why\n'),
    ],
)
def test_the_same_program(old: str, new: str) -> None:
    assert same_program(SOURCE, SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a + 1", "a + 2"),
        ("a + 1", "1 + a"),
        ("X = ", "Y = "),
        ("a: int", "a: float"),
        ("return", '"text"\n    return'),
        ("X = [1, 2]", 'X = [1, 2]\n"text"'),
        ("return a", "return ("),
        ("[1, 2]", "(1, 2)"),
    ],
)
def test_another_program(old: str, new: str) -> None:
    assert not same_program(SOURCE, SOURCE.replace(old, new))


def test_a_comment_is_committed_without_a_run(built) -> None:
    before = built.outs()
    built.edit("ranloom/constants.py", '"""Constants."""', '"""Constants of nature."""')
    built.edit("stages/total.py", "def run", "# Adds up.\ndef run")
    said = built.stages("ast-commit").stdout
    assert said == "total: committed ranloom/constants.py, stages/total.py\n"
    assert built.reproduced() == []
    assert built.outs() == before


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("ranloom/constants.py", "2.0", "3.0", "total: ranloom/constants.py changed in more than"),
        ("data/unit.txt", "ms", "s", "total: data/unit.txt changed and is no Python file"),
        ("params.yaml", "factor: 2", "factor: 3", "total: its parameters changed"),
        ("outs/total/total.json", "ms", "s", "total: outs/total/total.json differs from dvc.lock"),
    ],
)
def test_anything_else_is_refused(built, toy_registry, file, old, new, reason) -> None:
    built.edit("stages/total.py", "def run", "# Adds up.\ndef run")
    built.edit(file, old, new)
    changed, (objection,) = examine(built.root, toy_registry)
    assert "stages/total.py" in changed["total"]
    assert objection.startswith(reason)


def test_a_refusal_changes_nothing(built) -> None:
    built.edit("stages/total.py", "def run", "# Adds up.\ndef run")
    built.edit("ranloom/constants.py", "2.0", "3.0")
    lock = (built.root / "dvc.lock").read_bytes()
    done = built.stages("ast-commit", code=1)
    assert "total: ranloom/constants.py changed in more than" in done.stderr
    assert "`dvc repro` has to run" in done.stderr
    assert (built.root / "dvc.lock").read_bytes() == lock


def test_the_old_version_must_be_in_git(built, toy_registry) -> None:
    """What DVC ran may never have been committed; then there is nothing to compare with."""
    built.edit("ranloom/constants.py", "2.0", "3.0")
    ran = path_hash(built.root / "ranloom" / "constants.py")
    lock = (built.root / "dvc.lock").read_text()
    old = locked_entries(built.root)["total"].deps["ranloom/constants.py"]
    (built.root / "dvc.lock").write_text(lock.replace(old, ran))
    built.edit("ranloom/constants.py", '"""Constants."""', '"""Numbers."""')
    _, (objection,) = examine(built.root, toy_registry)
    assert "no version in git has the hash of dvc.lock" in objection


def test_stale_declarations_come_first(built) -> None:
    built.edit("stages/total.py", "\nimport os\n", "\nimport os\n\nimport ranloom.unused\n")
    assert "render` first" in built.stages("ast-commit", code=1).stderr


def test_missing_files_are_named(built, toy_registry) -> None:
    (built.root / "data" / "unit.txt").unlink()
    changed, (objection,) = examine(built.root, toy_registry)
    assert changed == {}
    assert objection.endswith("data/unit.txt is missing")
    (built.root / "data" / "unit.txt").write_text("ms\n")
    (built.root / "outs" / "total" / "total.json").unlink()
    built.edit("stages/total.py", "def run", "# Adds up.\ndef run")
    _, (objection,) = examine(built.root, toy_registry)
    assert objection == "total: outs/total/total.json is missing: `dvc checkout` first"
