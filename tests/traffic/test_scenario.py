from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.traffic import scenario as scenarios
from ranloom.traffic.channel import constant
from ranloom.traffic.generators import steady_with_burst
from ranloom.traffic.scenario import Scenario, Source
from tests.traffic import tractor_folder as made

BUILDERS = {
    "scenario_1": (scenarios.scenario_1, {}),
    "scenario_2": (scenarios.scenario_2, {}),
    "stress": (scenarios.stress, {}),
    "wideband": (scenarios.uploads, {"n_ue": 8}),
}


@pytest.fixture(scope="module")
def generator(root):
    return Source("generator", root / "data" / "traffic" / "tractor_like.yaml")


@pytest.fixture
def traces(tmp_path):
    return Source("tractor", made.build(tmp_path / "tractor"))


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own").mkdir()
    for name in BUILDERS:
        path = tmp_path / "own" / f"{name}.csv"
        path.write_text("time_s,ue,bytes\n0,0,100\n0.4,1,2000\n0.9,0,300\n")
    return Source("csv", tmp_path / "own", csv_sinr_db=12.0)


@pytest.fixture(params=["generator", "traces", "own"])
def source(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_works_from_every_source_and_follows_the_seed(source, name):
    build, more = BUILDERS[name]
    made_of = [build(source, seed=s, duration_s=12.0, **more) for s in (1, 1, 2)]
    first, again, other = made_of
    assert first.name == name
    assert first.cell == 0
    assert first.duration_us == 12_000_000
    assert first.channel.duration_us >= first.duration_us
    assert first.n_ue == {"csv": 2}.get(source.kind, {"stress": 3, "wideband": 8}.get(name, 4))
    assert set(first.counts) == {"split_records", "stale_rows", "duplicate_rows", "looped_ues"}
    assert np.array_equal(first.arrivals.time_us, again.arrivals.time_us)
    assert np.array_equal(first.channel.sinr_db, again.channel.sinr_db)
    if source.kind == "generator":
        assert not np.array_equal(first.arrivals.time_us, other.arrivals.time_us)
        assert not np.array_equal(first.channel.sinr_db, other.channel.sinr_db)


@pytest.mark.parametrize("name", BUILDERS)
def test_load_factor_and_offset_do_what_they_say(source, name):
    build, more = BUILDERS[name]
    plain = build(source, seed=1, duration_s=30.0, **more)
    loaded = build(source, seed=1, duration_s=30.0, load_factor=2.5, sinr_offset_db=-6.0, **more)
    difference = loaded.arrivals.bytes_per_ue - 2.5 * plain.arrivals.bytes_per_ue
    assert np.all(np.abs(difference) <= 1_500)
    assert np.allclose(loaded.channel.sinr_db, plain.channel.sinr_db - 6.0, atol=1e-4)


def test_uploaders_carry_the_upload_on_top(generator, traces):
    for source in (generator, traces):
        light = scenarios.scenario_1(source, seed=1, duration_s=200.0)
        heavy = scenarios.scenario_1(source, seed=1, duration_s=200.0, uploaders=2)
        added = heavy.arrivals.bytes_per_ue - light.arrivals.bytes_per_ue
        assert np.all(added[:2] > 0)
        assert np.all(added[2:] == 0)
        assert np.array_equal(heavy.channel.sinr_db, light.channel.sinr_db)
    mbps = added_mbps(generator, 400.0)
    assert mbps == pytest.approx(2 * 2.0, rel=0.3)  # the fact of the trace: 2.0 Mbit/s mean
    # From the made trace: the second uploader starts in the middle of its two seconds.
    assert added.tolist()[:2] == [3_240 * 100, 3_240 * 100]


def added_mbps(source, duration_s):
    runs = [
        scenarios.scenario_1(source, seed=4, duration_s=duration_s, uploaders=n) for n in (0, 2)
    ]
    return runs[1].arrivals.offered_mbps - runs[0].arrivals.offered_mbps


def test_stress_keeps_its_traffic_whatever_the_channel(generator, traces):
    from_facts = scenarios.stress(generator, seed=3, duration_s=90.0)
    from_traces = scenarios.stress(traces, seed=3, duration_s=90.0)
    assert np.array_equal(from_facts.arrivals.time_us, from_traces.arrivals.time_us)
    assert from_facts.arrivals.offered_mbps == pytest.approx(4.8, rel=0.002)


def test_a_csv_source_reads_its_channel_file_or_says_that_there_is_none(own):
    without = scenarios.scenario_1(own, seed=1, duration_s=3.0)
    assert np.all(without.channel.sinr_db == 12.0)
    assert any("constant SINR of 12 dB" in note for note in without.notes)
    assert any("looped" in note for note in without.notes)
    assert without.counts["split_records"] == 1
    (own.path / "scenario_1_sinr.csv").write_text("time_s,ue,sinr_db\n0,0,5\n0,1,6\n0.2,0,9\n")
    with_file = scenarios.scenario_1(own, seed=1, duration_s=3.0)
    assert with_file.channel.period_us == 200_000
    assert with_file.channel.sinr_db[:, 1].tolist() == [9.0, 6.0]
    single = Source("csv", own.path / "scenario_1.csv", csv_sinr_db=3.0)
    alone = scenarios.stress(single, seed=1, duration_s=3.0)
    assert np.array_equal(alone.arrivals.time_us, with_file.arrivals.time_us)
    assert np.all(alone.channel.sinr_db == 3.0)


def test_a_csv_folder_without_the_scenario_uses_the_common_file_or_is_named(own):
    (own.path / "scenario_2.csv").unlink()
    with pytest.raises(InputError, match=r"needed: scenario_2\.csv or traffic\.csv"):
        scenarios.scenario_2(own, seed=1, duration_s=3.0)
    (own.path / "traffic.csv").write_text("time_s,ue,bytes\n0,0,77\n")
    (own.path / "traffic_sinr.csv").write_text("time_s,ue,sinr_db\n0,0,5\n")
    common = scenarios.scenario_2(own, seed=1, duration_s=3.0)
    assert set(common.arrivals.size_bytes) == {77}
    assert np.all(common.channel.sinr_db == 5.0)


def test_bad_parameters_are_refused(generator, own):
    for call in (
        lambda: scenarios.scenario_1(generator, seed=-1, duration_s=1.0),
        lambda: scenarios.scenario_1(generator, seed=1, duration_s=0.0),
        lambda: scenarios.scenario_1(generator, seed=1, duration_s=np.nan),
        lambda: scenarios.scenario_1(generator, seed=1, duration_s=1.0, load_factor=0.0),
        lambda: scenarios.scenario_1(generator, seed=1, duration_s=1.0, uploaders=5),
        lambda: scenarios.scenario_1(generator, seed=1, duration_s=1.0, uploaders=-1),
        lambda: scenarios.scenario_1(own, seed=1, duration_s=1.0, uploaders=1),
        lambda: scenarios.stress(generator, seed=1, duration_s=1.0, n_ue=5),
        lambda: scenarios.uploads(generator, seed=1, duration_s=1.0, n_ue=0),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_bad_sources_are_refused(tmp_path):
    for kind, path, where in (
        ("magic", tmp_path, "source"),
        ("generator", tmp_path, str(tmp_path)),
        ("tractor", tmp_path / "none", str(tmp_path / "none")),
        ("csv", tmp_path / "none", str(tmp_path / "none")),
    ):
        with pytest.raises(InputError) as caught:
            Source(kind, path)
        assert caught.value.where == where
    with pytest.raises(InputError, match="reading"):
        Source("tractor", tmp_path, reading="raw")


def test_a_scenario_refuses_a_channel_that_does_not_fit():
    flow = steady_with_burst(2, 90_000_000, np.random.default_rng(1))
    with pytest.raises(InputError, match="UEs of the channel"):
        Scenario("x", 0, flow, constant([1.0], 90_000_000))
    with pytest.raises(InputError, match="duration of the channel"):
        Scenario("x", 0, flow, constant([1.0, 2.0], 89_000_000))


def test_real_scenarios_offer_what_the_traces_hold(shared_data):
    folder = shared_data / "tractor"
    if not folder.is_dir():
        pytest.skip(f"no TRACTOR files in {shared_data}")
    source = Source("tractor", folder)
    one = scenarios.scenario_1(source, seed=1, duration_s=600.0)
    assert 8e-3 * one.arrivals.bytes_per_ue / 600 == pytest.approx([4.1, 10.7, 4.1, 16.5], abs=0.1)
    heavy = scenarios.scenario_2(source, seed=1, duration_s=600.0, uploaders=4)
    assert heavy.arrivals.offered_mbps == pytest.approx(8.1, abs=0.1)
    wide = scenarios.uploads(source, seed=1, duration_s=60.0, n_ue=8)
    assert np.unique(wide.arrivals.ue).size == 8
