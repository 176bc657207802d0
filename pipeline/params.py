"""``params.yaml``: the one loader, and parameters of a stage from it.

DVC reads the same file; both use ruamel.yaml (YAML 1.2), so that ``1e-3`` is a number for both.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipeline.registry import Registry, base_keys
from pipeline.stage import ABSENT, UNKNOWN, Fault, Remark, Stage, StageParams

PARAMS = "params.yaml"
LARGEST, SMALLEST = 1e12, 1e-9
"""Limits of every number's size (unless it is 0), beside its own bounds."""
LONGEST = 4096
"""Limit of every string, in characters: that of a path on Linux."""


class RefusedError(Exception):
    """Input that cannot be used, with every fault found.

    Args:
        faults: at least one.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(fault.line() for fault in faults))


def load(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        RefusedError: the file is missing, no valid YAML, no mapping, or holds a key twice.
    """
    try:
        document = deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RefusedError([Fault(path.name, ABSENT, "a YAML file is expected")]) from None
    except UnicodeDecodeError:
        raise RefusedError(
            [Fault(path.name, Remark("binary data"), "a YAML file in UTF-8")]
        ) from None
    except DuplicateKeyError as error:
        where = f"{path.name}: line {_line(error)}"
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else error.problem
        raise RefusedError([Fault(where, key, "each key may stand only once")]) from None
    except YAMLError as error:
        where = f"{path.name}: line {_line(error)}" if _line(error) else path.name
        problem = error.problem if isinstance(error, MarkedYAMLError) else str(error)
        raise RefusedError(
            [Fault(where, Remark(_first_line(problem)), "valid YAML is expected")]
        ) from None
    if not isinstance(document, dict):
        raise RefusedError([Fault(path.name, document, "a mapping of blocks is expected")])
    return document


@lru_cache(maxsize=4)
def _parsed(text: str) -> Any:
    """A stage asks for the same file several times, and the parser is slow."""
    return YAML(typ="safe", pure=True).load(text)


def lookup(document: Mapping[str, Any], key: str) -> Any:
    """Value of a dotted key.

    Raises:
        KeyError: there is no such key.
    """
    value: Any = document
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(key)
        value = value[part]
    return value


def build(stage: Stage, document: Mapping[str, Any]) -> StageParams:
    """Parameters of a stage: its block and the ``base`` values that it declares.

    Types are strict (``"3"`` is no number, ``1`` is no bool; an integer may stand for a float).

    Args:
        stage: whose parameters.
        document: the whole of ``params.yaml``.

    Raises:
        RefusedError: every fault, each with key, value and what is allowed.
    """
    block = document.get(stage.name, ABSENT)
    if not isinstance(block, dict):
        allowed = f"the block of stage {stage.name}, a mapping"
        raise RefusedError([Fault(f"{PARAMS}: {stage.name}", block, allowed)])
    values = dict(block)
    if "base" in block:
        allowed = "shared values stand in the block `base` at the top level"
        raise RefusedError([Fault(f"{PARAMS}: {stage.name}.base", block["base"], allowed)])
    shared = base_keys(stage)
    if shared:
        base = document.get("base", ABSENT)
        if not isinstance(base, dict):
            raise RefusedError([Fault(f"{PARAMS}: base", base, "the block of shared values")])
        values["base"] = {key: base[key] for key in shared if key in base}
    if excess := list(_excessive(values, (stage.name,))):
        raise RefusedError(excess)
    try:
        return stage.params.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        schema = stage.params.model_json_schema()
        raise RefusedError([_fault(stage, schema, e) for e in error.errors()]) from None


