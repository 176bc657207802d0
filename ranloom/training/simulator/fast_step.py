"""One training step as a compiled discrete-event loop: the fast path of the simulator.

The same world as ``world`` and ``site`` describe (serial sites and links, requests, control
messages with their delays, windows, held gradients), for a step in which no site dies and no
request overtakes the order that it depends on: a detour over the coordinator is never shorter than
the direct way. What follows from the time of one thing alone (the arrival of a report, a merge) is
computed when its cause happens, so that only ends of tasks, arrivals of tensors and completions of
micro-batches are events. The loop stops at a given time and can be taken up again, which is when
``fast_run`` asks the rerouting policy.

A row of which a key changes hands while in work is followed message by message from then on, with
the books of its sites and of the coordinator, as ``site`` and ``dispatch`` keep them. Its past is
made up from the times of its events.

All kernels that call each other stand in this file: a compiled kernel is cached by the file that it
stands in, and would not see a change in another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ranloom.training.simulator.fast_state import (
    ACTIVATION,
    ASK_ACTIVATION,
    ASK_GRADIENT,
    ASSIGN,
    BACKWARD_DONE,
    COMPLETE,
    COMPLETED,
    DEFERRED,
    DISCARD,
    FORWARD_DONE,
    FREE,
    FROM_DATA,
    GRADIENT,
    HAS_ACTIVATION,
    HAS_GRADIENT,
    IN_WORK,
    KEPT,
    KIND_BITS,
    KIND_MASK,
    MISSED,
    MISSING,
    NOT_YET,
    REPORTS,
    SETTLE,
    WAITING,
    Step,
)

# --- heaps and clock -----------------------------------------------------------------------------


# Heaps of all sites lie side by side: their roots, which are most of what is used, are neighbours.
# A slice of an array counts references, atomically: they are addressed by indices instead.


@njit(cache=True, error_model="numpy")
def _push_arrival(
    heaps: np.ndarray, site: int, at: int, time_s: float, row: int, kind: int
) -> None:
    """Put an arrival into the heap of a site, at whose end ``at`` there is room."""
    while at > 0:
        parent = (at - 1) >> 1
        above = heaps[parent, site]
        if above.time_s <= time_s:
            break
        here = heaps[at, site]
        here.time_s = above.time_s
        here.row = above.row
        here.kind = above.kind
        at = parent
    here = heaps[at, site]
    here.time_s = time_s
    here.row = row
    here.kind = kind


@njit(cache=True, error_model="numpy")
def _pop_arrival(heaps: np.ndarray, site: int, count: int) -> None:
    """Close the gap at the root; ``count`` entries remain, the last one stands at ``count``."""
    last = heaps[count, site]
    time_s, row, kind = last.time_s, last.row, last.kind
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and heaps[child + 1, site].time_s < heaps[child, site].time_s:
            child += 1
        below = heaps[child, site]
        if below.time_s >= time_s:
            break
        here = heaps[at, site]
        here.time_s = below.time_s
        here.row = below.row
        here.kind = below.kind
        at = child
    here = heaps[at, site]
    here.time_s = time_s
    here.row = row
    here.kind = kind


@njit(cache=True, error_model="numpy")
def _push_row(heaps: np.ndarray, site: int, direction: int, at: int, row: int) -> None:
    """Put a row into the heap of runnable rows of a site."""
    while at > 0:
        parent = (at - 1) >> 1
        if heaps[direction, parent, site] <= row:
            break
        heaps[direction, at, site] = heaps[direction, parent, site]
        at = parent
    heaps[direction, at, site] = row


@njit(cache=True, error_model="numpy")
def _pop_row(heaps: np.ndarray, site: int, direction: int, count: int) -> None:
    """Close the gap at the root; ``count`` rows remain, the last one stands at ``count``."""
    last = heaps[direction, count, site]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        right = min(child + 1, count - 1)
        if heaps[direction, right, site] < heaps[direction, child, site]:
            child = right
        if heaps[direction, child, site] >= last:
            break
        heaps[direction, at, site] = heaps[direction, child, site]
        at = child
    heaps[direction, at, site] = last


@njit(cache=True, error_model="numpy", fastmath={"nnan", "nsz"})
def _earliest(clock: np.ndarray) -> float:
    """Time of the next event."""
    first_s = np.inf
    for time_s in clock:
        if time_s < first_s:
            first_s = time_s
    return first_s


@njit(cache=True, error_model="numpy")
def arrive(
    sites: np.ndarray,
    clock: np.ndarray,
    arrivals: np.ndarray,
    site: int,
    time_s: float,
    row: int,
    kind: int,
) -> None:
    """Something will reach a site."""
    one = sites[site]
    _push_arrival(arrivals, site, one.arrivals, time_s, row, kind)
    one.arrivals += 1
    urgent = kind >= DISCARD
    one.urgent += urgent
    if (one.row < 0 or urgent) and time_s < clock[site]:
        clock[site] = time_s


# --- resources -----------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def finish_s(tflops: np.ndarray, site: int, start_s: float, flop: float) -> float:
    """When work that begins now will be done; traces by second that repeat [K, S].

    Work that ends with a second ends there, however long the site then idles: what rounding leaves
    of it is nothing.
    """
    second = int(start_s)
    length = tflops.shape[0]
    place = second if second < length else second % length
    rounding = 1e-12 * flop
    before = flop
    walked = 0
    now_s = start_s
    while True:
        rate = tflops[place, site] * 1e12
        can = rate * (second + 1 - now_s)
        if can >= flop - rounding:
            return now_s if flop <= rounding else float(min(now_s + flop / rate, second + 1.0))
        flop -= can
        second += 1
        walked += 1
        place += 1
        if place == length:
            place = 0
        if walked == length:
            before = flop
        elif walked == 2 * length:  # all further cycles are like this one
            cycles = max(int(flop / (before - flop)) - 1, 0)
            flop -= cycles * (before - flop)
            second += cycles * length
        now_s = float(second)


@njit(cache=True, error_model="numpy")
def ship(links: np.ndarray, source: int, target: int, send_s: float) -> float:
    """Queue a boundary tensor on a link; its arrival."""
    link = links[source, target]
    end_s = max(send_s, link.free_s) + link.seconds
    link.free_s = end_s
    return float(end_s + link.latency_s)


# --- a step --------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def load(step: Step) -> None:
    """Put the work of a step on its owners."""
    rows, stages = step.keys.shape
    for row in range(rows):
        for stage in range(stages):
            site = step.keys[row, stage].owner
            if site >= 0:
                step.sites[site].open_flop += step.work[stage, 0] + step.work[stage, 1]
            else:
                step.counts[0].orphans += 1


@njit(cache=True, error_model="numpy")
def admit_first(step: Step, now_s: float) -> None:
    """The first rows of each replica's window, as far as there is work."""
    for _ in range(step.window):
        before = step.lane_next.sum()
        for replica in range(len(step.lane_next)):
            _admit(
                step.keys,
                step.rows,
                step.lane_rows,
                step.lane_next,
                step.lane_end,
                step.sites,
                step.arrivals,
                step.clock,
                replica,
                now_s,
            )
        if step.lane_next.sum() == before:
            return


