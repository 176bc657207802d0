"""Operators go where they are done first."""

from __future__ import annotations

import pytest

from ranloom.errors import InputError
from ranloom.spare.routing import OperatorRouter


def test_depth_and_mean_decide() -> None:
    router = OperatorRouter({"gpu": 10.0, "cpu": 25.0}, window=2)
    # Expected ends: 10, 20, then 30 against 25.
    assert [router.submit() for _ in range(4)] == ["gpu", "gpu", "cpu", "gpu"]
    router.complete("gpu", 100.0)
    router.complete("gpu", 60.0)
    router.complete("gpu", 80.0)
    assert router.mean_us("gpu") == 70.0  # the last two
    assert router.submit() == "cpu"  # 2 x 25 against 70
    assert router.depth == {"gpu": 0, "cpu": 2}
    assert router.submit() == "gpu"  # 3 x 25 against 70


def test_bad_use_is_named() -> None:
    with pytest.raises(InputError, match="routing: pools"):
        OperatorRouter({}, window=1)
    with pytest.raises(InputError, match="routing: window"):
        OperatorRouter({"cpu": 1.0}, window=0)
    with pytest.raises(InputError, match=r"routing: completion: .gpu"):
        OperatorRouter({"cpu": 1.0}, window=1).complete("gpu", 1.0)