def _excessive(node: Any, place: tuple[str | int, ...]) -> Iterator[Fault]:
    """Values of a size that no quantity here has, which arithmetic or the system would refuse."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _excessive(value, ("base",) if key == "base" else (*place, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _excessive(value, (*place, i))
    else:
        where = f"{PARAMS}: {'.'.join(map(str, place))}"
        if isinstance(node, int | float):
            if LARGEST < abs(node) < math.inf or 0 < abs(node) < SMALLEST:
                yield Fault(where, node, f"0 or from {SMALLEST:g} to {LARGEST:g} in size")
        elif isinstance(node, str) and len(node) > LONGEST:
            yield Fault(where, node, f"at most {LONGEST} characters")


def unknown_blocks(document: Mapping[str, Any], registry: Registry) -> list[Fault]:
    """Blocks of ``params.yaml`` that belong to no stage, and ``base`` keys that none reads."""
    faults = [
        Fault(
            f"{PARAMS}: {block}", Remark("unknown block"), _suggest(str(block), ("base", *registry))
        )
        for block in document
        if block != "base" and block not in registry
    ]
    known = sorted({key for stage in registry.values() for key in base_keys(stage)})
    base = document.get("base")
    if isinstance(base, dict):
        faults += [
            Fault(f"{PARAMS}: base.{key}", UNKNOWN, _suggest(str(key), known))
            for key in base
            if key not in known
        ]
    return faults


def _fault(stage: Stage, schema: Mapping[str, Any], error: ErrorDetails) -> Fault:
    loc = error["loc"]
    path = ".".join(str(part) for part in (loc if loc[:1] == ("base",) else (stage.name, *loc)))
    where = f"{PARAMS}: {path}"
    if error["type"] == "missing":
        return Fault(where, ABSENT, describe(schema, _node(schema, loc)))
    if error["type"] == "extra_forbidden":
        siblings = [key for key in _node(schema, loc[:-1]).get("properties", {}) if key != "base"]
        return Fault(where, UNKNOWN, _suggest(str(loc[-1]), siblings))
    if error["type"] in ("value_error", "assertion_error"):
        allowed = error["msg"].split(", ", 1)[-1]
        return Fault(where, error["input"], _first_line(allowed))
    node = _node(schema, loc)
    return Fault(where, error["input"], describe(schema, node) if node else error["msg"])


def _node(schema: Mapping[str, Any], loc: Sequence[int | str]) -> Mapping[str, Any]:
    """Part of a JSON schema that a location speaks of; empty where it cannot be followed."""
    node = _resolved(schema, schema)
    for part in loc:
        if isinstance(part, str) and part in node.get("properties", {}):
            node = node["properties"][part]
        elif isinstance(part, int) and part < len(node.get("prefixItems", ())):
            node = node["prefixItems"][part]
        elif isinstance(part, int) and "items" in node:
            node = node["items"]
        elif isinstance(node.get("additionalProperties"), dict):
            node = node["additionalProperties"]
        else:
            return {}
        node = _resolved(schema, node)
    return node


def _resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        target = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        node = {**target, **{key: node[key] for key in node if key != "$ref"}}
    return node


def describe(schema: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """What a JSON schema node allows, in words: type, range, choices, meaning."""
    node = _resolved(schema, node)
    allowed = _allowed(schema, node)
    meaning = node.get("description")
    return f"{allowed} ({_first_line(meaning)})" if meaning else allowed


def _allowed(schema: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    node = _resolved(schema, node)
    if "anyOf" in node:
        return " or ".join(_allowed(schema, choice) for choice in node["anyOf"])
    if "enum" in node:
        return "one of " + ", ".join(str(choice) for choice in node["enum"])
    if "const" in node:
        return str(node["const"])
    kind = str(node.get("type", "a value"))
    if kind == "array":
        inner = node["prefixItems"][0] if "prefixItems" in node else node.get("items", {})
        return f"list{_length(node)} of {_allowed(schema, inner)}"
    if kind == "object":
        inner = node.get("additionalProperties")
        if isinstance(inner, dict):
            return f"mapping{_length(node)} to {_allowed(schema, inner)}"
        return "mapping with keys " + ", ".join(node.get("properties", ()))
    if kind == "string" and "pattern" in node:
        return f"string like {node['pattern']}"
    return {"null": "null", "boolean": "true or false"}.get(kind, kind + _range(node))


def _length(node: Mapping[str, Any]) -> str:
    low = node.get("minItems", node.get("minProperties"))
    high = node.get("maxItems", node.get("maxProperties"))
    if low is not None and low == high:
        return f" ({low} entries)"
    bounds = [f"at least {low}"] if low is not None else []
    bounds += [f"at most {high}"] if high is not None else []
    return f" ({', '.join(bounds)} entries)" if bounds else ""


def _range(node: Mapping[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    bounds = [f"at least {low:g}"] if low is not None else []
    if "exclusiveMinimum" in node:
        bounds.append(f"above {node['exclusiveMinimum']:g}")
    bounds += [f"at most {high:g}"] if high is not None else []
    if "exclusiveMaximum" in node:
        bounds.append(f"below {node['exclusiveMaximum']:g}")
    if "multipleOf" in node:
        bounds.append(f"a multiple of {node['multipleOf']:g}")
    return " " + ", ".join(bounds) if bounds else ""


def _suggest(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known here: " + ", ".join(known) if known else "no key is known here"


def _line(error: YAMLError) -> int | None:
    mark = getattr(error, "problem_mark", None)
    return None if mark is None else int(mark.line) + 1


def _first_line(text: object) -> str:
    return str(text).strip().split("\n", 1)[0]
