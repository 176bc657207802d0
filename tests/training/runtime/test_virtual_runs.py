"""Core and sites together on virtual time: whatever happens, the weights are those of one process.

Proof is by the sites' journals and one-process training. The last tests break a rule of the sites
on purpose: the proof has to notice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ranloom.training.messages import NoteKind
from ranloom.training.opt_model import ModelConfig
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.chaos import SMALL_SETUP as SETUP
from ranloom.training.runtime.site import Site
from ranloom.training.runtime.sums import StageSums
from ranloom.training.runtime.virtual import FaultRates, HungError, VirtualRun, count_notes

NETWORK = FaultRates(loss=0.05, duplicate=0.05, delay_s=0.004, old_event=0.05)
BUDGETS = FaultRates(cut_per_s=0.8, evict_per_s=0.3)
DEATHS = FaultRates(death_per_s=0.5, return_s=0.8)
CRASHES = FaultRates(crash_per_s=1.0)
EVERYTHING = FaultRates(
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


def run(config):
    return VirtualRun(config, config.setup.workload("cpu")).run()


def assert_holds(result):
    proof = result.proof
    assert proof.audit.faults == []
    assert (proof.samples_lost, proof.samples_doubled) == (0, 0)
    assert proof.weights_rel_error <= 1e-12
    assert proof.copies_differ == []


@pytest.mark.parametrize(
    ("replicas", "stages"), [(1, 1), (1, 4), (2, 2), (3, 1)], ids=lambda value: str(value)
)
def test_quiet_runs_are_exact_in_every_shape(virtual_config, replicas, stages):
    result = run(virtual_config(1, replicas=replicas, stages=stages, micro_batch_limit=18))
    assert_holds(result)
    assert len(result.proof.audit.steps) == 3
    assert count_notes(result)["deferred"] == 0


def test_a_run_repeats_bit_by_bit(virtual_config):
    one, two = (run(replace(virtual_config(seed), seed=7)) for seed in (1, 2))
    assert one.notes == two.notes
    for name, tensor in one.proof.weights.items():
        assert tensor.equal(two.proof.weights[name]), name


@pytest.mark.parametrize(
    ("rates", "must_happen"),
    [
        (NETWORK, {"lost_message", "doubled_message", "old_event"}),
        (BUDGETS, {"budget_cut", "eviction"}),
        (DEATHS, {"death_with_work"}),
        (CRASHES, {"coordinator_crash"}),
    ],
    ids=["network", "budgets", "deaths", "crashes"],
)
def test_each_kind_of_fault_is_survived(virtual_config, rates, must_happen):
    happened: Counter[str] = Counter()
    for seed in range(2):
        result = run(virtual_config(seed, rates))
        assert_holds(result)
        happened += result.happened
    assert must_happen <= happened.keys()


def test_everything_at_once(virtual_config):
    happened: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    for seed in range(30, 34):
        result = run(virtual_config(seed, EVERYTHING, reserve=seed % 2))
        assert_holds(result)
        happened += result.happened
        notes += count_notes(result)
    assert happened["death_with_work"] > 0
    assert happened["coordinator_crash"] > 0
    for kind in (
        NoteKind.REROUTED,
        NoteKind.SPECULATED,
        NoteKind.DEFERRED,
        NoteKind.REOPENED,
        NoteKind.REJECTED,
        NoteKind.SITE_LOST,
        NoteKind.LAYOUT_COMMIT,
        NoteKind.RECOVERED,
    ):
        assert notes[kind.value] > 0, kind


def test_tensors_that_do_not_fit_are_not_taken(virtual_config, monkeypatch):
    spoilt = Counter()

    def spoil_first(self, sender, to, message, tensors):
        if tensors:
            name = min(tensors)
            for wrong in (
                {**tensors, name: tensors[name][:-1]},
                {**tensors, name: tensors[name].float()},
                {k: t for k, t in tensors.items() if k != name},
                {**tensors, "more": tensors[name]},
            ):
                if "value" not in wrong or "more" not in wrong:
                    spoilt[type(message).__name__] += 1
                    send(self, sender, to, message, wrong)
        send(self, sender, to, message, tensors)

    send = VirtualRun._send_peer
    monkeypatch.setattr(VirtualRun, "_send_peer", spoil_first)
    assert_holds(run(virtual_config(1, micro_batch_limit=12)))
    assert {"Supply", "PartialSum", "TiedSum", "Total"} <= spoilt.keys()


def test_unmerged_gradients_stay_within_the_window(virtual_config, monkeypatch):
    held = Counter()
    rates = replace(DEATHS, cut_per_s=0.8)

    def watched(self, running, seconds):
        complete(self, running, seconds)
        if self._books is not None:
            held[len(self._books.held)] += 1

    complete = Site.complete
    monkeypatch.setattr(Site, "complete", watched)
    assert_holds(run(virtual_config(3, rates, window=2, micro_batch_limit=24)))
    # One more for each micro-batch that comes below all of those held.
    assert held[2] > 0
    assert max(held) <= 4


def test_adamw_state_moves_with_the_layers(virtual_config):
    setup = replace(SETUP, optimizer=OptimizerConfig("adamw", 0.01, weight_decay=0.1))
    commits = 0
    for seed in range(3):
        result = run(virtual_config(seed, DEATHS, setup=setup, micro_batch_limit=60))
        assert_holds(result)
        commits += count_notes(result)["layout_commit"]
    assert commits > 0


def test_boundaries_move_while_training_goes_on(virtual_config):
    config = virtual_config(
        3, micro_batch_limit=90, mlr_threshold=0.01, mlr_patience_steps=1, slack_fraction=0.05
    )
    slow = (config.tflops[0], config.tflops[1] / 6, config.tflops[2], config.tflops[3] / 6)
    result = run(replace(config, tflops=slow))
    assert_holds(result)
    boundaries = [n.reason for _, n in result.notes if n.kind is NoteKind.LAYOUT_COMMIT]
    assert "0|3|4" in boundaries


def test_the_last_holder_may_die(virtual_config):
    rates = FaultRates(death_per_s=0.5, last_holder=True, return_s=0.3)
    rolled_back = 0
    for seed in (1, 2):
        result = run(virtual_config(seed, rates, replicas=1, checkpoint_steps=2))
        assert_holds(result)
        rolled_back += count_notes(result)["rolled_back"]
    assert rolled_back > 0


@pytest.mark.parametrize(("dtype", "precision"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_smaller_types_agree_within_their_precision(virtual_config, dtype, precision):
    model = ModelConfig(4, 8, 2, 16, 256, 12, 0.0, dtype)
    result = run(virtual_config(1, setup=replace(SETUP, model=model), micro_batch_limit=12))
    assert 0.0 < result.proof.weights_rel_error < precision
    assert (result.proof.samples_lost, result.proof.samples_doubled) == (0, 0)


# --- what the proof has to notice ---


def test_a_micro_batch_merged_twice_is_noticed(virtual_config, monkeypatch):
    def merge_twice(self, step, micro_batch, gradients, samples):
        merge(self, step, micro_batch, gradients, samples)
        if micro_batch == 4:
            for name, gradient in gradients.items():
                self.partial[step].tensors[name] += gradient

    merge = StageSums.merge
    monkeypatch.setattr(StageSums, "merge", merge_twice)
    result = run(virtual_config(1, micro_batch_limit=12))
    assert result.proof.weights_rel_error > 1e-6


def test_a_micro_batch_left_out_of_the_sum_is_noticed(virtual_config, monkeypatch):
    def forget(self, step, micro_batch, gradients, samples):
        if micro_batch == 4:
            gradients = {name: gradient * 0.0 for name, gradient in gradients.items()}
        merge(self, step, micro_batch, gradients, samples)

    merge = StageSums.merge
    monkeypatch.setattr(StageSums, "merge", forget)
    assert run(virtual_config(1, micro_batch_limit=12)).proof.weights_rel_error > 1e-6


def test_a_site_with_other_books_than_the_ledger_is_fenced(virtual_config, monkeypatch):
    def merge_wrongly(self, merge):
        if merge.site == 1 and merge.key.micro_batch == 4 and merge.incarnation == 1:
            return
        act(self, merge, self._books)

    act = Site._merge
    monkeypatch.setattr(Site, "_merge", lambda self, merge, books: merge_wrongly(self, merge))
    result = run(virtual_config(1, micro_batch_limit=12))
    assert_holds(result)
    assert "manifest" in {n.reason for _, n in result.notes if n.kind is NoteKind.REJECTED}


def test_a_run_that_makes_no_progress_is_given_up(virtual_config):
    config = virtual_config(1, replicas=1)
    with pytest.raises(HungError):
        run(replace(config, tflops=config.tflops[:1], give_up_s=5.0))


def test_a_run_whose_processes_have_all_ended_is_resumed(virtual_config):
    adamw = replace(SETUP, optimizer=OptimizerConfig("adamw", 0.01, weight_decay=0.1))
    config = virtual_config(1, setup=adamw, checkpoint_steps=2, micro_batch_limit=60)
    training = VirtualRun(config, adamw.workload("cpu"))

    def stop_everything():
        training._crash()
        for site in range(len(config.tflops)):
            training._die(site)

    training._at(1.5, stop_everything)
    result = training.run()
    assert_holds(result)
    assert count_notes(result)["rolled_back"] > 0
    # From a checkpoint, not from the start.
    installed = [r for j in training._journals for r in j.records if r["what"] == "installed"]
    assert "checkpoint" in {record["weights_from"] for record in installed}