@njit(cache=True, error_model="numpy")
def _admit(
    keys: np.ndarray,
    rows: np.ndarray,
    lane_rows: np.ndarray,
    lane_next: np.ndarray,
    lane_end: np.ndarray,
    sites: np.ndarray,
    arrivals: np.ndarray,
    clock: np.ndarray,
    replica: int,
    now_s: float,
) -> int:
    """Take the next waiting row of a replica into work; -1 if there is none."""
    while lane_next[replica] < lane_end[replica]:
        row = lane_rows[lane_next[replica]]
        lane_next[replica] += 1
        if rows[row].fate == WAITING:
            rows[row].fate = IN_WORK
            rows[row].admitted_s = now_s
            first = keys[row, 0].owner
            there_s = now_s + sites[first].hub_s
            sites[first].runnable += 1
            arrive(sites, clock, arrivals, first, there_s, row, ACTIVATION)
            return int(row)
    return -1


@njit(cache=True, error_model="numpy")
def _hear(
    keys: np.ndarray,
    rows: np.ndarray,
    sites: np.ndarray,
    member: Any,
    reports: np.ndarray,
    tflops: np.ndarray,
    work: np.ndarray,
    site: int,
    until_s: float,
    budget_period_s: float,
    error_weight: float,
) -> None:
    """What has reached the coordinator of a site: completions and budgets, in their order."""
    one = sites[site]
    count = member.reports
    done = 0
    while done < count and reports[site, done].seen_s <= until_s:
        report = reports[site, done]
        _hear_budgets(one, member, tflops, site, report.seen_s, budget_period_s)
        row, direction = report.row, report.direction
        flop = work[one.stage, direction]
        _hear_completion(member, report.seen_s, report.seconds, flop, error_weight)
        if keys[row, one.stage].owner == site and rows[row].fate != DEFERRED:
            _end_known(keys, sites, one, row, direction)
            one.open_flop -= flop
        done += 1
    if done > 0:
        member.reports = count - done
        for index in range(count - done):
            reports[site, index] = reports[site, index + done]
    _hear_budgets(one, member, tflops, site, np.nextafter(until_s, np.inf), budget_period_s)


@njit(cache=True, error_model="numpy")
def _end_known(keys: np.ndarray, sites: np.ndarray, one: Any, row: int, direction: int) -> None:
    """The coordinator learns that a task has ended, and that the next stage can go on."""
    one.runnable -= 1
    to = one.stage - 1 if direction else one.stage + 1
    if to >= 0:
        sites[keys[row, to].owner].runnable += 1


@njit(cache=True, error_model="numpy")
def _hear_budgets(
    one: Any,
    member: Any,
    tflops: np.ndarray,
    site: int,
    before_s: float,
    budget_period_s: float,
) -> None:
    """Budgets of a site that have reached the coordinator before that."""
    while member.next_report_s + one.hub_s < before_s:
        member.tflops = max(tflops[int(member.next_report_s) % len(tflops), site], 1e-9)
        member.next_report_s += budget_period_s


@njit(cache=True, error_model="numpy")
def _hear_completion(
    member: Any, seen_s: float, seconds: float, flop: float, error_weight: float
) -> None:
    """A completion of a site has reached the coordinator: how well it was predicted."""
    member.busy_since_s = seen_s
    if flop > 0.0 and seconds > 0.0:
        error = seconds * member.tflops * 1e12 / flop - 1.0
        deviation = abs(error - member.error)
        member.error += error_weight * (error - member.error)
        member.spread += error_weight * (deviation - member.spread)


@njit(cache=True, error_model="numpy")
def _report(
    member: Any,
    reports: np.ndarray,
    site: int,
    seen_s: float,
    seconds: float,
    row: int,
    direction: int,
) -> None:
    """A completion on its way to the coordinator."""
    at = member.reports
    while at > 0 and reports[site, at - 1].seen_s > seen_s:
        reports[site, at] = reports[site, at - 1]
        at -= 1
    report = reports[site, at]
    report.seen_s = seen_s
    report.seconds = seconds
    report.row = row
    report.direction = direction
    member.reports += 1


@njit(cache=True, error_model="numpy")
def hear_all(step: Step, until_s: float) -> None:
    """Bring what the coordinator knows of all sites to a time."""
    sites, members, reports = step.sites, step.members, step.reports
    keys, rows, tflops, work = step.keys, step.rows, step.tflops, step.work
    for site in range(len(sites)):
        member = members[site]
        if member.reports > 0 or member.next_report_s + sites[site].hub_s <= until_s:
            _hear(
                keys,
                rows,
                sites,
                member,
                reports,
                tflops,
                work,
                site,
                until_s,
                step.budget_period_s,
                step.error_weight,
            )


@njit(cache=True, error_model="numpy")
def _runnable(flags: int, is_last: bool) -> int:
    """Direction of the task of a key that can run now, -1 if there is none."""
    if flags & BACKWARD_DONE:  # this includes -1
        return -1
    if not is_last and not flags & FORWARD_DONE:
        return 0 if flags & HAS_ACTIVATION else -1
    fed = is_last or flags & HAS_GRADIENT
    return 1 if fed and flags & (HAS_ACTIVATION | KEPT) else -1


