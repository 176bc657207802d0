"""Real against event: how well the simulator predicts what a change does to a live run.

``python bench/real_change.py`` measures one site and one link of this machine, predicts every run
on virtual time, writes the predictions to ``bench/real_change.predicted.json``, and only then
trains on processes of this machine. Written into ``bench/results.json`` under ``real_change``: for
each layout and change the predicted and the measured step time relative to that without the
change, and the largest deviation (``agreement.real_change_max_pct``). The same goes into
``data/measured/real_change.json``, which the chain reads: these runs take minutes and an idle
machine. Tasks take work / budget, far longer than their computation, and tensors wait for the rate
of their link, so that the processor is nearly idle; the load of the machine stands beside the
figures.

Changes: a straggler at a quarter of its budget, rerouting (AIR) with it on instead of off, half
the bandwidth between sites, and other boundaries of the stages.
"""

from __future__ import annotations

import heapq
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from training import setup

from ranloom.lut.cpu import cpu_name
from ranloom.training.layout import regular_layout
from ranloom.training.links import Links
from ranloom.training.messages import Note, NoteKind, TaskCompleted
from ranloom.training.opt_model import even_boundaries
from ranloom.training.runtime import live
from ranloom.training.runtime.chaos import SETTINGS
from ranloom.training.runtime.coordinator_process import logged_events, replay
from ranloom.training.runtime.pacing import Budget, BudgetCut
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.site_process import SiteConfig, SiteProcess
from ranloom.training.runtime.supervise import Children
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.capacity import Capacity
from ranloom.training.simulator.network import Network
from ranloom.training.simulator.world import SimulatedWorld, WorldSettings

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "data" / "measured" / "real_change.json"
LAYERS, EACH = 6, 4
MODEL_FORWARD_S = 0.2  # of a micro-batch, all stages
GBPS = 0.01
CUT_SITE, CUT_LEFT = 0, 0.25
WARM, PHASE = 2, 3  # steps
LAYOUTS = {
    (2, 2): (0, 2, 6),
    (2, 3): (0, 2, 6),
    (3, 2): (0, 1, 4, 6),
    (4, 2): (0, 1, 3, 4, 6),
    (2, 4): (0, 4, 6),
}
"""Other boundaries by (stages, replicas)."""


@dataclass(frozen=True)
class Run:
    """One run: a straggler from a step on, and from a later one half the bandwidth.

    Args:
        boundaries: of the stages.
        replicas: replicas D.
        rerouting: whether AIR is on.
        phases: of ``PHASE`` steps each after the warm-up: plain, straggler, half_bandwidth.
    """

    boundaries: tuple[int, ...]
    replicas: int
    rerouting: bool
    phases: tuple[str, ...]

    @property
    def sites(self) -> int:
        """Sites D x P."""
        return self.replicas * (len(self.boundaries) - 1)

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return WARM + PHASE * len(self.phases)

    def range_of(self, phase: str) -> tuple[int, int]:
        """First step of a phase and one past its last."""
        first = WARM + PHASE * self.phases.index(phase)
        return first, first + PHASE


def training() -> TrainingSetup:
    """A decoder of six layers."""
    what = setup()
    return replace(what, model=replace(what.model, layers=LAYERS))


def settings(run: Run) -> CoordinatorSettings:
    """Control with a fixed layout."""
    micro_batches = EACH * run.replicas
    return replace(
        SETTINGS,
        step_micro_batches=micro_batches,
        micro_batch_limit=run.steps * micro_batches,
        window=EACH,
        control_interval_s=0.1,
        slack_fraction=1.0,
        lease_s=60.0,
        checkpoint_steps=0,
        speculate=False,
        rerouting=run.rerouting,
        rebalancing=False,
    )


def full_tflops() -> float:
    """Budget under which a forward pass of the whole model takes its time."""
    return float(layer_costs(training()).forward_flop.sum()) / MODEL_FORWARD_S / 1e12


# --- the real thing -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShapedConfig:
    """A site whose tensors wait for the rate of their link.

    Args:
        site: what it is told.
        gbps: rate of each link from it.
        half: steps in which it is half of that.
    """

    site: SiteConfig
    gbps: float
    half: tuple[int, int]


