"""Controllers at a load over several draws of its traffic: verdicts with confidence intervals.

The 95th percentile of delay of one window hangs on its few largest bursts, and these on chance
(whether a buffer status report is missed just before). The comparison with ``noctrl`` is therefore
made on the packets of several independent windows together, and its spread over them is stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import stdtrit

from ranloom.errors import InputError
from ranloom.mac.bar import Limits, Verdict, judge
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.experiment import REFERENCE
from ranloom.mac.kpis import CellKpis, cell_kpis
from ranloom.mac.lanes import run_lanes
from ranloom.mac.model import CellModel
from ranloom.mac.simulate import CellRun, simulate
from ranloom.traffic.scenario import Scenario

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """Mean over draws and half the width of its confidence interval (Student's t)."""

    mean: float
    half_width: float


def interval(values: Sequence[float]) -> Interval:
    """Confidence interval of a mean; of one value it has no width."""
    n = len(values)
    if n < 2:
        return Interval(float(values[0]), 0.0)
    spread = float(np.std(values, ddof=1)) / np.sqrt(n)
    return Interval(float(np.mean(values)), float(stdtrit(n - 1, 0.5 + 0.5 * CONFIDENCE)) * spread)


@dataclass(frozen=True)
class Evaluation:
    """One controller at one load.

    Attributes:
        controller: its label.
        draws: figures of each draw of the traffic.
        together: figures of all draws together; counts and throughput are sums.
        verdict: all draws together against ``noctrl``.
        added_delay_p95_ms: 95th percentile against ``noctrl`` on the same draw.
    """

    controller: str
    draws: tuple[CellKpis, ...]
    together: CellKpis
    verdict: Verdict
    added_delay_p95_ms: Interval

    def over_draws(self, name: str) -> Interval:
        """Interval of a figure of :class:`~ranloom.mac.kpis.CellKpis`."""
        return interval([getattr(kpis, name) for kpis in self.draws])


def evaluate(
    model: CellModel,
    draws: Sequence[Scenario],
    specs: Mapping[str, ControllerSpec],
    limits: Limits,
    seed: int,
    workers: int | None = None,
) -> list[Evaluation]:
    """Run every controller on every draw of a load.

    Args:
        model: the cell.
        draws: windows of equal length, drawn independently.
        specs: label to controller; ``noctrl`` is always run, and comes first.
        limits: what a controller has to meet.
        seed: root of block errors and decode tails, the same for all.
        workers: runs at a time; default one a core.

    Raises:
        InputError: no draw, or see :func:`~ranloom.mac.simulate.simulate`.
    """
    if not draws:
        raise InputError("draws", 0, "needed: at least one")
    reference = {label: spec for label, spec in specs.items() if spec.name == REFERENCE}
    others = {label: spec for label, spec in specs.items() if spec.name != REFERENCE}
    ordered = (reference or {REFERENCE: ControllerSpec(REFERENCE)}) | others
    k_us_sm = model.plant_config.k_us_sm
    base: list[CellRun] = []
    found: list[Evaluation] = []
    for label, spec in ordered.items():
        runs = run_lanes(
            [
                partial(
                    simulate, model, draw.arrivals, draw.channel, spec, seed,
                    reference=base[i] if base else None,
                )
                for i, draw in enumerate(draws)
            ],
            workers,
        )  # fmt: skip
        base = base or runs
        each = tuple(run_lanes([partial(cell_kpis, [run], k_us_sm) for run in runs], workers))
        together = cell_kpis(runs, k_us_sm)
        plain = found[0] if found else None
        verdict = judge(together, plain.together if plain else together, limits)
        added = [
            kpis.delay_p95_ms - other.delay_p95_ms
            for kpis, other in zip(each, plain.draws if plain else each, strict=True)
        ]
        found.append(Evaluation(label, each, together, verdict, interval(added)))
    return found