@njit(cache=True, error_model="numpy")
def advance(step: Step, until_s: float, drain: bool) -> None:
    """Let everything happen until a time, or until every row is complete or deferred.

    If there is more to come, the coordinator has heard what has reached it until then.

    Args:
        step: state; changed.
        until_s: time.
        drain: go on after that with what sites do that do not know it yet.
    """
    keys, rows, sites, links = step.keys, step.rows, step.sites, step.links
    arrivals, ready, held = step.arrivals, step.ready, step.held
    made_at, done_s, tasks = step.made_at, step.done_s, step.tasks
    clock, complete = step.clock, step.complete
    lane_rows, lane_next, lane_end = step.lane_rows, step.lane_next, step.lane_end
    work, tflops, members, reports = step.work, step.tflops, step.members, step.reports
    limit, forward_first, overhead_s = step.unmerged_limit, step.forward_first, step.overhead_s
    error_weight, budget_period_s = step.error_weight, step.budget_period_s
    lookahead_s, asking_s = step.lookahead_s, step.asking_s
    last = keys.shape[1] - 1
    counts = step.counts
    undecided = counts[0].undecided
    any_moved = counts[0].moved > 0
    ended = transfers = 0
    last_s = counts[0].last_s
    complete_s = complete[0, 0].time_s if counts[0].complete > 0 else np.inf
    site, soon_s = len(clock), -np.inf
    while undecided > 0 or drain:
        while site < len(clock) and clock[site] >= soon_s:
            site += 1
        if site == len(clock):
            now_s = _earliest(clock)
            if complete_s <= now_s:
                now_s = complete_s
                if now_s >= until_s:
                    break
                row, kind = complete[0, 0].row, complete[0, 0].kind
                counts[0].complete -= 1
                _pop_arrival(complete, 0, counts[0].complete)
                is_complete = rows[row].fate == IN_WORK and rows[row].committed == last + 1
                if any_moved and (kind > 0 or rows[row].tracked):
                    is_complete = _learn(step, row, kind, now_s)
                if is_complete:
                    rows[row].fate = COMPLETE
                    rows[row].done_s = now_s
                    undecided -= 1
                    last_s = max(last_s, now_s)
                    if limit > 0:
                        _wake_holders(made_at, sites, clock, row, now_s)
                    _admit(
                        keys,
                        rows,
                        lane_rows,
                        lane_next,
                        lane_end,
                        sites,
                        arrivals,
                        clock,
                        rows[row].replica,
                        now_s,
                    )
                complete_s = complete[0, 0].time_s if counts[0].complete > 0 else np.inf
                continue
            if now_s >= until_s or now_s == np.inf:
                break
            soon_s = max(now_s + lookahead_s, np.nextafter(now_s, np.inf))
            soon_s = min(soon_s, until_s, complete_s)
            site = 0
            continue
        now_s = clock[site]
        one = sites[site]
        stage = one.stage
        if one.row >= 0 and one.end_s <= now_s:
            row, direction = one.row, one.direction
            one.row = -1
            ended += 1
            took_s = now_s - one.begin_s
            one.busy_s += took_s
            member = members[site]
            seen_s = now_s + one.hub_s
            if member.reports == 0 and seen_s <= until_s:
                if member.next_report_s + one.hub_s < seen_s:
                    _hear_budgets(one, member, tflops, site, seen_s, budget_period_s)
                flop = work[stage, direction]
                _hear_completion(member, seen_s, took_s, flop, error_weight)
                one.open_flop -= flop
                _end_known(keys, sites, one, row, direction)
            else:
                if member.reports == REPORTS:
                    known_s = max(now_s, reports[site, 0].seen_s)
                    _hear(
                        keys,
                        rows,
                        sites,
                        member,
                        reports,
                        tflops,
                        work,
                        site,
                        known_s,
                        budget_period_s,
                        error_weight,
                    )
                _report(member, reports, site, seen_s, took_s, row, direction)
            to = stage + 1 if direction == 0 else stage - 1
            if any_moved and rows[row].tracked:
                _finish(step, site, row, direction, took_s, now_s)
                complete_s = complete[0, 0].time_s
            else:
                key = keys[row, stage]
                if direction == 0:
                    key.flags |= KEPT | FORWARD_DONE
                    if key.flags & HAS_GRADIENT:
                        _push_row(ready, site, 1, one.readies[1], row)
                        one.readies[1] += 1
                else:
                    key.flags |= BACKWARD_DONE
                    if limit > 0:
                        held[site, one.held] = row
                        one.held += 1
                made_at[direction, row, stage] = site
                done_s[direction, row, stage] = now_s
                if direction == 1 and rows[row].fate != DEFERRED:
                    one_row = rows[row]
                    one_row.committed += 1
                    if one_row.committed == last + 1:
                        all_s = 0.0
                        for at in range(last + 1):
                            told_s = done_s[1, row, at] + sites[made_at[1, row, at]].hub_s
                            all_s = max(all_s, told_s)
                        _push_arrival(complete, 0, counts[0].complete, all_s, row, 0)
                        counts[0].complete += 1
                        complete_s = complete[0, 0].time_s
                if counts[0].unsettled > 0:
                    _push_arrival(complete, 0, counts[0].complete, seen_s, row, SETTLE)
                    counts[0].complete += 1
                    complete_s = complete[0, 0].time_s
                if to >= 0:
                    target = keys[row, to].owner
                    asked_s = -np.inf
                    if now_s < rows[row].admitted_s + asking_s:
                        asked_s = rows[row].admitted_s + sites[target].hub_s
                        asked_s += links[target, site].latency_s
                    if asked_s > now_s:
                        kind = (target << KIND_BITS) + ASK_ACTIVATION + direction
                        arrive(sites, clock, arrivals, site, asked_s, row, kind)
                    else:
                        there_s = ship(links, site, target, now_s)
                        arrive(sites, clock, arrivals, target, there_s, row, direction)
                        transfers += 1
        while one.arrivals > 0 and arrivals[0, site].time_s <= now_s:
            at_s = arrivals[0, site].time_s
            row, kind = arrivals[0, site].row, arrivals[0, site].kind
            one.arrivals -= 1
            _pop_arrival(arrivals, site, one.arrivals)
            urgent = kind >= DISCARD
            one.urgent -= urgent
            if any_moved and rows[row].tracked:
                _take(step, site, now_s, row, kind)
                complete_s = complete[0, 0].time_s if counts[0].complete > 0 else np.inf
                if urgent:  # the site goes on before it looks at what comes next
                    break
                continue
            if kind == DISCARD:
                if one.row == row:
                    one.row = -1
                if limit > 0:
                    _drop_held(held, one, site, row)
                continue
            if urgent:
                direction = (kind & KIND_MASK) - ASK_ACTIVATION
                target = kind >> KIND_BITS
                there_s = ship(links, site, target, now_s)
                arrive(sites, clock, arrivals, target, there_s, row, direction)
                transfers += 1
                continue
            if rows[row].fate == DEFERRED and at_s >= rows[row].done_s + one.hub_s:
                continue
            flags = keys[row, stage].flags | 1 << kind
            keys[row, stage].flags = flags
            direction = _runnable(flags, stage == last)
            if direction >= 0:
                _push_row(ready, site, direction, one.readies[direction], row)
                one.readies[direction] += 1
        wake_s = np.inf
        if one.row < 0:
            for turn in range(2):
                direction = turn if forward_first else 1 - turn
                done = FORWARD_DONE if direction == 0 else BACKWARD_DONE
                while one.readies[direction] > 0:
                    row = ready[direction, 0, site]
                    flags = keys[row, stage].flags
                    is_held = True
                    if any_moved and rows[row].tracked:
                        task = tasks[row, site]
                        void = not _can_run(task, direction)
                        flags = KEPT if task.kept else 0
                        is_held = bool(task.keeps)
                    else:
                        void = rows[row].fate == DEFERRED and now_s >= rows[row].done_s + one.hub_s
                        void |= (flags & done) != 0
                    if not void and is_held and direction == 1 and 0 < limit <= one.held:
                        wake_s = _merged_s(rows, held, one, site, row, limit, now_s)
                        if wake_s > now_s:
                            break
                    one.readies[direction] -= 1
                    _pop_row(ready, site, direction, one.readies[direction])
                    if any_moved and rows[row].tracked:
                        tasks[row, site].queued[direction] = 0
                    if void:
                        continue
                    flop = work[stage, direction]
                    if direction == 1 and stage < last and not flags & KEPT:
                        flop += work[stage, 0]
                    one.row = row
                    one.direction = direction
                    one.begin_s = now_s
                    one.end_s = finish_s(tflops, site, now_s + overhead_s, flop)
                    break
                if one.row >= 0:
                    break
        if one.row >= 0:
            wake_s = one.end_s
            if one.urgent > 0:
                wake_s = min(wake_s, arrivals[0, site].time_s)
        elif one.arrivals > 0:
            wake_s = min(wake_s, arrivals[0, site].time_s)
        clock[site] = wake_s
    counts[0].undecided = undecided
    counts[0].tasks += ended
    counts[0].transfers += transfers
    counts[0].last_s = last_s
    if undecided > 0 and until_s < np.inf:
        hear_all(step, until_s)


