"""One training step as a compiled discrete-event loop: the fast path of the simulator.

The same world as ``world`` and ``site`` describe (serial sites and links, requests, control
messages with their delays, windows, held gradients), for a step in which no site dies and no
request overtakes the order that it depends on: a detour over the coordinator is never shorter than
the direct way. What follows from the time of one thing alone (a commit at the coordinator, an
admission, a merge) is computed when its cause happens, so that only ends of tasks and arrivals of
tensors are events. The loop stops at a given time and can be taken up again, which is when
``fast_run`` asks the rerouting policy.

All kernels that call each other stand in this file: a compiled kernel is cached by the file that it
stands in, and would not see a change in another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ranloom.training.simulator.fast_state import (
    ACTIVATION,
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


@njit(cache=True, error_model="numpy")
def _set_next(clock: np.ndarray, winner: np.ndarray, site: int, time_s: float) -> None:
    """A site's next event; matches above it are played again as far as it matters."""
    clock[site] = time_s
    node = (site + len(clock)) >> 1
    while node >= 1:
        left, right = winner[2 * node], winner[2 * node + 1]
        best = left if clock[left] <= clock[right] else right
        before = winner[node]
        winner[node] = best
        if before != site and best != site:
            return
        node >>= 1


@njit(cache=True, error_model="numpy")
def arrive(
    sites: np.ndarray,
    clock: np.ndarray,
    winner: np.ndarray,
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
    if (one.row < 0 or kind == DISCARD) and time_s < clock[site]:
        _set_next(clock, winner, site, time_s)


# --- resources -----------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def finish_s(tflops: np.ndarray, site: int, start_s: float, flop: float) -> float:
    """When work that begins now will be done; traces by second that repeat [S, K].

    Work that ends with a second ends there, however long the site then idles: what rounding leaves
    of it is nothing.
    """
    second = int(start_s)
    length = tflops.shape[1]
    place = second if second < length else second % length
    rounding = 1e-12 * flop
    before = flop
    walked = 0
    now_s = start_s
    while True:
        rate = tflops[site, place] * 1e12
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
def ship(links: np.ndarray, size_gbit: float, source: int, target: int, send_s: float) -> float:
    """Queue a boundary tensor on a link; its arrival."""
    link = links[source, target]
    end_s = max(send_s, link.free_s) + size_gbit / link.gbps
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
                step.links,
                step.arrivals,
                step.clock,
                step.winner,
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
    links: np.ndarray,
    arrivals: np.ndarray,
    clock: np.ndarray,
    winner: np.ndarray,
    replica: int,
    now_s: float,
) -> None:
    """Take the next waiting row of a replica into work."""
    while lane_next[replica] < lane_end[replica]:
        row = lane_rows[lane_next[replica]]
        lane_next[replica] += 1
        if rows[row].fate == WAITING:
            rows[row].fate = IN_WORK
            rows[row].admitted_s = now_s
            for stage in range(keys.shape[1]):
                expect(keys, sites, links, row, stage, now_s)
            first = keys[row, 0].owner
            there_s = now_s + sites[first].hub_s
            arrive(sites, clock, winner, arrivals, first, there_s, row, ACTIVATION)
            return


@njit(cache=True, error_model="numpy")
def expect(
    keys: np.ndarray, sites: np.ndarray, links: np.ndarray, row: int, stage: int, told_s: float
) -> None:
    """When the requests of a key that is assigned now reach the producers of its inputs."""
    key = keys[row, stage]
    site = key.owner
    asks_s = told_s + sites[site].hub_s
    if stage > 0:
        before = keys[row, stage - 1]
        source = before.made_at[0] if before.flags & FORWARD_DONE else before.owner
        key.asked_s[0] = asks_s + links[site, source].latency_s
    if stage < keys.shape[1] - 1:
        after = keys[row, stage + 1]
        source = after.made_at[1] if after.flags & BACKWARD_DONE else after.owner
        key.asked_s[1] = asks_s + links[site, source].latency_s


