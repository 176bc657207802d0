# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""The controllers of a run behind one call, so that the slot loop compiles once for all."""

from __future__ import annotations

from typing import NamedTuple

from ranloom.mac.controllers.noctrl import NoCtrl, decide_noctrl
from ranloom.mac.controllers.planned import Planned, decide_planned
from ranloom.mac.controllers.weaver import Weaver, decide_weaver
from ranloom.mac.controllers.weaver_plus import (
    WeaverPlus,
    decide_weaver_plus,
    earn_idle_credit,
)
from ranloom.mac.kernel import kernel

KIND_NOCTRL, KIND_PLANNED, KIND_WEAVER, KIND_WEAVER_PLUS = range(4)


class Controllers(NamedTuple):
    """One controller of each kind, of which ``kind`` is in charge."""

    kind: int
    noctrl: NoCtrl
    planned: Planned
    weaver: Weaver
    weaver_plus: WeaverPlus


@kernel
def decide(controllers, ul_index, request, rules, tables, tbs_bytes, grants, decision):
    """Let the controller in charge decide a slot: grants and reservation."""
    if controllers.kind == KIND_NOCTRL:
        decide_noctrl(controllers.noctrl, request, rules, tables, grants, decision)
    elif controllers.kind == KIND_PLANNED:
        decide_planned(controllers.planned, ul_index, request, rules, tables, grants, decision)
    elif controllers.kind == KIND_WEAVER:
        decide_weaver(controllers.weaver, request, rules, tables, tbs_bytes, grants, decision)
    else:
        decide_weaver_plus(
            controllers.weaver_plus, request, rules, tables, tbs_bytes, grants, decision
        )


@kernel
def is_settled(controllers, tables):
    """Whether further empty slots leave the reservation as it is."""
    if controllers.kind == KIND_WEAVER:
        return controllers.weaver.memory[0] == tables.sm_min
    if controllers.kind == KIND_WEAVER_PLUS:
        return controllers.weaver_plus.sm[0] == tables.sm_min
    return True


@kernel
def skip_empty_slots(controllers, n_slots, tables):
    """Let settled controllers pass over empty UL slots as if each had been decided."""
    if controllers.kind == KIND_WEAVER:
        controllers.weaver.memory[2] += n_slots
    elif controllers.kind == KIND_WEAVER_PLUS:
        earn_idle_credit(controllers.weaver_plus, n_slots, tables)
