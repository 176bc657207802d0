"""How a plan stands releases that are shifted: miss rates with and without re-planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ranloom.transport.demands import NS_PER_S, ForecastDemands
from ranloom.transport.execution import execute
from ranloom.transport.network import Network
from ranloom.transport.plan import MISSED, Plan
from ranloom.transport.replan import ReplanRules
from ranloom.transport.rolling import roll
from ranloom.transport.topology import Topology


@dataclass(frozen=True)
class JitterRow:
    """One spread of the shifts; field names are the columns of ``jitter.parquet``.

    A demand counts as missed where the plan carries it and what happens does not.

    Args:
        sd_s: standard deviation of the shifts, which are normal with mean zero.
        draws: how often all releases were drawn.
        kept_missed_pct: of the planned demands, mean over draws, windows as planned.
        kept_worst_pct: the same in the worst draw.
        replanned_missed_pct: mean with re-planning.
        replanned_worst_pct: worst with re-planning.
        replannings: mean number of re-plannings.
        extra_setups: mean number of windows beyond those of the plan, with re-planning.
    """

    sd_s: float
    draws: int
    kept_missed_pct: float
    kept_worst_pct: float
    replanned_missed_pct: float
    replanned_worst_pct: float
    replannings: float
    extra_setups: float


def jitter(
    plan: Plan,
    topology: Topology,
    network: Network,
    rules: ReplanRules,
    *,
    sd_s: Sequence[float],
    draws: int,
    rng: np.random.Generator,
) -> tuple[list[JitterRow], list[Plan]]:
    """Carry a plan out on shifted releases.

    Args:
        plan: plan of shaped transfers.
        topology: the topology.
        network: the network of the plan.
        rules: how re-planning may act.
        sd_s: spreads.
        draws: per spread; the same normal numbers serve all spreads, scaled.
        rng: random stream.

    Returns:
        A row for each spread, and all plans that came about, to be validated.
    """
    demands = plan.demands
    standard = rng.standard_normal((draws, len(demands)))
    carried = plan.mode != MISSED
    count = max(1, int(np.count_nonzero(carried)))
    rows, plans = [], []
    for spread in sd_s:
        missed: dict[str, list[float]] = {"kept": [], "replanned": []}
        replannings, extra = [], []
        for shift in standard:
            moved = demands.release_ns + np.round(shift * spread * NS_PER_S).astype(np.int64)
            realised = demands.released(np.maximum(moved, 0))
            margin = round(spread * NS_PER_S)
            forecast = ForecastDemands(realised, demands.release_ns - margin, demands.release_ns)
            kept = execute(plan, realised, network, packet=rules.packet)
            rolled = roll(plan, forecast, topology, network, rules)
            for name, happened in (("kept", kept), ("replanned", rolled.plan)):
                lost = int(np.count_nonzero(carried & (happened.mode == MISSED)))
                missed[name].append(100.0 * lost / count)
                plans.append(happened)
            replannings.append(len(rolled.choices))
            extra.append(rolled.plan.setups - plan.setups)
        rows.append(
            JitterRow(
                sd_s=spread,
                draws=draws,
                kept_missed_pct=float(np.mean(missed["kept"])),
                kept_worst_pct=max(missed["kept"]),
                replanned_missed_pct=float(np.mean(missed["replanned"])),
                replanned_worst_pct=max(missed["replanned"]),
                replannings=float(np.mean(replannings)),
                extra_setups=float(np.mean(extra)),
            )
        )
    return rows, plans
