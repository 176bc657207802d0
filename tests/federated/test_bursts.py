import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.bursts import coefficient_of_variation, spread_bursts


def test_bursts_fall_into_the_seconds_that_they_take():
    # 3 GB at 8 Gbit/s take 3 s: 0.5 s in second 1, all of 2 and 3, 0.5 s in 4
    offered = spread_bursts(np.array([1.5]), np.array([3e9]), 8.0, 6)
    assert offered == pytest.approx([0.0, 0.5e9, 1e9, 1e9, 0.5e9, 0.0])
    cut = spread_bursts(np.array([4.0]), np.array([3e9]), 8.0, 6)
    assert cut.sum() == pytest.approx(2e9)


def test_coefficient_of_variation_by_hand():
    assert coefficient_of_variation(np.array([4.0, 4.0, 4.0]), 1) == 0.0
    assert coefficient_of_variation(np.array([8.0, 0.0, 0.0, 0.0]), 1) == pytest.approx(3**0.5)
    assert coefficient_of_variation(np.array([8.0, 0.0, 0.0, 0.0]), 2) == pytest.approx(1.0)
    # the silent row does not count, the unfinished last bin neither
    rows = np.array([[8.0, 0.0, 0.0, 0.0, 9.0], [0.0] * 5])
    assert coefficient_of_variation(rows, 2) == pytest.approx(1.0)


@pytest.mark.parametrize(("series", "bin_s"), [([1.0], 2), ([1.0], 0), ([0.0, 0.0], 1)])
def test_what_has_no_variation_is_refused(series, bin_s):
    with pytest.raises(InputError):
        coefficient_of_variation(np.array(series), bin_s)
