import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.mobility import (
    WALK,
    Mobility,
    Walk,
    generate_walk,
    read_walk,
    write_walk,
)


def test_the_file_in_the_repository_is_what_the_generator_writes(root, tmp_path):
    write_walk(tmp_path / "walk.csv", generate_walk(**WALK))
    assert (tmp_path / "walk.csv").read_bytes() == (root / "data/mobility/walk.csv").read_bytes()


def test_hand_overs_are_changes_of_the_cell(tmp_path):
    path = tmp_path / "walk.csv"
    path.write_text("second,cell\n5,a\n6,a\n7,b\n9,b\n10,a\n")
    assert read_walk(path) == Walk((2.0, 5.0), 6.0)


def test_the_walking_trace_is_read_as_it_is(shared_data):
    walk = read_walk(shared_data / "fivegophers" / "walking-trace.csv")
    assert walk.length_s == 603.0
    # entered by hand: rows in which anonymized_mCid differs from the row before
    assert walk.handover_s == (56.0, 122.0, 123.0, 153.0, 176.0, 215.0, 267.0, 306.0, 308.0, 413.0)


def test_a_walk_is_followed_cyclically_from_a_random_second():
    mobility = Mobility(1.0, 0.0, Walk((10.0, 40.0), 100.0))
    rng = np.random.default_rng(1)
    firsts = []
    for _ in range(500):
        times = mobility.times_s(1000.0, rng)
        assert np.all(np.diff(times) > 0)
        assert {round(gap) for gap in np.diff(times)} == {30, 70}
        assert len(times) in (19, 20, 21)
        firsts.append(times[0])
    # the longer gap is met more often: the mean wait is (30^2 + 70^2) / (2 * 100)
    assert np.mean(firsts) == pytest.approx(29.0, abs=2.5)


def test_poisson_moves_and_those_who_stay():
    rng = np.random.default_rng(2)
    counts = [len(Mobility(0.3, 20.0).times_s(3600.0, rng)) for _ in range(4000)]
    assert np.mean(counts) == pytest.approx(6.0, rel=0.08)
    assert np.mean(np.array(counts) == 0) == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "No such file"),
        (b"", "row 1"),
        (b"second\n1\n2\n", "row 1"),
        (b"second,cell\n1,a\n", "1 rows"),
        (b"second,cell\n1,a\nx,b\n", "row 3: second"),
        (b"second,cell\n2,a\n2,b\n", "row 3: second"),
        (b"second,cell\n2,a\n3\n", "row 3: cell"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_unusable_walks_are_refused_by_name(tmp_path, content, named):
    path = tmp_path / "walk.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=named) as refused:
        read_walk(path)
    assert "walk.csv" in str(refused.value)
