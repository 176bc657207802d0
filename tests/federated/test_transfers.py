import itertools
from dataclasses import replace

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.experiment import (
    Answers,
    Histories,
    JobSetup,
    Network,
    chunk_bytes,
    earlier_rounds,
    random_updates,
    simulate,
)
from ranloom.federated.forecast import ReleaseHistory
from ranloom.federated.payload import encode, payload_bytes
from ranloom.federated.radio import CellRates
from ranloom.federated.transfers import AGGREGATE, PER_UE, Shipping, transfers
from ranloom.federated.verify import flat_rounds, merged, weigh, worst_error
from ranloom.federated.wave import part_bounds, part_count
from tests.federated.builders import CONFIG, LAYOUT
from tests.federated.test_replay import NAMES, RULE
from tests.federated.test_rounds import BEHAVIOUR, JOB, RING

CONFIGURED = replace(
    CONFIG,
    cut_off=RULE,
    stall_s=60.0,
    chunk_bytes=chunk_bytes("fp16", LAYOUT),
    late="carry_discount",
)
SHIPPING = Shipping(
    dtype="fp32",
    elements=8_000_000,
    wave_max_bytes=10_000_000,
    core_gbytes_per_s=1.0,
    latest_close_s=160.0,
    update_tensor_bytes=payload_bytes("fp16", LAYOUT.elements),
)


def case(seed=1, jobs=2):
    rng = np.random.default_rng(5)
    rates = CellRates(rng.uniform(1, 30, (6, 4, 30)), np.full(6, 4), rng.integers(0, 30, 6))
    network = Network(tuple(NAMES), tuple(map(tuple, RING)), rates)
    setups = [
        JobSetup(
            replace(
                JOB,
                name=f"job{index}",
                first_begin_s=70.0 * index,
                ues_per_gnb=4,
                model_bytes=16_000_000,
                update_bytes=16_000_000,
            ),
            CONFIGURED,
            "fp16",
            SHIPPING,
        )
        for index in range(jobs)
    ]
    values = random_updates(setups, 1e-3, [seed])

    def payload_of(job, ue, round_index):
        return encode(values(job, ue, round_index), "fp16")

    run = simulate(setups, network, BEHAVIOUR, Answers(0.05, 1.0), payload_of, [seed])
    past = earlier_rounds(setups, network, BEHAVIOUR, 8, [seed])
    return setups, run, past, payload_of


def rows_of(setups, run, past, job=0):
    return transfers(
        run.population,
        run.uploads,
        job,
        run.replays[job],
        setups[job].shipping,
        NAMES,
        past[job].waves,
        past[job].updates,
    )


@pytest.fixture(scope="module")
def plain():
    setups, run, past, payload_of = case()
    return setups, run, payload_of, rows_of(setups, run, past)


def test_both_strategies_carry_the_same_samples_round_by_round(plain):
    rows = plain[3]
    for round_index in range(5):
        per_ue = [r for r in rows if r.strategy == PER_UE and r.round == round_index]
        waves = [
            r for r in rows if r.strategy == AGGREGATE and r.round == round_index and not r.part
        ]
        assert sum(r.sum_n for r in per_ue) == sum(r.sum_n for r in waves) > 0
        assert len(per_ue) == sum(r.updates for r in waves)


def test_bytes_parts_and_times_of_waves(plain):
    _setups, run, _, rows = plain
    waves = {(w.round, w.gnb, w.index): w for w in run.replays[0].waves}
    mine = [r for r in rows if r.strategy == AGGREGATE]
    assert len(mine) == 4 * len(waves)
    for row in mine:
        wave = waves[row.round, NAMES[row.gnb], row.wave]
        assert row.bytes == 4 * 2_000_000
        # 16 MB update checked, then parts of 8 MB encoded one after the other, at 1 GB/s
        expected = wave.closed_s + 0.016 + 0.008 * (row.part + 1)
        assert row.release_s == pytest.approx(expected)
        assert row.deadline_s == 240.0 * row.round + 200.0
        assert row.release_s < row.deadline_s
        assert row.tensor_bytes == LAYOUT.elements / 4 * 4
    assert len({r.demand_id for r in rows}) == len(rows)
    assert len({r.payload_sha256 for r in mine}) == len(mine)


