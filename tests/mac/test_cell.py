"""The slot loop as a whole: timing by hand, conservation, skipping, cutting, limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.mac import simulate as simulation
from ranloom.mac.config import CellConfig, PlantConfig
from ranloom.mac.controllers.registry import ControllerSpec
from ranloom.mac.model import CellModel
from ranloom.mac.simulate import CellRun, simulate
from ranloom.traffic.arrivals import Arrivals, from_unsorted
from ranloom.traffic.channel import SinrTrace, ar1, constant
from tests.mac.conftest import ModelOf, S, bursts

NOCTRL = ControllerSpec("noctrl")
SURE_DB, HOPELESS_DB = 45.0, -20.0
EXACT = PlantConfig(tail_sigma=0.0)


def run(
    model: CellModel,
    arrivals: Arrivals,
    sinr_db: float | SinrTrace = SURE_DB,
    spec: ControllerSpec = NOCTRL,
    **options: object,
) -> CellRun:
    channel = sinr_db
    if not isinstance(channel, SinrTrace):
        channel = constant(np.full(arrivals.n_ue, sinr_db), arrivals.duration_us)
    return simulate(model, arrivals, channel, spec, 1, **options)  # type: ignore[arg-type]


def packets_at(*at_us: int, size: int = 100, duration_us: int = S) -> Arrivals:
    return from_unsorted(at_us, np.zeros(len(at_us)), np.full(len(at_us), size), 1, duration_us)


def test_the_way_of_one_packet(model_of: ModelOf) -> None:
    """Scheduling request, small grant, report: every step at its slot."""
    model = model_of(plant=EXACT, inactivity_frames=0)
    # arrives in slot 1; the request goes with UL slot 8, is known from slot 9 on; the next
    # decision is that of slot 12 for UL slot 18 (K2 = 6): 5 PRBs at MCS 9 hold 100 bytes
    assert model.blocks.tbs_bytes[9, 5] == 129
    work = int(model.blocks.work[9, 5])
    decode_us = 200.0 + 2.332 * work / 8 + 0.0084 * work
    result = run(model, packets_at(700))
    assert result.packet_delay_us.tolist() == [19 * 500 + decode_us - 700]
    assert result.counters["signalling_grants"] == 1
    assert result.counters["initial_blocks"] == 1
    assert result.counters["padding_bytes"] == 29
    # a request in UL slot 9 is no occasion: one that arrives in slot 8 waits for slot 18
    late = run(model, packets_at(4_300))
    assert late.packet_delay_us.tolist() == [29 * 500 + decode_us - 4_300]


def test_a_report_brings_the_rest(model_of: ModelOf) -> None:
    model = model_of(plant=EXACT, inactivity_frames=0)
    result = run(model, packets_at(700, size=1500))
    # slot 18: 129 bytes and a report of 1446 (level above 1371); decided in slot 22 for slot 28
    assert result.counters["initial_blocks"] == 2
    done = (result.packet_delay_us[0] + 700) / 500
    assert 29.0 < done < 31.0
    assert result.counters["granted_bytes"] >= 129 + 1446


def test_an_idle_ue_is_granted_after_ten_frames(model_of: ModelOf) -> None:
    model = model_of()
    result = run(model, packets_at(700, duration_us=S))
    # one small grant every 10 frames: 0.1 s and the way to the next UL slot
    assert result.counters["signalling_grants"] == pytest.approx(1 + 9, abs=1)
    silent = run(model_of(inactivity_frames=0), packets_at(700, duration_us=S))
    assert silent.counters["signalling_grants"] == 1


def test_hopeless_blocks_are_given_up_after_four_rounds(model_of: ModelOf) -> None:
    model = model_of(inactivity_frames=0, bsr_retx_ms=1e5)
    result = run(model, packets_at(700), HOPELESS_DB)
    assert result.counters["initial_blocks"] == 1
    assert result.counters["retransmissions"] == 3
    assert result.counters["failed_blocks"] == 1
    assert result.ledger.lost[0] == 100
    fewer = run(model_of(inactivity_frames=0, harq_rounds=2), packets_at(700), HOPELESS_DB)
    assert fewer.counters["retransmissions"] == 1


def test_am_delivers_what_um_loses(model_of: ModelOf) -> None:
    # the channel is out for the first 60 ms, long enough for four rounds
    out = np.full((1, 100), SURE_DB, np.float32)
    out[0, :6] = HOPELESS_DB
    channel = SinrTrace(out, 10_000)
    um = run(model_of(), packets_at(700, 800), channel)
    am = run(model_of(rlc_mode="am"), packets_at(700, 800), channel)
    assert um.ledger.lost[0] > 0
    assert am.ledger.lost[0] == 0
    assert am.ledger.delivered[0] == 200
    # the wait for the status report is part of the delay
    assert am.packet_delay_us.max() > 20_000 + 4 * 5_000


def test_combining_makes_retransmissions_succeed(model: CellModel) -> None:
    # 1 dB below what MCS 9 needs: the first round fails, the second has twice the energy
    sinr = float(model.blocks.snr50_db[9, 5]) - 1.0
    result = run(model, packets_at(700), sinr)
    assert result.ledger.delivered[0] == 100
    assert result.counters["first_errors"] >= 1
    assert result.counters["failed_blocks"] == 0


def test_a_fading_channel_costs_retransmissions(model: CellModel) -> None:
    arrivals = bursts(2, 5 * S, seed=3, bytes_each=60_000, every_us=150_000)
    channel = ar1([16.0, 13.0], 4.0, 5e4, 5 * S, 5_000, np.random.default_rng(1))
    result = run(model, arrivals, channel, trace=(0, 2000))
    assert result.counters["retransmissions"] >= 10
    assert result.counters["first_errors"] <= result.counters["retransmissions"]
    assert result.ledger.error_bytes == 0


def test_buffer_limit(model_of: ModelOf) -> None:
    arrivals = packets_at(*[700] * 50, size=1500)
    result = run(model_of(buffer_limit_bytes=15_000), arrivals)
    assert result.ledger.dropped[0] == 40 * 1500
    assert result.ledger.delivered[0] == 10 * 1500


def test_power_headroom_limits_the_width(model_of: ModelOf) -> None:
    arrivals = packets_at(*[700] * 60, size=1500)
    result = run(model_of(power_limit_rb=(20,)), arrivals, trace=(0, 400))
    assert result.trace[:, 3].max() == 20
    with pytest.raises(InputError, match="power_limit_rb"):
        run(model_of(power_limit_rb=(20, 20)), arrivals)


def test_load_matters_and_capacity_is_the_carrier(model: CellModel) -> None:
    """Full buffers reach the rate that TBS and the TDD pattern allow."""
    arrivals = from_unsorted(
        np.repeat(np.arange(0, 2 * S, 1000), 6), np.zeros(12_000), np.full(12_000, 1500), 1, 2 * S
    )
    result = run(model, arrivals)
    peak_mbps = 8e-6 * 400 * int(model.blocks.tbs_bytes[28, 106])
    assert 8 * result.ledger.delivered[0] / 2e6 == pytest.approx(peak_mbps, rel=0.03)
    assert result.mean_sm == pytest.approx(24.0, abs=0.2)


def test_layers_multiply_the_rate(model_of: ModelOf) -> None:
    one, four = model_of(), model_of(n_layers=4)
    ratio = four.blocks.tbs_bytes[20, 106] / one.blocks.tbs_bytes[20, 106]
    assert ratio == pytest.approx(4.0, rel=0.01)


def test_fairness_of_full_buffers(model_of: ModelOf) -> None:
    n = 4
    times = np.repeat(np.arange(0, 3 * S, 1000), 6 * n)
    arrivals = from_unsorted(times, np.arange(len(times)) % n, np.full(len(times), 1500), n, 3 * S)
    for allocation in ("greedy_first", "shared"):
        served = run(model_of(allocation=allocation), arrivals).ledger.delivered
        assert served.min() / served.max() > 0.9


def test_late_feedback_is_counted(model_of: ModelOf) -> None:
    arrivals = bursts(2, 3 * S, seed=3, bytes_each=90_000, every_us=100_000)
    reckless = ControllerSpec("const_8", constant_capped=False)
    for grace, expected in ((1, True), (100, False)):
        model = model_of(plant=PlantConfig(grace_slots=grace))
        result = run(model, arrivals, spec=reckless)
        assert (result.counters["overdue_blocks"] > 0) == expected
        assert result.counters["long_decodes"] > 0


def test_the_plant_does_not_read_the_table(model: CellModel) -> None:
    """A table that promises the world changes reservations, not physics."""
    arrivals = bursts(2, 3 * S, seed=3, bytes_each=90_000, every_us=100_000)
    dream = model.tables._replace(
        min_sm=np.full_like(model.tables.min_sm, 8), max_prb=np.full_like(model.tables.max_prb, 106)
    )
    result = run(replace(model, tables=dream), arrivals)
    assert result.mean_sm == 8.0
    assert result.counters["long_decodes"] > 0
    assert run(model, arrivals).counters["long_decodes"] == 0


def test_two_controllers_meet_the_same_channel(model: CellModel) -> None:
    """Common random numbers: where grants agree, outcomes agree."""
    arrivals = packets_at(*range(700, S, 20_000))
    channel = ar1(8.0, 3.0, 1e5, S, 10_000, np.random.default_rng(3))
    one = run(model, arrivals, channel)
    other = run(model, arrivals, channel, ControllerSpec("const_8"))
    np.testing.assert_array_equal(one.packet_delay_us, other.packet_delay_us)
    assert one.counters["first_errors"] == other.counters["first_errors"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 10**6),
    controller=st.sampled_from(["noctrl", "weaver", "weaver_plus", "const_8"]),
    cell=st.fixed_dictionaries(
        {
            "allocation": st.sampled_from(["greedy_first", "shared"]),
            "link_adaptation": st.sampled_from(["olla", "oai_bler"]),
            "rlc_mode": st.sampled_from(["um", "am"]),
            "bsr_format": st.sampled_from(["short", "long"]),
            "buffer_limit_bytes": st.sampled_from([0, 20_000]),
            "harq_processes": st.sampled_from([1, 2, 16]),
            "harq_rounds": st.integers(1, 4),
            "tdd_pattern": st.sampled_from(["DDDDDDDSUU", "DDSUU", "U", "DU"]),
            "sr_period_slots": st.sampled_from([10, 20]),
        }
    ),
)
def test_no_byte_is_lost_whatever_the_cell(
    model_of: ModelOf, seed: int, controller: str, cell: dict[str, object]
) -> None:
    rng = np.random.default_rng(seed)
    arrivals = bursts(
        3, S // 2, seed=seed, bytes_each=int(rng.integers(1500, 150_000)), every_us=60_000
    )
    channel = ar1(rng.uniform(-8, 30, 3), 5.0, 5e4, S // 2, 5_000, rng)
    result = run(model_of(**cell), arrivals, channel, ControllerSpec(controller))
    assert result.ledger.error_bytes == 0
    assert (result.ledger.offered == arrivals.bytes_per_ue).all()


def test_skipping_idle_slots_changes_nothing(
    model: CellModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One UL slot at a time, so that nothing can be skipped, gives the same run."""
    arrivals = bursts(2, 2 * S, seed=9, bytes_each=50_000, every_us=300_000)
    channel = ar1([22.0, 15.0], 2.0, 1e5, 2 * S, 10_000, np.random.default_rng(3))
    whole = {name: run(model, arrivals, channel, ControllerSpec(name), trace=(0, 800))
             for name in ("noctrl", "weaver", "weaver_plus")}  # fmt: skip
    kernel = simulation.run_cell

    def one_slot(ul_from: int, ul_to: int, *rest: object) -> int:
        return int(kernel(ul_from, min(ul_from + 1, ul_to), *rest))

    monkeypatch.setattr(simulation, "run_cell", one_slot)
    for name, expected in whole.items():
        cut = run(model, arrivals, channel, ControllerSpec(name), trace=(0, 800))
        np.testing.assert_array_equal(cut.packet_delay_us, expected.packet_delay_us)
        np.testing.assert_array_equal(cut.changes.sm, expected.changes.sm)
        np.testing.assert_array_equal(cut.changes.slot, expected.changes.slot)
        np.testing.assert_array_equal(cut.trace, expected.trace)
        assert cut.counters == expected.counters


