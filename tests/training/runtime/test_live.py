"""Real processes: exact weights under a budget cut, killed sites and a killed coordinator."""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ranloom.errors import InputError
from ranloom.training.checkpoint import load_stages
from ranloom.training.messages import Note, NoteKind
from ranloom.training.opt_model import ModelConfig
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.chaos import SETTINGS
from ranloom.training.runtime.decisions import replay_events, write_events
from ranloom.training.runtime.live import Fault, LiveConfig, LiveRunError, run_live
from ranloom.training.runtime.pacing import Budget, BudgetCut
from ranloom.training.runtime.progress import StepBar, StepStream
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.summary import live_metrics, notes_table

LIVE_SETUP = TrainingSetup(
    model=ModelConfig(
        layers=4, width=64, heads=4, ffn_width=256, vocabulary=256, positions=32, dropout=0.1
    ),
    optimizer=OptimizerConfig(learning_rate=0.3, clip_norm=1.0),
    source="generated",
    generated_samples=256,
    sequence_length=32,
    micro_batch_samples=2,
    seed=11,
)


def live_config(folder: Path, steps=5, cuts=None, faults=(), **changes):
    settings = replace(
        SETTINGS, micro_batch_limit=steps * 6, lease_s=2.0, rebalancing=False, checkpoint_steps=2
    )
    budgets = tuple(Budget((0.003,), cuts=(cuts or {}).get(site, ())) for site in range(4))
    return LiveConfig(
        setup=changes.pop("setup", LIVE_SETUP),
        settings=settings,
        boundaries=(0, 2, 4),
        replicas=2,
        budgets=budgets,
        folder=folder / "run",
        deadline_s=60.0,
        faults=faults,
        **changes,
    )


def assert_exact(result):
    proof = result.proof
    assert proof.audit.faults == []
    assert (proof.samples_lost, proof.samples_doubled) == (0, 0)
    assert proof.weights_rel_error <= 1e-12
    assert proof.copies_differ == []


def test_a_budget_cut_and_a_killed_holder_leave_the_weights_exact(tmp_path):
    config = live_config(
        tmp_path,
        steps=6,
        cuts={1: (BudgetCut(1, 4, 0.25),)},
        faults=(Fault("site-2", signal.SIGKILL, NoteKind.COMMITTED, step=3, of_victim=True),),
    )
    seen: Counter[str] = Counter()
    streamed: dict[str, list[float]] = {}
    stream = StepStream(lambda name, v, _: streamed.setdefault(name, []).append(v), 20.0)

    def watch(fields):
        seen.update([str(fields["kind"])])
        stream(fields)

    result = run_live(config, watch)
    assert_exact(result)
    metrics = live_metrics(config, result)
    assert metrics["reroutes"] > 0
    assert metrics["deaths_after_commit"] == metrics["sites_lost"] == 1
    assert metrics["samples_lost"] == metrics["samples_doubled"] == 0
    assert metrics["tokens_per_s"] > 0
    # What was streamed while it ran, what the log replays, and the table are one.
    assert seen == Counter(note.kind.value for _, note in result.notes)
    table = notes_table(result.notes)
    assert len(table["time_s"]) == len(result.notes)
    assert bool((table["time_s"][1:] >= table["time_s"][:-1]).all())
    assert streamed["loss"] == pytest.approx(result.proof.reference.losses)
    assert sum(streamed["samples"]) == config.settings.micro_batch_limit * 2
    assert streamed["reroutes"][-1] == metrics["reroutes"]
    assert streamed["sites_lost"][-1] == 1
    # Every decision comes again from the events alone.
    path = tmp_path / "events.parquet"
    costs = layer_costs(config.setup)
    write_events(path, result.events, config.settings, config.layout, costs)
    decided = list(replay_events(path))
    assert [entry for entry in decided if isinstance(entry[1], Note)] == result.notes
    assert {"Assign", "Merge", "Reduce", "Apply"} <= {type(a).__name__ for _, a in decided}
    # The coordinator's own last checkpoint holds the same weights.
    version = max(
        int(path.name.split("-")[1])
        for path in (config.folder / "checkpoints").glob("version-*.safetensors")
    )
    stored = load_stages(config.folder / "checkpoints", config.setup.model, version)
    for name, tensor in result.proof.weights.items():
        assert torch.equal(stored.weights[name], tensor), name


def test_a_killed_coordinator_goes_on_from_its_log(tmp_path):
    config = live_config(
        tmp_path,
        faults=(
            Fault(
                "coordinator",
                signal.SIGKILL,
                NoteKind.COMMITTED,
                step=1,
                count=3,
                back_after_s=0.1,
            ),
        ),
    )
    result = run_live(config)
    assert_exact(result)
    assert result.count(NoteKind.RECOVERED) == 1
    assert result.count(NoteKind.SITE_LOST) == 0


def test_a_site_that_comes_back_takes_part_again(tmp_path, monkeypatch):
    # Relative paths, from a folder that the children do not start in.
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A base station has much to do, and at night little. " * 200)
    config = live_config(
        Path(),
        setup=replace(LIVE_SETUP, source="book.txt"),
        steps=8,
        secure=False,
        faults=(Fault("site-3", signal.SIGKILL, NoteKind.COMMITTED, 1, True, 2, back_after_s=0.1),),
    )
    result = run_live(config)
    assert_exact(result)
    assert result.count(NoteKind.SITE_JOINED) == 5
    assert result.count(NoteKind.LAYOUT_COMMIT) == 1


def test_other_tables_are_no_events_of_a_run(tmp_path):
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"time_s": [1.0]}), path)
    for wrong in (path, tmp_path / "none.parquet"):
        with pytest.raises(InputError, match="events of a run"):
            list(replay_events(wrong))


def test_a_bar_shows_nothing_where_there_is_no_terminal():
    output = io.StringIO()
    with StepBar(3, output) as bar:
        bar({"kind": NoteKind.STEP_LOSS, "value": 1.5})
        bar({"kind": NoteKind.STEP_REDUCED})
    assert output.getvalue() == ""


def children() -> set[int]:
    return {
        int(task)
        for path in Path("/proc/self/task").glob("*/children")
        for task in path.read_text().split()
    }


def test_a_run_that_does_not_end_is_ended_with_all_its_processes(tmp_path):
    config = live_config(tmp_path)
    never = replace(config, budgets=(Budget((0.0,)),) * 4, deadline_s=6.0)
    before = children()
    with pytest.raises(LiveRunError, match=r"6\.0 s"):
        run_live(never)
    for child in children() - before:
        # Only the fork server may be left of what the run started.
        name = Path(f"/proc/{child}/cmdline").read_bytes()
        assert b"forkserver" in name or b"resource_tracker" in name, name
    assert os.path.exists(config.folder / "coordinator.sqlite")


def test_too_few_budgets_are_refused(tmp_path):
    config = live_config(tmp_path)
    with pytest.raises(InputError, match="budgets"):
        replace(config, budgets=config.budgets[:3])
