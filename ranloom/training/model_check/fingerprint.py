"""Canonical bytes of an object graph: equal for states that behave alike.

Containers are brought into a fixed order, caches and counters that no decision reads are left out,
so that two ways to the same state give the same bytes. Pickle would keep the order of insertion.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, str, bytes, range, type(None))

WITHOUT_EFFECT = frozenset(
    {
        "_handlers",  # bound methods
        "_flop",  # cache of a pure function
        "_pace",  # cache, made anew from what is walked through
        "_holders",  # cache of the pools
        "_busy_since_s",  # only its distance to the present time counts, and time stands still
        "statistics",  # counters
        "_loss",  # for a note
        "_run",  # number of an occupation; completions follow at once
        "_world",
    }
)
"""Attributes that make no difference to what is done next (time stands still in the model)."""


def fingerprint(value: Any) -> bytes:
    """Digest of everything that can be reached from an object."""
    return hashlib.blake2b(_bytes(value, {}), digest_size=16).digest()


def _bytes(value: Any, seen: dict[int, int]) -> bytes:
    if isinstance(value, _PLAIN):
        return repr(value).encode()
    if isinstance(value, Enum):
        return str(value).encode()
    if isinstance(value, np.generic):
        return repr(value.item()).encode()
    if isinstance(value, np.ndarray):
        return str(value.shape).encode() + value.tobytes()
    if isinstance(value, tuple | list | deque):
        return _listed(value, seen)
    if isinstance(value, Mapping):
        entries = sorted(((_bytes(k, seen), v) for k, v in value.items()), key=lambda e: e[0])
        return b"{" + b",".join(k + b":" + _bytes(v, seen) for k, v in entries) + b"}"
    if isinstance(value, set | frozenset):
        return b"<" + b",".join(sorted(_bytes(v, seen) for v in value)) + b">"
    return _object_bytes(value, seen)


def _listed(values: Iterable[Any], seen: dict[int, int]) -> bytes:
    return b"(" + b",".join(_bytes(v, seen) for v in values) + b")"


def _object_bytes(value: Any, seen: dict[int, int]) -> bytes:
    if is_dataclass(value) and not isinstance(value, type):
        parameters: Any = value.__dataclass_params__  # type: ignore[attr-defined]
        if parameters.frozen:
            named = [(f.name, getattr(value, f.name)) for f in fields(value)]
            return _named(type(value).__name__, named, seen)
    if id(value) in seen:
        return b"@%d" % seen[id(value)]
    seen[id(value)] = len(seen)
    if hasattr(value, "__dict__"):
        named = sorted(vars(value).items())
    else:
        named = [(name, getattr(value, name)) for name in value.__slots__]
    return _named(type(value).__name__, named, seen)


def _named(kind: str, named: Iterable[tuple[str, Any]], seen: dict[int, int]) -> bytes:
    parts = (
        name.encode() + b"=" + _bytes(part, seen)
        for name, part in named
        if name not in WITHOUT_EFFECT
    )
    return kind.encode() + b"(" + b",".join(parts) + b")"
