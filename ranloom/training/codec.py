"""Messages to and from JSON-ready dictionaries, checked against their declared types.

Used for the durable event log and the record of a run; nothing is ever unpickled. A document
carries the class name under ``type``; floats are kept exactly (JSON's shortest repr round-trips).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from ranloom.errors import InputError
from ranloom.training import messages
from ranloom.training.messages import Action, Event

SCHEMA_VERSION = 1
"""Raised when a field of a message changes meaning; logs of other versions are refused."""

_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (*typing.get_args(Event), *typing.get_args(Action))
}


def encode(message: Event | Action) -> dict[str, Any]:
    """A message as nested dicts, lists, strings and numbers."""
    return {"type": type(message).__name__, **_plain(message)}


def decode(document: object) -> Event | Action:
    """The message that a document describes.

    Raises:
        InputError: unknown type, missing or unknown field, or a value of another type.
    """
    if not isinstance(document, Mapping):
        raise InputError("message", document, "allowed: an object with a field 'type'")
    name = document.get("type")
    if not isinstance(name, str) or name not in _CLASSES:
        raise InputError("message.type", name, f"allowed: {', '.join(sorted(_CLASSES))}")
    fields = {key: value for key, value in document.items() if key != "type"}
    message = _decode_dataclass(_CLASSES[name], fields, name)
    return typing.cast("Event | Action", message)


def is_event(message: Event | Action) -> bool:
    """Whether the message goes into the coordinator."""
    return isinstance(message, Event)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


@cache
def _field_types(cls: type) -> dict[str, Any]:
    namespace = {**vars(messages), **vars(typing)}
    return typing.get_type_hints(cls, globalns=namespace)


def _decode_dataclass(cls: type, value: object, where: str) -> Any:
    declared = _field_types(cls)
    if not isinstance(value, Mapping):
        raise InputError(where, value, f"allowed: the fields {', '.join(declared)}")
    if set(value) != set(declared):
        odd = sorted(set(value) ^ set(declared), key=str)
        raise InputError(where, odd, f"allowed: exactly the fields {', '.join(declared)}")
    return cls(**{name: _decode(declared[name], value[name], f"{where}.{name}") for name in value})


def _decode_number(expected: type, value: object, where: str) -> Any:
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (expected is not bool and isinstance(value, bool)):
        raise InputError(where, value, f"allowed: a value of type {expected.__name__}")
    return expected(value)


def _decode(expected: Any, value: object, where: str) -> Any:
    if isinstance(expected, types.GenericAlias):
        return _decode_tuple(typing.get_args(expected), value, where)
    if dataclasses.is_dataclass(expected):
        return _decode_dataclass(typing.cast(type, expected), value, where)
    if issubclass(expected, Enum):
        try:
            return expected(value)
        except ValueError:
            allowed = ", ".join(str(member.value) for member in expected)
            raise InputError(where, value, f"allowed: {allowed}") from None
    return _decode_number(expected, value, where)


def _decode_tuple(arguments: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(where, value, "allowed: a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_decode(arguments[0], item, where) for item in value)
    if len(arguments) != len(value):
        raise InputError(where, value, f"allowed: a list of {len(arguments)}")
    return tuple(_decode(kind, item, where) for kind, item in zip(arguments, value, strict=True))
