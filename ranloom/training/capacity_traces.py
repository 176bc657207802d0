"""Spare compute of training sites, drawn from the traces that ``replay_spare`` made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ranloom.errors import InputError


def trace_pool(
    spare: Mapping[str, np.ndarray], scenarios: Sequence[str], controller: str, mechanism: str
) -> list[np.ndarray]:
    """Traces of usable compute by second, one a (scenario, site), in this order.

    Args:
        spare: columns of ``spare.parquet``.
        scenarios: scenarios to take.
        controller: controller of the reservations.
        mechanism: GPU-sharing mechanism.

    Raises:
        InputError: there is no such trace, or a value is missing or negative.
    """
    wanted = (spare["controller"] == controller) & (spare["mechanism"] == mechanism)
    pool: list[np.ndarray] = []
    for scenario in scenarios:
        rows = np.flatnonzero(wanted & (spare["scenario"] == scenario))
        for site in np.unique(spare["site"][rows]):
            mine = rows[spare["site"][rows] == site]
            order = np.argsort(spare["second"][mine], kind="stable")
            values = np.asarray(spare["usable_tflops"][mine][order], dtype=np.float64)
            if not np.all(np.isfinite(values) & (values >= 0.0)):
                where = f"spare.parquet: {scenario}, {controller}, {mechanism}, site {site}"
                raise InputError(where, values.min(), "allowed: usable_tflops from 0")
            pool.append(values)
    if not pool:
        raise InputError(
            "spare.parquet",
            f"{', '.join(scenarios)}; {controller}; {mechanism}",
            "allowed: a scenario, controller and mechanism that occur together",
        )
    return pool


def draw_traces(pool: Sequence[np.ndarray], sites: int, seconds: int, seed: int) -> np.ndarray:
    """Independent draws: for each site a trace of the pool from a random second on [N, K].

    A trace shorter than that is repeated from its beginning. The draw depends on the seed and on
    the number of traces only, so pools of the same scenarios give every system the same sites. A
    draw without any compute moves on to the next second that has some: such a site does not train.

    Args:
        pool: traces by second.
        sites: sites N.
        seconds: length K.
        seed: of the draws.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 60]))
    drawn = np.empty((sites, seconds))
    for site in range(sites):
        trace = pool[int(rng.integers(len(pool)))]
        start = int(rng.random() * len(trace))
        window = trace[(start + np.arange(seconds)) % len(trace)]
        if not window.any() and trace.any():
            start += int(np.flatnonzero(np.roll(trace, -start))[0])
            window = trace[(start + np.arange(seconds)) % len(trace)]
        drawn[site] = window
    return drawn


def with_drops(
    tflops: np.ndarray,
    events: int,
    depth: tuple[float, float],
    length_s: tuple[int, int],
    seed: int,
) -> np.ndarray:
    """The same traces with capacity drops at random sites and seconds [N, K].

    Args:
        tflops: usable compute by site and second [N, K].
        events: drops over all sites.
        depth: least and largest share that is left during a drop.
        length_s: shortest and longest drop.
        seed: of the drops.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 61]))
    dropped = tflops.copy()
    for _ in range(events):
        site = int(rng.integers(len(tflops)))
        start = int(rng.integers(tflops.shape[1]))
        end = start + int(rng.integers(length_s[0], length_s[1] + 1))
        dropped[site, start:end] *= rng.uniform(*depth)
    return dropped


def draw_failures(
    sites: int, seconds: float, count: int, repair_s: tuple[float, float], seed: int
) -> tuple[tuple[float, int, float], ...]:
    """Failures of sites at independent, even times: (time, site, when it is back), ascending.

    More failures are fewer ones and some more, so that counts can be compared.

    Args:
        sites: sites N.
        seconds: length of the run.
        count: failures over all sites.
        repair_s: shortest and longest time until a site is back.
        seed: of the draws.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 62]))
    draws = rng.random((count, 3))
    at_s = seconds * draws[:, 0]
    back_s = at_s + repair_s[0] + (repair_s[1] - repair_s[0]) * draws[:, 1]
    victims = (sites * draws[:, 2]).astype(int)
    return tuple(sorted(zip(at_s.tolist(), victims.tolist(), back_s.tolist(), strict=True)))
