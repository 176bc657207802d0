"""The live part of ``train_sites``: a small model on site processes of this machine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save_file

from pipeline.io import Outputs
from ranloom.training.capacity_traces import draw_traces, trace_pool
from ranloom.training.data import VOCABULARY
from ranloom.training.messages import NoteKind
from ranloom.training.opt_model import ModelConfig, even_boundaries
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.decisions import write_events
from ranloom.training.runtime.live import Fault, LiveConfig, run_live
from ranloom.training.runtime.pacing import Budget, BudgetCut
from ranloom.training.runtime.peer_messages import COORDINATOR, site_name
from ranloom.training.runtime.progress import StepBar, StepStream
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.summary import live_metrics, notes_table
from ranloom.training.settings import CoordinatorSettings
from stages._train_params import Params


def live_setup(params: Params) -> TrainingSetup:
    """What the live run trains."""
    live = params.live
    return TrainingSetup(
        model=ModelConfig(
            layers=live.layers,
            width=live.width,
            heads=live.heads,
            ffn_width=4 * live.width,
            vocabulary=VOCABULARY,
            positions=live.sequence,
            dropout=live.dropout,
            dtype=live.dtype,
        ),
        optimizer=OptimizerConfig(name=live.optimizer, learning_rate=live.learning_rate),
        source="generated" if live.text_source == "generated" else live.text_path,
        generated_samples=live.generated_samples,
        sequence_length=live.sequence,
        micro_batch_samples=live.micro_batch_samples,
        seed=params.base.seed,
    )


def live_settings(params: Params) -> CoordinatorSettings:
    """Settings of the coordinator: those of the simulated runs, on the clock of this machine."""
    live = params.live
    settings = params.control.settings(live.micro_batch_samples, live.step_micro_batches)
    return replace(
        settings,
        micro_batch_limit=live.steps * live.step_micro_batches,
        checkpoint_steps=live.checkpoint_steps,
        mlr_threshold=live.mlr_threshold,
        control_interval_s=live.control_interval_s,
        hop_s=live.hop_ms / 1000.0,
        lease_s=live.lease_s,
    )


def live_traces(params: Params, spare: Mapping[str, np.ndarray]) -> np.ndarray:
    """Spare compute of each live site by second, relative to its mean [N, K]."""
    own = params.sim.weaver
    pool = trace_pool(spare, params.sim.scenarios, own.controller, own.mechanism)
    sites = len(params.live.budget_shares)
    seconds = int(np.ceil(params.live.deadline_s / params.live.second_s))
    traces = draw_traces(pool, sites, seconds, params.base.seed)
    return np.asarray(traces / traces.mean(axis=1, keepdims=True))


def live_config(params: Params, traces: np.ndarray, folder: Path) -> LiveConfig:
    """The whole live run: unequal budgets that follow spare traces, one cut for some steps.

    Args:
        params: of the stage.
        traces: relative spare compute of each site by second [N, K].
        folder: new folder for the run.
    """
    live = params.live
    setup = live_setup(params)
    boundaries = even_boundaries(live.layers, live.stages)
    costs = layer_costs(setup)
    task_flop = float(costs.forward_flop[: boundaries[1]].sum())
    full_tflops = task_flop / (live.task_ms / 1000.0) / 1e12
    cut = BudgetCut(live.cut_steps[0], live.cut_steps[1], live.cut_left)
    budgets = tuple(
        Budget(
            tuple((full_tflops * share * traces[site]).tolist()),
            live.second_s,
            (cut,) if site == live.cut_site else (),
        )
        for site, share in enumerate(live.budget_shares)
    )
    return LiveConfig(
        setup=setup,
        settings=live_settings(params),
        boundaries=boundaries,
        replicas=live.replicas,
        budgets=budgets,
        folder=folder,
        deadline_s=live.deadline_s,
        faults=live_faults(params),
    )


def live_faults(params: Params) -> tuple[Fault, ...]:
    """A site dies holding committed work and comes back; the coordinator dies and comes back."""
    faults = params.live.faults
    found = []
    if faults.kill_step >= 0:
        victim = site_name(faults.kill_site)
        back_s = faults.back_after_s
        found.append(Fault(victim, SIGKILL, NoteKind.COMMITTED, faults.kill_step, True, 1, back_s))
    if faults.crash_step >= 0:
        back_s = faults.back_after_s
        found.append(
            Fault(COORDINATOR, SIGKILL, NoteKind.COMMITTED, faults.crash_step, False, 2, back_s)
        )
    return tuple(found)


def measure_live(
    params: Params, spare: Mapping[str, np.ndarray], outputs: Outputs
) -> dict[str, Any]:
    """Train for real, write what happened to ``measured/``, and return the figures.

    Args:
        params: of the stage.
        spare: columns of ``spare.parquet``.
        outputs: of the stage.
    """
    setup = live_setup(params)
    tokens = float(setup.corpus().lengths.mean())
    stream = StepStream(outputs.live, tokens)
    with (
        tempfile.TemporaryDirectory(prefix="ranloom-live-") as scratch,
        StepBar(params.live.steps) as bar,
    ):
        config = live_config(params, live_traces(params, spare), Path(scratch) / "run")

        def watch(note: dict[str, object]) -> None:
            stream(note)
            bar(note)

        done = run_live(config, watch)
    write_events(
        outputs.measured("events.parquet"),
        done.events,
        config.settings,
        config.layout,
        layer_costs(config.setup),
    )
    pq.write_table(pa.table(notes_table(done.notes)), outputs.measured("notes.parquet"))
    save_file(dict(sorted(done.proof.weights.items())), outputs.measured("weights.safetensors"))
    losses = {"step": done.proof.audit.steps, "loss": done.proof.reference.losses}
    outputs.measured("losses.json").write_text(
        json.dumps(losses, indent=2) + "\n", encoding="utf-8"
    )
    return {
        **live_metrics(config, done),
        "proven": done.proof.holds,
        "seconds": done.seconds,
    }