@njit(cache=True, error_model="numpy")
def advance(step: Step, until_s: float) -> None:
    """Let everything happen until a time, or until every row is complete or deferred."""
    keys, rows, sites, links = step.keys, step.rows, step.sites, step.links
    arrivals, ready, held = step.arrivals, step.ready, step.held
    clock, winner = step.clock, step.winner
    lane_rows, lane_next, lane_end = step.lane_rows, step.lane_next, step.lane_end
    work, learned, tflops = step.work, step.learned, step.tflops
    limit, forward_first, overhead_s = step.unmerged_limit, step.forward_first, step.overhead_s
    last = keys.shape[1] - 1
    counts = step.counts
    undecided = counts[0].undecided
    tasks = transfers = 0
    last_s = counts[0].last_s
    while undecided > 0:
        site = winner[1]
        one = sites[site]
        now_s = clock[site]
        if now_s >= until_s or now_s == np.inf:
            break
        stage = one.stage
        if one.row >= 0 and one.end_s <= now_s:
            row, direction = one.row, one.direction
            one.row = -1
            tasks += 1
            took_s = now_s - one.begin_s
            one.busy_s += took_s
            flop = work[stage, direction]
            error = took_s * learned[2, site] * 1e12 / flop - 1.0
            deviation = abs(error - learned[0, site])
            learned[0, site] += step.error_weight * (error - learned[0, site])
            learned[1, site] += step.error_weight * (deviation - learned[1, site])
            key = keys[row, stage]
            if key.owner == site and rows[row].fate != DEFERRED:
                one.open_flop -= flop
                key.made_at[direction] = site
                key.done_s[direction] = now_s
                if direction == 0:
                    key.flags |= KEPT | FORWARD_DONE
                    after = keys[row, stage + 1]
                    target = after.owner
                    send_s = max(now_s, after.asked_s[0])
                    there_s = ship(links, step.boundary_gbit, site, target, send_s)
                    arrive(sites, clock, winner, arrivals, target, there_s, row, ACTIVATION)
                    transfers += 1
                    if key.flags & HAS_GRADIENT:
                        _push_row(ready, site, 1, one.readies[1], row)
                        one.readies[1] += 1
                else:
                    key.flags |= BACKWARD_DONE
                    if stage > 0 and not keys[row, stage - 1].flags & BACKWARD_DONE:
                        before = keys[row, stage - 1]
                        target = before.owner
                        send_s = max(now_s, before.asked_s[1])
                        there_s = ship(links, step.boundary_gbit, site, target, send_s)
                        arrive(sites, clock, winner, arrivals, target, there_s, row, GRADIENT)
                        transfers += 1
                    if limit > 0:
                        held[site, one.held] = row
                        one.held += 1
                    one_row = rows[row]
                    one_row.commit_s = max(one_row.commit_s, now_s + one.hub_s)
                    one_row.committed += 1
                    if one_row.committed == last + 1:
                        done_s = one_row.commit_s
                        one_row.fate = COMPLETE
                        one_row.done_s = done_s
                        undecided -= 1
                        last_s = max(last_s, done_s)
                        if limit > 0:
                            _wake_holders(keys, sites, clock, winner, row, done_s)
                        _admit(
                            keys,
                            rows,
                            lane_rows,
                            lane_next,
                            lane_end,
                            sites,
                            links,
                            arrivals,
                            clock,
                            winner,
                            one_row.replica,
                            done_s,
                        )
        while one.arrivals > 0 and arrivals[0, site].time_s <= now_s:
            row, kind = arrivals[0, site].row, arrivals[0, site].kind
            one.arrivals -= 1
            _pop_arrival(arrivals, site, one.arrivals)
            key = keys[row, stage]
            if kind == DISCARD:
                gone = key.owner != site or rows[row].fate == DEFERRED
                if one.row == row and gone:
                    one.row = -1
            elif key.owner == site and rows[row].fate != DEFERRED:
                key.flags |= 1 << kind
                flags = key.flags
                if not flags & BACKWARD_DONE:
                    if stage < last and not flags & FORWARD_DONE:
                        if flags & HAS_ACTIVATION:
                            _push_row(ready, site, 0, one.readies[0], row)
                            one.readies[0] += 1
                    elif (stage == last or flags & HAS_GRADIENT) and flags & (
                        HAS_ACTIVATION | KEPT
                    ):
                        _push_row(ready, site, 1, one.readies[1], row)
                        one.readies[1] += 1
        wake_s = np.inf
        if one.row < 0:
            for turn in range(2):
                direction = turn if forward_first else 1 - turn
                done = FORWARD_DONE if direction == 0 else BACKWARD_DONE
                while one.readies[direction] > 0:
                    row = ready[direction, 0, site]
                    key = keys[row, stage]
                    void = key.owner != site or key.flags & done or rows[row].fate == DEFERRED
                    if not void and direction == 1 and 0 < limit <= one.held:
                        wake_s = _merged_s(rows, held, one, site, row, limit, now_s)
                        if wake_s > now_s:
                            break
                    one.readies[direction] -= 1
                    _pop_row(ready, site, direction, one.readies[direction])
                    if void:
                        continue
                    flop = work[stage, direction]
                    if direction == 1 and stage < last and not key.flags & KEPT:
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
        elif one.arrivals > 0:
            wake_s = min(wake_s, arrivals[0, site].time_s)
        _set_next(clock, winner, site, wake_s)
    counts[0].undecided = undecided
    counts[0].tasks += tasks
    counts[0].transfers += transfers
    counts[0].last_s = last_s


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
    keys: np.ndarray,
    sites: np.ndarray,
    clock: np.ndarray,
    winner: np.ndarray,
    row: int,
    done_s: float,
) -> None:
    """A merge frees a gradient at every holder: one that waits for it may go on."""
    for stage in range(keys.shape[1]):
        site = keys[row, stage].made_at[1]
        wake_s = done_s + sites[site].hub_s
        if sites[site].row < 0 and wake_s < clock[site]:
            _set_next(clock, winner, site, wake_s)


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
            _set_next(step.clock, step.winner, site, max(step.clock[site], until_s))


