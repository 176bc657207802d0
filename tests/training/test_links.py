"""Links files: the published testbed, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.links import read_links

GOOD = """\
name: two
sites: 2
bandwidth_gbps_by_dst: [[null, 2], [4, null]]
latency_ms_by_dst: [[null, 1], [3, null]]
coordinator_latency_ms: 5
"""


def test_the_testbed_is_tables_11_and_12(root):
    links = read_links(root / "data/links/testbed.yaml")
    assert links.sites == 8
    # hand-entered from the tables: source, destination, Gbit/s, ms
    for source, destination, gbps, ms in (
        (1, 0, 20.5, 0.8),
        (0, 1, 11.0, 0.8),
        (5, 2, 10.2, 0.9),
        (2, 5, 10.6, 0.8),
        (0, 2, 0.3, 25.9),
        (4, 3, 11.9, 0.9),
        (3, 4, 14.6, 30.5),
        (7, 6, 17.9, 0.2),
        (6, 7, 14.5, 0.2),
    ):
        assert links.bandwidth_gbps[source, destination] == gbps
        assert links.latency_s[source, destination] == pytest.approx(ms / 1000)
    assert links.seconds(0, 2, 0.3e9 / 8) == pytest.approx(1.0259)
    assert links.seconds(3, 3, 1e9) == 0.0


def test_rows_are_destinations(tmp_path):
    path = tmp_path / "links.yaml"
    path.write_text(GOOD)
    links = read_links(path)
    assert links.bandwidth_gbps[1, 0] == 2
    assert links.bandwidth_gbps[0, 1] == 4
    assert links.latency_s[1, 0] == pytest.approx(0.001)
    assert links.coordinator_latency_s == pytest.approx([0.005, 0.005])
    one = links.at(7.0)
    assert one.bandwidth_gbps[0, 1] == one.bandwidth_gbps[1, 0] == 7.0
    assert np.isinf(one.bandwidth_gbps[0, 0])


def test_links_change_pair_by_pair_and_the_coordinator_by_half(tmp_path):
    path = tmp_path / "links.yaml"
    path.write_text(GOOD)
    other = read_links(path).changed(0.5, 0.010)
    assert other.bandwidth_gbps.tolist() == [[np.inf, 2.0], [1.0, np.inf]]
    np.testing.assert_allclose(other.latency_s, [[0.0, 0.013], [0.011, 0.0]])
    assert other.coordinator_latency_s == pytest.approx([0.010, 0.010])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("sites: 2", "sites: 3"), "bandwidth_gbps_by_dst"),
        (("sites: 2", "sites: true"), "sites"),
        (("[4, null]]", "[0, null]]"), "row 1 column 0"),
        (("[4, null]]", "[x, null]]"), "row 1 column 0"),
        (("[4, null]]", "[4]]"), "row 1"),
        (("latency_ms_by_dst", "latency_by_dst"), "latency_ms_by_dst"),
        (("coordinator_latency_ms: 5", "coordinator_latency_ms: -1"), "coordinator_latency_ms"),
        (("name: two", "name: [two"), "links.yaml"),
    ],
)
def test_faults_are_named(tmp_path, change, where):
    path = tmp_path / "links.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(InputError) as caught:
        read_links(path)
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        read_links(tmp_path / "nowhere.yaml")
