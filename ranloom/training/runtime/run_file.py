"""The file that describes a run for processes on several hosts, and the keys that they need."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ranloom.errors import InputError
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.runtime.peer_messages import COORDINATOR, site_name
from ranloom.training.runtime.setup import TrainingSetup
from ranloom.training.runtime.transport import Identity, KeyPair, keyring
from ranloom.training.settings import CoordinatorSettings


@dataclass(frozen=True)
class RunFile:
    """A run, as every process of it reads it.

    Args:
        setup: what is trained.
        settings: of the coordinator core.
        boundaries: layers at which stages begin and end.
        replicas: replicas D; sites number through the first replica, then the second, and so on.
        sites: sites that may join, 0 to ``sites`` - 1; those beyond D x P are in reserve.
        checkpoints: folder of the checkpoints, the same storage on every host.
        heartbeat_s: longest silence between coordinator and site.
        give_up_s: every process ends by itself after this time.
    """

    setup: TrainingSetup
    settings: CoordinatorSettings
    boundaries: tuple[int, ...]
    replicas: int
    sites: int
    checkpoints: Path
    heartbeat_s: float
    give_up_s: float

    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def layout(self) -> Layout:
        """The layout to start with."""
        return regular_layout(self.boundaries, self.replicas)


def read_run_file(path: Path) -> RunFile:
    """Read and check a run file (YAML).

    Raises:
        InputError: missing, no YAML, or a field that is missing, unknown or out of range.
    """
    if not path.is_file():
        raise InputError(str(path), "missing", "allowed: an existing run file")
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        return TypeAdapter(RunFile).validate_python(document)
    except (YAMLError, UnicodeDecodeError) as error:
        raise InputError(str(path), str(error).split("\n")[0], "allowed: YAML") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}", first["input"], f"allowed: {first['msg']}") from None


def write_keys(folder: Path, sites: int) -> None:
    """Make a key pair for every process of a run.

    ``public.json`` goes to all of them, ``<name>.secret.json`` to that one process alone.
    """
    pairs, admitted = keyring([COORDINATOR, *(site_name(site) for site in range(sites))])
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "public.json", admitted, 0o644)
    for name, pair in pairs.items():
        _write(folder / f"{name}.secret.json", {"secret": pair.secret}, 0o600)


def read_identity(folder: Path | None, name: str) -> Identity:
    """Name, keys and admitted peers of a process; no folder means trusted, plain links.

    Raises:
        InputError: a key file that is missing or spoilt.
    """
    if folder is None:
        return Identity(name, None, {})
    admitted = _read(folder / "public.json")
    if name not in admitted:
        raise InputError(str(folder / "public.json"), name, "allowed: a key for this process")
    secret = _read(folder / f"{name}.secret.json").get("secret", "")
    if len(secret) != 40:
        raise InputError(
            str(folder / f"{name}.secret.json"), "spoilt", "allowed: a secret key of 40 characters"
        )
    return Identity(name, KeyPair(admitted[name], secret), admitted)


def _write(path: Path, document: dict[str, str], mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), str(error), "allowed: a key file") from None
    if not isinstance(document, dict) or not all(isinstance(v, str) for v in document.values()):
        raise InputError(str(path), document, "allowed: names and keys")
    return document