# --- rerouting -----------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def move(step: Step, row: int, stage: int, target: int, now_s: float) -> bool:
    """Give an open key another owner; False if it is done already (its report is on the way)."""
    keys, sites, links = step.keys, step.sites, step.links
    key = keys[row, stage]
    if key.flags & BACKWARD_DONE or step.rows[row].fate == DEFERRED:
        return False
    source = key.owner
    done = key.flags & FORWARD_DONE
    flop = step.work[stage, 1] + (0.0 if done else step.work[stage, 0])
    if source >= 0:
        sites[source].open_flop -= flop
    sites[target].open_flop += flop
    key.owner = target
    key.flags &= ~(HAS_ACTIVATION | HAS_GRADIENT | KEPT)
    if step.rows[row].fate != IN_WORK:
        return True
    told_s = max(now_s, step.rows[row].admitted_s)
    if source >= 0:
        gone_s = now_s + sites[source].hub_s
        arrive(sites, step.clock, step.winner, step.arrivals, source, gone_s, row, DISCARD)
    expect(keys, sites, links, row, stage, told_s)
    last = keys.shape[1] - 1
    if stage == 0:
        there_s = told_s + sites[target].hub_s
        arrive(sites, step.clock, step.winner, step.arrivals, target, there_s, row, ACTIVATION)
    elif keys[row, stage - 1].flags & FORWARD_DONE:
        maker = keys[row, stage - 1].made_at[0]
        there_s = ship(links, step.boundary_gbit, maker, target, key.asked_s[0])
        arrive(sites, step.clock, step.winner, step.arrivals, target, there_s, row, ACTIVATION)
    if stage < last and keys[row, stage + 1].flags & BACKWARD_DONE:
        maker = keys[row, stage + 1].made_at[1]
        there_s = ship(links, step.boundary_gbit, maker, target, key.asked_s[1])
        arrive(sites, step.clock, step.winner, step.arrivals, target, there_s, row, GRADIENT)
    # the neighbours are told to expect their inputs from the new owner
    if stage > 0:
        peer = keys[row, stage - 1].owner
        asks_s = told_s + sites[peer].hub_s + links[peer, target].latency_s
        keys[row, stage - 1].asked_s[1] = asks_s
    if stage < last and not done:
        peer = keys[row, stage + 1].owner
        asks_s = told_s + sites[peer].hub_s + links[peer, target].latency_s
        keys[row, stage + 1].asked_s[0] = asks_s
    return True


@njit(cache=True, error_model="numpy")
def defer(step: Step, row: int, now_s: float) -> None:
    """Take a row that is not complete out of the step."""
    one = step.rows[row]
    in_work = one.fate == IN_WORK
    one.fate = DEFERRED
    one.done_s = now_s
    step.counts[0].undecided -= 1
    step.counts[0].last_s = max(step.counts[0].last_s, now_s)
    for stage in range(step.keys.shape[1]):
        key = step.keys[row, stage]
        site = key.owner
        if not key.flags & BACKWARD_DONE:
            step.sites[site].open_flop -= step.work[stage, 1]
            if not key.flags & FORWARD_DONE:
                step.sites[site].open_flop -= step.work[stage, 0]
            if in_work:
                gone_s = now_s + step.sites[site].hub_s
                arrive(
                    step.sites, step.clock, step.winner, step.arrivals, site, gone_s, row, DISCARD
                )
