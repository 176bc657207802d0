from __future__ import annotations

import pytest

from ranloom.errors import InputError
from ranloom.traffic.csv_trace import read_arrivals, read_sinr


@pytest.fixture
def trace(tmp_path):
    def write(rows: str, header: str = "time_s,ue,bytes"):
        path = tmp_path / "trace.csv"
        path.write_text(f"{header}\n{rows}")
        return path

    return write


def test_reads_packets_and_splits_records(trace):
    flow, split = read_arrivals(trace("0,1,40\n0.5,0,3001\n1.25,1,7\n"))
    assert (flow.n_ue, flow.duration_us, split) == (2, 1_250_001, 1)
    assert flow.time_us.tolist() == [0, 500_000, 500_000, 500_000, 1_250_000]
    assert flow.size_bytes.tolist() == [40, 1500, 1500, 1, 7]
    assert flow.ue.tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ("0,0,1\n2,0,1\n1,0,1\n", ": row 4, time_s"),
        ("-1,0,1\n", ": row 2, time_s"),
        ("0,0,1\n1,0,0\n", ": row 3, bytes"),
        ("0,0,1\n1,0,-5\n", ": row 3, bytes"),
        ("0,0,70000\n", ": row 2, bytes"),
        ("0,0,1\n1,-1,1\n", ": row 3, ue"),
        ("0,0,1\n1,5000,1\n", ": row 3, ue"),
        ("0,0,1\n1,2,1\n", ": ue 1"),
        ("0,0,many\n", ": row 2, bytes"),
    ],
)
def test_refuses_packets_with_file_and_row(trace, rows, where):
    path = trace(rows)
    with pytest.raises(InputError) as caught:
        read_arrivals(path)
    assert caught.value.where == f"{path}{where}"


def test_reads_a_channel_on_its_own_grid(trace):
    path = trace("0,0,10\n0,1,5\n0.1,0,20\n0.3,0,30\n", "time_s,ue,sinr_db")
    channel = read_sinr(
        path,
        2,
        600_000,
    )
    assert channel.period_us == 100_000
    assert channel.sinr_db[0].tolist() == [10, 20, 20, 30, 10, 20]
    assert channel.sinr_db[1].tolist() == [5] * 6


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ("0,0,1\n0,1,nan\n", ": row 3, sinr_db"),
        ("0,0,1\n1,1,1\n0.5,0,2\n", ": row 4, time_s"),
        ("0,0,1\n0,1,1\n1,0,2\n1,0,3\n", ": row 5, time_s"),
        ("0,0,1\n", ""),
        ("0,0,1\n0,2,1\n", ": ue 1"),
    ],
)
def test_refuses_a_channel_with_file_and_row(trace, rows, where):
    path = trace(rows, "time_s,ue,sinr_db")
    with pytest.raises(InputError) as caught:
        read_sinr(path, 2, 1_000_000)
    assert caught.value.where == f"{path}{where}"
