from __future__ import annotations

import numpy as np
import pytest
from ruamel.yaml import YAML

from ranloom.errors import InputError
from ranloom.traffic import burst_model, fit_tractor, tractor_like
from ranloom.traffic.tractor import KPI_PERIOD_US, READINGS, SCENARIOS, read_trace
from tests.traffic import tractor_folder as made

PROFILES = (
    "embb_04_10",
    "embb_05_18_b",
    "embb_06_09",
    "embb_11_18",
    "embb_2",
    "embb_3",
    "mmtc_11_18",
    "urllc_04_16",
)


@pytest.fixture(scope="module")
def facts_path(root):
    return root / "data" / "traffic" / "tractor_like.yaml"


@pytest.fixture(scope="module")
def facts(facts_path):
    return tractor_like.read_facts(facts_path)


def test_the_file_names_its_source(facts):
    assert facts.provenance["repository"] == "https://github.com/genesys-neu/TRACTOR"
    assert facts.provenance["commit"] == "f2f052cbf541e25f561fae0a9ae8dbe4a9931702"
    assert facts.provenance["licence"] == "MIT"
    assert tuple(facts.profiles) == PROFILES


@pytest.mark.parametrize("name", PROFILES)
def test_generated_packets_have_the_statistics_of_the_file(facts, name):
    model = facts.profile(name)
    bursts = 3_000
    drawn = model.sample(int(1e6 * bursts / model.bursts_per_s), np.random.default_rng(7))
    found = burst_model.fit(drawn)
    # The spread of burst sizes decides how exact a mean over some bursts can be.
    shares = model.class_shares()
    sizes = [0.0 if c is None else c.burst_bytes for c in model.classes]
    spread = np.sqrt(shares @ np.square(sizes)) / (shares @ sizes)
    assert found.mean_kbps == pytest.approx(model.mean_kbps, rel=0.05 + 4 * spread / bursts**0.5)
    assert found.bursts_per_s == pytest.approx(model.bursts_per_s, rel=0.08)
    assert found.idle_us.mean == pytest.approx(model.idle_us.mean, rel=0.1)


@pytest.mark.parametrize("name", PROFILES)
def test_generated_bursts_have_the_statistics_of_their_class(facts, name):
    model = facts.profile(name)
    for c, burst in enumerate(model.classes):
        if burst is None:
            continue
        rng = np.random.default_rng(11)
        samples = [burst.sample(rng) for _ in range(1_500)]
        sizes = model.sizes(samples, [c] * len(samples))
        gaps = [np.diff(drawn.since_us) for drawn in samples]
        trains = np.array([1 + np.sum(gap >= burst_model.TRAIN_GAP_US) for gap in gaps])
        gaps_us = np.concatenate(gaps)
        assert trains.mean() == pytest.approx(burst.burst_trains.mean, rel=0.12)
        assert sizes.sum() / trains.sum() == pytest.approx(burst.train_bytes.mean, rel=0.1)
        assert sizes.size / trains.sum() == pytest.approx(burst.train_packets.mean, rel=0.1)
        assert sizes.mean() == pytest.approx(burst.packet_bytes.mean, rel=0.12)
        assert 1 <= sizes.min() <= sizes.max() <= 1_500
        between = gaps_us[gaps_us >= burst_model.TRAIN_GAP_US]
        if between.size > 500:
            assert between.mean() == pytest.approx(burst.train_gap_us.mean, rel=0.1)
            assert between.max() < burst_model.BURST_GAP_US + 1


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("reading", READINGS)
def test_generated_sinr_has_the_statistics_of_the_file(facts, scenario, reading):
    ues = facts.ues(scenario)
    hours_us = 40_000_000_000
    channel = tractor_like.generate_channel(ues, hours_us, reading, np.random.default_rng(3))
    assert channel.period_us == KPI_PERIOD_US
    for ue, row in zip(ues, channel.sinr_db.astype(float), strict=True):
        wanted = ue.sinr[reading]
        active = row[row != 0]
        independent = 40_000 / (2 * wanted.coherence_s) * min(1.0, active.size / row.size * 4)
        tolerance = 5 * wanted.std_db / independent**0.5
        assert active.mean() == pytest.approx(wanted.mean_db, abs=tolerance)
        assert active.std() == pytest.approx(wanted.std_db, rel=5 / independent**0.5)
        if reading == "cleaned":
            x = row - row.mean()
            lag = 4  # one second, where the file's coherence time was fitted
            memory = (x[:-lag] * x[lag:]).mean() / (x**2).mean()
            assert memory == pytest.approx(np.exp(-1 / wanted.coherence_s), abs=0.05)
        else:
            # Runs are geometric: the relative error of a share falls with the number of runs.
            runs = row.size * wanted.active_share / wanted.active_run_rows
            share = active.size / row.size
            assert share == pytest.approx(wanted.active_share, rel=6 / runs**0.5)
            assert row.mean() == pytest.approx(
                wanted.active_share * wanted.mean_db, rel=0.05 + 6 / runs**0.5
            )


