"""State of a step on the fast path, as records of one to two cache lines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ACTIVATION, GRADIENT, DISCARD, ASK_ACTIVATION, ASK_GRADIENT = 0, 1, 2, 3, 4
"""What reaches a site: inputs; a discard, which takes away what it is running; the request of a
neighbour for an output that is there. The site that asks stands above ``KIND_BITS``."""

KIND_BITS = 3

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
        ("fed_s", np.float64),  # its first input was made
        ("busy_s", np.float64),  # time at work in this step
        ("row", np.int32),  # of the present task, -1 for none
        ("direction", np.int32),
        ("stage", np.int32),  # that it holds, -1 for none
        ("arrivals", np.int32),  # length of its heap of arrivals
        ("readies", np.int32, (2,)),  # lengths of its heaps of runnable rows
        ("held", np.int32),  # unmerged gradients
        ("urgent", np.int32),  # arrivals that are acted on even by a busy site
        ("backlog", np.int32),  # inputs made for it less tasks that it has ended
        ("pad", np.int32),
    ]
)

KEY = np.dtype(
    [
        ("owner", np.int32),  # site that executes it
        ("flags", np.int32),
    ]
)
"""Micro-batch x stage [M, P]; small, since all that happens looks at a key and its neighbours."""

MOVED = np.dtype(
    [
        ("site", np.int32),  # that owned a key before, -1 for none
        ("flags", np.int32),  # of the key there
        ("gone_s", np.float64),  # when it learns that the key is not its own any more
        ("asks_s", np.float64, (2,)),  # its request for an input reaches the producer
        ("consumer", np.int32, (2,)),  # that has asked it for an output
        ("asked_s", np.float64, (2,)),  # when that request reaches it
        ("told_s", np.float64, (2,)),  # when the consumer is told to ask the new owner
        ("got_s", np.float64, (2,)),  # when the consumer had the output from the old one
        ("taken_s", np.float64),  # when the new owner learns of it
    ]
)
"""Micro-batch x stage [M, P]: until a site knows, it goes on with what has been moved away."""

MEMBER = np.dtype(
    [
        ("tflops", np.float64),  # last reported budget
        ("error", np.float64),  # of the predictions of its tasks, moving average
        ("spread", np.float64),  # mean deviation from it
        ("next_report_s", np.float64),  # when it sends its next budget
        ("heard_s", np.float64),  # its last completion was reported
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
        ("complete", np.int64),  # rows whose last commit is under way to the coordinator
        ("tasks", np.int64),  # ended
        ("transfers", np.int64),  # queued on links
        ("deferred", np.int64),  # rows taken out of the step
        ("last_s", np.float64),  # last completion or deferral
    ]
)


class Step(NamedTuple):
    """A step and what it runs on.

    Args:
        keys: [M, P].
        made_at: site that retains an output, by direction, -1 for none [2, M, P].
        done_s: when it was made, by direction [2, M, P].
        asked_s: when requests for the inputs of a key, by direction, reach their producers;
            only kept once a key has moved: before, they follow from the admission [2, M, P].
        rows: [M].
        lane_rows: rows by replica, ascending within each [M].
        lane_next: next row of each replica to be admitted, index into ``lane_rows`` [D].
        lane_end: end of each replica's rows [D].
        sites: [S].
        links: [S, S].
        moved: [M, P].
        left: what sites still have of a row that was theirs, as flags of a key [M, S].
        parked: when requests of former owners for inputs that were not made yet reached their
            producers, by direction, infinite for none [2, M, S].
        pools: holders of each stage, -1 for none [P, D].
        complete: heap by time of rows whose last commit is under way [M + 1, 1].
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
    """

    keys: np.ndarray
    made_at: np.ndarray
    done_s: np.ndarray
    asked_s: np.ndarray
    rows: np.ndarray
    lane_rows: np.ndarray
    lane_next: np.ndarray
    lane_end: np.ndarray
    sites: np.ndarray
    links: np.ndarray
    moved: np.ndarray
    left: np.ndarray
    parked: np.ndarray
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
