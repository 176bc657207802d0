"""Which checkpoint is complete, and which one is being written."""

from __future__ import annotations

from ranloom.training.membership import Members
from ranloom.training.messages import Action, CheckpointWritten, WriteCheckpoint

INITIAL_WEIGHTS = -1


class CheckpointTracker:
    """One holder of each stage writes; a checkpoint counts once all stages are written.

    Args:
        members: for incarnations.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._writers: dict[int, int] = {}
        self._pending_version = INITIAL_WEIGHTS
        self.version = INITIAL_WEIGHTS

    @property
    def pending(self) -> bool:
        """Whether a checkpoint is being written."""
        return bool(self._writers)

    def begin(self, model_version: int, pools: list[tuple[int, ...]]) -> list[Action]:
        """Have this version written; an unfinished older one is given up."""
        self._pending_version = model_version
        self._writers = {stage: pool[0] for stage, pool in enumerate(pools)}
        return [self._request(stage) for stage in sorted(self._writers)]

    def _request(self, stage: int) -> WriteCheckpoint:
        site = self._writers[stage]
        incarnation = int(self._members.incarnation[site])
        return WriteCheckpoint(site, incarnation, stage, self._pending_version)

    def written(self, event: CheckpointWritten) -> bool:
        """A stage is stored; True if the checkpoint is thereby complete."""
        if (
            event.model_version != self._pending_version
            or self._writers.get(event.stage) != event.site
        ):
            return False
        del self._writers[event.stage]
        if self._writers:
            return False
        self.version = self._pending_version
        return True

    def lose_site(
        self, site: int, model_version: int, pools: list[tuple[int, ...]]
    ) -> list[Action]:
        """A writer died: another holder writes if it still has that version, else give up."""
        stages = sorted(stage for stage, writer in self._writers.items() if writer == site)
        if not stages:
            return []
        if model_version != self._pending_version or any(not pools[stage] for stage in stages):
            self._writers = {}
            return []
        for stage in stages:
            self._writers[stage] = pools[stage][0]
        return [self._request(stage) for stage in stages]

    def repeat(self) -> list[Action]:
        """Ask again for what is missing, after a restart of the coordinator."""
        return [self._request(stage) for stage in sorted(self._writers)]

    def give_up(self) -> None:
        """The version being written is no longer wanted."""
        self._writers = {}