class ShapedSite(SiteProcess):
    """Holds tensors back until a link of that rate would have carried them."""

    def __init__(self, config: ShapedConfig) -> None:
        super().__init__(config.site)
        self._shape = config
        self._free_s: dict[int, float] = {}
        self._held: list[tuple[float, int, int, Any, dict[str, Tensor]]] = []

    def _send_peer(self, site: int, message: Any, tensors: dict[str, Tensor]) -> None:
        now_s = time.monotonic()
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        first, end = self._shape.half
        rate = self._shape.gbps * (0.5 if first <= self._step < end else 1.0)
        due_s = now_s
        if size:
            due_s = max(now_s, self._free_s.get(site, 0.0)) + 8e-9 * size / rate
            self._free_s[site] = due_s
        heapq.heappush(self._held, (due_s, len(self._held), site, message, tensors))
        self._let_go(now_s)

    def _let_go(self, now_s: float) -> None:
        while self._held and self._held[0][0] <= now_s:
            _, _, site, message, tensors = heapq.heappop(self._held)
            super()._send_peer(site, message, tensors)

    def _patience_s(self, now_s: float) -> float:
        left_s = self._held[0][0] - now_s if self._held else np.inf
        return float(max(min(super()._patience_s(now_s), left_s), 0.0))

    def turn(self) -> None:
        """Let tensors go that are due, then as ever."""
        self._let_go(time.monotonic())
        super().turn()


def run_shaped(config: ShapedConfig) -> None:
    """Run a site with shaped links to its end."""
    ShapedSite(config).run()


class _ShapedRun(live._Run):
    def __init__(self, config: live.LiveConfig, half: tuple[int, int]) -> None:
        super().__init__(config, None)
        self._half = half

    def _start(self, children: Children, name: str) -> None:
        if name.startswith("site-"):
            config = ShapedConfig(self._site_config(name), GBPS, self._half)
            children.start(name, run_shaped, config)
        else:
            super()._start(children, name)


def train(run: Run, folder: Path) -> tuple[list[tuple[float, Note]], list[TaskCompleted]]:
    """Train on processes of this machine; what happened."""
    cut = BudgetCut(*run.range_of("straggler"), CUT_LEFT) if "straggler" in run.phases else None
    budgets = tuple(
        Budget((full_tflops(),), cuts=(cut,) if cut and site == CUT_SITE else ())
        for site in range(run.sites)
    )
    config = live.LiveConfig(
        training(), settings(run), run.boundaries, run.replicas, budgets, folder, 300.0
    )
    folder.mkdir()
    half = run.range_of("half_bandwidth") if "half_bandwidth" in run.phases else (0, 0)
    started = _ShapedRun(config, half)
    with Children(folder) as children:
        started.supervise(children)
    events = list(logged_events(started.coordinator))
    done = [event for _, event in events if isinstance(event, TaskCompleted)]
    return list(replay(started.coordinator, events)), done


# --- what goes in ---------------------------------------------------------------------------------


def task_overhead_s(folder: Path) -> float:
    """One site alone: what a task takes beside work / budget; 5 tasks warm up, 20 count."""
    run = Run((0, LAYERS), 1, False, ("plain", "plain"))
    _, done = train(run, folder)
    costs = layer_costs(training())
    work_s = 3.0 * float(costs.forward_flop.sum()) / full_tflops() / 1e12
    return max(statistics.median(event.seconds for event in done[5:25]) - work_s, 0.0)


# --- prediction -----------------------------------------------------------------------------------


def predict(run: Run, phase: str, overhead_s: float, latency_s: float) -> list[float]:
    """Durations of steps on virtual time; the phase begins when the warm-up ends."""
    sites = run.sites
    rate = np.full((sites, sites), GBPS * (0.5 if phase == "half_bandwidth" else 1.0))
    np.fill_diagonal(rate, np.inf)
    delay = np.full((sites, sites), latency_s)
    np.fill_diagonal(delay, 0.0)
    links = Links("measured", rate, delay, np.full(sites, latency_s))
    model = training().model
    tied = 4.0 * model.vocabulary * model.width
    costs = replace(layer_costs(training()), tied_bytes=tied)
    interval_s = 0.05
    warm = 0
    if phase == "straggler":
        plain = predict(replace(run, rerouting=False), "plain", overhead_s, latency_s)
        warm = round(WARM * plain[0] / interval_s)
    tflops = np.full((sites, warm + 20_000), full_tflops())
    if phase == "straggler":
        tflops[CUT_SITE, warm:] *= CUT_LEFT
    limits = replace(settings(run), micro_batch_limit=-1, lease_s=1e9)
    world = SimulatedWorld(
        limits,
        WorldSettings(
            budget_period_s=0.1,
            memory_bytes=1 << 40,
            task_overhead_s=overhead_s,
            unmerged_limit=limits.window,
        ),
        regular_layout(run.boundaries, run.replicas),
        costs,
        Network(links, links),
        Capacity(tflops, interval_s),
    )
    world.start()
    while world.coordinator.run.applied_steps < WARM + PHASE:
        world.engine.step()
    return durations(world.record.notes, WARM, WARM + PHASE)


