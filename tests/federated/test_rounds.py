import math
from dataclasses import replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.mobility import Mobility
from ranloom.federated.radio import (
    ARRIVED,
    GAVE_UP,
    LEFT,
    SAT_OUT,
    UNFINISHED,
    CellRates,
    UploadPlan,
    simulate_uploads,
)
from ranloom.federated.rounds import (
    Behaviour,
    Job,
    SampleCounts,
    UeClass,
    apportion,
    draw_population,
)

MEGA = 1e6


def rates(mbps, phase_s=None):
    mbps = np.asarray(mbps, dtype=float)
    gnbs = mbps.shape[0]
    phase = np.zeros(gnbs, np.int64) if phase_s is None else np.array(phase_s)
    return CellRates(mbps, np.full(gnbs, mbps.shape[1]), phase)


def plan(ues, **changes):
    values = {
        "job": np.zeros(ues, np.int64),
        "home": np.zeros(ues, np.int64),
        "begin_s": np.array([[0.0]]),
        "until_s": 0.0,
        "downlink_bits": np.array([0.0]),
        "update_bits": np.array([10 * MEGA]),
        "compute_s": np.full((ues, 1), 1.0),
        "leave_s": np.full((ues, 1), np.inf),
        "away_rounds": np.zeros((ues, 1), np.int64),
        "move_s": np.zeros(0),
        "move_ue": np.zeros(0, np.int64),
        "move_to": np.zeros(0, np.int64),
        "downlink_mbps": 100.0,
        "multicast": True,
        "restart_on_move": False,
        "move_gap_s": 0.5,
        "give_up": False,
        "drain_s": 1000.0,
    }
    return UploadPlan(**(values | changes))


def test_one_upload_integrates_the_rate_second_by_second():
    # 10 Mbit from second 1 at 1, 2, 3, 4 Mbit/s: all sent at the end of second 4
    result = simulate_uploads(rates([[[9.0, 1.0, 2.0, 3.0, 4.0, 5.0]]]), plan(1))
    assert result.start_s[0, 0] == 1.0
    assert result.arrival_s[0, 0] == pytest.approx(5.0)
    # starting in second 3 of the series: 4 + 5, then 1 of 9 (the series repeats)
    late = simulate_uploads(rates([[[9.0, 1.0, 2.0, 3.0, 4.0, 5.0]]], [3]), plan(1))
    assert late.arrival_s[0, 0] == pytest.approx(3.0 + 1 / 9)


def test_uploads_of_a_cell_take_turns_on_what_is_left():
    # u0 alone 1..2 s (4 Mbit), both until u0 is done: 6 Mbit at 2 Mbit/s -> 5 s;
    # u1 has sent 3 x 1 = 3 Mbit by then and goes on alone at 2: 7 / 2 s more
    both = simulate_uploads(
        rates([[[4.0] * 10, [2.0] * 10]]), plan(2, compute_s=np.array([[1.0], [2.0]]))
    )
    assert both.arrival_s[:, 0] == pytest.approx([5.0, 8.5])
    assert both.offered_bits.sum() == pytest.approx(20 * MEGA)
    apart = simulate_uploads(
        rates([[[4.0] * 10, [2.0] * 10]] * 2),
        plan(2, compute_s=np.array([[1.0], [2.0]]), home=np.array([0, 1])),
    )
    assert apart.arrival_s[:, 0] == pytest.approx([3.5, 7.0])


@pytest.mark.parametrize(("restart", "arrival_s"), [(False, 3.5 + 6 / 2), (True, 3.5 + 10 / 2)])
def test_hand_over_in_mid_upload(restart, arrival_s):
    result = simulate_uploads(
        rates([[[2.0] * 10]] * 2),
        plan(
            1,
            restart_on_move=restart,
            move_s=np.array([3.0]),
            move_ue=np.array([0]),
            move_to=np.array([1]),
        ),
    )
    assert result.arrival_s[0, 0] == pytest.approx(arrival_s)
    assert (result.gnb[0, 0], result.arrival_gnb[0, 0]) == (0, 1)
    assert result.segment_gnb.tolist() == [0, 1]
    assert result.segment_bits == pytest.approx(
        [4 * MEGA, 10 * MEGA - (0 if restart else 4 * MEGA)]
    )


