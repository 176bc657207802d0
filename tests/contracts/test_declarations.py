"""What every stage must declare, and what importing the declarations may cost."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import stages
from pipeline import render
from pipeline.registry import Registry, discover, nested_models
from pipeline.stage import StageParams, Table

REGISTRY = discover(stages)

HEAVY = ("mlflow", "prefect", "dvc", "optuna", "torch", "scipy.stats")


def models(model: type[StageParams]) -> Iterator[type[StageParams]]:
    yield model
    for field in model.model_fields.values():
        for nested in nested_models(field):
            yield from models(nested)


def test_declarations_are_consistent() -> None:
    assert REGISTRY.faults() == []


def test_generated_files_are_up_to_date(root: Path) -> None:
    """Otherwise: ``python -m stages render``."""
    assert render.stale(root, REGISTRY) == []


@pytest.mark.parametrize("name", REGISTRY)
def test_every_parameter_says_what_it_means(name: str) -> None:
    for model in models(REGISTRY[name].params):
        for key, field in model.model_fields.items():
            nested = any(True for _ in nested_models(field))
            assert field.description or nested, f"{name}: {model.__name__}.{key}"


@pytest.mark.parametrize("name", REGISTRY)
def test_numbers_have_bounds(name: str) -> None:
    """Also those in lists and mappings: a number that nothing bounds cannot be checked."""
    schema = REGISTRY[name].params.model_json_schema()
    assert list(unbounded(schema, schema, name)) == []


def unbounded(schema: Mapping[str, Any], node: Mapping[str, Any], place: str) -> Iterator[str]:
    """Numbers of a JSON schema without a lower bound; all have a common upper one."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    if node.get("type") in ("integer", "number") and not (
        {"minimum", "exclusiveMinimum", "const", "enum"} & set(node)
    ):
        yield place
    inner = {f"{place}.{key}": value for key, value in node.get("properties", {}).items()}
    inner[f"{place}.*"] = node.get("additionalProperties")
    inner[f"{place}[]"] = node.get("items")
    for kind in ("anyOf", "prefixItems"):
        inner.update({f"{place}[{i}]": part for i, part in enumerate(node.get(kind, ()))})
    for where, part in inner.items():
        if isinstance(part, Mapping):
            yield from unbounded(schema, part, where)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_output_and_column_is_described(name: str) -> None:
    stage = REGISTRY[name]
    assert stage.title
    assert not stage.title.endswith(".")
    assert stage.headline, "at least one number to show after a run"
    assert inspect.getdoc(inspect.getmodule(stage.run))
    for output in stage.outputs.values():
        assert output.description
        if isinstance(output, Table):
            assert output.columns
            assert all(column.description for column in output.columns)


def test_declarations_are_cheap_to_import() -> None:
    """Every command and every stage process imports all of them."""
    program = (
        "import sys, stages; from pipeline.registry import discover; discover(stages); "
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_order_is_the_chain() -> None:
    order = list(REGISTRY)
    registry = Registry(reversed(list(REGISTRY.values())))
    assert list(registry) == order
    chain = ["profile_lut", "calibrate_scheduler", "generate_traces", "replay_spare", "report"]
    assert [name for name in order if name in chain] == [name for name in chain if name in order]
