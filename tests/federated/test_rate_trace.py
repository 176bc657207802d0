import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.rate_trace import (
    RATES,
    generate_rates,
    read_rates,
    traced_rates,
    write_rates,
)


def test_the_file_in_the_repository_is_what_the_generator_writes(root, tmp_path):
    write_rates(tmp_path / "rates.csv", generate_rates(**RATES))
    assert (tmp_path / "rates.csv").read_bytes() == (root / "data/mobility/rates.csv").read_bytes()
    rates = read_rates(root / "data/mobility/rates.csv")
    assert rates.shape == (3, 300)
    assert np.log(rates).std() == pytest.approx(0.8, abs=0.15)


def test_seconds_that_are_left_out_keep_the_last_rate(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("second,a_mbps,b_mbps,note\n5,1,0,x\n6,2.5,3,\n9,0,4,\n")
    assert read_rates(path).tolist() == [[1.0, 2.5, 2.5, 2.5, 0.0], [0.0, 3.0, 3.0, 3.0, 4.0]]


def test_the_driving_trace_is_read_as_it_is(shared_data):
    rates = read_rates(shared_data / "fivegophers" / "car-driving-trace-1.csv")
    assert rates.shape == (3, 126)
    assert rates[:, 1].tolist() == pytest.approx([65.06874432, 87.443008, 82.32684955])


def test_every_cell_follows_the_trace_from_its_own_second():
    rates = traced_rates(np.array([[10.0, 20.0], [30.0, 0.0]]), 0.1, 4, [1])
    assert rates.mbps.shape == (4, 2, 2)
    assert rates.mbps[3] == pytest.approx(np.array([[1.0, 2.0], [3.0, 0.0]]))
    assert rates.series_count.tolist() == [2] * 4
    assert set(rates.phase_s.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("second,rate\n0,1\n", "row 1"),
        ("time,a_mbps\n0,1\n", "row 1"),
        ("second,a_mbps\n", "0 rows"),
        ("second,a_mbps\n1,1\n1,2\n", "row 3: second"),
        ("second,a_mbps\nx,1\n", "row 2: second"),
        ("second,a_mbps\n0,-1\n", "row 2: a_mbps"),
        ("second,a_mbps\n0,nan\n", "row 2: a_mbps"),
        ("second,a_mbps\n0,\n", "row 2: a_mbps"),
        ("second,a_mbps\n0,0\n1,0\n", "a_mbps"),
        ("second,a_mbps\n0,1\n90000,1\n", "86400"),
    ],
)
def test_unusable_traces_are_refused_by_name(tmp_path, content, named):
    path = tmp_path / "rates.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=named):
        read_rates(path)
    with pytest.raises(InputError, match="No such file"):
        read_rates(tmp_path / "nothing.csv")