@pytest.mark.parametrize(("multicast", "fetch_s"), [(True, 0.5), (False, 1.5)])
def test_model_distribution_takes_time(multicast, fetch_s):
    result = simulate_uploads(
        rates([[[20.0] * 10] * 3]),
        plan(3, downlink_bits=np.array([50 * MEGA]), multicast=multicast),
    )
    assert result.start_s[:, 0] == pytest.approx(fetch_s + 1.0)


def rounds_plan(ues, rounds, **changes):
    shape = (ues, rounds)
    return plan(
        ues,
        **(
            {
                "begin_s": 10.0 * np.arange(rounds)[None, :],
                "compute_s": np.full(shape, 1.0),
                "leave_s": np.full(shape, np.inf),
                "away_rounds": np.zeros(shape, np.int64),
            }
            | changes
        ),
    )


def test_a_busy_ue_sits_out_or_gives_up():
    slow = rates([[[0.8] * 10]])  # 12.5 s for an update
    busy = simulate_uploads(slow, rounds_plan(1, 3))
    assert busy.outcome[0].tolist() == [ARRIVED, SAT_OUT, ARRIVED]
    assert busy.arrival_s[0, 0] == pytest.approx(13.5)
    hasty = simulate_uploads(slow, rounds_plan(1, 3, give_up=True))
    assert hasty.outcome[0].tolist() == [GAVE_UP, GAVE_UP, ARRIVED]
    assert hasty.start_s[0] == pytest.approx([1.0, 11.0, 21.0])
    assert hasty.segment_bits == pytest.approx([7.2 * MEGA, 7.2 * MEGA, 10 * MEGA])


def test_a_ue_that_vanishes_returns_later():
    leave = np.full((1, 4), np.inf)
    leave[0, 0] = 3.0
    away = np.array([[1, 0, 0, 0]])
    result = simulate_uploads(
        rates([[[2.0] * 10]]), rounds_plan(1, 4, leave_s=leave, away_rounds=away)
    )
    assert result.outcome[0].tolist() == [LEFT, SAT_OUT, ARRIVED, ARRIVED]
    assert result.segment_bits[0] == pytest.approx(4 * MEGA)
    assert np.isnan(result.arrival_s[0, 0])


def test_rounds_back_to_back_begin_when_the_last_upload_is_in():
    both = rounds_plan(2, 5, compute_s=np.array([[1.0] * 5, [2.0] * 5]), until_s=25.0)
    result = simulate_uploads(rates([[[2.0] * 10]]), both)
    # each round: 2 Mbit alone in second 1, both at 1 Mbit/s until 10 s, the other's last 2 Mbit
    assert result.begin_s[0] == pytest.approx([0.0, 11.0, 22.0, np.inf, np.inf])
    assert result.arrival_s[0, :3] == pytest.approx([10.0, 21.0, 32.0])
    assert result.arrival_s[1, :3] == pytest.approx([11.0, 22.0, 33.0])
    assert (result.outcome[:, 3:] == SAT_OUT).all()


def test_what_never_arrives_is_called_so():
    result = simulate_uploads(rates([[[0.001] * 10]]), plan(1, drain_s=50.0))
    assert result.outcome[0, 0] == UNFINISHED


def test_two_jobs_share_a_cell():
    shape = (2, 2)
    two = plan(
        2,
        job=np.array([0, 1]),
        begin_s=np.array([[0.0, 20.0], [2.0, np.inf]]),
        downlink_bits=np.zeros(2),
        update_bits=np.array([10 * MEGA, 4 * MEGA]),
        compute_s=np.full(shape, 1.0),
        leave_s=np.full(shape, np.inf),
        away_rounds=np.zeros(shape, np.int64),
    )
    result = simulate_uploads(rates([[[2.0] * 10]]), two)
    # job 0 alone 1..3 s (4 Mbit), then 1 Mbit/s each until job 1 has its 4: 7 s; then 2 Mbit left
    assert result.arrival_s[:, 0] == pytest.approx([8.0, 7.0])
    assert result.outcome.tolist() == [[ARRIVED, ARRIVED], [ARRIVED, SAT_OUT]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: rates([[[-1.0]]]),
        lambda: rates([[[math.nan]]]),
        lambda: rates([[[0.0, 0.0]]]),
        lambda: CellRates(np.ones((2, 1, 3)), np.ones(1, np.int64), np.zeros(2, np.int64)),
    ],
)
def test_wrong_rates_are_refused(call):
    with pytest.raises(InputError, match="rates"):
        call()


