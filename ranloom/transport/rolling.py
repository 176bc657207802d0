"""Drive a rolling plan through what really happens: arrivals, late ones, faults.

At its announced release a demand that is not complete *slips*: how late it will be is not
known. Its outlook moves on by the announced margin (P95 - P50), and by twice as much each
time that passes too. Nothing looks ahead of the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ranloom.transport.demands import NS_PER_S, ForecastDemands
from ranloom.transport.network import Network
from ranloom.transport.plan import MISSED, Plan
from ranloom.transport.replan import NEVER_NS, Choice, ReplanRules, RollingPlan
from ranloom.transport.topology import Topology

_ARRIVE, _CUT, _FAIL, _DUE = range(4)
_LEAST_MARGIN_NS = NS_PER_S


@dataclass(frozen=True)
class Faults:
    """What goes wrong in the optical layer.

    Args:
        failed_setups: which set-ups fail, counted from 0 in the order in which they begin.
        cuts: (time in ns, node, node) of each fibre that is cut.
    """

    failed_setups: tuple[int, ...] = ()
    cuts: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True)
class Rolled:
    """A plan that was carried out with re-planning.

    Args:
        plan: what happened.
        choices: one for each re-planning, in time order.
    """

    plan: Plan
    choices: tuple[Choice, ...]

    @property
    def never_worse(self) -> bool:
        """Whether no re-planning chose a plan behind going on as planned."""
        return all(choice.chosen <= choice.kept for choice in self.choices)


def roll(
    plan: Plan,
    forecast: ForecastDemands,
    topology: Topology,
    network: Network,
    rules: ReplanRules,
    faults: Faults | None = None,
) -> Rolled:
    """Carry a plan out, re-planning whenever reality departs from it.

    Args:
        plan: made on releases of the forecast.
        forecast: the announced releases and those that occur.
        topology: the topology.
        network: the network of the plan.
        rules: how re-planning may act.
        faults: of the optical layer.

    Raises:
        InputError: a cut fibre that the topology does not have.
    """
    faults = faults or Faults()
    rolling = RollingPlan(plan, topology, network, rules)
    actual = forecast.realised.release_ns.tolist()
    margin = np.maximum(forecast.p95_ns - forecast.p50_ns, _LEAST_MARGIN_NS).tolist()
    there = np.zeros(len(actual), dtype=np.bool_)
    slipped = np.zeros(len(actual), dtype=np.bool_)
    events: list[tuple[int, int, int, tuple[str, str]]] = []
    for row, (due, at) in enumerate(zip(plan.demands.release_ns.tolist(), actual, strict=True)):
        heappush(events, (at, _ARRIVE, row, ("", "")))
        if at > due:
            heappush(events, (due, _DUE, row, ("", "")))
    for at, a, b in faults.cuts:
        topology.without_link(a, b)
        heappush(events, (at, _CUT, 0, (a, b)))
    lit = 0
    while (now := min([event[0] for event in events[:1]] + [rolling.next_start_ns()])) < NEVER_NS:
        rolling.advance(max(now, rolling.now_ns))
        for index, window in enumerate(rolling.committed()[lit:], start=lit):
            if index in faults.failed_setups:
                ready = max(rolling.now_ns, window.start_ns + window.setup_ns)
                heappush(events, (ready, _FAIL, index, ("", "")))
        lit = len(rolling.committed())
        earlier, changed = False, False
        while events and events[0][0] <= rolling.now_ns:
            at, kind, which, fibre = heappop(events)
            if kind == _ARRIVE:
                there[which] = True
                if at == rolling.release_ns[which]:
                    continue  # as announced
                rolling.learn(which, at)
                earlier = True
                changed |= bool(slipped[which]) or _short(rolling)
            elif kind == _DUE:
                if there[which]:
                    continue
                rolling.learn(which, at + margin[which])
                heappush(events, (at + margin[which], _DUE, which, ("", "")))
                margin[which] *= 2
                slipped[which] = changed = True
            elif kind == _FAIL:
                rolling.fail(which)
                changed = True
            else:
                rolling.cut(*fibre)
                changed = True
        if changed:
            rolling.replan()
        elif earlier:
            rolling.respread()
    rolling.advance(max(rolling.now_ns, _end_ns(rolling)))
    return Rolled(rolling.result(), tuple(rolling.choices))


def _short(rolling: RollingPlan) -> bool:
    return bool((rolling.upcoming().mode == MISSED).any())


def _end_ns(rolling: RollingPlan) -> int:
    """When nothing is left to happen."""
    ends = [int(rolling.upcoming().finish_ns.max(initial=0)), int(rolling.finish_ns.max(initial=0))]
    return max(ends)