@njit(cache=True, error_model="numpy")
def _drop_held(held: np.ndarray, one: Any, site: int, row: int) -> None:
    """A gradient that will not be merged."""
    count = 0
    for index in range(one.held):
        if held[site, index] != row:
            held[site, count] = held[site, index]
            count += 1
    one.held = count


@njit(cache=True, error_model="numpy")
def _merged_s(
    rows: np.ndarray,
    held: np.ndarray,
    one: Any,
    site: int,
    row: int,
    limit: int,
    now_s: float,
) -> float:
    """A site that holds as many gradients as it may: when it can go on with a row."""
    least = row + 1
    soon_s = np.inf
    count = 0
    for index in range(one.held):
        other = held[site, index]
        gone_s = rows[other].done_s + one.hub_s
        if gone_s > now_s:
            held[site, count] = other
            count += 1
            least = min(least, other)
            soon_s = min(soon_s, gone_s)
    one.held = count
    return soon_s if count >= limit and least < row else now_s


@njit(cache=True, error_model="numpy")
def _wake_holders(
    made_at: np.ndarray, sites: np.ndarray, clock: np.ndarray, row: int, done_s: float
) -> None:
    """A merge frees a gradient at every holder: one that waits for it may go on."""
    for stage in range(made_at.shape[2]):
        site = made_at[1, row, stage]
        if site < 0:
            continue
        wake_s = done_s + sites[site].hub_s
        if sites[site].row < 0 and wake_s < clock[site]:
            clock[site] = wake_s


@njit(cache=True, error_model="numpy")
def halt(step: Step, until_s: float) -> None:
    """Sites neither act nor take anything in until then; what would end meanwhile ends then."""
    for site in range(len(step.sites)):
        one = step.sites[site]
        if one.row >= 0:
            one.end_s = max(one.end_s, until_s)
        for index in range(one.arrivals):
            arrival = step.arrivals[index, site]
            arrival.time_s = max(arrival.time_s, until_s)
        if np.isfinite(step.clock[site]):
            step.clock[site] = max(step.clock[site], until_s)


# --- rerouting -----------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def watch(
    step: Step,
    margin_errors: float,
    hop_s: float,
    deadline_s: float,
    steal_s: float,
    tick_s: float,
    interval_s: float,
    until_s: float,
) -> float:
    """Let things happen through all control intervals in which there is nothing to decide.

    Args:
        step: state; changed.
        margin_errors: as for ``Members``.
        hop_s: time to hand a tensor to the next stage.
        deadline_s: until when rows are complete or deferred.
        steal_s: lag behind the common finish of a pool from which work should move.
        tick_s: next control interval.
        interval_s: between two control intervals.
        until_s: no further than that.

    Returns:
        The next control interval: the one that has been reached, unless ``until_s`` comes first or
        the step is done.
    """
    while True:
        advance(step, min(tick_s, until_s), False)
        if step.counts[0].undecided <= 0 or until_s <= tick_s or tick_s > deadline_s:
            return tick_s
        if suspects(step, margin_errors, hop_s, tick_s, deadline_s - tick_s, steal_s):
            return tick_s
        tick_s += interval_s


