"""Reductions of one step: who has to keep a total before it counts."""

from __future__ import annotations

from ranloom.training.ledger import Fate, StepLedger
from ranloom.training.membership import Members
from ranloom.training.messages import Part, Recipient, StageReduced
from ranloom.training.reduction import Reduction


def test_a_site_that_copies_is_not_waited_for_once_the_change_of_layout_is_off():
    members = Members(10.0, 0.3, 1.0)
    for site in range(3):
        members.join(site, 1 << 30, 1.0, 0.0)
    ledger = StepLedger(0, 0, 0, 1, [7])
    token = ledger.grant(0, 0, 0, 1, 5)
    ledger.commit(ledger.key(0, 0), token, 0, 1, 1)
    ledger.decide(0, Fate.COMPLETE)
    reduction = Reduction(ledger, members, [(0, 1)], tied=False, fanout=2)
    reduction.start(1, ((0, Recipient(2, 0, 1), True),))
    of_sum = (0, 0, reduction.token(0))
    assert not reduction.accept_total(
        StageReduced(0, 1, *of_sum, (Part(0, 1, (7,)),), 1.0, "digest")
    )
    reduction.drop_shadows()
    assert not reduction.done  # the other holder still has to keep it
    reduction.lose_site(1)
    assert reduction.done
