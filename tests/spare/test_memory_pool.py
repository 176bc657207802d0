"""No tensor is lost or changed, and the accounts are exact, whatever is asked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.spare.memory_pool import Move, PoolState, TensorPool

actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 40)),
        st.tuples(st.just("get"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("ran"), st.integers(0, 450), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions)
def test_nothing_is_lost_or_changed(script: list[tuple[str, int, int]]) -> None:
    state = PoolState(device_bytes=400, host_bytes=300, ran_bytes=100)
    pool = TensorPool(state, torch.device("cpu"))
    kept: dict[str, torch.Tensor] = {}
    for action, number, size in script:
        name, ran = f"t{number}", state.ran_bytes
        before = {n: state.tier(n) for n in kept}
        try:
            if action == "add":
                tensor = torch.arange(size, dtype=torch.float32) + number
                pool.add(name, tensor)
                assert name not in kept
                kept[name] = tensor.clone()
                tensor.zero_()  # the pool holds a copy of its own
            elif action == "get":
                assert torch.equal(pool.get(name), kept[name])
            elif action == "remove":
                assert torch.equal(pool.remove(name), kept.pop(name))
            else:
                pool.reserve_ran(number)
                assert state.ran_bytes == number
        except InputError:
            assert {n: state.tier(n) for n in kept} == before
            assert state.ran_bytes == ran
        used = {"device": 0, "host": 0}
        for held, tensor in kept.items():
            used[state.tier(held)] += 4 * tensor.numel()
        assert used == {t: state.used_bytes(t) for t in ("device", "host")}
        assert state.ran_bytes + used["device"] + state.free_device_bytes == 400
        assert state.free_device_bytes >= 0
        assert used["host"] <= 300
    for name, tensor in kept.items():
        assert torch.equal(pool.remove(name), tensor)


def test_ran_evicts_the_longest_unused_first() -> None:
    state = PoolState(100, 100, 0)
    assert [state.add(n, 30) for n in "abc"] == ["device"] * 3
    assert state.use("a") == []
    assert state.reserve_ran(40) == [Move("b", "host")]
    assert state.reserve_ran(60) == [Move("c", "host")]
    assert state.use("b") == []  # 10 bytes are free
    assert state.reserve_ran(20) == []
    assert state.use("b") == [Move("b", "device")]


def test_refusals_are_named() -> None:
    with pytest.raises(InputError, match="RAN bytes: 101"):
        PoolState(100, 0, 101)
    state = PoolState(100, 10, 0)
    state.add("a", 60)
    with pytest.raises(InputError, match="a new name"):
        state.add("a", 1)
    with pytest.raises(InputError, match="room: 10 bytes on the host"):
        state.add("b", 50)
    with pytest.raises(InputError, match="room for what must leave: 10 bytes"):
        state.reserve_ran(60)
    with pytest.raises(InputError, match="a tensor of the pool"):
        state.use("x")