@njit(cache=True, error_model="numpy")
def suspects(
    step: Step, margin_errors: float, hop_s: float, now_s: float, left_s: float, steal_s: float
) -> bool:
    """A control interval: whether a site could have to give up work, a key lacks an owner.

    A look at sums instead of at every key. Once a key has moved, or where reports overtake each
    other, what is runnable takes a look at every key.

    Args:
        step: open work of the sites, and what the coordinator knows of them; takes down which
            sites have something to do.
        margin_errors: as for ``Members``.
        hop_s: time to hand a tensor to the next stage.
        now_s: present time.
        left_s: time left until the admission deadline.
        steal_s: lag behind the common finish of a pool from which work should move.
    """
    if step.counts[0].moved > 0 or step.counts[0].orphans > 0 or not step.in_order:
        return True
    stages = len(step.work)
    sites = len(step.sites)
    longest = np.max(step.work[:, 0] + step.work[:, 1])
    owned_s = np.zeros(sites)
    rate = np.zeros(stages)
    holders = np.zeros(stages)
    level_s = np.zeros(stages)
    for site in range(sites):
        one, member = step.sites[site], step.members[site]
        stage = one.stage
        if stage < 0:
            continue
        factor = max(1.0 + member.error + margin_errors * member.spread, 0.05)
        pace = factor / (member.tflops * 1e12)
        owned_s[site] = one.open_flop * pace
        if one.runnable == 0:
            member.busy_since_s = np.nan
        else:
            if np.isnan(member.busy_since_s):
                member.busy_since_s = now_s
            owned_s[site] += max(now_s - member.busy_since_s - longest * pace, 0.0)
        rate[stage] += 1.0 / pace
        holders[stage] += 1.0
        level_s[stage] += owned_s[site] / pace
    tail_s = np.zeros(stages + 1)
    head_s = 0.0
    for stage in range(stages):
        mean = holders[stage] / rate[stage]
        level_s[stage] /= rate[stage]
        tail_s[stage + 1] = tail_s[stage] + step.work[stage, 1] * mean + hop_s
        if stage < stages - 1:
            head_s += step.work[stage, 0] * mean + hop_s
    rounding = 1.0 + 1e-9  # sums by key and by task differ in their last digits
    if (head_s + tail_s[stages - 1]) * rounding > left_s and np.any(step.rows["fate"] == WAITING):
        return True
    for site in range(sites):
        one = step.sites[site]
        # a site that has done everything may be called late, but has nothing to give up
        if one.stage >= 0 and one.open_flop > 1e-6 * longest:
            if (owned_s[site] + tail_s[one.stage]) * rounding > left_s:
                return True
            if owned_s[site] * rounding > level_s[one.stage] + steal_s:
                return True
    return False


@njit(cache=True, error_model="numpy")
def defer(step: Step, row: int, now_s: float) -> None:
    """Take a row that is not complete for all the coordinator knows out of the step."""
    one, sites = step.rows[row], step.sites
    in_work = one.fate == IN_WORK
    one.fate = DEFERRED
    one.done_s = now_s
    step.counts[0].undecided -= 1
    step.counts[0].deferred += 1
    step.counts[0].last_s = max(step.counts[0].last_s, now_s)
    if step.unmerged_limit > 0:
        _wake_holders(step.made_at, sites, step.clock, row, now_s)
    for stage in range(step.keys.shape[1]):
        site, known = step.keys[row, stage].owner, step.known[row, stage]
        if one.tracked:
            if known.committed:
                _reject(step, known.holder, row, known.held, now_s)
            _withdraw(step, row, stage, now_s)
        elif in_work:
            _arrive(step, site, now_s + sites[site].hub_s, row, DISCARD)
        elif site >= 0:
            sites[site].open_flop -= step.work[stage, 0] + step.work[stage, 1]


# --- rows that have moved ------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def move(step: Step, row: int, stage: int, target: int, now_s: float) -> None:
    """Give a key another owner; ``settle`` tells everybody once all keys have moved."""
    keys, sites = step.keys, step.sites
    source = keys[row, stage].owner
    flop = step.work[stage, 0] + step.work[stage, 1]
    if source >= 0:
        sites[source].open_flop -= flop
    else:
        step.counts[0].orphans -= 1
    sites[target].open_flop += flop
    if step.rows[row].fate == IN_WORK:
        step.counts[0].moved += 1
        if not step.rows[row].tracked:
            _track(step, row, now_s)
        _withdraw(step, row, stage, now_s)
        _soil(step, row)
    keys[row, stage].owner = target


@njit(cache=True, error_model="numpy")
def _track(step: Step, row: int, now_s: float) -> None:
    """Follow every message about a row from now on; what has happened so far is implied."""
    keys, sites, links, counts = step.keys, step.sites, step.links, step.counts[0]
    step.rows[row].tracked = 1
    last = keys.shape[1] - 1
    for site in range(len(sites)):
        _blank(step, row, site)
    for stage in range(last + 1):
        site, flags = keys[row, stage].owner, keys[row, stage].flags
        task, known = step.tasks[row, site], step.known[row, stage]
        known.attempt = task.told = counts.attempts
        counts.attempts += 1
        known.committed = 0
        task.told_runs[0], task.told_runs[1] = stage < last, 1
        task.told_keeps = 1
        task.told_from[0] = keys[row, stage - 1].owner if stage > 0 else FROM_DATA
        task.told_from[1] = keys[row, stage + 1].owner if stage < last else FROM_DATA
        runnable = _runnable(flags, stage == last)
        told_s = step.rows[row].admitted_s + sites[site].hub_s
        if told_s > now_s:
            _send_assign(step, site, row, told_s)
        else:
            task.attempt, task.keeps = task.told, 1
            task.kept = (flags & KEPT > 0) and not flags & BACKWARD_DONE
            if flags & BACKWARD_DONE:
                task.done = task.held = task.attempt
        for direction in range(2):
            done = FORWARD_DONE if direction == 0 else BACKWARD_DONE
            peer = task.told_from[direction]
            known.output[direction] = -1
            if told_s <= now_s:
                task.queued[direction] = step.sites[site].row != row and direction == runnable
                task.runs[direction] = task.told_runs[direction] and not flags & done
                task.source[direction] = peer
                task.input[direction] = flags & (1 << direction) > 0
            if told_s <= now_s and peer >= 0:
                task.asked[direction] = peer
                made = keys[row, stage + 2 * direction - 1].flags & done
                asks_s = told_s + links[site, peer].latency_s
                if not made and asks_s > now_s:
                    kind = (site << KIND_BITS) + ASK_ACTIVATION + direction
                    _arrive(step, peer, asks_s, row, kind)
                elif not made:
                    step.parked[direction, row, peer, sites[site].place] += 1
            if flags & done and not (direction == 0 and stage == last):
                task.output[direction] = 1
                seen_s = step.done_s[direction, row, stage] + sites[site].hub_s
                if seen_s > now_s:
                    _send_event(step, seen_s, row, COMPLETED, site, direction, -1)
                else:
                    task.told_runs[direction] = 0
                    known.output[direction] = site
                    if direction == 1:
                        known.committed, known.holder, known.held = 1, site, task.attempt


