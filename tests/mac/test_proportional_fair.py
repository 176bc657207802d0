"""Allocation of one slot against small cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ranloom.mac.model import CellModel
from ranloom.mac.proportional_fair import (
    SchedulerRules,
    SlotRequest,
    add_backlogged,
    add_retransmission,
    add_signalling,
    allocate,
    clear_request,
    fewest_rb,
    slot_grants,
    slot_request,
)

GREEDY = SchedulerRules(n_prb=106, min_rb=5, max_blocks=4, shared=0)
SHARED = GREEDY._replace(shared=1)


def grant(request: SlotRequest, rules: SchedulerRules, cap: int = 106) -> dict[int, int]:
    grants = slot_grants(len(request.ue))
    allocate(request, cap, rules, grants)
    n = request.head["n_candidates"][0]
    assert grants.head["n_prb"][0] == grants.rb[:n].sum() + request.head["retx_prb"][0]
    assert grants.head["n_prb"][0] <= max(min(cap, rules.n_prb), request.head["retx_prb"][0])
    return dict(zip(request.ue[:n].tolist(), grants.rb[:n].tolist(), strict=True))


def backlogged(
    model: CellModel, rules: SchedulerRules, *ues: tuple[int, int, float], n: int = 8
) -> SlotRequest:
    """UEs of (number, backlog in bytes, weight) at MCS 20."""
    request = slot_request(n)
    for ue, backlog, weight in ues:
        add_backlogged(request, ue, backlog, 20, weight, 106, rules, model.blocks.tbs_bytes)
    return request


def test_greedy_serves_by_weight_and_the_first_may_take_all(model: CellModel) -> None:
    request = backlogged(model, GREEDY, (0, 10**6, 1.0), (1, 10**6, 3.0), (2, 10**6, 2.0))
    assert grant(request, GREEDY) == {1: 106, 2: 0, 0: 0}
    assert request.ue[:3].tolist() == [1, 2, 0]
    assert request.head["backlog_bytes"][0] == 3 * 10**6


def test_shared_splits_and_hands_on_the_rest(model: CellModel) -> None:
    small = int(model.blocks.tbs_bytes[20, 7])
    request = backlogged(model, SHARED, (0, 10**6, 1.0), (1, small, 3.0), (2, 10**6, 2.0))
    # 35 each; UE 1 needs 7, so that 29 PRBs are left for UE 2, which comes first
    assert grant(request, SHARED) == {1: 7, 2: 35 + 106 - 7 - 70, 0: 35}


def test_a_grant_is_the_smallest_that_fits(model: CellModel) -> None:
    tbs = model.blocks.tbs_bytes
    for size in (1, 100, 1000, 2345, 5000, 20_000):
        fits = [rb for rb in range(5, 107) if tbs[17, rb] >= size]
        assert fewest_rb(size, 17, 5, 106, tbs) == (fits[0] if fits else 106)


def test_nothing_below_the_smallest_grant(model: CellModel) -> None:
    request = backlogged(model, GREEDY, (0, 10**6, 2.0), (1, 10**6, 1.0))
    assert grant(request, GREEDY, cap=4) == {0: 0, 1: 0}
    assert grant(request, GREEDY, cap=9) == {0: 9, 1: 0}


def test_signalling_comes_first_and_is_small(model: CellModel) -> None:
    request = backlogged(model, GREEDY, (0, 10**6, 2.0))
    add_signalling(request, 3, 9, GREEDY)
    add_signalling(request, 4, 9, GREEDY)
    assert grant(request, GREEDY) == {3: 5, 4: 5, 0: 96}


def test_at_most_four_blocks(model: CellModel) -> None:
    few = int(model.blocks.tbs_bytes[20, 6])
    request = backlogged(model, GREEDY, *((u, few, float(9 - u)) for u in range(6)))
    assert grant(request, GREEDY) == {0: 6, 1: 6, 2: 6, 3: 6, 4: 0, 5: 0}
    grants = slot_grants(8)
    allocate(request, 106, GREEDY, grants)
    assert grants.head["held_back"][0] == 0  # the limit of blocks held them back, not PRBs


def test_retransmissions_stand_outside_the_cap(model: CellModel) -> None:
    request = backlogged(model, GREEDY, (0, 10**6, 1.0))
    add_retransmission(request, 60, 20, model.tables)
    assert grant(request, GREEDY, cap=40) == {0: 0}
    assert grant(request, GREEDY, cap=106) == {0: 46}
    assert request.head["retx_sm"][0] == model.tables.min_sm[20, 60]
    add_retransmission(request, 40, 28, model.tables)
    average = (60 * 20 + 40 * 28) / 100
    assert request.head["retx_sm"][0] == model.tables.min_sm[int(np.ceil(average)), 100]
    assert request.head["retx_sm_per_block"][0] == (
        model.tables.min_sm[20, 60] + model.tables.min_sm[28, 40]
    )


def test_a_cleared_request_is_empty(model: CellModel) -> None:
    request = backlogged(model, GREEDY, (0, 10**6, 1.0))
    add_retransmission(request, 60, 20, model.tables)
    clear_request(request)
    assert request.head.tolist() == slot_request(1).head.tolist()
    assert grant(request, GREEDY) == {}


@pytest.mark.parametrize("rules", [GREEDY, SHARED])
@pytest.mark.parametrize("seed", range(40))
def test_no_prb_is_left_while_a_servable_ue_waits(
    model: CellModel, rules: SchedulerRules, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    request = backlogged(
        model, rules, *((u, int(rng.integers(1, 20_000)), float(rng.random())) for u in range(n))
    )
    cap = int(rng.integers(5, 107))
    granted = grant(request, rules, cap)
    left = cap - sum(granted.values())
    for i, ue in enumerate(request.ue[:n].tolist()):
        need = int(request.need_rb[i])
        assert granted[ue] <= need
        if 0 < granted[ue] < need:
            assert left == 0
        if granted[ue] == 0:
            assert left < rules.min_rb or sum(g > 0 for g in granted.values()) == 4
