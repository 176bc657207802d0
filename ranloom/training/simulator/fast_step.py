"""One training step as a compiled discrete-event loop: the fast path of the simulator.

The same world as ``world`` and ``site`` describe (serial sites and links, requests, control
messages with their delays, windows, held gradients), for a step in which no site dies and no
request overtakes the order that it depends on: a detour over the coordinator is never shorter than
the direct way. What follows from the time of one thing alone (the arrival of a report, a merge) is
computed when its cause happens, so that only ends of tasks, arrivals of tensors and completions of
micro-batches are events. The loop stops at a given time and can be taken up again, which is when
``fast_run`` asks the rerouting policy.

A key that changes hands in work keeps one record of its old owner, which goes on until it is told
and whose outputs reach those who asked. What is not followed: a second old owner that does not know
yet, a producer and its consumer that move in the same control interval while both are at work, and
requests that meet a site which has just been told to drop the task. Runs with these differ.

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
    BACKWARD_DONE,
    COMPLETE,
    DEFERRED,
    DISCARD,
    FORWARD_DONE,
    GRADIENT,
    HAS_ACTIVATION,
    HAS_GRADIENT,
    IN_WORK,
    KEPT,
    KIND_BITS,
    REPORTS,
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
    while at > 0:
        parent = (at - 1) >> 1
        if heaps[direction, parent, site] <= row:
            break
        heaps[direction, at, site] = heaps[direction, parent, site]
        at = parent
    heaps[direction, at, site] = row


@njit(cache=True, error_model="numpy")
def _pop_row(heaps: np.ndarray, site: int, direction: int, count: int) -> None:
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
            sites[first].fed_s = min(sites[first].fed_s, now_s)
            sites[first].backlog += 1
            arrive(sites, clock, arrivals, first, there_s, row, ACTIVATION)
            return int(row)
    return -1


@njit(cache=True, error_model="numpy")
def expect(step: Step, row: int, stage: int, told_s: float) -> None:
    """When the requests of a key that is assigned now reach the producers of its inputs."""
    keys, made_at, links = step.keys, step.made_at, step.links
    site = keys[row, stage].owner
    asks_s = told_s + step.sites[site].hub_s
    if stage > 0:
        before = keys[row, stage - 1]
        made = before.flags & FORWARD_DONE
        source = made_at[0, row, stage - 1] if made else before.owner
        step.asked_s[0, row, stage] = asks_s + links[site, source].latency_s
    if stage < keys.shape[1] - 1:
        after = keys[row, stage + 1]
        made = after.flags & BACKWARD_DONE
        source = made_at[1, row, stage + 1] if made else after.owner
        step.asked_s[1, row, stage] = asks_s + links[site, source].latency_s


@njit(cache=True, error_model="numpy")
def _seen_s(step: Step, row: int, stage: int, direction: int) -> float:
    """When the coordinator knows of a task, infinite if it is not done."""
    site = step.made_at[direction, row, stage]
    seen_s = step.done_s[direction, row, stage] + step.sites[site].hub_s
    return float(seen_s) if site >= 0 else np.inf


@njit(cache=True, error_model="numpy")
def _expect_all(step: Step, row: int, told_s: float) -> None:
    for stage in range(step.keys.shape[1]):
        expect(step, row, stage, told_s)


@njit(cache=True, error_model="numpy")
def _hear(
    keys: np.ndarray,
    made_at: np.ndarray,
    rows: np.ndarray,
    one: Any,
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
    count = member.reports
    done = 0
    while done < count and reports[site, done].seen_s <= until_s:
        report = reports[site, done]
        _hear_budgets(one, member, tflops, site, report.seen_s, budget_period_s)
        row, direction = report.row, report.direction
        flop = work[one.stage, direction]
        _hear_completion(member, report.seen_s, report.seconds, flop, error_weight)
        if keys[row, one.stage].owner == site and rows[row].fate != DEFERRED:
            one.open_flop -= flop
            if direction == 1 and made_at[0, row, one.stage] != site:
                one.open_flop -= work[one.stage, 0]
        done += 1
    if done > 0:
        member.reports = count - done
        for index in range(count - done):
            reports[site, index] = reports[site, index + done]
    _hear_budgets(one, member, tflops, site, np.nextafter(until_s, np.inf), budget_period_s)


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
    member.heard_s = seen_s
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
    keys, made_at, rows, tflops, work = step.keys, step.made_at, step.rows, step.tflops, step.work
    for site in range(len(sites)):
        member = members[site]
        if member.reports > 0 or member.next_report_s + sites[site].hub_s <= until_s:
            _hear(
                keys,
                made_at,
                rows,
                sites[site],
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
def _take_in(
    keys: np.ndarray,
    rows: np.ndarray,
    moved: np.ndarray,
    left: np.ndarray,
    one: Any,
    site: int,
    at_s: float,
    row: int,
    kind: int,
    any_moved: bool,
) -> int:
    """An input has arrived: flags of its key at the site, -1 if it is not wanted any more."""
    if rows[row].fate == DEFERRED and at_s >= rows[row].done_s + one.hub_s:
        return -1
    stage = one.stage
    last = keys.shape[1] - 1
    key = keys[row, stage]
    if key.owner == site:
        if any_moved:
            if moved[row, stage].site >= 0 and at_s < moved[row, stage].taken_s:
                return -1
            at = stage - 1 if kind == ACTIVATION else stage + 1
            if 0 <= at <= last and moved[row, at].site >= 0 and not key.flags & (1 << kind):
                moved[row, at].got_s[kind] = min(moved[row, at].got_s[kind], at_s)
        key.flags |= 1 << kind
        return int(key.flags)
    if any_moved and moved[row, stage].site == site and at_s < moved[row, stage].gone_s:
        moved[row, stage].flags |= 1 << kind
        left[row, site] |= 1 << kind
        return int(moved[row, stage].flags)
    return -1


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
def look_around(step: Step, now_s: float) -> None:
    """Have busy sites take in what has reached them: moves depend on who has what."""
    any_moved = step.counts[0].moved > 0
    last = step.keys.shape[1] - 1
    for site in range(len(step.sites)):
        one = step.sites[site]
        while one.arrivals > 0 and step.arrivals[0, site].time_s <= now_s:
            arrival = step.arrivals[0, site]
            at_s, row, kind = arrival.time_s, arrival.row, arrival.kind
            if kind >= DISCARD:
                break
            one.arrivals -= 1
            _pop_arrival(step.arrivals, site, one.arrivals)
            flags = _take_in(
                step.keys,
                step.rows,
                step.moved,
                step.left,
                one,
                site,
                at_s,
                row,
                kind,
                any_moved,
            )
            direction = _runnable(flags, one.stage == last)
            if direction >= 0:
                _push_row(step.ready, site, direction, one.readies[direction], row)
                one.readies[direction] += 1


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
    moved, left, parked, pools = step.moved, step.left, step.parked, step.pools
    made_at, done_s, asked = step.made_at, step.done_s, step.asked_s
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
    tasks = transfers = 0
    last_s = counts[0].last_s
    completes = counts[0].complete
    complete_s = complete[0, 0].time_s if completes > 0 else np.inf
    hears_at_once = not any_moved and counts[0].deferred == 0
    site, soon_s = len(clock), -np.inf
    while undecided > 0 or drain:
        while site < len(clock) and clock[site] >= soon_s:
            site += 1
        if site == len(clock):
            now_s = _earliest(clock)
            if completes > 0 and complete_s <= now_s:
                now_s = complete_s
                if now_s >= until_s:
                    break
                row = complete[0, 0].row
                completes -= 1
                _pop_arrival(complete, 0, completes)
                complete_s = complete[0, 0].time_s if completes > 0 else np.inf
                if rows[row].fate == IN_WORK and rows[row].committed == last + 1:
                    rows[row].fate = COMPLETE
                    rows[row].done_s = now_s
                    undecided -= 1
                    last_s = max(last_s, now_s)
                    if limit > 0:
                        _wake_holders(made_at, sites, clock, row, now_s)
                    new = _admit(
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
                    if any_moved and new >= 0:
                        _expect_all(step, new, now_s)
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
            one.backlog -= 1
            tasks += 1
            took_s = now_s - one.begin_s
            one.busy_s += took_s
            member = members[site]
            seen_s = now_s + one.hub_s
            if hears_at_once and member.reports == 0 and seen_s <= until_s:
                if member.next_report_s + one.hub_s < seen_s:
                    _hear_budgets(one, member, tflops, site, seen_s, budget_period_s)
                flop = work[stage, direction]
                _hear_completion(member, seen_s, took_s, flop, error_weight)
                one.open_flop -= flop
            else:
                if member.reports == REPORTS:
                    known_s = max(now_s, reports[site, 0].seen_s)
                    _hear(
                        keys,
                        made_at,
                        rows,
                        one,
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
            key = keys[row, stage]
            mine = key.owner == site
            flags = key.flags if mine else moved[row, stage].flags
            to = stage + 1 if direction == 0 else stage - 1
            if direction == 0:
                flags |= KEPT | FORWARD_DONE
                if flags & HAS_GRADIENT:
                    _push_row(ready, site, 1, one.readies[1], row)
                    one.readies[1] += 1
            else:
                flags |= BACKWARD_DONE
                if limit > 0:
                    held[site, one.held] = row
                    one.held += 1
            if mine:
                key.flags = flags
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
                        _push_arrival(complete, 0, completes, all_s, row, 0)
                        completes += 1
                        complete_s = complete[0, 0].time_s
            else:
                moved[row, stage].flags = flags
                left[row, site] |= flags & FORWARD_DONE
            if to >= 0 and not (direction == 1 and keys[row, to].flags & BACKWARD_DONE):
                if any_moved and moved[row, to].site >= 0:
                    for place in range(pools.shape[1]):
                        target = pools[to, place]
                        if target >= 0 and parked[direction, row, target] < np.inf:
                            asked_s = max(now_s, parked[direction, row, target])
                            kind = (target << KIND_BITS) + ASK_ACTIVATION + direction
                            arrive(sites, clock, arrivals, site, asked_s, row, kind)
                peer = keys[row, to]
                target = peer.owner
                asked_s = -np.inf
                if any_moved:
                    asked_s = asked[direction, row, to]
                elif now_s < rows[row].admitted_s + asking_s:
                    asked_s = rows[row].admitted_s + sites[target].hub_s
                    asked_s += links[target, site].latency_s
                wanted = True
                if any_moved and moved[row, stage].site >= 0:
                    before = moved[row, stage]
                    if not mine:
                        asked_s = before.asked_s[direction]
                        target = before.consumer[direction]
                    elif before.got_s[direction] <= before.told_s[direction]:
                        wanted = False
                if asked_s == np.inf or target < 0:
                    wanted = False
                if wanted and asked_s > now_s:
                    kind = (target << KIND_BITS) + ASK_ACTIVATION + direction
                    arrive(sites, clock, arrivals, site, asked_s, row, kind)
                elif wanted:
                    there_s = ship(links, site, target, now_s)
                    arrive(sites, clock, arrivals, target, there_s, row, direction)
                    transfers += 1
                if mine:
                    fed = sites[target]
                    fed.backlog += 1
                    fed.fed_s = min(fed.fed_s, now_s)
        while one.arrivals > 0 and arrivals[0, site].time_s <= now_s:
            at_s = arrivals[0, site].time_s
            row, kind = arrivals[0, site].row, arrivals[0, site].kind
            one.arrivals -= 1
            _pop_arrival(arrivals, site, one.arrivals)
            if kind == DISCARD:
                one.urgent -= 1
                gone = keys[row, stage].owner != site or rows[row].fate == DEFERRED
                if gone and one.row == row:
                    one.row = -1
                if gone and limit > 0:
                    _drop_held(held, one, site, row)
                continue
            if kind > DISCARD:
                one.urgent -= 1
                direction = (kind & ((1 << KIND_BITS) - 1)) - ASK_ACTIVATION
                target = kind >> KIND_BITS
                there_s = ship(links, site, target, now_s)
                arrive(sites, clock, arrivals, target, there_s, row, direction)
                transfers += 1
                continue
            if any_moved or rows[row].fate == DEFERRED:
                flags = _take_in(keys, rows, moved, left, one, site, at_s, row, kind, any_moved)
            else:
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
                    key = keys[row, stage]
                    flags = key.flags
                    void = rows[row].fate == DEFERRED and now_s >= rows[row].done_s + one.hub_s
                    if key.owner != site:
                        flags = moved[row, stage].flags
                        void |= moved[row, stage].site != site or now_s >= moved[row, stage].gone_s
                    void |= (flags & done) != 0
                    if not void and direction == 1 and 0 < limit <= one.held:
                        wake_s = _merged_s(rows, held, one, site, row, limit, now_s)
                        if wake_s > now_s:
                            break
                    one.readies[direction] -= 1
                    _pop_row(ready, site, direction, one.readies[direction])
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
    counts[0].complete = completes
    counts[0].tasks += tasks
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
def move(step: Step, row: int, stage: int, target: int, now_s: float) -> None:
    """Give a key another owner that is open for all the coordinator knows.

    What its old owner has done without the coordinator's knowledge is lost, except that outputs
    reach those who asked for them; until it is told, it goes on.
    """
    keys, sites = step.keys, step.sites
    key, made_at, one_row = keys[row, stage], step.made_at, step.rows[row]
    source, flags = key.owner, key.flags
    seen = flags & FORWARD_DONE and _seen_s(step, row, stage, 0) <= now_s
    if one_row.fate == IN_WORK and step.counts[0].moved == 0:
        for other in range(len(step.rows)):
            if step.rows[other].admitted_s < np.inf:
                _expect_all(step, other, step.rows[other].admitted_s)
    if source >= 0:
        sites[source].open_flop -= step.work[stage, 1]
        if not (seen and made_at[0, row, stage] == source):
            sites[source].open_flop -= step.work[stage, 0]
    sites[target].open_flop += step.work[stage, 1]
    if not (seen and made_at[0, row, stage] == target):
        sites[target].open_flop += step.work[stage, 0]
    key.owner = target
    if one_row.fate != IN_WORK:
        return
    sites[target].fed_s = min(sites[target].fed_s, now_s)
    step.counts[0].moved += 1
    if source >= 0:
        _leave(step, row, stage, source, bool(seen), now_s)
    if flags & BACKWARD_DONE:
        one_row.committed -= 1
        made_at[1, row, stage] = -1
    if not seen:
        made_at[0, row, stage] = -1
    key.flags = FORWARD_DONE if seen else 0
    _take(step, row, stage, bool(seen), now_s)


@njit(cache=True, error_model="numpy")
def _leave(step: Step, row: int, stage: int, source: int, seen: bool, now_s: float) -> None:
    """Tell the old owner of a key, and the neighbours that get its outputs from the new one."""
    keys, sites, links = step.keys, step.sites, step.links
    made_at, asked = step.made_at, step.asked_s
    key, before = keys[row, stage], step.moved[row, stage]
    target = key.owner
    gone_s = now_s + sites[source].hub_s
    arrive(sites, step.clock, step.arrivals, source, gone_s, row, DISCARD)
    before.site, before.flags, before.gone_s = source, key.flags, gone_s
    before.taken_s = now_s + sites[target].hub_s
    for direction in range(2):
        to = stage - 1 if direction == 0 else stage + 1
        before.asks_s[direction] = asked[direction, row, stage]
        if not 0 <= to < keys.shape[1] or _moves_now(step, row, to, now_s):
            continue
        if asked[direction, row, stage] < np.inf:
            made = FORWARD_DONE if direction == 0 else BACKWARD_DONE
            if not keys[row, to].flags & made:
                first_s = min(step.parked[direction, row, source], asked[direction, row, stage])
                step.parked[direction, row, source] = first_s
    step.left[row, source] |= key.flags & (HAS_ACTIVATION | HAS_GRADIENT)
    if key.flags & FORWARD_DONE and made_at[0, row, stage] == source:
        step.left[row, source] |= FORWARD_DONE
    for direction in range(2):
        to = stage + 1 if direction == 0 else stage - 1
        before.got_s[direction] = np.inf
        before.told_s[direction] = -np.inf
        before.consumer[direction] = -1
        if not 0 <= to < keys.shape[1] or (direction == 0 and seen):
            continue
        after = keys[row, to]
        told_s = now_s + sites[after.owner].hub_s
        for place in range(step.pools.shape[1]):
            if step.pools[to, place] >= 0:
                step.parked[direction, row, step.pools[to, place]] = np.inf
        before.consumer[direction] = after.owner
        before.asked_s[direction] = asked[direction, row, to]
        if _moves_now(step, row, to, now_s):
            before.consumer[direction] = step.moved[row, to].site
            before.asked_s[direction] = step.moved[row, to].asks_s[direction]
        before.told_s[direction] = told_s
        if after.flags & (1 << direction):
            before.got_s[direction] = -np.inf
        asked[direction, row, to] = told_s + links[after.owner, target].latency_s
        if after.flags & FORWARD_DONE and made_at[0, row, to] == after.owner:
            again_s = told_s + sites[after.owner].hub_s
            if _seen_s(step, row, to, 0) > now_s:
                _report_again(step, after.owner, again_s, row)


@njit(cache=True, error_model="numpy")
def _moves_now(step: Step, row: int, stage: int, now_s: float) -> bool:
    """Whether a key has changed hands in this very control interval."""
    before = step.moved[row, stage]
    return bool(before.site >= 0 and before.gone_s == now_s + step.sites[before.site].hub_s)


@njit(cache=True, error_model="numpy")
def _report_again(step: Step, site: int, seen_s: float, row: int) -> None:
    """A site is told to do what it has done: it reports a forward task that took no time."""
    if step.members[site].reports < REPORTS:
        _report(step.members[site], step.reports, site, seen_s, 0.0, row, 0)


@njit(cache=True, error_model="numpy")
def _take(step: Step, row: int, stage: int, seen: bool, now_s: float) -> None:
    """The new owner of a key is told: it asks for the inputs that it has not got already."""
    keys, sites, asked = step.keys, step.sites, step.asked_s
    key, made_at = keys[row, stage], step.made_at
    target = key.owner
    last = keys.shape[1] - 1
    told_s = now_s + sites[target].hub_s
    has = step.left[row, target]
    expect(step, row, stage, now_s)
    if not seen and stage < last and has & FORWARD_DONE:
        key.flags |= FORWARD_DONE | KEPT
        made_at[0, row, stage] = target
        step.done_s[0, row, stage] = told_s
        _report_again(step, target, told_s + sites[target].hub_s, row)
        after = keys[row, stage + 1]
        if not after.flags & (HAS_ACTIVATION | FORWARD_DONE | BACKWARD_DONE):
            kind = (after.owner << KIND_BITS) + ASK_ACTIVATION
            _tell(step, target, asked[0, row, stage + 1], row, kind)
    if key.flags & KEPT:
        asked[0, row, stage] = np.inf
    elif stage == 0 or has & HAS_ACTIVATION:
        asked[0, row, stage] = np.inf
        _tell(step, target, told_s, row, ACTIVATION)
    elif keys[row, stage - 1].flags & FORWARD_DONE:
        kind = (target << KIND_BITS) + ASK_ACTIVATION
        _tell(step, made_at[0, row, stage - 1], asked[0, row, stage], row, kind)
    if stage < last:
        if has & HAS_GRADIENT:
            asked[1, row, stage] = np.inf
            _tell(step, target, told_s, row, GRADIENT)
        elif keys[row, stage + 1].flags & BACKWARD_DONE:
            kind = (target << KIND_BITS) + ASK_GRADIENT
            _tell(step, made_at[1, row, stage + 1], asked[1, row, stage], row, kind)


@njit(cache=True, error_model="numpy")
def _tell(step: Step, site: int, time_s: float, row: int, kind: int) -> None:
    arrive(step.sites, step.clock, step.arrivals, site, time_s, row, kind)


@njit(cache=True, error_model="numpy")
def defer(step: Step, row: int, now_s: float) -> None:
    """Take a row that is not complete for all the coordinator knows out of the step."""
    one = step.rows[row]
    in_work = one.fate == IN_WORK
    one.fate = DEFERRED
    one.done_s = now_s
    step.counts[0].undecided -= 1
    step.counts[0].deferred += 1
    step.counts[0].last_s = max(step.counts[0].last_s, now_s)
    if step.unmerged_limit > 0:
        _wake_holders(step.made_at, step.sites, step.clock, row, now_s)
    for stage in range(step.keys.shape[1]):
        site = step.keys[row, stage].owner
        if _seen_s(step, row, stage, 1) > now_s:
            step.sites[site].open_flop -= step.work[stage, 1]
            if step.made_at[0, row, stage] != site or _seen_s(step, row, stage, 0) > now_s:
                step.sites[site].open_flop -= step.work[stage, 0]
        if in_work:
            gone_s = now_s + step.sites[site].hub_s
            arrive(step.sites, step.clock, step.arrivals, site, gone_s, row, DISCARD)
