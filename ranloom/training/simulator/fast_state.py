"""State of a step on the fast path, as records of one to two cache lines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ACTIVATION, GRADIENT, DISCARD, ASK_ACTIVATION, ASK_GRADIENT = 0, 1, 2, 3, 4
ASSIGN, FREE, MISSING = 5, 6, 7
"""What reaches a site: inputs; a discard, which takes away what it is running; the request of a
neighbour for an output. Of rows that have moved: an assignment; the end of the row; that a
neighbour lacks an output. Above ``KIND_BITS``: the attempt, the site that asks, or the mail."""

COMPLETED, MISSED, SETTLE = 1, 2, 3
"""What reaches the coordinator of rows that have moved: the end of a task; that an input is not
there; any report, with which it tells what it has not told yet."""

KIND_BITS = 3
KIND_MASK = (1 << KIND_BITS) - 1

FROM_DATA, NOT_YET = -1, -2
"""Producers of inputs that are no site, as in ``messages``."""

REPORTS = 128
"""Completions of a site under way to the coordinator at a time, at most."""

HAS_ACTIVATION, HAS_GRADIENT, KEPT, FORWARD_DONE, BACKWARD_DONE = 1, 2, 4, 8, 16
"""Flags of a key: what its owner has, and what is done."""

WAITING, IN_WORK, COMPLETE, DEFERRED = 0, 1, 2, 3
"""Values of ``Fate``."""

SITE = np.dtype(
    [
        ("begin_s", np.float64),  # of the present task
        ("end_s", np.float64),
        ("hub_s", np.float64),  # coordinator to site, one way
        ("open_flop", np.float64),  # work that it still owns in this step, for all that is known
        ("busy_s", np.float64),  # time at work in this step
        ("row", np.int32),  # of the present task, -1 for none
        ("direction", np.int32),
        ("stage", np.int32),  # that it holds, -1 for none
        ("arrivals", np.int32),  # length of its heap of arrivals
        ("readies", np.int32, (2,)),  # lengths of its heaps of runnable rows
        ("held", np.int32),  # unmerged gradients
        ("urgent", np.int32),  # arrivals that are acted on even by a busy site
        ("runnable", np.int32),  # tasks that it can run, for all that the coordinator knows
        ("place", np.int32),  # among the holders of its stage
    ]
)

KEY = np.dtype(
    [
        ("owner", np.int32),  # site that executes it
        ("flags", np.int32),
    ]
)
"""Micro-batch x stage [M, P]; small, since all that happens looks at a key and its neighbours."""

KNOWN = np.dtype(
    [
        ("attempt", np.int32),  # authorised one, -1 for none
        ("held", np.int32),  # attempt that made the committed gradient
        ("holder", np.int32),
        ("output", np.int32, (2,)),  # site that retains an output, by direction, -1 for none
        ("committed", np.int32),
    ]
)
"""What the coordinator knows of a key of a row that has moved [M, P]."""

TASK = np.dtype(
    [
        ("drop_s", np.float64),  # arrival of the last discard that was sent with an assignment
        ("drop", np.int32),
        ("attempt", np.int32),  # assigned to the site, -1 for none
        ("done", np.int32),  # attempt under which it made its gradient
        ("held", np.int32),  # attempt of its unmerged gradient
        ("told", np.int32),  # attempt of the last assignment, for all that the coordinator knows
        ("source", np.int32, (2,)),  # producers of its inputs
        ("told_from", np.int32, (2,)),
        ("asked", np.int32, (2,)),  # producers that it has asked
        ("runs", np.int8, (2,)),  # forward and backward still to be done
        ("told_runs", np.int8, (2,)),
        ("input", np.int8, (2,)),  # what it has got
        ("output", np.int8, (2,)),  # what it retains for others
        ("queued", np.int8, (2,)),  # among its runnable rows
        ("kept", np.int8),  # its activations
        ("keeps", np.int8),  # the gradient will be
        ("told_keeps", np.int8),
    ]
)
"""A row that has moved at a site [M, S]: its books and, as ``told``, those of the coordinator."""

MAIL = np.dtype(
    [
        ("attempt", np.int32),
        ("site", np.int32),  # sender of a report
        ("direction", np.int32),
        ("keeps", np.int32),
        ("source", np.int32, (2,)),
        ("runs", np.int32, (2,)),
    ]
)
"""What an assignment or a report says, while under way."""

MAILS = 1 << 16
"""Assignments and reports of moved rows under way at a time, at most."""

MEMBER = np.dtype(
    [
        ("tflops", np.float64),  # last reported budget
        ("error", np.float64),  # of the predictions of its tasks, moving average
        ("spread", np.float64),  # mean deviation from it
        ("next_report_s", np.float64),  # when it sends its next budget
        ("busy_since_s", np.float64),  # it has had something to do since, without a completion
        ("reports", np.int32),  # completions under way to the coordinator
        ("pad", np.int32),
    ]
)
"""What the coordinator knows of a site, kept from step to step [S]."""

REPORT = np.dtype(
    [
        ("seen_s", np.float64),  # at the coordinator
        ("seconds", np.float64),
        ("row", np.int32),
        ("direction", np.int32),
    ]
)
"""A completion under way to the coordinator [S, REPORTS]."""

ROW = np.dtype(
    [
        ("replica", np.int32),  # whose window it counts in
        ("fate", np.int32),
        ("tracked", np.int32),  # has moved
        ("dirty", np.int32),  # executors have to be told something
        ("committed", np.int64),  # stages so far
        ("admitted_s", np.float64),  # taken into work by the coordinator
        ("done_s", np.float64),  # seen complete by the coordinator, infinite before
    ]
)
"""Micro-batch [M]."""

LINK = np.dtype(
    [
        ("seconds", np.float64),  # that a boundary tensor occupies it
        ("latency_s", np.float64),
        ("free_s", np.float64),
    ]
)
"""Activation plane of an ordered pair of sites [S, S]."""

ARRIVAL = np.dtype([("time_s", np.float64), ("row", np.int32), ("kind", np.int32)])

COUNTS = np.dtype(
    [
        ("undecided", np.int64),  # rows neither complete nor deferred
        ("moved", np.int64),  # keys that changed hands while in work
        ("complete", np.int64),  # last commits of rows, and more of moved rows, under way
        ("tasks", np.int64),  # ended
        ("transfers", np.int64),  # queued on links
        ("deferred", np.int64),  # rows taken out of the step
        ("orphans", np.int64),  # keys without an owner
        ("attempts", np.int64),  # given out for moved rows
        ("mails", np.int64),  # sent about moved rows
        ("dirty", np.int64),  # whether a row may be
        ("unsettled", np.int64),  # whether the next report of any site changes that
        ("last_s", np.float64),  # last completion or deferral
    ]
)


class Step(NamedTuple):
    """A step and what it runs on.

    Args:
        keys: [M, P].
        made_at: site that retains an output, by direction, -1 for none [2, M, P].
        done_s: when it was made, by direction [2, M, P].
        rows: [M].
        lane_rows: rows by replica, ascending within each [M].
        lane_next: next row of each replica to be admitted, index into ``lane_rows`` [D].
        lane_end: end of each replica's rows [D].
        sites: [S].
        links: [S, S].
        known: [M, P].
        tasks: [M, S].
        parked: requests for an output that its producer has to make first, by direction, of each
            holder of the consuming stage [2, M, S, D].
        mails: ring of what is under way [MAILS].
        pools: holders of each stage, -1 for none [P, D].
        complete: heap by time of last commits of rows under way, and of all that is reported of
            rows that have moved [C, 1].
        arrivals: heaps by time [A, S].
        ready: heaps of runnable rows by direction [2, M, S].
        held: rows of unmerged gradients [S, H].
        clock: when something happens at a site next [S].
        tflops: usable compute by second and site [K, S].
        work: forward and backward operations by stage; no forward work at the last [P, 2].
        members: [S].
        reports: [S, REPORTS].
        counts: [1].
        window: micro-batches in work in a replica.
        unmerged_limit: gradients that a site holds at most; 0 for no limit.
        forward_first: forward before backward tasks.
        overhead_s: time that a task costs beside its work.
        error_weight: weight of the newest prediction error.
        budget_period_s: how often sites report their budget.
        lookahead_s: no site learns of another sooner than that, nor of a completion.
        asking_s: a request reaches its producer at the latest that long after an admission.
        in_order: no report of a task overtakes that of the task that made its input.
    """

    keys: np.ndarray
    made_at: np.ndarray
    done_s: np.ndarray
    rows: np.ndarray
    lane_rows: np.ndarray
    lane_next: np.ndarray
    lane_end: np.ndarray
    sites: np.ndarray
    links: np.ndarray
    known: np.ndarray
    tasks: np.ndarray
    parked: np.ndarray
    mails: np.ndarray
    pools: np.ndarray
    complete: np.ndarray
    arrivals: np.ndarray
    ready: np.ndarray
    held: np.ndarray
    clock: np.ndarray
    tflops: np.ndarray
    work: np.ndarray
    members: np.ndarray
    reports: np.ndarray
    counts: np.ndarray
    window: int
    unmerged_limit: int
    forward_first: bool
    overhead_s: float
    error_weight: float
    budget_period_s: float
    lookahead_s: float
    asking_s: float
    in_order: bool