def test_updates_are_released_when_they_arrive(plain):
    _, run, _, rows = plain
    fates = {(f.counted_round, f.payload_sha256): f for f in run.replays[0].fates}
    for row in (r for r in rows if r.strategy == PER_UE):
        fate = fates[row.round, row.payload_sha256]
        assert row.release_s == run.uploads.arrival_s[fate.ue, fate.round]
        assert row.bytes == 16_000_000
        assert row.tensor_bytes == payload_bytes("fp16", LAYOUT.elements)


def test_quantiles_are_in_order_and_before_the_deadline(plain):
    for row in plain[3]:
        assert 0.0 <= row.release_p50_s <= row.release_p95_s < row.deadline_s


def test_a_forecast_sees_nothing_of_its_own_round():
    setups, run, past, _ = case()
    rows = rows_of(setups, run, past)
    _, _, fresh, _ = case()
    # move everything that happens in round 3 by 40 s: forecasts up to round 3 stay as they were
    shifted = [
        replace(w, closed_s=w.closed_s + 40.0) if w.round == 3 else w for w in run.replays[0].waves
    ]
    moved = replace(run, replays=(replace(run.replays[0], waves=tuple(shifted)), run.replays[1]))
    others = {r.demand_id: r for r in rows_of(setups, moved, fresh)}
    mine = [r for r in rows if r.strategy == AGGREGATE]
    for row in mine:
        other = others[row.demand_id]
        if row.round <= 3:
            assert other.release_p50_s == row.release_p50_s
            assert other.release_p95_s == row.release_p95_s
        if row.round == 3:
            assert other.release_s == row.release_s + 40.0
    later = [r for r in mine if r.round == 4]
    assert any(others[r.demand_id].release_p95_s != r.release_p95_s for r in later)


def test_without_history_the_latest_close_is_announced():
    setups, run, _, _ = case()
    past = [Histories(ReleaseHistory(), ReleaseHistory()) for _ in setups]
    first = [r for r in rows_of(setups, run, past) if r.round == 0 and r.strategy == PER_UE]
    assert first
    assert all(r.release_p95_s == 160.0 for r in first)


def test_two_jobs_are_exact_and_conserve_weight(plain):
    setups, run, payload_of, _ = plain
    hubs = [merged(run, j, s) for j, s in enumerate(setups)]
    for j, setup in enumerate(setups):
        assert worst_error(hubs[j], flat_rounds(run, j, setup, payload_of)) < 1e-12
    weights = weigh(run, hubs)
    assert weights.conserved
    assert weights.in_ == weights.delivered + weights.carried + weights.dropped


def test_a_lost_wave_breaks_conservation(plain):
    setups, run, payload_of, _ = plain
    hubs = [merged(run, j, s) for j, s in enumerate(setups)]
    fewer = replace(run.replays[0], waves=run.replays[0].waves[1:])
    broken = replace(run, replays=(fewer, run.replays[1]))
    lossy = [merged(broken, j, s) for j, s in enumerate(setups)]
    assert not weigh(broken, lossy).conserved
    assert weigh(run, hubs).conserved
    assert worst_error(lossy[0], flat_rounds(run, 0, setups[0], payload_of)) > 1e-3


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "int8"])
def test_parts_are_as_few_and_small_as_asked(dtype):
    for elements, most in ((10_000, 2048), (8_388_608, 2**26), (1000, 8), (4096, 10**9)):
        parts = part_count(elements, dtype, most)
        bounds = part_bounds(elements, parts)
        assert bounds[0][0] == 0
        assert bounds[-1][1] == elements
        sizes = [payload_bytes(dtype, end - first) for first, end in bounds]
        assert max(sizes) <= most
        assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
        if parts > 1:
            assert payload_bytes(dtype, -(-elements // (parts - 1))) > most
    with pytest.raises(InputError, match="wave_max_bytes"):
        part_count(10, dtype, 0)