def durations(notes: Sequence[tuple[float, Note]], first: int, end: int) -> list[float]:
    """Time of each step of a range, from its opening until the next one's."""
    opened = {n.step: at for at, n in notes if n.kind is NoteKind.STEP_OPENED}
    reduced = {n.step: at for at, n in notes if n.kind is NoteKind.STEP_REDUCED}
    return [reduced[step] - opened[step] for step in range(first, end)]


def hop_s(folder: Path, overhead_s: float) -> float:
    """Two sites in a row: the delay of a message with which their step takes what it does.

    Tensors are packed, carried between processes and unpacked by event loops that wake up late.
    """
    run = Run(even_boundaries(LAYERS, 2), 1, False, ("plain",))
    notes, _ = train(run, folder)
    measured_s = statistics.median(durations(notes, *run.range_of("plain")))
    low_s, high_s = 0.0, 0.05
    for _ in range(12):
        middle_s = (low_s + high_s) / 2.0
        if statistics.median(predict(run, "plain", overhead_s, middle_s)) < measured_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


Times = dict[str, float]
PLAIN = "plain_step_s"


def cases(stages: int, replicas: int) -> tuple[Run, Run, Run]:
    """Runs of a layout: without rerouting, with it, with other boundaries."""
    even = even_boundaries(LAYERS, stages)
    return (
        Run(even, replicas, False, ("plain", "straggler", "half_bandwidth")),
        Run(even, replicas, True, ("straggler",)),
        Run(LAYOUTS[stages, replicas], replicas, False, ("plain",)),
    )


def changes(step_s: Callable[[int, str], float]) -> Times:
    """Relative step times from those of (run, phase); also the plain step itself."""
    plain_s, straggler_s = step_s(0, "plain"), step_s(0, "straggler")
    return {
        PLAIN: plain_s,
        "straggler": straggler_s / plain_s,
        "air": step_s(1, "straggler") / straggler_s,
        "half_bandwidth": step_s(0, "half_bandwidth") / plain_s,
        "layout": step_s(2, "plain") / plain_s,
    }


def predictions(overhead_s: float, latency_s: float) -> dict[str, Times]:
    """Of every layout and change."""
    found = {}
    for stages, replicas in LAYOUTS:
        runs = cases(stages, replicas)
        found[f"{stages}x{replicas}"] = changes(
            lambda run, phase, runs=runs: statistics.median(
                predict(runs[run], phase, overhead_s, latency_s)
            )
        )
    return found


def measurements(folder: Path) -> dict[str, Times]:
    """Of every layout and change."""
    found = {}
    for stages, replicas in LAYOUTS:
        runs = cases(stages, replicas)
        name = f"{stages}x{replicas}"
        notes = [train(run, folder / f"{name}-{at}")[0] for at, run in enumerate(runs)]
        found[name] = changes(
            lambda run, phase, runs=runs, notes=notes: statistics.median(
                durations(notes[run], *runs[run].range_of(phase))
            )
        )
        print(name, json.dumps(found[name]), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def main() -> None:
    """Measure one site and one link, predict, write, then train and compare."""
    with tempfile.TemporaryDirectory() as folder:
        overhead_s = task_overhead_s(Path(folder) / "alone")
        latency_s = hop_s(Path(folder) / "pair", overhead_s)
        predicted = predictions(overhead_s, latency_s)
        inputs = {"task_overhead_s": overhead_s, "hop_s": latency_s, "gbps": GBPS}
        promise = ROOT / "bench" / "real_change.predicted.json"
        promise.write_text(json.dumps({"inputs": inputs, "predicted": predicted}, indent=2) + "\n")
        print(json.dumps({"inputs": inputs, "predicted": predicted}, indent=2), flush=True)
        measured = measurements(Path(folder))
    deviations = {
        name: {c: 100.0 * (predicted[name][c] / value - 1.0) for c, value in found.items()}
        for name, found in measured.items()
    }
    worst = max(
        abs(pct) for found in deviations.values() for name, pct in found.items() if name != PLAIN
    )
    path = ROOT / "bench" / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results["real_change"] = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": cpu_name(),
        "inputs": inputs,
        "predicted": predicted,
        "measured": measured,
        "deviation_pct": deviations,
        "agreement": {"real_change_max_pct": worst},
        "load": os.getloadavg()[0],
    }
    path.write_text(json.dumps(results, indent=2) + "\n")
    MEASURED.write_text(json.dumps(results["real_change"], indent=2) + "\n")
    print(json.dumps(results["real_change"]["deviation_pct"], indent=2), f"largest {worst:.1f} %")


if __name__ == "__main__":
    main()