def test_generation_follows_the_seed(facts):
    def make(seed):
        return tractor_like.generate_arrivals(
            facts, ("embb_3", "mmtc_11_18"), 60_000_000, np.random.default_rng(seed)
        )

    assert np.array_equal(make(1).time_us, make(1).time_us)
    assert not np.array_equal(make(1).time_us, make(2).time_us)


def test_the_start_is_not_special(facts):
    model = facts.profile("urllc_04_16")
    rng = np.random.default_rng(5)
    early = [model.sample(2_000_000, rng) for _ in range(200)]
    first = sum(int(a.size_bytes[a.time_us < 1_000_000].sum()) for a in early)
    second = sum(a.total_bytes for a in early) - first
    assert first / second == pytest.approx(1.0, abs=0.2)


def test_writing_and_reading_returns_the_facts(facts, tmp_path):
    path = tmp_path / "facts.yaml"
    tractor_like.write_facts(facts, path)
    again = tractor_like.read_facts(path)
    assert again == facts


def test_unknown_names_are_refused(facts):
    for call in (lambda: facts.profile("embb_9"), lambda: facts.ues("scenario_9")):
        with pytest.raises(InputError, match="needed: one of"):
            call()
    with pytest.raises(InputError, match="cleaned or as_published"):
        tractor_like.generate_channel(facts.ues("scenario_1"), 10, "raw", np.random.default_rng(1))


def _drop_levels(d):
    d["levels"] = d["levels"][1:]


def _no_mean(d):
    del d["profiles"]["embb_3"]["idle_us"]["mean"]


def _text_rate(d):
    d["profiles"]["embb_3"]["mean_kbps"] = "fast"


def _falling(d):
    d["profiles"]["embb_3"]["idle_us"]["values"][3] = 1e12


def _chances(d):
    d["profiles"]["embb_3"]["next_class"][0] = [0.5, 0.1, 0.1]


def _absent_class(d):
    d["profiles"]["embb_2"]["next_class"][1] = [0.5, 0.25, 0.25]


def _no_profile(d):
    d["scenarios"]["scenario_1"][0]["trace"] = "embb_9"


def _no_memory(d):
    d["scenarios"]["scenario_1"][0]["sinr"]["cleaned"]["coherence_s"] = 0


def _no_reading(d):
    del d["scenarios"]["scenario_1"][0]["sinr"]["as_published"]


def _list_of_profiles(d):
    d["profiles"] = list(d["profiles"])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_drop_levels, ": levels"),
        (_no_mean, ": profiles.embb_3.idle_us"),
        (_text_rate, ": profiles.embb_3.mean_kbps"),
        (_falling, ": profiles.embb_3.idle_us.values"),
        (_chances, ": profiles.embb_3.next_class"),
        (_absent_class, ": profiles.embb_2.next_class"),
        (_no_profile, ": scenarios.scenario_1"),
        (_no_memory, ": scenarios.scenario_1[0].sinr.cleaned"),
        (_no_reading, ": scenarios.scenario_1[0].sinr"),
        (_list_of_profiles, ".profiles"),
    ],
)
def test_a_bad_file_is_refused_with_its_key(facts_path, tmp_path, change, where):
    document = YAML(typ="safe", pure=True).load(facts_path)
    change(document)
    path = tmp_path / "facts.yaml"
    YAML(typ="safe", pure=True).dump(document, path)
    with pytest.raises(InputError) as caught:
        tractor_like.read_facts(path)
    assert caught.value.where == f"{path}{where}"


