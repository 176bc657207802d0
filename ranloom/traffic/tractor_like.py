"""Traffic and channel with the statistics of the TRACTOR scenarios, from a small file of facts.

``data/traffic/tractor_like.yaml`` holds what ``ranloom.traffic.fit_tractor`` measured on the real
files: a burst model a trace, and the SINR of every UE of the two scenarios under both readings of
the KPI logs. Users without the traces generate from it; users with others fit their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ranloom.errors import InputError
from ranloom.traffic import arrivals as flows
from ranloom.traffic import channel as channels
from ranloom.traffic.arrivals import Arrivals
from ranloom.traffic.burst_model import LEVELS, N_CLASSES, BurstClass, BurstModel, Quantiles
from ranloom.traffic.channel import SinrTrace
from ranloom.traffic.csv_table import existing
from ranloom.traffic.tractor import KPI_PERIOD_US, READINGS

PROFILE_KEYS = ("mean_kbps", "bursts_per_s", "idle_us", "next_class", "classes")


@dataclass(frozen=True)
class SinrFacts:
    """SINR of one UE under one reading of its KPI log.

    Args:
        mean_db: mean over rows in which the UE sent.
        std_db: standard deviation over these rows.
        coherence_s: time in which the autocorrelation falls to 1/e, from the one at a lag of 1 s of
            the series that holds the last active value in idle rows.
        active_share: share of rows in which the UE sent.
        active_run_rows: mean number of such rows in succession.
    """

    mean_db: float
    std_db: float
    coherence_s: float
    active_share: float
    active_run_rows: float


@dataclass(frozen=True)
class UeFacts:
    """One UE of a scenario: the trace it plays and its SINR by reading."""

    trace: str
    sinr: Mapping[str, SinrFacts]


@dataclass(frozen=True)
class Facts:
    """Everything that the generator knows.

    Args:
        provenance: where the traces come from: repository, commit, licence, method.
        profiles: trace name to its burst model.
        scenarios: scenario name to its UEs.
    """

    provenance: Mapping[str, str]
    profiles: Mapping[str, BurstModel]
    scenarios: Mapping[str, tuple[UeFacts, ...]]

    def profile(self, name: str) -> BurstModel:
        """Burst model of a trace.

        Raises:
            InputError: the file has no such profile.
        """
        if name not in self.profiles:
            raise InputError("traffic facts", name, "needed: one of " + ", ".join(self.profiles))
        return self.profiles[name]

    def ues(self, scenario: str) -> tuple[UeFacts, ...]:
        """UEs of a scenario.

        Raises:
            InputError: the file has no such scenario.
        """
        if scenario not in self.scenarios:
            raise InputError(
                "traffic facts", scenario, "needed: one of " + ", ".join(self.scenarios)
            )
        return self.scenarios[scenario]


def generate_arrivals(
    facts: Facts, profiles: tuple[str, ...], duration_us: int, rng: np.random.Generator
) -> Arrivals:
    """Packets of one UE a profile; each UE draws from its own child of ``rng``."""
    streams = rng.spawn(len(profiles))
    return flows.stack(
        [
            facts.profile(name).sample(duration_us, child)
            for name, child in zip(profiles, streams, strict=True)
        ]
    )


def generate_channel(
    ues: tuple[UeFacts, ...], duration_us: int, reading: str, rng: np.random.Generator
) -> SinrTrace:
    """SINR of some UEs on the 250 ms grid of the logs.

    ``cleaned``: AR(1) around the active rows. ``as_published``: the same, and 0 dB in idle rows,
    which alternate with active ones as a two-state Markov chain of the logged share and run length.

    Raises:
        InputError: unknown reading.
    """
    if reading not in READINGS:
        raise InputError("reading", reading, "needed: " + " or ".join(READINGS))
    sinr = [ue.sinr[reading] for ue in ues]
    active = channels.ar1(
        [s.mean_db for s in sinr],
        [s.std_db for s in sinr],
        [1e6 * s.coherence_s for s in sinr],
        duration_us,
        KPI_PERIOD_US,
        rng,
    )
    if reading == "cleaned":
        return active
    sends = [
        _two_state(s.active_share, s.active_run_rows, active.sinr_db.shape[1], child)
        for s, child in zip(sinr, rng.spawn(len(sinr)), strict=True)
    ]
    gated = np.where(np.array(sends), active.sinr_db, np.float32(0.0))
    return SinrTrace(gated, active.period_us, "ar1 with idle zeros", active.coherence_us)


def read_facts(path: Path) -> Facts:
    """Facts from a YAML file as ``write_facts`` makes it.

    Raises:
        InputError: no such file, no YAML, a key that is missing or no number, a table that is not
            ascending and positive, probabilities that do not add up to 1.
    """
    existing(path, "file")
    return _read_facts(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read_facts(path: Path, _mtime_ns: int) -> Facts:
    """The facts of one version of a file: every scenario asks for them, YAML takes a while."""
    try:
        document = YAML(typ="safe", pure=True).load(path)
    except (YAMLError, UnicodeDecodeError) as error:
        raise InputError(str(path), str(error).splitlines()[0], "needed: a YAML file") from error
    provenance = _get(path, document, "provenance", dict)
    levels = _get(path, document, "levels", list)
    if tuple(levels) != LEVELS:
        raise InputError(f"{path}: levels", levels, f"needed: the levels of this version, {LEVELS}")
    profiles = {
        name: _profile(f"{path}: profiles.{name}", entry)
        for name, entry in _get(path, document, "profiles", dict).items()
    }
    scenarios = {}
    for name, entries in _get(path, document, "scenarios", dict).items():
        where = f"{path}: scenarios.{name}"
        if not isinstance(entries, list) or not entries:
            raise InputError(where, entries, "needed: a list of UEs")
        scenarios[name] = tuple(_ue(f"{where}[{i}]", e) for i, e in enumerate(entries))
        for ue in scenarios[name]:
            if ue.trace not in profiles:
                raise InputError(where, ue.trace, "needed: a trace that has a profile")
    return Facts(provenance, profiles, scenarios)


def write_facts(facts: Facts, path: Path) -> None:
    """Write facts as YAML, numbers rounded to four significant digits."""
    document: dict[str, Any] = {
        "provenance": dict(facts.provenance),
        "levels": list(LEVELS),
        "profiles": {name: _rounded(asdict(model)) for name, model in facts.profiles.items()},
        "scenarios": {
            name: [{"trace": ue.trace, "sinr": _rounded({k: asdict(v) for k, v in ue.sinr.items()})}
                   for ue in ues]
            for name, ues in facts.scenarios.items()
        },
    }  # fmt: skip
    yaml = YAML()
    yaml.width = 400  # a table a line
    yaml.default_flow_style = None  # lists of numbers on one line
    with path.open("w", encoding="utf-8") as file:
        file.write(
            "# Measured by `python -m ranloom.traffic.fit_tractor FOLDER`; not for editing.\n"
        )
        yaml.dump(document, file)


def _two_state(
    share: float, run_rows: float, count: int, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[count] states of a Markov chain that is on for ``share`` of them, ``run_rows`` in a row."""
    if share >= 1.0:
        return np.ones(count, bool)
    idle_rows = run_rows * (1.0 - share) / share
    on = bool(rng.random() < share)
    states, filled = np.empty(count, bool), 0
    while filled < count:
        run = int(rng.geometric(min(1.0, 1.0 / (run_rows if on else idle_rows))))
        states[filled : filled + run] = on
        filled += run
        on = not on
    return states


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value


