"""Transfers of elastic training as demands of the same calendar as federated aggregates.

They follow from the model's shape, the layout and the step period before any run. After each
period the gradients of a pipeline stage go up a tree over its holders to a root and the new
weights' change comes back down (WEAVER, Eq. 3). A level is released when the deadline of the
one before it is over, so that a plan of all levels needs no order among windows. A layout
change copies the weights of layers to their new holder, off the critical path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ranloom.errors import InputError
from ranloom.transport.demands import NS_PER_S, Demands


@dataclass(frozen=True)
class SyncPlan:
    """When gradients of all holders of a stage are summed.

    Args:
        lanes: node of each pipeline stage, replica by replica [replicas][stages].
        stage_bytes: gradient of each stage [stages].
        period_s: from one sum to the next: the compute time of a global batch.
        begin_s: when the first global batch begins.
        end_s: sums that would end later are left out.
        sync_s: time from the end of a batch until every holder has the sum.
        fanout: children of a node of the tree.
    """

    lanes: tuple[tuple[str, ...], ...]
    stage_bytes: tuple[int, ...]
    period_s: float
    begin_s: float
    end_s: float
    sync_s: float
    fanout: int

    def __post_init__(self) -> None:
        if any(len(lane) != len(self.stage_bytes) for lane in self.lanes):
            raise InputError("training.lanes", self.lanes, "a node for each stage in each lane")
        nodes = [node for lane in self.lanes for node in lane]
        if len(set(nodes)) < len(nodes):
            raise InputError("training.lanes", nodes, "each node at most once")
        if min(self.stage_bytes, default=0) < 1:
            raise InputError("training.stage_bytes", self.stage_bytes, "at least 1 byte a stage")
        if not 0 < self.sync_s <= self.period_s:
            raise InputError("training.sync_s", self.sync_s, f"above 0, up to {self.period_s} s")
        if self.fanout < 1:
            raise InputError("training.fanout", self.fanout, "at least 1")


@dataclass(frozen=True)
class Copy:
    """Layers that move to another holder.

    Args:
        source: node that holds them.
        destination: node that gets them.
        bytes: weights and optimizer state of those layers.
        release_s: when the change was decided.
        deadline_s: when the new layout is to take effect.
    """

    source: str
    destination: str
    bytes: int
    release_s: float
    deadline_s: float


def training_demands(sync: SyncPlan, copies: Sequence[Copy]) -> Demands:
    """Demands of gradient sums and layout copies.

    Ids are ``sync/<batch>/<stage>/<up or down>/<source>-<destination>`` and ``copy/<number>``.

    Raises:
        InputError: a copy whose deadline is not behind its release, or that goes nowhere.
    """
    rows = list(_sync_rows(sync))
    for number, copy in enumerate(copies):
        if copy.deadline_s <= copy.release_s or copy.source == copy.destination or copy.bytes < 1:
            raise InputError(
                f"training.copies[{number}]", copy, "other nodes, some bytes, deadline > release"
            )
        row = (copy.source, copy.destination, copy.bytes, copy.release_s, copy.deadline_s)
        rows.append((f"copy/{number}", *row))
    ids, source, destination, size, release, deadline = (
        zip(*rows, strict=True) if rows else ((),) * 6
    )
    return Demands(
        ids=np.array(ids, dtype=object),
        source=np.array(source, dtype=object),
        destination=np.array(destination, dtype=object),
        bytes=np.array(size, dtype=np.int64),
        release_ns=np.ceil(np.array(release, dtype=np.float64) * NS_PER_S).astype(np.int64),
        deadline_ns=np.floor(np.array(deadline, dtype=np.float64) * NS_PER_S).astype(np.int64),
    )


def _sync_rows(sync: SyncPlan) -> Iterator[tuple[str, str, str, int, float, float]]:
    replicas = len(sync.lanes)
    depth = [0] * replicas
    for holder in range(1, replicas):
        depth[holder] = depth[(holder - 1) // sync.fanout] + 1
    levels = max(depth)
    if levels == 0:
        return
    slot_s = sync.sync_s / (2 * levels)
    batches = int((sync.end_s - sync.begin_s - sync.sync_s) / sync.period_s)
    for batch in range(batches):
        ready_s = sync.begin_s + (batch + 1) * sync.period_s
        for stage, size in enumerate(sync.stage_bytes):
            for holder in range(1, replicas):
                child = sync.lanes[holder][stage]
                parent = sync.lanes[(holder - 1) // sync.fanout][stage]
                up_s = ready_s + (levels - depth[holder]) * slot_s
                down_s = ready_s + (levels + depth[holder] - 1) * slot_s
                name = f"sync/{batch}/{stage}"
                yield f"{name}/up/{child}-{parent}", child, parent, size, up_s, up_s + slot_s
                yield f"{name}/down/{parent}-{child}", parent, child, size, down_s, down_s + slot_s
