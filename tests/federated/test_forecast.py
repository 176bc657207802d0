import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.federated.forecast import ReleaseHistory, conformal_quantile


def test_conformal_quantile_by_hand():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert conformal_quantile(values, 0.5) == 3.0  # ceil(0.5 * 6) = 3rd
    assert conformal_quantile(values, 0.6) == 4.0  # ceil(3.6) = 4th
    assert conformal_quantile(values, 0.95) == 5.0  # 6th of 5: the largest
    assert conformal_quantile(list(range(19)), 0.95) == 18
    assert conformal_quantile(list(range(39)), 0.95) == 37


def test_coverage_is_at_least_what_is_announced():
    rng = np.random.default_rng(4)
    for p, count in ((0.5, 7), (0.95, 19), (0.95, 40)):
        draws = rng.lognormal(size=(4000, count + 1))
        hits = [row[-1] <= conformal_quantile(row[:-1].tolist(), p) for row in draws]
        assert np.mean(hits) >= p - 0.02


def test_own_values_are_used_once_they_suffice():
    history = ReleaseHistory()
    assert history.forecast_s("a", 0, (0.5, 0.95)) is None
    for value in range(19):
        history.add("b", 0, 100.0 + value)
        history.add("a", 0, float(value))
        history.add("a", 1, 1000.0)
    assert history.forecast_s("a", 0, (0.5, 0.95)) == [9.0, 18.0]
    assert history.forecast_s("new", 0, (0.5, 0.95)) == [100.0, 118.0]  # 20th and 38th of 38
    assert history.forecast_s("new", 2, (0.5, 0.95)) is None


@pytest.mark.parametrize(("values", "p"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.0)])
def test_what_has_no_quantile_is_refused(values, p):
    with pytest.raises(InputError, match="forecast"):
        conformal_quantile(values, p)
