"""Hypothesis drives a world: faults at any moment, invariants at every moment."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ranloom.training.simulator.chaos import chaos_world, examine
from ranloom.training.simulator.site import history

OCCURRED: Counter[str] = Counter()


class TrainingMachine(RuleBasedStateMachine):
    """Sites 0 .. N - 1 and a coordinator; every rule lets some virtual time pass."""

    @initialize(seed=st.integers(0, 2000))
    def begin(self, seed: int) -> None:
        self.world, _ = chaos_world(seed)
        self.sites = self.world.coordinator.layout.sites()
        self.down = False
        self.versions: list[int] = []

    def pass_time(self, seconds: float) -> None:
        self.world.run_until(self.world.engine.now_s + seconds)

    @rule(seconds=st.floats(0.01, 1.5))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(pick=st.integers(0, 20), seconds=st.floats(0.0, 0.3))
    def kill(self, pick: int, seconds: float) -> None:
        OCCURRED["kill"] += 1
        self.world.kill(self.sites[pick % len(self.sites)])
        self.pass_time(seconds)

    @rule(pick=st.integers(0, 20), seconds=st.floats(0.0, 0.3))
    def boot(self, pick: int, seconds: float) -> None:
        OCCURRED["boot"] += 1
        self.world.boot(self.sites[pick % len(self.sites)])
        self.pass_time(seconds)

    @rule(pick=st.integers(0, 20), seconds=st.floats(0.0, 3.0))
    def freeze_and_thaw(self, pick: int, seconds: float) -> None:
        OCCURRED["freeze"] += 1
        site = self.sites[pick % len(self.sites)]
        self.world.freeze(site)
        self.pass_time(seconds)
        self.world.thaw(site)

    @rule(pick=st.integers(0, 20), seconds=st.floats(0.1, 3.0))
    def cut_off(self, pick: int, seconds: float) -> None:
        OCCURRED["cut_off"] += 1
        site = self.sites[pick % len(self.sites)]
        self.world.cut_off(site, self.world.engine.now_s + seconds)
        self.pass_time(seconds / 2)

    @rule(pick=st.integers(0, 20))
    def evict(self, pick: int) -> None:
        OCCURRED["evict"] += 1
        self.world.evict(self.sites[pick % len(self.sites)])
        self.pass_time(0.02)

    @rule(cut=st.integers(1, 3))
    def ask_for_boundaries(self, cut: int) -> None:
        layout = self.world.coordinator.layout
        if layout.stages == 2 and cut < layout.boundaries[-1]:
            OCCURRED["layout"] += 1
            self.world.request_layout((0, cut, layout.boundaries[-1]))

    @precondition(lambda self: not self.down)
    @rule(seconds=st.floats(0.0, 0.5))
    def crash_coordinator(self, seconds: float) -> None:
        OCCURRED["crash"] += 1
        self.world.crash_coordinator()
        self.down = True
        self.pass_time(seconds)

    @precondition(lambda self: self.down)
    @rule()
    def restart_coordinator(self) -> None:
        self.world.restart_coordinator()
        self.down = False
        self.pass_time(0.05)

    @invariant()
    def at_most_once_in_all_stages_or_in_none(self) -> None:
        """What any site has learned is a step-by-step prefix of what the last one has."""
        if not hasattr(self, "world"):
            return
        knows = self.world.coordinator.members.knows
        copies: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for process in self.world.sites.values():
            if process.stage < 0 or not knows(process.site, process.incarnation):
                continue
            for learned in process.weights.values():
                found = history(learned)
                numbers = [number for _, step in found for number in step]
                assert len(numbers) == len(set(numbers)), "a micro-batch was learned twice"
                known = copies.setdefault(process.model_version, found)
                assert found == known, "two layers of one version learned different things"

    @invariant()
    def debt_and_queue_are_consistent(self) -> None:
        if not hasattr(self, "world"):
            return
        run = self.world.coordinator.run
        bound = run.quotas.max_debt * (1.0 + 1e-12)
        assert (np.abs(run.quotas.debt) <= bound).all()
        if run.cycle is not None:
            ledger = run.cycle.ledger
            assert len(set(ledger.micro_batches)) == len(ledger.micro_batches)
            assert all(0 <= number < run.queue.drawn for number in ledger.micro_batches)
            assert ledger.model_version == run.model_version

    def teardown(self) -> None:
        """All is healthy again: the run must come to its end, with everything learned once."""
        if not hasattr(self, "world"):
            return
        self.world.recover_all()
        self.world.run_until(self.world.engine.now_s + 3000.0)
        self.world.drain()
        result = examine(self.world, 0, Counter())
        assert result.sound, result
        OCCURRED["finished"] += 1


TrainingMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestTrainingMachine(TrainingMachine.TestCase):  # type: ignore[name-defined,misc]
    def runTest(self) -> None:  # noqa: N802
        super().runTest()
        for kind in ("kill", "boot", "freeze", "cut_off", "evict", "crash", "layout", "finished"):
            assert OCCURRED[kind] > 0, f"{kind} never happened"