def _get(where: object, mapping: Any, key: str, kind: type) -> Any:
    if not isinstance(mapping, dict) or key not in mapping:
        found = list(mapping) if isinstance(mapping, dict) else mapping
        raise InputError(f"{where}", found, f"needed: the key {key}")
    value = mapping[key]
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if np.isfinite(value) and value >= 0:
            return float(value)
    elif kind is not float and isinstance(value, kind):
        return value
    wanted = "a number, at least 0" if kind is float else f"a {kind.__name__}"
    raise InputError(f"{where}.{key}", value, f"needed: {wanted}")


def _quantiles(where: str, entry: Any) -> Quantiles:
    values = _get(where, entry, "values", list)
    numbers = all(isinstance(v, int | float) for v in values)
    if not numbers or len(values) != len(LEVELS) or values[0] <= 0 or np.any(np.diff(values) < 0):
        raise InputError(
            f"{where}.values", values, f"needed: {len(LEVELS)} positive numbers, ascending"
        )
    return Quantiles(tuple(float(v) for v in values), _get(where, entry, "mean", float))


def _profile(where: str, entry: Any) -> BurstModel:
    mean_kbps, bursts_per_s, idle, chain, classes = (
        _get(where, entry, key, kind)
        for key, kind in zip(PROFILE_KEYS, (float, float, dict, list, list), strict=True)
    )
    if len(classes) != N_CLASSES:
        raise InputError(f"{where}.classes", len(classes), f"needed: {N_CLASSES} burst classes")
    if bursts_per_s <= 0:
        raise InputError(f"{where}.bursts_per_s", bursts_per_s, "needed: above 0")
    shape_right = len(chain) == N_CLASSES and all(len(row) == N_CLASSES for row in chain)
    present = [c is not None for c in classes]
    if not shape_right or not np.allclose(np.sum(chain, axis=1), present, atol=1e-3):
        raise InputError(
            f"{where}.next_class", chain, "needed: rows of probabilities that add up to 1"
        )
    if np.any(np.array(chain)[:, ~np.array(present)] > 0):
        raise InputError(
            f"{where}.next_class", chain, "needed: probability 0 for a class that is null"
        )
    return BurstModel(
        mean_kbps,
        bursts_per_s,
        _quantiles(f"{where}.idle_us", idle),
        tuple(tuple(float(p) for p in row) for row in chain),
        tuple(
            None if c is None else _burst_class(f"{where}.classes[{i}]", c)
            for i, c in enumerate(classes)
        ),
    )


def _burst_class(where: str, entry: Any) -> BurstClass:
    tables = {
        key: _quantiles(f"{where}.{key}", _get(where, entry, key, dict))
        for key in BurstClass.__annotations__
        if key != "packet_gap_us"
    }
    return BurstClass(**tables, packet_gap_us=_get(where, entry, "packet_gap_us", float))


def _ue(where: str, entry: Any) -> UeFacts:
    sinr = _get(where, entry, "sinr", dict)
    facts = {}
    for reading in READINGS:
        at = f"{where}.sinr.{reading}"
        read = _get(f"{where}.sinr", sinr, reading, dict)
        facts[reading] = SinrFacts(
            **{k: _get(at, read, k, float) for k in SinrFacts.__annotations__}
        )
        if not (facts[reading].coherence_s > 0 and 0 < facts[reading].active_share <= 1):
            raise InputError(at, dict(read), "needed: coherence_s above 0, active_share in (0, 1]")
        if facts[reading].active_run_rows < 1:
            raise InputError(
                at, facts[reading].active_run_rows, "needed: active_run_rows of at least 1"
            )
    return UeFacts(_get(where, entry, "trace", str), facts)