@njit(cache=True, error_model="numpy")
def _blank(step: Step, row: int, site: int) -> None:
    """A site knows nothing of a row, nor has it been told anything."""
    task = step.tasks[row, site]
    task.drop_s = -np.inf
    task.attempt = task.done = task.held = task.drop = task.told = -1
    task.kept = task.keeps = task.told_keeps = 0
    for direction in range(2):
        task.asked[direction] = -1
        task.runs[direction] = task.told_runs[direction] = task.queued[direction] = 0
        task.input[direction] = task.output[direction] = 0
        for place in range(step.parked.shape[3]):
            step.parked[direction, row, site, place] = 0


@njit(cache=True, error_model="numpy")
def _arrive(step: Step, site: int, time_s: float, row: int, kind: int) -> None:
    """``arrive`` of a step."""
    arrive(step.sites, step.clock, step.arrivals, site, time_s, row, kind)


@njit(cache=True, error_model="numpy")
def _send_assign(step: Step, site: int, row: int, there_s: float) -> None:
    """The coordinator tells a site what to run of a row, and where its inputs come from."""
    place = step.counts[0].mails % len(step.mails)
    step.counts[0].mails += 1
    mail, task = step.mails[place], step.tasks[row, site]
    mail.attempt, mail.keeps = task.told, task.told_keeps
    for direction in range(2):
        mail.runs[direction] = task.told_runs[direction]
        mail.source[direction] = task.told_from[direction]
    _arrive(step, site, there_s, row, (place << KIND_BITS) + ASSIGN)


@njit(cache=True, error_model="numpy")
def _send_event(
    step: Step, there_s: float, row: int, kind: int, site: int, direction: int, source: int
) -> None:
    """A site reports what it has done of a row, or what it misses, to the coordinator."""
    place = step.counts[0].mails % len(step.mails)
    step.counts[0].mails += 1
    mail = step.mails[place]
    mail.attempt = step.tasks[row, site].attempt
    mail.site, mail.direction = site, direction
    mail.source[0] = source
    what = (place << KIND_BITS) + kind
    _push_arrival(step.complete, 0, step.counts[0].complete, there_s, row, what)
    step.counts[0].complete += 1


# What a site does, as in ``SimulatedSite``.


@njit(cache=True, error_model="numpy")
def _take(step: Step, site: int, now_s: float, row: int, kind: int) -> None:
    """A message about a row that has moved reaches a site."""
    task, what, payload = step.tasks[row, site], kind & KIND_MASK, kind >> KIND_BITS
    if what <= GRADIENT:
        if task.attempt >= 0:
            task.input[what] = 1
            _offer(step, site, row)
    elif what == DISCARD:
        _discard(step, site, row, payload)
    elif what in (ASK_ACTIVATION, ASK_GRADIENT):
        _answer(step, site, payload, row, what - ASK_ACTIVATION, now_s)
    elif what == ASSIGN:
        _assigned(step, site, row, payload, now_s)
    elif what == MISSING:
        if task.attempt >= 0 and task.asked[payload & 1] == payload >> 1:
            task.asked[payload & 1] = -1
            seen_s = now_s + step.sites[site].hub_s
            _send_event(step, seen_s, row, MISSED, site, payload & 1, payload >> 1)
    else:
        _free(step, site, row)


@njit(cache=True, error_model="numpy")
def _assigned(step: Step, site: int, row: int, place: int, now_s: float) -> None:
    """A site is told what to run: ``SimulatedSite._on_assign`` and ``_fetch``."""
    task, mail, one = step.tasks[row, site], step.mails[place], step.sites[site]
    if task.drop_s == now_s:  # sent before it, together
        _discard(step, site, row, task.drop)
    task.attempt, task.keeps = mail.attempt, mail.keeps
    for direction in range(2):
        task.runs[direction] = mail.runs[direction]
        task.source[direction] = mail.source[direction]
    if task.done == task.attempt:
        task.runs[1] = 0
    if task.runs[1] and task.keeps and task.held >= 0:
        _finish(step, site, row, 1, 0.0, now_s)
    if task.runs[0] and task.output[0]:
        _finish(step, site, row, 0, 0.0, now_s)
    for direction in range(2):
        wanted = task.runs[direction] or (direction == 0 and task.runs[1] and not task.kept)
        source = task.source[direction]
        if wanted and source >= 0 and not task.input[direction] and task.asked[direction] != source:
            task.asked[direction] = source
            there_s = now_s + step.links[site, source].latency_s
            kind = (site << KIND_BITS) + ASK_ACTIVATION + direction
            _arrive(step, source, there_s, row, kind)
    _offer(step, site, row)
    lacks = task.runs[1] and not task.runs[0] and task.source[0] == NOT_YET
    if lacks and not task.kept and not task.input[0]:
        _send_event(step, now_s + one.hub_s, row, MISSED, site, 0, site)


@njit(cache=True, error_model="numpy")
def _finish(step: Step, site: int, row: int, direction: int, took_s: float, now_s: float) -> None:
    """A task is done, or was done already: report it, and send its output to those who wait.

    As ``SimulatedSite._finish`` does.
    """
    task, one = step.tasks[row, site], step.sites[site]
    task.runs[direction] = 0
    if direction == 0:
        task.kept = 1
        _offer(step, site, row)
    else:
        task.done = task.attempt
        task.kept = 0
        if task.keeps:
            if step.unmerged_limit > 0 and task.held < 0:
                step.held[site, one.held] = row
                one.held += 1
            task.held = task.attempt
    if took_s > 0.0:
        task.output[direction] = 1
    seen_s = now_s + one.hub_s
    _send_event(step, seen_s, row, COMPLETED, site, direction, -1)
    if took_s == 0.0 and step.members[site].reports < REPORTS:
        _report(step.members[site], step.reports, site, seen_s, took_s, row, direction)
    to = one.stage + 1 if direction == 0 else one.stage - 1
    if 0 <= to < len(step.pools):
        for place in range(step.pools.shape[1]):
            target = step.pools[to, place]
            for _ in range(step.parked[direction, row, site, place] if target >= 0 else 0):
                _ship_to(step, site, target, row, direction, now_s)
            step.parked[direction, row, site, place] = 0


@njit(cache=True, error_model="numpy")
def _ship_to(step: Step, site: int, target: int, row: int, direction: int, now_s: float) -> None:
    """Send an output to the site that asked for it."""
    _arrive(step, target, ship(step.links, site, target, now_s), row, direction)
    step.counts[0].transfers += 1


