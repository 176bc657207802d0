from dataclasses import replace

import numpy as np
import pytest

from ranloom.federated.cutoff import CutOff
from ranloom.federated.hub import Hub, flat_average, relative_error
from ranloom.federated.mobility import Mobility
from ranloom.federated.payload import decode, encode
from ranloom.federated.radio import ARRIVED, SAT_OUT, CellRates, simulate_uploads
from ranloom.federated.replay import replay_job
from ranloom.federated.rounds import draw_population
from tests.federated.builders import CONFIG, LAYOUT, values_of
from tests.federated.test_rounds import BEHAVIOUR, JOB, RING

NAMES = [f"gnb_{i:02d}" for i in range(6)]
RULE = CutOff("mad", 40.0, 160.0, 1.0, 1.0)


def simulated(late="carry_over", restart=False, lost=0.3, seed=11, **changes):
    job = replace(JOB, update_bytes=16_000_000, model_bytes=16_000_000)
    behaviour = replace(
        BEHAVIOUR, restart_on_move=restart, mobility=Mobility(1.0, 60.0), give_up=late == "drop"
    )
    people = draw_population([job], 6, RING, behaviour, [seed])
    rng = np.random.default_rng(seed)
    rates = CellRates(rng.uniform(1, 30, (6, 4, 30)), np.full(6, 4), rng.integers(0, 30, 6))
    uploads = simulate_uploads(rates, people.plan)
    config = replace(CONFIG, cut_off=RULE, late=late, stall_s=60.0, arithmetic="float64")
    config = replace(config, **changes)
    payloads = {}

    def payload_of(ue, round_index):
        key = (ue, round_index)
        if key not in payloads:
            payloads[key] = encode(values_of(str(ue), round_index), "fp16")
        return payloads[key]

    answer_lost = rng.random(uploads.outcome.shape) < lost
    result = replay_job(people, uploads, 0, config, NAMES, "fp16", payload_of, answer_lost, 1.0)
    return people, uploads, config, payload_of, result


@pytest.mark.parametrize("late", ["carry_over", "carry_discount", "drop"])
@pytest.mark.parametrize("restart", [False, True])
def test_every_update_has_one_fate_and_the_average_is_exact(late, restart):
    people, uploads, config, payload_of, result = simulated(late, restart)
    took_part = np.argwhere(uploads.outcome != SAT_OUT)
    assert sorted((f.ue, f.round) for f in result.fates) == sorted(map(tuple, took_part))
    arrived = np.argwhere(uploads.outcome == ARRIVED)
    counted = [f for f in result.fates if f.fate != "dropped"]
    if late != "drop":
        assert sorted((f.ue, f.round) for f in counted) == sorted(map(tuple, arrived))
        assert any(f.fate == "carried" for f in counted)
    else:
        assert any(f.reason == "late" for f in result.fates)

    n_in = sum(people.n_k[f.ue] for f in result.fates)
    by_fate = {
        fate: sum(people.n_k[f.ue] for f in result.fates if f.fate == fate)
        for fate in ("delivered", "carried", "dropped")
    }
    assert sum(by_fate.values()) == n_in
    accounts = [m.ledger.account for m in result.machines]
    assert sum(a.delivered for a in accounts) == by_fate["delivered"]
    assert sum(a.carried for a in accounts) == by_fate["carried"]

    hub = Hub(LAYOUT.elements, "float64")
    for wave in result.waves:
        assert hub.merge(wave)
    for round_index in hub.rounds():
        members = [f for f in counted if f.counted_round == round_index and f.wave >= 0]
        alpha = config.alpha if late == "carry_discount" else 0.0
        weights = [
            round(people.n_k[f.ue] * (1 + round_index - f.round) ** -alpha * 2**20) / 2**20
            for f in members
        ]
        flat = flat_average([decode(payload_of(f.ue, f.round)) for f in members], weights)
        assert relative_error(hub.average(round_index), flat) < 1e-12


def test_lost_answers_give_duplicates_and_nothing_else():
    quiet = simulated(lost=0.0)[-1]
    noisy = simulated(lost=1.0)[-1]
    assert quiet.duplicates == 0
    assert noisy.duplicates == sum(f.fate != "dropped" for f in noisy.fates) > 0
    for one, two in zip(quiet.waves, noisy.waves, strict=True):
        assert one.manifest == two.manifest
        assert np.array_equal(one.sums.total, two.sums.total)


def test_arrivals_are_those_of_the_radio():
    _, uploads, config, _, result = simulated()
    for f in result.fates:
        if f.fate == "delivered":
            assert uploads.outcome[f.ue, f.round] == ARRIVED
            assert f.gnb == uploads.arrival_gnb[f.ue, f.round]
            begin_s = uploads.begin_s[0, f.round]
            assert uploads.arrival_s[f.ue, f.round] - begin_s <= config.cut_off.max_s
    moved = [
        f for f in result.fates if f.fate == "delivered" and f.gnb != uploads.gnb[f.ue, f.round]
    ]
    assert moved, "no update was counted after a hand-over: the test would be empty"
    for wave in result.waves:
        begin_s = uploads.begin_s[0, wave.round]
        assert begin_s <= wave.closed_s <= begin_s + config.cut_off.max_s


def test_replay_is_deterministic():
    one, two = simulated()[-1], simulated()[-1]
    assert one.fates == two.fates
    assert [w.closed_s for w in one.waves] == [w.closed_s for w in two.waves]


@pytest.mark.parametrize(
    ("changes", "reason"), [({"stall_s": 8.0}, "stalled"), ({"staging_bytes": 256}, "no_room")]
)
def test_what_a_gnb_cannot_hold_is_dropped_by_name(changes, reason):
    people, _, _, _, result = simulated(lost=1.0, **changes)
    dropped = [f for f in result.fates if f.reason == reason]
    assert dropped
    counted = [f for f in result.fates if f.fate != "dropped"]
    assert counted
    assert sorted(u for w in result.waves for u in w.manifest) == sorted(
        f"job/{f.round}/{people.names[f.ue]}" for f in counted if f.wave >= 0
    )