SAMPLES = SampleCounts("lognormal", 200.0, 1.0, 1.5, 5000)
BEHAVIOUR = Behaviour(
    classes=(UeClass("fast", 0.75, 36.0, 0.1), UeClass("slow", 0.25, 72.0, 0.1)),
    samples=SAMPLES,
    work="fixed_steps",
    leave_probability=0.1,
    return_probability=0.5,
    mobility=Mobility(1.0, 20.0),
    downlink_mbps=300.0,
    multicast=True,
    restart_on_move=False,
    move_gap_s=0.05,
    give_up=False,
    drain_s=600.0,
    until_s=0.0,
)
JOB = Job("job", 5, 0.0, 240.0, 200.0, 8, 1000, 1000)
RING = [[5, 1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 0]]


def test_population_is_a_function_of_its_seed():
    one, two = (draw_population([JOB], 6, RING, BEHAVIOUR, [7, 1]) for _ in range(2))
    other = draw_population([JOB], 6, RING, BEHAVIOUR, [7, 2])
    assert np.array_equal(one.plan.compute_s, two.plan.compute_s)
    assert np.array_equal(one.plan.move_s, two.plan.move_s)
    assert not np.array_equal(one.n_k, other.n_k)


def test_population_has_the_distributions_asked_for():
    job = replace(JOB, ues_per_gnb=400)
    people = draw_population([job], 6, RING, BEHAVIOUR, [3])
    assert np.bincount(people.ue_class).tolist() == [1800, 600]
    assert np.log(people.n_k).mean() == pytest.approx(math.log(200), abs=0.06)
    slow = people.plan.compute_s[people.ue_class == 1]
    assert np.median(slow) == pytest.approx(72.0, rel=0.02)
    assert np.isfinite(people.plan.leave_s).mean() == pytest.approx(0.1, abs=0.01)
    assert people.plan.away_rounds.mean() == pytest.approx(1.0, abs=0.05)
    hours = (4 * 240.0 + 600.0) / 3600.0
    assert people.plan.move_s.size / 2400 == pytest.approx(20.0 * hours, rel=0.03)
    assert np.all(np.diff(people.plan.move_s) >= 0)


def test_moves_follow_the_neighbours():
    people = draw_population([JOB], 6, RING, BEHAVIOUR, [3])
    at = people.plan.home.copy()
    for ue, to in zip(people.plan.move_ue, people.plan.move_to, strict=True):
        assert to in RING[at[ue]]
        at[ue] = to


def test_zipf_counts():
    counts = SampleCounts("zipf", 0.0, 0.0, 1.5, 1000).draw(20000, np.random.default_rng(1))
    masses = np.arange(1, 1001) ** -1.5
    assert np.mean(counts == 1) == pytest.approx(masses[0] / masses.sum(), abs=0.01)
    assert counts.max() <= 1000


def test_one_epoch_trains_longer_on_more_data():
    people = draw_population([JOB], 6, RING, replace(BEHAVIOUR, work="one_epoch"), [3])
    fast = people.ue_class == 0
    ratio = people.plan.compute_s[fast, 0] / people.n_k[fast]
    assert ratio.std() / ratio.mean() < 0.2


def test_apportion():
    assert apportion([0.5, 0.3, 0.2], 10) == [5, 3, 2]
    assert apportion([1 / 3, 1 / 3, 1 / 3], 10) == [4, 3, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": (UeClass("fast", 0.5, 36.0, 0.1),)},
        {"work": "always"},
        {"samples": replace(SAMPLES, kind="uniform")},
    ],
)
def test_wrong_behaviour_is_refused(changes):
    with pytest.raises(InputError):
        draw_population([JOB], 6, RING, replace(BEHAVIOUR, **changes), [3])
