"""How far the simulator's modes agree where both apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ranloom.training.closed_form import estimate_step
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.experiment import NEVER, Experiment
from ranloom.training.simulator.fast_run import FastRun, FastWorld

_STEPS = 3


@dataclass(frozen=True)
class Agreement:
    """One layout.

    Args:
        layout: sites, stages, boundaries.
        simulated_s: step time by the event mode.
        closed_s: by the closed form.
    """

    layout: Layout
    simulated_s: float
    closed_s: float

    @property
    def difference_pct(self) -> float:
        """Closed form against event mode."""
        return 100.0 * abs(self.closed_s / self.simulated_s - 1.0)


def event_against_closed(
    experiment: Experiment,
    settings: CoordinatorSettings,
    tflops: float,
    micro_batch_samples: int,
    stage_counts: Sequence[int],
) -> list[Agreement]:
    """Steps of regular layouts under constant, equal capacity and nothing that limits the window.

    This is where the closed form applies: every replica does the same share, nothing moves.

    Args:
        experiment: model, links and step.
        settings: of the coordinator; rerouting is switched off.
        tflops: usable compute of every site.
        micro_batch_samples: samples of a micro-batch.
        stage_counts: pipeline lengths; as many replicas as there are sites for.
    """
    costs = experiment.costs(micro_batch_samples, 0)
    micro_batches = experiment.step_samples // micro_batch_samples
    found = []
    for stages in stage_counts:
        replicas = experiment.activation.sites // stages
        if not 1 <= replicas <= micro_batches or micro_batches % replicas:
            continue
        cuts = tuple(round(stage * costs.layers / stages) for stage in range(stages + 1))
        layout = regular_layout(cuts, replicas)
        tied = experiment.tied and stages > 1
        sized = replace(
            settings,
            micro_batch_samples=micro_batch_samples,
            step_micro_batches=micro_batches,
            min_step_micro_batches=1,
            window=micro_batches,
            rerouting=False,
            rebalancing=False,
            speculate=False,
            tied_embeddings=tied,
        )
        world = FastWorld(
            experiment.activation, experiment.sync, (), experiment.chunks, unmerged_limit=NEVER
        )
        sites = experiment.activation.sites
        run = FastRun(sized, world, layout, costs, np.full((sites, 1), tflops))
        steps = run.run_until(np.inf, _STEPS).steps
        closed = estimate_step(
            layout,
            costs,
            np.full(sites, 1.0 / (tflops * 1e12)),
            micro_batches,
            micro_batches,
            experiment.activation,
            experiment.sync,
            tied,
            settings.reduce_fanout,
            experiment.chunks,
        )
        simulated_s = (steps[-1].end_s - steps[0].end_s) / (len(steps) - 1)
        found.append(Agreement(layout, simulated_s, closed.step_s))
    return found