@njit(cache=True, error_model="numpy")
def _answer(step: Step, site: int, peer: int, row: int, direction: int, now_s: float) -> None:
    """A consumer asks for an output.

    As ``SimulatedSite.requested`` does.
    """
    task = step.tasks[row, site]
    if task.output[direction]:
        _ship_to(step, site, peer, row, direction, now_s)
    elif task.attempt >= 0 and task.runs[direction]:
        step.parked[direction, row, site, step.sites[peer].place] += 1
    else:
        there_s = now_s + step.links[site, peer].latency_s
        kind = (((site << 1) + direction) << KIND_BITS) + MISSING
        _arrive(step, peer, there_s, row, kind)


@njit(cache=True, error_model="numpy")
def _discard(step: Step, site: int, row: int, attempt: int) -> None:
    """An attempt has ended: ``SimulatedSite._on_discard``."""
    task, one = step.tasks[row, site], step.sites[site]
    if task.attempt == attempt:
        task.attempt = -1
        task.kept = 0
        task.asked[0] = task.asked[1] = -1
        if one.row == row:
            one.row = -1
    if task.held == attempt:
        task.held = -1
        _drop_held(step.held, one, site, row)


@njit(cache=True, error_model="numpy")
def _free(step: Step, site: int, row: int) -> None:
    """A row is complete: nothing of it is retained but its gradient.

    As ``SimulatedSite._free`` does.
    """
    task, one = step.tasks[row, site], step.sites[site]
    task.attempt = -1
    task.kept = 0
    if one.row == row:
        one.row = -1
    for direction in range(2):
        task.asked[direction] = -1
        task.input[direction] = task.output[direction] = 0
        for place in range(step.pools.shape[1]):
            step.parked[direction, row, site, place] = 0


@njit(cache=True, error_model="numpy")
def _offer(step: Step, site: int, row: int) -> None:
    """Queue the tasks of a row that can run now.

    As ``SimulatedSite._offer`` does.
    """
    task, one = step.tasks[row, site], step.sites[site]
    for direction in range(2):
        if not task.queued[direction] and _can_run(task, direction):
            task.queued[direction] = 1
            _push_row(step.ready, site, direction, one.readies[direction], row)
            one.readies[direction] += 1


@njit(cache=True, error_model="numpy")
def _can_run(task: Any, direction: int) -> bool:
    """``SimulatedSite._is_ready``, but for the limit of unmerged gradients."""
    if task.attempt < 0 or not task.runs[direction]:
        return False
    has_activation = task.source[0] == FROM_DATA or task.input[0]
    if direction == 0:
        return bool(has_activation)
    if task.runs[0] and not task.kept:
        return False
    has_gradient = task.source[1] == FROM_DATA or task.input[1]
    return bool(has_gradient and (task.kept or has_activation))


# What the coordinator does, as in ``StepCycle`` and ``Dispatcher``.


@njit(cache=True, error_model="numpy")
def _withdraw(step: Step, row: int, stage: int, now_s: float) -> None:
    """End the attempt at a key.

    As ``Dispatcher.withdraw`` does.
    """
    site, known = step.keys[row, stage].owner, step.known[row, stage]
    if known.attempt >= 0 and step.tasks[row, site].told >= 0:
        task = step.tasks[row, site]
        task.drop, task.drop_s = task.told, now_s + step.sites[site].hub_s
        _arrive(step, site, task.drop_s, row, (task.told << KIND_BITS) + DISCARD)
        task.told = -1
    known.attempt = -1


@njit(cache=True, error_model="numpy")
def settle(step: Step, now_s: float) -> None:
    """Tell the executors of rows whatever they do not know yet.

    As ``StepCycle.settle`` does.
    """
    if step.counts[0].dirty == 0:
        return
    step.counts[0].dirty = step.counts[0].unsettled = 0
    for row in range(len(step.rows)):
        if step.rows[row].dirty:
            _reconcile(step, row, now_s)
            step.rows[row].dirty = 0


@njit(cache=True, error_model="numpy")
def _learn(step: Step, row: int, kind: int, now_s: float) -> bool:
    """Something about a row that has moved reaches the coordinator; whether the row is complete."""
    mail, what = step.mails[kind >> KIND_BITS], kind & KIND_MASK
    is_complete = False
    if what == COMPLETED:
        heard = _completed(step, row, mail, now_s)
        is_complete = heard == 2
        if is_complete:
            _release(step, row, now_s)
        if heard > 0:
            settle(step, now_s)
    elif what == MISSED:
        if _missed(step, row, mail, now_s):
            settle(step, now_s)
    elif what == SETTLE:
        settle(step, now_s)
    return is_complete


@njit(cache=True, error_model="numpy")
def _completed(step: Step, row: int, mail: Any, now_s: float) -> int:
    """A site reports a task: 0 if that is rejected, 2 if the row is complete with it.

    As ``StepCycle.task_completed`` does.
    """
    site, direction, stage = mail.site, mail.direction, step.sites[mail.site].stage
    known, task = step.known[row, stage], step.tasks[row, site]
    if step.rows[row].fate == DEFERRED:
        return 0
    holds = known.committed and known.holder == site and known.held == mail.attempt
    if known.attempt != mail.attempt or step.keys[row, stage].owner != site:
        if not holds:
            _reject(step, site, row, mail.attempt, now_s)
        return 0
    remade = task.told >= 0 and not task.told_keeps
    if task.told >= 0:
        task.told_runs[direction] = 0
    if remade:
        _soil(step, row)
    if direction == 0 or remade:
        if known.output[direction] < 0:
            known.output[direction] = site
        return 1
    if known.committed:
        if not holds:
            _reject(step, site, row, mail.attempt, now_s)
        return 1
    known.committed, known.holder, known.held = 1, site, mail.attempt
    known.output[1] = site
    step.made_at[1, row, stage] = site
    for at in range(step.keys.shape[1]):
        if not step.known[row, at].committed:
            return 1
    return 2


@njit(cache=True, error_model="numpy")
def _soil(step: Step, row: int) -> None:
    """Executors of a row have to be told something."""
    step.rows[row].dirty = 1
    step.counts[0].dirty += 1


@njit(cache=True, error_model="numpy")
def _reject(step: Step, site: int, row: int, attempt: int, now_s: float) -> None:
    """Have what came of an attempt dropped: ``StepCycle._reject``."""
    there_s = now_s + step.sites[site].hub_s
    _arrive(step, site, there_s, row, (attempt << KIND_BITS) + DISCARD)


