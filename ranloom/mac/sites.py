"""Figures over the sites of an area: the busiest one, and how often their peaks coincide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEAR_PEAK = 0.9  # an hour counts as a peak from this share of the site's busiest hour on


def _by_site(columns: Mapping[str, Any], controller: str, name: str) -> NDArray[np.float64]:
    """[site, hour] of a column of the cell table."""
    rows = np.asarray(columns["controller"]) == controller
    site, hour = (np.asarray(columns[k])[rows] for k in ("cell", "hour"))
    grid = np.zeros((int(site.max()) + 1, int(hour.max()) + 1))
    grid[site, hour] = np.asarray(columns[name])[rows]
    return grid


def peak_spare(columns: Mapping[str, Any], controller: str) -> dict[str, float]:
    """Spare compute of the busiest site in its busiest hour, two readings.

    The published 85 % is SM utilisation; the complement of a reservation cannot exceed the SMs
    above the smallest reservation.

    Args:
        columns: ``controller``, ``cell``, ``hour``, ``offered_mbps``, ``spare_pct``, ``smu_pct``.
        controller: whose reservations.

    Returns:
        ``busiest_site``, ``busiest_hour``, ``busiest_site_spare_reservation_pct`` (SMs not
        reserved) and ``busiest_site_spare_smu_pct`` (SM time not busy with decoding).
    """
    offered = _by_site(columns, controller, "offered_mbps")
    site = int(offered.sum(axis=1).argmax())
    hour = int(offered[site].argmax())
    return {
        "busiest_site": site,
        "busiest_hour": hour,
        "busiest_site_spare_reservation_pct": float(
            _by_site(columns, controller, "spare_pct")[site, hour]
        ),
        "busiest_site_spare_smu_pct": float(
            100.0 - _by_site(columns, controller, "smu_pct")[site, hour]
        ),
    }


def peak_overlap(columns: Mapping[str, Any], controller: str) -> float:
    """Share of other sites that are at their own peak in a peak hour of a site, mean over both.

    0: peaks never coincide; 1: all sites peak together. An hour is a peak of a site when it
    carries at least ``NEAR_PEAK`` of the site's busiest hour.
    """
    offered = _by_site(columns, controller, "offered_mbps")
    if len(offered) < 2:
        return 0.0
    at_peak = offered >= NEAR_PEAK * offered.max(axis=1, keepdims=True)
    others = (at_peak.sum(axis=0) - at_peak) / (len(offered) - 1)
    return float(np.mean([others[s, at_peak[s]].mean() for s in range(len(offered))]))