def test_a_full_change_log_is_emptied_on_the_way(
    model: CellModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = bursts(2, 2 * S, seed=9, bytes_each=50_000, every_us=100_000)
    expected = run(model, arrivals)
    monkeypatch.setattr(simulation, "_CHANGES_PER_CHUNK", 3)
    cut = run(model, arrivals)
    assert expected.changes.transitions > 10
    np.testing.assert_array_equal(cut.changes.sm, expected.changes.sm)


def test_a_day_of_silence(model: CellModel) -> None:
    """1.7 x 10^8 slots: only the small grants of an idle UE happen."""
    day_us = 86_400 * S
    result = run(model, packets_at(700, day_us - 10 * S, duration_us=day_us))
    assert result.ul_slots == 86_400 * 400
    assert result.ledger.delivered[0] == 200
    # every 10 frames, and 5 or 10 ms on to the next UL slot that a decision can still reach
    assert result.counters["signalling_grants"] == pytest.approx(86_400 / 0.105, rel=0.03)
    assert result.mean_sm == 8.0


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"n_prb": 4}, "cell.n_prb"),
        ({"scs_khz": 240}, "scs_khz"),
        ({"scs_khz": 17}, "scs_khz"),
        ({"tdd_pattern": "DDD"}, "tdd_pattern"),
        ({"allocation": "fair"}, "cell.allocation"),
        ({"sr_period_slots": 15}, "cell.sr_period_slots"),
        ({"harq_rounds": 0}, "cell.harq_rounds"),
        ({"initial_mcs": 20, "max_mcs": 10}, "cell.initial_mcs"),
        ({"bler_target": 1.0}, "cell.bler_target"),
        ({"power_limit_rb": (3,)}, "cell.power_limit_rb"),
    ],
)
def test_bad_cells(values: dict[str, object], where: str) -> None:
    with pytest.raises(InputError, match=where):
        CellConfig(**values)  # type: ignore[arg-type]


def test_bad_runs(model: CellModel, model_of: ModelOf) -> None:
    arrivals = packets_at(700)
    with pytest.raises(InputError, match="needed: the 1 UEs of the traffic"):
        simulate(model, arrivals, constant([20.0, 20.0], S), NOCTRL, 1)
    with pytest.raises(InputError, match="needed: at least one UL slot"):
        run(model, packets_at(0, duration_us=2_000))
    with pytest.raises(InputError, match="seed"):
        simulate(model, arrivals, constant([20.0], S), NOCTRL, -1)
    with pytest.raises(InputError, match="mcs_rounding"):
        model_of(rounding="up")
