"""Which layers form a stage and which site holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ranloom.errors import InputError

NO_SITE = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """Cut of the model into P stages, each held by at least one site.

    Args:
        epoch: number of the layout, raised by every change.
        boundaries: decoder layers at which stages begin and end, ``(0, ..., L)`` [P + 1]. The first
            stage also holds the embeddings, the last one the final norm and the head.
        lanes: the sites of each replica by stage [D, P]; ``NO_SITE`` where a replica has lost
            its holder and other replicas take its work. A site holds exactly one stage.
    """

    epoch: int
    boundaries: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        steps = zip(self.boundaries, self.boundaries[1:], strict=False)
        if len(self.boundaries) < 2 or self.boundaries[0] != 0 or any(a >= b for a, b in steps):
            raise InputError(
                "layout.boundaries", self.boundaries, "allowed: 0 and then rising layer numbers"
            )
        if not self.lanes or any(len(lane) != self.stages for lane in self.lanes):
            raise InputError(
                "layout.lanes", self.lanes, f"allowed: one site for each of {self.stages} stages"
            )
        placed = [site for lane in self.lanes for site in lane if site != NO_SITE]
        if len(placed) != len(set(placed)) or any(site < 0 for site in placed):
            raise InputError("layout.lanes", self.lanes, "allowed: each site at most once, from 0")

    @property
    def stages(self) -> int:
        """Pipeline stages P."""
        return len(self.boundaries) - 1

    @property
    def replicas(self) -> int:
        """Replicas D."""
        return len(self.lanes)

    def layers(self, stage: int) -> range:
        """Decoder layers of a stage."""
        return range(self.boundaries[stage], self.boundaries[stage + 1])

    def pool(self, stage: int) -> tuple[int, ...]:
        """Equivalent-stage executors: the sites that hold a stage, in order of their replicas."""
        return tuple(lane[stage] for lane in self.lanes if lane[stage] != NO_SITE)

    def sites(self) -> tuple[int, ...]:
        """All sites of the layout, ascending."""
        return tuple(sorted(site for lane in self.lanes for site in lane if site != NO_SITE))

    def holders(self) -> Iterator[tuple[int, int, int]]:
        """(replica, stage, site) of every holder."""
        for replica, lane in enumerate(self.lanes):
            for stage, site in enumerate(lane):
                if site != NO_SITE:
                    yield replica, stage, site

    def place_of(self, site: int) -> tuple[int, int] | None:
        """(replica, stage) of a site, None where it holds nothing."""
        for replica, stage, holder in self.holders():
            if holder == site:
                return replica, stage
        return None

    def vacant_stages(self) -> tuple[int, ...]:
        """Stages that nobody holds."""
        return tuple(stage for stage in range(self.stages) if not self.pool(stage))

    def without(self, site: int) -> Layout:
        """The layout after a site is lost; same epoch, since surviving grants stay valid."""
        lanes = tuple(tuple(NO_SITE if s == site else s for s in lane) for lane in self.lanes)
        return Layout(self.epoch, self.boundaries, lanes)

    def with_boundaries(self, epoch: int, boundaries: Sequence[int]) -> Layout:
        """The same sites under other boundaries."""
        return Layout(epoch, tuple(boundaries), self.lanes)


@lru_cache(maxsize=256)
def holder_arrays(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """(site, stage) of every holder as arrays [H], [H], for vectorised sums over pools."""
    holders = list(layout.holders())
    sites = np.array([site for _, _, site in holders], dtype=np.int64)
    stages = np.array([stage for _, stage, _ in holders], dtype=np.int64)
    return sites, stages


def regular_layout(boundaries: Sequence[int], replicas: int, epoch: int = 0) -> Layout:
    """Sites 0, 1, ... along the first replica, then along the second, and so on."""
    stages = len(boundaries) - 1
    lanes = tuple(
        tuple(range(replica * stages, (replica + 1) * stages)) for replica in range(replicas)
    )
    return Layout(epoch, tuple(boundaries), lanes)
