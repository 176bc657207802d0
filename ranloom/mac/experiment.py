"""Several controllers on the same cell, traffic and channel."""

from __future__ import annotations

from collections.abc import Iterable

from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.model import CellModel
from ranloom.mac.simulate import CellRun, simulate
from ranloom.traffic.scenario import Scenario

REFERENCE = "noctrl"


def run_controllers(
    model: CellModel,
    scenario: Scenario,
    specs: Iterable[ControllerSpec],
    seed: int,
    *,
    trace: tuple[int, int] = (0, 0),
) -> dict[str, CellRun]:
    """Run each controller; oracles get the run of ``noctrl`` as their reference.

    Args:
        model: the cell.
        scenario: traffic and channel.
        specs: controllers; the runs come back in this order.
        seed: root of block errors and decode tails, the same for all.
        trace: UL slots to record one by one, see :func:`~ranloom.mac.simulate.simulate`.

    Raises:
        InputError: see :func:`~ranloom.mac.simulate.simulate`.
    """
    runs: dict[str, CellRun] = {}
    reference: CellRun | None = None
    specs = list(specs)
    for spec in specs:
        if spec.name == REFERENCE:
            reference = simulate(
                model, scenario.arrivals, scenario.channel, spec, seed, trace=trace
            )
    for spec in specs:
        if spec.name == REFERENCE and reference is not None:
            runs[spec.name] = reference
            continue
        if spec.needs_demand and reference is None:
            reference = simulate(
                model, scenario.arrivals, scenario.channel, ControllerSpec(REFERENCE), seed
            )
        runs[spec.name] = simulate(
            model,
            scenario.arrivals,
            scenario.channel,
            spec,
            seed,
            reference=reference,
            trace=trace,
        )
    return runs