@pytest.mark.parametrize("content", ["", "a: [", "- 1"])
def test_no_yaml_is_refused(tmp_path, content):
    path = tmp_path / "facts.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=str(path)) as caught:
        tractor_like.read_facts(path)
    assert "\n" not in str(caught.value)


def test_the_command_fits_a_folder_and_reports_a_bad_one(tmp_path, capsys):
    folder, out = made.build(tmp_path / "tractor"), tmp_path / "facts.yaml"
    made.write(folder / "raw" / "urllc_04_16.csv", made.RAW_HEADER, [made.raw_row(1, 0.0, 170)])
    assert fit_tractor.main([str(folder), str(out)]) == 0
    facts = tractor_like.read_facts(out)
    # Rows 20 and 23 and 26 dB of ten: share 3 / 8 of the fresh rows, 4 / 10 of all.
    sinr = facts.ues("scenario_1")[0].sinr
    assert sinr["cleaned"].mean_db == pytest.approx(23.0)
    assert sinr["cleaned"].active_share == pytest.approx(3 / 8)
    assert sinr["as_published"].mean_db == pytest.approx((40 + 20 + 23 + 26) / 4, rel=1e-3)
    assert sinr["as_published"].active_share == pytest.approx(0.4)
    assert facts.profile("embb_3").mean_kbps == pytest.approx(3240 * 8e-3 / 2.000001, rel=1e-3)
    (folder / "raw" / "embb_3.csv").unlink()
    before = out.read_text()
    assert fit_tractor.main([str(folder), str(out)]) == 2
    assert out.read_text() == before
    assert capsys.readouterr().err.count("\n") == 1
    assert fit_tractor.main([]) == 2


def test_the_committed_facts_are_those_of_the_real_traces(facts_path, shared_data, tmp_path):
    folder = shared_data / "tractor"
    if not folder.is_dir():
        pytest.skip(f"no TRACTOR files in {shared_data}")
    path = tmp_path / "facts.yaml"
    measured = fit_tractor.fit(folder)
    tractor_like.write_facts(measured, path)
    assert path.read_text() == facts_path.read_text()
    # Independent of the fit: figures of the collection's own statistics of these files.
    ue1 = measured.ues("scenario_1")[0].sinr["cleaned"]
    assert (ue1.mean_db, ue1.std_db) == pytest.approx((32.49, 3.81), abs=0.01)
    assert ue1.active_share == pytest.approx(0.153, abs=0.001)
    assert measured.profile("embb_04_10").mean_kbps == pytest.approx(9.9, abs=0.01)
    assert measured.profile("embb_05_18_b").mean_kbps == pytest.approx(2_000, rel=0.01)


def bytes_per_window(arrivals, window_us):
    count = -(-arrivals.duration_us // window_us)
    return np.bincount(arrivals.time_us // window_us, weights=arrivals.size_bytes, minlength=count)


@pytest.mark.parametrize("name", ["embb_3", "embb_06_09", "embb_05_18_b", "urllc_04_16"])
def test_generated_packets_are_as_bursty_as_the_trace(facts, shared_data, name):
    folder = shared_data / "tractor"
    if not folder.is_dir():
        pytest.skip(f"no TRACTOR files in {shared_data}")
    trace = read_trace(folder, name)[0]
    drawn = facts.profile(name).sample(2_000_000_000, np.random.default_rng(5))
    assert drawn.size_bytes.mean() == pytest.approx(trace.size_bytes.mean(), rel=0.1)
    for window_us in (5_000, 100_000, 1_000_000):  # an uplink period, a burst gap, a report
        real, made_up = bytes_per_window(trace, window_us), bytes_per_window(drawn, window_us)
        assert (made_up > 0).mean() == pytest.approx((real > 0).mean(), rel=0.2)
        tail = np.quantile(made_up[made_up > 0], 0.9) / np.quantile(real[real > 0], 0.9)
        assert 0.5 < tail < 2.1