@njit(cache=True, error_model="numpy")
def _release(step: Step, row: int, now_s: float) -> None:
    """A row is complete: whoever retains something of it may drop it.

    As ``StepCycle._release`` does.
    """
    for stage in range(step.keys.shape[1]):
        known = step.known[row, stage]
        for turn in range(3):
            site = known.holder if turn == 2 else known.output[turn]
            if site >= 0:
                _arrive(step, site, now_s + step.sites[site].hub_s, row, FREE)
        known.output[0] = known.output[1] = -1


@njit(cache=True, error_model="numpy")
def _missed(step: Step, row: int, mail: Any, now_s: float) -> bool:
    """A site lacks an input; whether those that it concerns are told at once.

    As ``StepCycle.input_missing`` does.
    """
    site, direction, stage = mail.site, mail.direction, step.sites[mail.site].stage
    if step.rows[row].fate == DEFERRED or step.known[row, stage].attempt != mail.attempt:
        return False
    _soil(step, row)
    if direction == 0:
        _lose_output(step, row, stage, site, 0, now_s)
        if mail.source[0] == site:
            return True
    step.tasks[row, site].told = -1
    producer = stage - 1 if direction == 0 else stage + 1
    if 0 <= producer < step.keys.shape[1]:
        source = mail.source[0]
        _lose_output(step, row, producer, source, direction, now_s)
        task = step.tasks[row, source]
        if task.told >= 0 and task.told_runs[direction]:
            _settle_later(step, now_s)
            return False
    return True


@njit(cache=True, error_model="numpy")
def _settle_later(step: Step, now_s: float) -> None:
    """Executors are told with the next report of any site, be it under way already."""
    step.counts[0].unsettled = 1
    for site in range(len(step.sites)):
        for index in range(step.members[site].reports):
            seen_s = step.reports[site, index].seen_s
            if seen_s > now_s:
                _push_arrival(step.complete, 0, step.counts[0].complete, seen_s, 0, SETTLE)
                step.counts[0].complete += 1
                break


@njit(cache=True, error_model="numpy")
def _lose_output(step: Step, row: int, stage: int, site: int, direction: int, now_s: float) -> None:
    """A site turned out not to have an output any more.

    As ``Dispatcher.lost_output`` does.
    """
    known, task = step.known[row, stage], step.tasks[row, site]
    if known.output[direction] != site:
        return
    known.output[direction] = -1
    expected = task.told >= 0 and task.told_runs[direction]
    if step.keys[row, stage].owner != site or expected:
        return
    if known.committed:
        known.attempt = -1
        step.keys[row, stage].owner = -1
    else:
        _withdraw(step, row, stage, now_s)


@njit(cache=True, error_model="numpy")
def _reconcile(step: Step, row: int, now_s: float) -> None:
    """Tell the executors of a row whatever they do not know yet.

    As ``Dispatcher.reconcile`` does.
    """
    if step.rows[row].fate == WAITING or step.rows[row].fate == DEFERRED:
        return
    keys, known, stages = step.keys, step.known, step.keys.shape[1]
    runs = np.zeros((2, stages), dtype=np.bool_)
    for stage in range(stages):
        lost = stage > 0 and runs[1, stage - 1] and known[row, stage].output[1] < 0
        runs[1, stage] = not known[row, stage].committed or lost
    for stage in range(stages - 2, -1, -1):
        after = known[row, stage + 1]
        owner = keys[row, stage + 1].owner
        kept = not after.committed and owner >= 0 and owner == after.output[0]
        wanted = runs[0, stage + 1] or (runs[1, stage + 1] and not kept)
        runs[0, stage] = wanted and known[row, stage].output[0] < 0
    for stage in range(stages):
        if runs[0, stage] or runs[1, stage]:
            _grant(step, row, stage)
    for stage in range(stages):
        if (runs[0, stage] or runs[1, stage]) and known[row, stage].attempt >= 0:
            _tell(step, row, stage, runs, now_s)


@njit(cache=True, error_model="numpy")
def _grant(step: Step, row: int, stage: int) -> None:
    """Authorise an attempt of the owner; an output made anew is the holder's business.

    As ``Dispatcher._ensure_grant`` does.
    """
    key, known = step.keys[row, stage], step.known[row, stage]
    if known.committed:
        if known.attempt >= 0 and key.owner >= 0:
            task = step.tasks[row, key.owner]
            expected = task.told_runs[0] or task.told_runs[1]
            if task.told >= 0 and not task.told_keeps and expected:
                return
        key.owner = known.holder
    elif key.owner < 0 or known.attempt >= 0:
        return
    known.attempt = step.counts[0].attempts
    step.counts[0].attempts += 1


@njit(cache=True, error_model="numpy")
def _tell(step: Step, row: int, stage: int, runs: np.ndarray, now_s: float) -> None:
    """Send an assignment if it differs from what was told: ``Dispatcher._tell``."""
    known, site = step.known[row, stage], step.keys[row, stage].owner
    task = step.tasks[row, site]
    first, second = runs[0, stage], runs[1, stage]
    activation = FROM_DATA if stage == 0 else _source(step, row, stage - 1, 0, runs)
    gradient = NOT_YET
    if second:
        last = stage == step.keys.shape[1] - 1
        gradient = FROM_DATA if last else _source(step, row, stage + 1, 1, runs)
    keeps = not known.committed
    if task.told == known.attempt:
        if keeps and known.output[0] == site:
            activation = task.told_from[0]
        same = task.told_from[0] == activation and task.told_from[1] == gradient
        if same and task.told_runs[0] >= first and task.told_runs[1] >= second:
            return
    task.told, task.told_keeps = known.attempt, keeps
    task.told_runs[0], task.told_runs[1] = first, second
    task.told_from[0], task.told_from[1] = activation, gradient
    _send_assign(step, site, row, now_s + step.sites[site].hub_s)


@njit(cache=True, error_model="numpy")
def _source(step: Step, row: int, stage: int, direction: int, runs: np.ndarray) -> int:
    """Where an input comes from.

    As ``Dispatcher._source`` does.
    """
    known = step.known[row, stage]
    if known.output[direction] >= 0:
        return int(known.output[direction])
    if runs[direction, stage] and known.attempt >= 0:
        return int(step.keys[row, stage].owner)
    return NOT_YET
