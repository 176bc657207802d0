"""After a restart of the coordinator: what the sites really hold against what the log says.

The log is synced before anything is sent, so a site can never be ahead of it; it can be behind (an
action was logged but not sent) and it can have done more than was reported. Both are mended here,
one inventory at a time.
"""

from __future__ import annotations

from ranloom.training.ledger import NOBODY, Fate, Verdict
from ranloom.training.messages import Action, Discard, Inventory
from ranloom.training.step_cycle import StepCycle
from ranloom.training.tokens import Direction, TaskKey, Token


def take_inventory(cycle: StepCycle, event: Inventory, now_s: float) -> list[Action] | None:
    """Bring the ledger of the open step in line with one site.

    Args:
        cycle: the step, its reductions voided by ``restart``.
        event: what the site holds.
        now_s: present time.

    Returns:
        What the site has to be told, or None if its books contradict the log: it has merged
        something that was never complete, and must be fenced.
    """
    ledger = cycle.ledger
    merged = set(event.merged) if event.step == ledger.step else set()
    if any(
        number not in ledger.rows or ledger.fate[ledger.rows[number]] != Fate.COMPLETE
        for number in merged
    ):
        return None
    actions: list[Action] = []
    for key, token in event.held:
        actions.extend(_take_held(cycle, event, key, token, now_s))
    actions.extend(_check_commits(cycle, event, merged))
    _take_outputs(cycle, event)
    return actions


def _take_held(
    cycle: StepCycle, event: Inventory, key: TaskKey, token: Token, now_s: float
) -> list[Action]:
    """Commit a gradient whose report was lost, or have it thrown away."""
    ledger = cycle.ledger
    verdict = ledger.commit(key, token, event.site, event.incarnation, token.coordinator)
    if verdict == Verdict.ACCEPTED:
        row = ledger.rows[key.micro_batch]
        actions = cycle.dispatcher.withdraw(row, key.stage, keep_site=event.site)
        return actions + cycle.committed(row, key.stage, now_s)
    if key.step == ledger.step and key.micro_batch in ledger.rows:
        held = ledger.holder(ledger.rows[key.micro_batch], key.stage)
        if held is not None and (held[0], held[2]) == (event.site, token):
            return []
    return [Discard(event.site, event.incarnation, key, token)]


def _check_commits(cycle: StepCycle, event: Inventory, merged: set[int]) -> list[Action]:
    """Reopen what the site should hold and does not; merge what it holds and should have merged."""
    ledger = cycle.ledger
    held = dict(event.held)
    actions: list[Action] = []
    for row in (int(row) for row in ledger.rows_of_fate(Fate.IN_WORK, Fate.COMPLETE)):
        for stage in range(ledger.stages):
            holder = ledger.holder(row, stage)
            if holder is None or holder[:2] != (event.site, event.incarnation):
                continue
            if ledger.micro_batches[row] in merged:
                continue
            if held.get(ledger.key(row, stage)) != holder[2]:
                if not cycle.reduction.is_safe(stage):
                    actions.append(cycle.reopen(row, stage))
            elif ledger.fate[row] == Fate.COMPLETE:
                merge = cycle.merge(row, stage)
                actions.extend([] if merge in actions else [merge])
    return actions


def _take_outputs(cycle: StepCycle, event: Inventory) -> None:
    """Believe the site about the outputs that it retains."""
    ledger = cycle.ledger
    retained = set(event.outputs)
    for row in (int(row) for row in ledger.rows_of_fate(Fate.IN_WORK, Fate.COMPLETE)):
        for stage in range(ledger.stages):
            output = ledger.records[row, stage]["output"]
            for direction in Direction:
                has = (ledger.key(row, stage), direction) in retained
                if output[direction] == event.site and not has:
                    output[direction] = NOBODY
                elif output[direction] == NOBODY and has and ledger.fate[row] == Fate.IN_WORK:
                    output[direction] = event.site
