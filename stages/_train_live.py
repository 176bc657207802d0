"""The live part of ``train_sites``: a small model on site processes of this machine."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save_file

from pipeline.io import Outputs
from ranloom.training.data import VOCABULARY
from ranloom.training.messages import NoteKind
from ranloom.training.opt_model import ModelConfig, even_boundaries
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.live import LiveConfig, LiveResult, run_live
from ranloom.training.runtime.pacing import Budget, BudgetCut
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
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
        control_interval_s=live.control_interval_s,
        hop_s=live.hop_ms / 1000.0,
        lease_s=live.lease_s,
    )


def live_config(params: Params, folder: Path) -> LiveConfig:
    """The whole live run: unequal budgets, and one that is cut for some steps."""
    live = params.live
    setup = live_setup(params)
    boundaries = even_boundaries(live.layers, live.stages)
    costs = layer_costs(setup)
    task_flop = float(costs.forward_flop[: boundaries[1]].sum())
    full_tflops = task_flop / (live.task_ms / 1000.0) / 1e12
    cut = BudgetCut(live.cut_steps[0], live.cut_steps[1], live.cut_left)
    budgets = tuple(
        Budget((full_tflops * share,), cuts=(cut,) if site == live.cut_site else ())
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
    )


def measure_live(params: Params, outputs: Outputs) -> dict[str, Any]:
    """Train for real, write what happened to ``measured/``, and return the figures."""

    def watch(note: dict[str, object]) -> None:
        if note.get("kind") == NoteKind.STEP_REDUCED:
            outputs.live("live/samples", float(str(note["value"])), int(str(note["step"])))

    with tempfile.TemporaryDirectory(prefix="ranloom-live-") as scratch:
        done = run_live(live_config(params, Path(scratch) / "run"), watch)
    _write_events(done, outputs)
    save_file(dict(sorted(done.proof.weights.items())), outputs.measured("weights.safetensors"))
    outputs.measured("losses.json").write_text(
        json.dumps({"loss": done.proof.reference.losses}, indent=2) + "\n", encoding="utf-8"
    )
    reopened = [n for _, n in done.notes if n.kind is NoteKind.REOPENED]
    return {
        "sites": len(params.live.budget_shares),
        "steps": len(done.proof.audit.steps),
        "tokens_per_s": done.tokens_per_s,
        "final_loss": done.final_loss,
        "weights_rel_error": done.proof.weights_rel_error,
        "samples_lost": done.proof.samples_lost,
        "samples_doubled": done.proof.samples_doubled,
        "proven": done.proof.holds,
        "reroutes": done.count(NoteKind.REROUTED),
        "deferrals": done.count(NoteKind.DEFERRED),
        "speculations": done.count(NoteKind.SPECULATED),
        "deaths_after_commit": len({(n.site, n.step) for n in reopened}),
        "rejected_stale": sum(done.rejected().values()),
        "mlr_events": done.count(NoteKind.REBALANCED),
        "coordinator_recoveries": done.count(NoteKind.RECOVERED),
        "start_s": done.start_s,
        "seconds": done.seconds,
    }


def _write_events(done: LiveResult, outputs: Outputs) -> None:
    notes = done.notes
    pq.write_table(
        pa.table(
            {
                "time_s": pa.array([time_s for time_s, _ in notes], pa.float64()),
                "kind": pa.array([note.kind.value for _, note in notes], pa.string()),
                "step": pa.array([note.step for _, note in notes], pa.int32()),
                "site": pa.array([note.site for _, note in notes], pa.int32()),
                "stage": pa.array([note.stage for _, note in notes], pa.int32()),
                "micro_batch": pa.array([note.micro_batch for _, note in notes], pa.int32()),
                "value": pa.array([note.value for _, note in notes], pa.float64()),
                "reason": pa.array([note.reason for _, note in notes], pa.string()),
            }
        ),
        outputs.measured("events.parquet"),
    )
