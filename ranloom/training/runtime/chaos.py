"""Heavy weather: ``python -m ranloom.training.runtime.chaos {core, virtual, live}``.

``core`` runs very many random fault schedules of the coordinator core against sites whose tensors
are symbols. ``virtual`` runs many of core and real sites, with real tensors, on virtual time in
this process. ``live`` is one run of real processes in which sites and the coordinator are killed,
stopped and started again, at least as often as asked. The last two compare the final weights with
one process and count samples from the sites' journals. All print a line for each schedule that
fails, then totals.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from ranloom.training.layout import regular_layout
from ranloom.training.messages import NoteKind
from ranloom.training.opt_model import ModelConfig, even_boundaries
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.live import Fault, LiveConfig, run_live
from ranloom.training.runtime.pacing import Budget
from ranloom.training.runtime.peer_messages import COORDINATOR, site_name
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.summary import live_metrics
from ranloom.training.runtime.virtual import (
    FaultRates,
    HungError,
    VirtualConfig,
    VirtualRun,
    count_notes,
)
from ranloom.training.settings import CoordinatorSettings
from ranloom.training.simulator.chaos import run_chaos
from ranloom.training.simulator.site import ProtocolViolationError

SMALL_SETUP = TrainingSetup(
    model=ModelConfig(
        layers=4, width=8, heads=2, ffn_width=16, vocabulary=256, positions=12, dropout=0.1
    ),
    optimizer=OptimizerConfig(learning_rate=0.3, clip_norm=0.5),
    source="generated",
    generated_samples=96,
    sequence_length=12,
    micro_batch_samples=2,
    seed=5,
)

ADAMW = OptimizerConfig(
    "adamw", 0.003, weight_decay=0.01, clip_norm=0.5, batch_rule="sqrt", base_samples=12
)

SETTINGS = CoordinatorSettings(
    micro_batch_samples=2,
    step_micro_batches=6,
    min_step_micro_batches=1,
    max_steps=1000,
    micro_batch_limit=36,
    window=6,
    hop_s=0.002,
    reduce_fanout=2,
    control_interval_s=0.05,
    slack_fraction=0.2,
    steal_gain=0.05,
    exact_assignment=4096,
    speculate=True,
    error_weight=0.3,
    margin_errors=1.0,
    debt_gain=0.3,
    max_debt_samples=32.0,
    mlr_threshold=0.1,
    mlr_weight=0.5,
    mlr_patience_steps=2,
    mlr_min_gain=0.1,
    lease_s=0.8,
    checkpoint_steps=3,
    tied_embeddings=True,
    rerouting=True,
    rebalancing=True,
)

HEAVY = FaultRates(
    loss=0.03,
    duplicate=0.03,
    delay_s=0.003,
    old_event=0.03,
    death_per_s=0.2,
    last_holder=True,
    return_s=1.0,
    crash_per_s=0.4,
    cut_per_s=0.3,
    evict_per_s=0.2,
)
_SHAPES = ((2, 2), (2, 2), (3, 2), (2, 4), (1, 2))
_SITE_S = 0.03

app = typer.Typer(add_completion=False, help=__doc__)


def virtual_schedule(
    seed: int,
    folder: Path,
    rates: FaultRates,
    setup: TrainingSetup = SMALL_SETUP,
    settings: CoordinatorSettings = SETTINGS,
    replicas: int = 2,
    stages: int = 2,
    reserve: int = 0,
) -> VirtualConfig:
    """A small run on virtual time; a micro-batch takes a site about 30 ms, forward and backward.

    Args:
        seed: of the schedule.
        folder: for checkpoints.
        rates: how often things go wrong.
        setup: what is trained.
        settings: of the core.
        replicas: replicas D.
        stages: stages P.
        reserve: sites beyond D x P.
    """
    flop = 3.0 * float(layer_costs(setup).forward_flop.sum())
    sites = replicas * stages + reserve
    return VirtualConfig(
        setup=setup,
        settings=settings,
        layout=regular_layout(even_boundaries(setup.model.layers, stages), replicas),
        tflops=(flop / stages / _SITE_S / 1e12,) * sites,
        folder=folder,
        rates=rates,
        seed=seed,
        calm_s=20.0,
    )


@app.command()
def core(
    schedules: Annotated[int, typer.Option(min=1, help="random schedules to run")] = 100_000,
    first_seed: Annotated[int, typer.Option(min=0, help="seed of the first schedule")] = 0,
) -> None:
    """Very many random fault schedules of the core, symbols for tensors."""
    faults: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    failed = 0
    began_s = time.monotonic()
    for seed in range(first_seed, first_seed + schedules):
        try:
            result = run_chaos(seed)
        except ProtocolViolationError as violation:
            failed += 1
            typer.echo(f"seed {seed}: {violation}")
            continue
        if not result.sound:
            failed += 1
            typer.echo(f"seed {seed}: {result}")
        faults += result.faults
        rejected += result.statistics.rejected
        happened += Counter(
            {
                name: getattr(result.statistics, name)
                for name in result.statistics.__slots__
                if name != "rejected"
            }
        )
    typer.echo(f"{schedules} schedules in {time.monotonic() - began_s:.0f} s, {failed} failed")
    _print_counts("faults", faults)
    _print_counts("happened", happened)
    _print_counts("rejected", rejected)
    if failed:
        raise typer.Exit(1)


@app.command()
def virtual(
    schedules: Annotated[int, typer.Option(min=1, help="random schedules to run")] = 1000,
    first_seed: Annotated[int, typer.Option(min=0, help="seed of the first schedule")] = 0,
) -> None:
    """Many random fault schedules on virtual time."""
    torch.set_num_threads(1)
    setups = [SMALL_SETUP, replace(SMALL_SETUP, optimizer=ADAMW)]
    workloads = [setup.workload("cpu") for setup in setups]
    happened: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    failed, worst = 0, 0.0
    began_s = time.monotonic()
    for seed in range(first_seed, first_seed + schedules):
        replicas, stages = _SHAPES[seed % len(_SHAPES)]
        with tempfile.TemporaryDirectory() as folder:
            config = virtual_schedule(
                seed,
                Path(folder),
                HEAVY,
                setups[seed // len(_SHAPES) % 2],
                replicas=replicas,
                stages=stages,
                reserve=seed % 2,
            )
            try:
                result = VirtualRun(config, workloads[seed // len(_SHAPES) % 2]).run()
            except HungError as error:
                failed += 1
                typer.echo(f"seed {seed}: {error}")
                continue
        happened += result.happened
        notes += count_notes(result)
        proof = result.proof
        worst = max(worst, proof.weights_rel_error)
        if not proof.holds:
            failed += 1
            typer.echo(
                f"seed {seed}: error {proof.weights_rel_error:.1e}, lost {proof.samples_lost}, "
                f"doubled {proof.samples_doubled}, {proof.audit.faults[:2]}"
            )
    typer.echo(f"{schedules} schedules in {time.monotonic() - began_s:.0f} s, {failed} failed")
    typer.echo(f"largest relative error of the weights: {worst:.1e}")
    _print_counts("faults", happened)
    _print_counts("notes", notes)
    if failed:
        raise typer.Exit(1)


@app.command()
def live(
    kills: Annotated[int, typer.Option(min=1, help="processes to kill or stop")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="seed of the plan")] = 0,
    folder: Annotated[Path | None, typer.Option(help="new folder to keep the run in")] = None,
) -> None:
    """One run of real processes with many kills, stops and restarts."""
    with tempfile.TemporaryDirectory() as temporary:
        config = live_chaos(folder or Path(temporary) / "run", kills, seed)
        result = run_live(config)
    for name, value in live_metrics(config, result).items():
        typer.echo(f"{name}: {value}")
    _print_counts(f"{result.struck.total()} faults", result.struck)
    _print_counts("rejected", Counter(result.rejected()))
    found = result.proof.weights_rel_error
    typer.echo(
        f"{result.struck.total()} struck in {result.seconds:.0f} s, relative error {found:.1e}"
    )
    if not result.proof.holds or result.struck.total() < kills:
        typer.echo("\n".join(result.proof.audit.faults[:5]))
        raise typer.Exit(1)


def live_chaos(folder: Path, kills: int, seed: int) -> LiveConfig:
    """A live run of 4 sites and one in reserve that suffers at least so many faults.

    Every fault waits for a random number of results in a random step, so it strikes within tasks,
    reductions, copies and recoveries alike.
    """
    random = np.random.default_rng(np.random.SeedSequence([seed]))
    planned = kills + kills // 3 + 2  # some find their victim dead
    steps = max(8, planned)
    victims = [COORDINATOR, *(site_name(site) for site in range(5))]
    kinds = (NoteKind.COMMITTED, NoteKind.STEP_OPENED, NoteKind.STEP_SEALED, NoteKind.SITE_LOST)
    faults = []
    for number in range(planned):
        stops = bool(random.random() < 0.2)
        kind = kinds[int(random.choice(len(kinds), p=[0.7, 0.1, 0.1, 0.1]))]
        faults.append(
            Fault(
                victim=victims[int(random.integers(len(victims)))],
                signal=signal.SIGSTOP if stops else signal.SIGKILL,
                kind=kind,
                step=-1 if kind is NoteKind.SITE_LOST else number,
                count=1 + int(random.integers(8)) if kind is NoteKind.COMMITTED else 1,
                back_after_s=float(random.uniform(0.1, 2.5)),
            )
        )
    setup = TrainingSetup(
        model=ModelConfig(
            layers=4, width=32, heads=4, ffn_width=128, vocabulary=256, positions=32, dropout=0.1
        ),
        optimizer=OptimizerConfig("adamw", 0.003, weight_decay=0.01, clip_norm=1.0),
        source="generated",
        generated_samples=512,
        sequence_length=32,
        micro_batch_samples=2,
        seed=7,
    )
    micro_batches = steps * SETTINGS.step_micro_batches
    flop = 3.0 * float(layer_costs(setup).forward_flop.sum())
    return LiveConfig(
        setup=setup,
        settings=replace(SETTINGS, micro_batch_limit=micro_batches, lease_s=1.5),
        boundaries=(0, 2, 4),
        replicas=2,
        budgets=(Budget((flop / 2 / _SITE_S / 1e12,)),) * 5,
        folder=folder,
        deadline_s=60.0 + 10.0 * kills,
        faults=tuple(faults),
    )


def _print_counts(title: str, counts: Counter[str]) -> None:
    shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    typer.echo(f"{title}: {shown}")


if __name__ == "__main__":
    app()
