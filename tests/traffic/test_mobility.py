from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.traffic.mobility import read_drive, read_walk, replay_moves

WALK = "protocol,num_tcp_conn,seq_num,anonymized_mCid,radio_type,throughput_mbps,nrStatus\n"
ROWS = ["1,b,4G,10", "2,b,5G,20", "4,a,5G,0", "5,a,4G,30", "6,b,4G,40"]


@pytest.fixture
def walk(tmp_path):
    def write(rows):
        path = tmp_path / "walk.csv"
        path.write_text(WALK + "".join(f"TCP,8,{row},CONNECTED\n" for row in rows))
        return path

    return write


def test_a_walk_second_by_second(walk):
    trace = read_walk(walk(ROWS))
    assert trace.downlink_mbps.tolist() == [10, 20, 20, 0, 30, 40]
    assert trace.cell.tolist() == [0, 0, 0, 1, 1, 0]
    assert trace.on_5g.tolist() == [False, True, True, True, False, False]
    assert trace.handovers_s.tolist() == [3, 5]
    assert trace.radio_switches_s.tolist() == [1, 4]
    assert trace.filled_s == 1
    assert trace.rates(4, 4, ratio=0.5).tolist() == [15, 20, 5, 10]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ((2, "2,a,5G,0"), ": row 4, seq_num"),
        ((2, "9999,a,5G,0"), ": row 4, seq_num"),
        ((1, "2,b,6G,20"), ": row 3, radio_type"),
        ((3, "5,a,4G,-1"), ": row 5, throughput_mbps"),
        ((3, "5,a,4G,"), ": row 5, throughput_mbps"),
    ],
)
def test_a_bad_walk_is_refused(walk, change, where):
    rows = list(ROWS)
    rows[change[0]] = change[1]
    path = walk(rows)
    with pytest.raises(InputError) as caught:
        read_walk(path)
    assert caught.value.where == f"{path}{where}"


def test_moves_lay_the_cells_over_the_sites(walk):
    trace = read_walk(walk(ROWS))
    moves = replay_moves(trace, np.array([1, 0]), np.array([0, 4]), n_sites=3, duration_s=8)
    # Cells from second 0: 0 0 0 1 1 0 | 0 0; from second 4: 1 0 0 0 0 1 1 0.
    assert list(zip(moves.time_s, moves.ue, moves.site, strict=True)) == [
        (1.0, 1, 2),
        (3.0, 0, 2),
        (5.0, 0, 1),
        (5.0, 1, 0),
        (7.0, 1, 2),
    ]
    assert moves.home.tolist() == [1, 0]


def test_one_site_sees_no_handover(walk):
    trace = read_walk(walk(ROWS))
    assert replay_moves(trace, np.array([0]), np.array([0]), 1, 20).time_s.size == 0


def test_bad_replays_are_refused(walk):
    trace = read_walk(walk(ROWS))
    zero = np.array([0])
    for call in (
        lambda: replay_moves(trace, zero, np.array([0, 1]), 2, 5),
        lambda: replay_moves(trace, np.array([2]), zero, 2, 5),
        lambda: replay_moves(trace, zero, zero, 0, 5),
        lambda: replay_moves(trace, zero, zero, 2, 0),
        lambda: trace.rates(0, 0),
        lambda: trace.rates(0, 5, ratio=0.0),
        lambda: read_drive(walk(ROWS), "Vodafone"),
    ):
        with pytest.raises(InputError):
            call()


def test_the_real_trips(shared_data):
    folder = shared_data / "fivegophers"
    if not folder.is_dir():
        pytest.skip(f"no 5Gophers files in {shared_data}")
    trace = read_walk(folder / "walking-trace.csv")
    # Counted once with awk: 603 rows of as many seconds, ten cell changes, 21 radio switches.
    assert (trace.duration_s, trace.filled_s) == (603, 0)
    assert trace.handovers_s.size == 10
    assert trace.radio_switches_s.size == 21
    assert np.unique(trace.cell).size == 10
    drive = read_drive(folder / "car-driving-trace-1.csv", "Verizon")
    assert (drive.duration_s, drive.filled_s) == (126, 6)
    assert drive.downlink_mbps[-1] == pytest.approx(52.42, abs=0.01)
    assert drive.handovers_s.size == 0
