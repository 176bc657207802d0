"""Figures and tables of a live run, from its notes."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import median
from typing import Any

import numpy as np

from ranloom.training.messages import Note, NoteKind
from ranloom.training.runtime.live import LiveConfig, LiveResult

Notes = Sequence[tuple[float, Note]]


def live_metrics(config: LiveConfig, result: LiveResult) -> dict[str, float | int]:
    """Headline figures of a run, by name."""
    proof, notes = result.proof, result.notes
    return {
        "sites": len(config.budgets),
        "steps": len(proof.audit.steps),
        "tokens_per_s": result.tokens_per_s,
        "final_loss": result.final_loss,
        "weights_rel_error": proof.weights_rel_error,
        "samples_lost": proof.samples_lost,
        "samples_doubled": proof.samples_doubled,
        "deaths_after_commit": deaths_after_commit(notes),
        "rejected_stale": sum(
            count
            for reason, count in result.rejected().items()
            if reason.startswith("stale_") or reason == "dead_incarnation"
        ),
        "reroutes": result.count(NoteKind.REROUTED),
        "deferrals": result.count(NoteKind.DEFERRED),
        "speculations": result.count(NoteKind.SPECULATED),
        "mlr_events": result.count(NoteKind.REBALANCED),
        "mlr_exposed_stall_ms": exposed_stall_ms(notes),
        "coordinator_recoveries": result.count(NoteKind.RECOVERED),
        "sites_lost": result.count(NoteKind.SITE_LOST),
        "roll_backs": result.count(NoteKind.ROLLED_BACK),
        "start_s": result.start_s,
        "largest_site_mib": max(
            (size / 2**20 for name, size in result.resident_bytes.items() if "site" in name),
            default=0.0,
        ),
    }


def deaths_after_commit(notes: Notes) -> int:
    """Sites lost while they held committed work, which then had to be done again."""
    return len({(at_s, note.site) for at_s, note in notes if note.kind is NoteKind.REOPENED})


def exposed_stall_ms(notes: Notes) -> float:
    """Mean time that a change of layout held training up.

    Taken at its commit: how much later than in an ordinary step the first result came in.
    """
    ordinary: list[float] = []
    moved: list[float] = []
    opened_s: float | None = None
    committed_layout = False
    for at_s, note in notes:
        if note.kind is NoteKind.LAYOUT_COMMIT:
            committed_layout = True
        elif note.kind is NoteKind.STEP_OPENED:
            opened_s = at_s
        elif note.kind is NoteKind.COMMITTED and opened_s is not None:
            (moved if committed_layout else ordinary).append(at_s - opened_s)
            opened_s, committed_layout = None, False
    if not moved or not ordinary:
        return 0.0
    usual_s = median(ordinary)
    delays_s = [max(0.0, wait_s - usual_s) for wait_s in moved]
    return 1e3 * fsum(delays_s) / len(delays_s)


def notes_table(notes: Notes) -> dict[str, np.ndarray[Any, Any]]:
    """Notes as columns: time_s from the first one, then the fields of a note."""
    start_s = notes[0][0] if notes else 0.0
    return {
        "time_s": np.array([at_s - start_s for at_s, _ in notes], dtype=np.float64),
        "kind": np.array([note.kind.value for _, note in notes], dtype=object),
        "step": np.array([note.step for _, note in notes], dtype=np.int32),
        "site": np.array([note.site for _, note in notes], dtype=np.int32),
        "stage": np.array([note.stage for _, note in notes], dtype=np.int32),
        "micro_batch": np.array([note.micro_batch for _, note in notes], dtype=np.int32),
        "value": np.array([note.value for _, note in notes], dtype=np.float64),
        "reason": np.array([note.reason for _, note in notes], dtype=object),
    }
