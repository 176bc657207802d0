"""What passes between a UE and its gNB: the offer of an update, and the gNB's answers."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = re.compile(r"[\w.:/-]{1,128}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_SAMPLES = 2**31


@dataclass(frozen=True)
class UpdateHeader:
    """Offer of one update.

    Args:
        update_id: unique over the job's life, e.g. ``job/round/ue``.
        ue: name of the sender.
        round: round whose global model the update was computed on.
        n_k: samples that the UE trained on: its weight.
        dtype: wire format (:mod:`ranloom.federated.payload`).
        exponent: scale exponent of the format.
        layout_digest: digest of the tensor layout.
        payload_sha256: of the whole payload, in hexadecimal.
    """

    update_id: str
    ue: str
    round: int
    n_k: int
    dtype: str
    exponent: int
    layout_digest: str
    payload_sha256: str

    def fault(self) -> str | None:
        """Name of what is wrong with the header by itself; None when it is well formed."""
        if not _ID.fullmatch(self.update_id) or not _ID.fullmatch(self.ue):
            return "malformed_id"
        if not 1 <= self.n_k <= MAX_SAMPLES:
            return "sample_count"
        if not _SHA256.fullmatch(self.payload_sha256):
            return "malformed_hash"
        if not -2000 <= self.exponent <= 2000:
            return "exponent"
        return None


@dataclass(frozen=True)
class Accepted:
    """Send these chunks."""

    update_id: str
    missing: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """The chunk is held; ``remaining`` chunks are still missing."""

    update_id: str
    remaining: int


@dataclass(frozen=True)
class Counted:
    """The update is complete, checked and in the sum of ``round``; ``staleness`` rounds late."""

    update_id: str
    round: int
    staleness: int


@dataclass(frozen=True)
class Duplicate:
    """Already counted with the same content, here or at another gNB: nothing was added."""

    update_id: str


@dataclass(frozen=True)
class Deferred:
    """No room to stage the update now: offer it again later."""

    update_id: str


@dataclass(frozen=True)
class Refused:
    """Not taken, by name of the reason; the round goes on.

    Reasons: ``malformed_id``, ``malformed_hash``, ``sample_count``, ``exponent``, ``dtype``,
    ``shape_mismatch``, ``not_attached``, ``unknown_round``, ``late``, ``stale``, ``stalled``,
    ``conflicting_content``, ``not_offered``, ``chunk_index``, ``chunk_size``, ``payload_hash``,
    ``not_finite``, ``overflow``, ``withdrawn``, ``staging_size``, ``no_room`` (after a hand-over).
    """

    update_id: str
    reason: str


Answer = Accepted | Stored | Counted | Duplicate | Deferred | Refused
