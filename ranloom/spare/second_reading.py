"""Co-location beside traces that are drawn to given statistics, by scenario and controller.

The second reading of WEAVER Tables 5 and 6: the first one takes the reservations of our own
controllers. Means are over the drawn traces of a controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from ranloom.gpu.card import Card
from ranloom.mac.lanes import run_lanes
from ranloom.spare.budget import Reservation
from ranloom.spare.colocation import Colocation
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import Outcome
from ranloom.spare.synthetic import TraceStatistics, synthetic_trace

Drawn = Mapping[str, Mapping[str, Sequence[Reservation]]]  # by scenario and controller
Outcomes = Mapping[str, Mapping[str, Sequence[Outcome]]]
COMPARED_WITH = ("noctrl", "yinyangran")


@dataclass(frozen=True)
class Beside:
    """Where co-location is read.

    Args:
        traces: drawn traces.
        traced_on: device of the traces.
        mechanism_of: sharing mechanism of a controller.
        seed: of the jitter.
    """

    traces: Drawn
    traced_on: Card
    mechanism_of: Callable[[str], Mechanism]
    seed: int

    def outcomes(self, colocation: Colocation, *, slot_bounded: bool = True) -> Outcomes:
        """What a workload gets done beside each trace, on all cores."""

        def read(controller: str, trace: Reservation) -> Outcome:
            return colocation.beside(
                colocation.on_device(trace, self.traced_on),
                self.mechanism_of(controller),
                seed=self.seed,
                slot_bounded=slot_bounded,
            )

        places = [
            (scenario, controller, trace)
            for scenario, controllers in self.traces.items()
            for controller, traces in controllers.items()
            for trace in traces
        ]
        done = run_lanes([partial(read, controller, trace) for _, controller, trace in places])
        found: dict[str, dict[str, list[Outcome]]] = {}
        for (scenario, controller, _), outcome in zip(places, done, strict=True):
            found.setdefault(scenario, {}).setdefault(controller, []).append(outcome)
        return found


def draw(
    wanted: Mapping[str, Mapping[str, TraceStatistics]],
    traces: int,
    *,
    duration_s: float,
    slot_us: float,
    card: Card,
    seed: int,
) -> Drawn:
    """Draw traces by scenario and controller.

    Args:
        wanted: statistics of each.
        traces: traces of each.
        duration_s: length of a trace.
        slot_us: slot duration.
        card: device of the traces.
        seed: of the first trace; the others follow.

    Raises:
        InputError: no trace carries the statistics.
    """
    return {
        scenario: {
            controller: [
                synthetic_trace(
                    statistics, duration_s=duration_s, slot_us=slot_us, card=card, seed=seed + k
                )
                for k in range(traces)
            ]
            for controller, statistics in controllers.items()
        }
        for scenario, controllers in wanted.items()
    }


def mean_useful_tflops(done: Sequence[Outcome]) -> float:
    """Mean useful throughput."""
    return fmean(d.useful_tflops for d in done)


def useful_ratios(
    useful_tflops: Mapping[str, float], prefix: str = "useful_ratio"
) -> dict[str, float]:
    """How much more is done beside weaver's reservations, by metric name.

    Args:
        useful_tflops: useful throughput by controller; pairs that are missing or where the other
            one finishes nothing are left out.
        prefix: of the names.
    """
    return {
        f"{prefix}_weaver_over_{other}": useful_tflops["weaver"] / useful_tflops[other]
        for other in COMPARED_WITH
        if useful_tflops.get(other, 0.0) > 0.0 and "weaver" in useful_tflops
    }


def means(colocation: Colocation, done: Sequence[Outcome]) -> dict[str, float]:
    """Mean throughput, efficiency, violations and tokens of a workload."""
    return {
        "training_tflops": mean_useful_tflops(done),
        "efficiency_pct": fmean(d.efficiency_pct(colocation.model) for d in done),
        "violations": fmean(d.violations for d in done),
        "violation_ms": fmean(d.violation_us for d in done) / 1e3,
        "tokens_per_s": fmean(colocation.tokens_per_s(d) for d in done),
    }
