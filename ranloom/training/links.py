"""Links between sites: bandwidth and latency of every ordered pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ranloom.errors import InputError


@dataclass(frozen=True)
class Links:
    """Network between sites as seen end to end.

    Args:
        name: of the network.
        bandwidth_gbps: from source (row) to destination (column) [N, N]; infinite on the diagonal.
        latency_s: one way [N, N]; 0 on the diagonal.
        coordinator_latency_s: one way between the coordinator and each site [N].
    """

    name: str
    bandwidth_gbps: np.ndarray
    latency_s: np.ndarray
    coordinator_latency_s: np.ndarray

    @property
    def sites(self) -> int:
        """Sites N."""
        return len(self.coordinator_latency_s)

    def seconds(self, source: int, destination: int, size_bytes: float) -> float:
        """Time to send that much over an idle link."""
        gbps = self.bandwidth_gbps[source, destination]
        return float(self.latency_s[source, destination] + size_bytes * 8e-9 / gbps)

    def at(self, gbps: float) -> Links:
        """The same latencies with one bandwidth for all pairs."""
        bandwidth = np.full_like(self.bandwidth_gbps, gbps)
        np.fill_diagonal(bandwidth, np.inf)
        return Links(self.name, bandwidth, self.latency_s, self.coordinator_latency_s)

    def changed(self, bandwidth_factor: float, added_latency_s: float) -> Links:
        """The same pairs with other bandwidths, and further apart.

        The coordinator stands half a pair away from every site: it moves by half as much.

        Args:
            bandwidth_factor: on every bandwidth.
            added_latency_s: one way, on every pair.
        """
        added_s = np.full_like(self.latency_s, added_latency_s)
        np.fill_diagonal(added_s, 0.0)
        return Links(
            self.name,
            self.bandwidth_gbps * bandwidth_factor,
            self.latency_s + added_s,
            self.coordinator_latency_s + added_latency_s / 2.0,
        )


def read_links(path: Path) -> Links:
    """Read a links file (``data/links/testbed.yaml`` shows the format).

    Raises:
        InputError: not YAML, a missing key, a matrix of another shape, or a value that is not a
            positive number (``null`` is for the diagonal only).
    """
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise InputError(str(path), str(error).splitlines()[0], "allowed: a YAML file") from None
    wanted = ("name", "sites", "bandwidth_gbps_by_dst", "latency_ms_by_dst")
    if not isinstance(document, dict) or any(key not in document for key in wanted):
        raise InputError(str(path), document, f"allowed: a mapping with {', '.join(wanted)}")
    sites = document["sites"]
    if not isinstance(sites, int) or isinstance(sites, bool) or sites < 1:
        raise InputError(f"{path}: sites", sites, "allowed: a whole number from 1")
    bandwidth = _matrix(path, document, "bandwidth_gbps_by_dst", sites, np.inf)
    latency = _matrix(path, document, "latency_ms_by_dst", sites, 0.0)
    hub = document.get("coordinator_latency_ms", 0.0)
    if isinstance(hub, bool) or not isinstance(hub, int | float) or not 0.0 <= hub < np.inf:
        raise InputError(f"{path}: coordinator_latency_ms", hub, "allowed: a number from 0")
    hub_s = np.full(sites, float(hub) / 1000.0)
    return Links(str(document["name"]), bandwidth.T, latency.T / 1000.0, hub_s)


def _matrix(path: Path, document: dict, key: str, sites: int, diagonal: float) -> np.ndarray:
    rows = document[key]
    if not isinstance(rows, list) or len(rows) != sites:
        raise InputError(f"{path}: {key}", rows, f"allowed: {sites} rows of {sites} numbers")
    matrix = np.empty((sites, sites))
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != sites:
            raise InputError(f"{path}: {key} row {index}", row, f"allowed: {sites} numbers")
        for column, value in enumerate(row):
            if index == column:
                matrix[index, column] = diagonal
            elif (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0.0 < value < np.inf
            ):
                where = f"{path}: {key} row {index} column {column}"
                raise InputError(where, value, "allowed: a positive number")
            else:
                matrix[index, column] = value
    return matrix
