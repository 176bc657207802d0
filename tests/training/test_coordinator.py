"""The core as a whole, on small worlds where something particular happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.coordinator import Coordinator
from ranloom.training.layout import Layout, regular_layout
from ranloom.training.ledger import Fate
from ranloom.training.messages import (
    Apply,
    Assign,
    CoordinatorRestarted,
    Fence,
    Install,
    LayoutRequested,
    Merge,
    Note,
    NoteKind,
    Part,
    Reduce,
    SiteJoined,
    StageReduced,
    TaskCompleted,
    Tick,
    WeightsFrom,
)
from tests.training.worlds import (
    assert_each_once,
    core_settings,
    layer_costs,
    run_to_the_end,
    sent,
    small_world,
)


def kinds(world, kind):
    return [(t, note) for t, note in world.record.notes if note.kind is kind]


def test_without_trouble_every_step_has_its_share_in_order():
    world = small_world()
    steps = run_to_the_end(world)
    assert steps == [tuple(range(first, first + 8)) for first in range(0, 48, 8)]
    statistics = world.coordinator.statistics
    assert statistics.reroutes == statistics.deferrals == statistics.reopened == 0
    assert not statistics.rejected


def test_the_same_run_twice_sends_the_same_messages():
    tflops = np.full((4, 200), 40.0)
    tflops[2, 1:3] = 5.0
    first, second = (small_world(tflops=tflops) for _ in range(2))
    for world in (first, second):
        world.run_until(500.0)
    assert first.record.messages == second.record.messages
    assert kinds(first, NoteKind.REROUTED)


def test_replaying_the_events_gives_the_same_actions():
    tflops = np.full((4, 200), 40.0)
    tflops[2, 1:3] = 5.0
    world = small_world(tflops=tflops)
    world.engine.at(1.5, world.kill, 1)
    world.engine.at(4.0, world.boot, 1)
    run_to_the_end(world)
    again = Coordinator(core_settings(), regular_layout((0, 2, 4), 2), layer_costs(4))
    replayed = []
    for time_s, event in world.events():
        replayed.append((time_s, event))
        replayed.extend((time_s, action) for action in again.handle(event, time_s))
    assert replayed == world.record.messages


def test_nothing_is_merged_before_all_its_stages_are_committed():
    tflops = np.full((6, 200), 40.0)
    tflops[3, 1:4] = 8.0
    world = small_world(stages=3, replicas=2, layers=6, tflops=tflops)
    world.engine.at(2.0, world.kill, 4)
    run_to_the_end(world)
    committed: dict[tuple[int, int], set[int]] = {}
    for _, message in world.record.messages:
        if isinstance(message, Note) and message.kind is NoteKind.COMMITTED:
            committed.setdefault((message.step, message.micro_batch), set()).add(message.stage)
        elif isinstance(message, Note) and message.kind is NoteKind.REOPENED:
            committed[message.step, message.micro_batch].discard(message.stage)
        elif isinstance(message, Merge):
            key = message.key
            assert key.stage in committed[key.step, key.micro_batch]
    assert sent(world, Merge)


def test_a_holder_that_dies_after_its_commit_reopens_the_key_at_the_same_version():
    world = small_world(layers=2, micro_batch_limit=16)
    committed = []

    def kill_after_commit():
        done = [n for _, n in kinds(world, NoteKind.COMMITTED) if n.step == 0 and n.site == 3]
        if done and not committed:
            committed.append(done[0])
            world.kill(3)
        elif not committed:
            world.engine.at(world.engine.now_s + 0.01, kill_after_commit)

    world.engine.at(0.1, kill_after_commit)
    steps = run_to_the_end(world)
    assert_each_once(world, steps)
    reopened = [note for _, note in kinds(world, NoteKind.REOPENED)]
    assert reopened
    assert all(note.site == 3 and note.step == 0 for note in reopened)
    after = [a for a in sent(world, Assign) if a.key.step == 0 and a.site == 1]
    assert {a.token.model_version for a in after} == {0}
    key = (reopened[0].micro_batch, reopened[0].stage)
    epochs = [
        a.token.task_epoch for a in sent(world, Assign) if (a.key.micro_batch, a.key.stage) == key
    ]
    assert max(epochs) > min(epochs)


def test_a_holder_that_dies_while_others_keep_the_total_costs_nothing():
    world = small_world(replicas=3, layers=4, loss_notice_s=0.001)
    killed = []

    def kill_a_recipient():
        cycle = world.coordinator.cycle
        if (
            cycle is not None
            and not killed
            and cycle.reduction.is_safe(1)
            and cycle.ledger.step == 1
        ):
            killed.append(5)
            world.kill(5)
        elif not killed:
            world.engine.at(world.engine.now_s + 0.001, kill_a_recipient)

    world.engine.at(0.1, kill_a_recipient)
    steps = run_to_the_end(world)
    assert killed
    assert_each_once(world, steps)
    assert not [n for _, n in kinds(world, NoteKind.REOPENED) if n.step == 1 and n.stage == 1]


def test_a_total_with_another_manifest_is_refused_and_its_root_fenced():
    world = small_world()
    while not sent(world, Reduce):
        world.run_until(world.engine.next_time_s())
    root = next(a for a in sent(world, Reduce) if a.parent < 0)
    forged = StageReduced(
        root.site,
        root.incarnation,
        root.step,
        root.stage,
        root.token,
        (root.part, Part(3, 1, (1, 3, 5))),
        1.0,
        "forged",
    )
    actions = world.coordinator.handle(forged, world.engine.now_s)
    assert Fence(root.site, root.incarnation) in actions
    assert world.coordinator.statistics.rejected["manifest"] == 1
    assert world.coordinator.cycle.phase != "reduced"


def test_a_step_below_its_minimum_is_skipped_and_nothing_is_lost():
    tflops = np.full((4, 400), 40.0)
    tflops[:, 5:12] = 2.0
    world = small_world(tflops=tflops, min_step_micro_batches=8, slack_fraction=0.05)
    steps = run_to_the_end(world)
    assert world.coordinator.statistics.skipped_steps > 0
    assert_each_once(world, steps)


def test_losing_the_last_holder_rolls_back_under_a_version_never_used():
    world = small_world(replicas=1, checkpoint_steps=3, micro_batch_limit=64)
    world.engine.at(9.0, world.kill, 1)
    world.engine.at(12.0, world.boot, 1)
    steps = run_to_the_end(world)
    assert_each_once(world, steps)
    assert world.coordinator.statistics.roll_backs >= 1
    restored = [a for a in sent(world, Install) if a.weights_from is WeightsFrom.CHECKPOINT]
    assert restored
    versions = [a.model_version for a in sent(world, Apply) if a.stage == 0]
    assert len(versions) == len(set(versions))
    assert all(restored[0].model_version not in versions for _ in (0,))
    assert restored[0].checkpoint_version % 3 == 0


def test_a_site_that_comes_back_copies_its_stage_beside_training_and_works_again():
    world = small_world(micro_batch_limit=160)
    world.engine.at(2.0, world.kill, 3)
    world.engine.at(3.0, world.boot, 3)
    steps = run_to_the_end(world)
    assert_each_once(world, steps)
    assert world.coordinator.layout.lanes == ((0, 1), (2, 3))
    assert world.coordinator.layout.epoch == 1
    joined = [t for t, _ in kinds(world, NoteKind.LAYOUT_COMMIT)]
    assert len(joined) == 1
    back = [n for t, n in kinds(world, NoteKind.COMMITTED) if n.site == 3 and t > joined[0]]
    assert back


def test_after_nearly_all_sites_were_lost_those_that_come_back_get_a_place():
    world = small_world(micro_batch_limit=160)
    for site in (0, 1, 2):
        world.engine.at(2.0, world.kill, site)
        world.engine.at(3.0 + site, world.boot, site)
    steps = run_to_the_end(world)
    assert_each_once(world, steps)
    assert world.coordinator.statistics.roll_backs >= 1
    assert world.coordinator.layout.sites() == (0, 1, 2, 3)
    copied = [t for t, _ in kinds(world, NoteKind.LAYOUT_COMMIT)]
    working = {n.site for t, n in kinds(world, NoteKind.COMMITTED) if t > copied[-1]}
    assert working == {0, 1, 2, 3}


def test_lasting_slowness_moves_a_boundary_and_the_copy_stalls_nobody():
    layers = 8
    tflops = np.full((4, 400), 40.0)
    tflops[0::2, 15:] = 12.0  # both holders of stage 0 slow down for good
    world = small_world(layers=layers, tflops=tflops, micro_batch_limit=400)
    steps = run_to_the_end(world, patience_s=1000.0)
    assert_each_once(world, steps)
    assert kinds(world, NoteKind.REBALANCED)
    assert world.coordinator.layout.boundaries[1] < layers // 2
    copies = [t for t, _ in kinds(world, NoteKind.LAYOUT_COPY)]
    commits = [t for t, _ in kinds(world, NoteKind.LAYOUT_COMMIT)]
    between = [t for t, _ in kinds(world, NoteKind.STEP_REDUCED) if copies[0] < t <= commits[0]]
    assert between, "training went on during the copy"
    opened = [t for t, _ in kinds(world, NoteKind.STEP_OPENED)]
    assert min(t - commits[0] for t in opened if t >= commits[0]) == 0.0


def test_a_straggler_costs_much_less_with_rerouting():
    tflops = np.full((4, 2000), 40.0)
    tflops[2] = 10.0
    ends = {}
    for rerouting in (True, False):
        world = small_world(
            tflops=tflops, rerouting=rerouting, rebalancing=False, micro_batch_limit=160
        )
        assert_each_once(world, run_to_the_end(world, 5000.0))
        ends[rerouting] = max(t for t, _ in kinds(world, NoteKind.STEP_REDUCED))
    assert ends[False] > 1.5 * ends[True]


def test_other_boundaries_can_be_asked_for_from_outside():
    world = small_world(micro_batch_limit=120)
    world.engine.at(3.0, world.request_layout, (0, 1, 4))
    assert_each_once(world, run_to_the_end(world))
    assert world.coordinator.layout.boundaries == (0, 1, 4)
    refused = world.coordinator.handle(LayoutRequested((0, 1, 4)), 1e6)
    assert [n.reason for n in refused if isinstance(n, Note)] == ["request_refused"]


def test_coordinator_crash_loses_nothing_that_was_sent():
    for crash_s in np.linspace(0.05, 1.5, 15):
        world = small_world(layers=4, micro_batch_limit=24)
        world.engine.at(float(crash_s), world.crash_coordinator)
        world.engine.at(float(crash_s) + 0.3, world.restart_coordinator)
        steps = run_to_the_end(world)
        assert_each_once(world, steps)
        assert world.coordinator.statistics.recoveries == 1
        assert {a.token.coordinator for a in sent(world, Assign)} <= {1, 2}


def test_results_of_the_dead_and_of_the_past_change_nothing():
    world = small_world()
    world.run_until(1.0)
    core = world.coordinator
    task = next(m for _, m in world.record.messages if isinstance(m, TaskCompleted))
    before = (core.cycle.ledger.records.copy(), core.cycle.ledger.fate.copy())
    for fake in (
        replace(task, incarnation=7),
        replace(task, site=77),
        replace(task, token=replace(task.token, attempt=4711)),
        replace(task, key=replace(task.key, step=99)),
        replace(task, key=replace(task.key, stage=9)),
    ):
        core.handle(fake, world.engine.now_s)
    assert (core.cycle.ledger.records == before[0]).all()
    assert (core.cycle.ledger.fate == before[1]).all()


def test_debt_stays_within_its_bound():
    tflops = np.full((4, 400), 40.0)
    tflops[2:, 3:40] = 6.0
    world = small_world(tflops=tflops, micro_batch_limit=120, max_debt_samples=5.0, steal_gain=9.9)
    worst = 0.0
    while not world.coordinator.finished and world.engine.now_s < 500:
        world.run_until(world.engine.next_time_s())
        worst = max(worst, float(np.abs(world.coordinator.run.quotas.debt).max()))
    assert 0.0 < worst <= 5.0


def test_bad_layouts_and_messages_are_refused():
    costs = layer_costs(4)
    with pytest.raises(InputError, match="a cut of 4 layers"):
        Coordinator(core_settings(), regular_layout((0, 2, 5), 1), costs)
    with pytest.raises(InputError, match=r"layout\.boundaries"):
        Layout(0, (0, 2, 2), ((0, 1),))
    with pytest.raises(InputError, match=r"layout\.lanes"):
        Layout(0, (0, 2, 4), ((0, 1), (1, 2)))
    with pytest.raises(InputError, match=r"layout\.lanes"):
        Layout(0, (0, 2, 4), ((0,),))
    core = Coordinator(core_settings(), regular_layout((0, 2, 4), 1), costs)
    with pytest.raises(InputError, match="site"):
        core.handle(SiteJoined(1 << 20, 1, 1, 1.0), 0.0)
    with pytest.raises(InputError, match="above 1"):
        core.handle(CoordinatorRestarted(1), 0.0)
    assert core.handle(Tick(), 1.0) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 0),
        ("debt_gain", 1.0),
        ("error_weight", 0.0),
        ("lease_s", 0.0),
        ("slack_fraction", -0.1),
        ("min_step_micro_batches", 9),
        ("micro_batch_limit", -2),
        ("control_interval_s", float("nan")),
    ],
)
def test_settings_out_of_range_are_named(name, value):
    with pytest.raises(InputError, match=name):
        core_settings(**{name: value})


def test_open_keys_of_a_waiting_micro_batch_are_not_granted():
    world = small_world(window=1)
    world.run_until(0.05)
    ledger = world.coordinator.cycle.ledger
    assert len(ledger.rows_of_fate(Fate.IN_WORK)) == 2
    waiting = ledger.rows_of_fate(Fate.WAITING)
    assert (ledger.records["attempt"][waiting] == -1).all()
