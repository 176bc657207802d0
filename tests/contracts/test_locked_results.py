"""``dvc.lock`` and the committed metrics are those of this tree.

A failure here means that results in the repository do not belong to its code and parameters:
``make run`` and commit ``dvc.lock`` and ``outs/*/metrics.json``, or ``python -m stages ast-commit``
after edits of comments.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stages
from pipeline.documents import flattened
from pipeline.fingerprint import Entry, Pipeline, locked_entries, locked_outs, path_hash
from pipeline.registry import METRICS, OUTS, discover

REGISTRY = discover(stages)


@pytest.fixture(scope="module")
def locked(root: Path) -> dict[str, Entry]:
    return locked_entries(root)


@pytest.fixture(scope="module")
def pipeline(root: Path) -> Pipeline:
    return Pipeline(root)


def test_every_stage_is_locked(locked: dict[str, Entry], pipeline: Pipeline) -> None:
    assert sorted(locked) == sorted(pipeline.stages) == sorted(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_command_params_and_inputs(name: str, locked, pipeline) -> None:
    live = pipeline.live(name, with_outs=False)
    entry = locked[name]
    assert entry.command == live.command
    assert entry.params == live.params
    assert {dep: entry.deps.get(dep) for dep in live.deps} == live.deps


@pytest.mark.parametrize("name", REGISTRY)
def test_inputs_from_other_stages(name: str, locked, root: Path) -> None:
    """They are in the cache, not in git: their hashes are compared inside the lock file."""
    made = {path: md5 for stage in locked for path, md5 in locked_outs(root, stage).items()}
    for dep, md5 in locked[name].deps.items():
        if dep.startswith(f"{OUTS}/"):
            assert made[dep] == md5, dep


@pytest.mark.parametrize("name", REGISTRY)
def test_committed_metrics(name: str, root: Path) -> None:
    path = f"{OUTS}/{name}/{METRICS}"
    assert locked_outs(root, name)[path] == path_hash(root / path)


@pytest.mark.parametrize("name", REGISTRY)
def test_headline_numbers_are_among_them(name: str, root: Path) -> None:
    """Apart from measured ones, which are not committed."""
    stage = REGISTRY[name]
    found = dict(flattened(json.loads((root / OUTS / name / METRICS).read_text(encoding="utf-8"))))
    missing = [headline for headline in stage.headline if headline not in found]
    assert missing == [] or stage.measured


@pytest.mark.parametrize("name", REGISTRY)
def test_declared_outputs_are_locked(name: str, pipeline, root: Path) -> None:
    assert sorted(locked_outs(root, name)) == sorted(pipeline.outs_of(name))
