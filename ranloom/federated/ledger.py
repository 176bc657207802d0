"""What a gNB knows of each update, and where every sample went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from ranloom.federated.payload import payload_bytes
from ranloom.federated.update import UpdateHeader

STAGED, COUNTED, DROPPED = "staged", "counted", "dropped"


@dataclass
class Entry:
    """One update.

    Args:
        header: as offered.
        state: ``staged`` (under way), ``counted`` or ``dropped``.
        touched_s: time of the last news.
        counted_round: round in whose wave it counts, or -1.
        reason: why it was dropped, else empty.
        chunks: chunks held, by index, while staged.
    """

    header: UpdateHeader
    state: str
    touched_s: float
    counted_round: int = -1
    reason: str = ""
    chunks: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Account:
    """Samples (sums of n_k) by fate.

    ``offered = staged + delivered + carried + dropped + handed_over`` holds after every event.

    Args:
        offered: of all updates that were offered here or came with a hand-over.
        staged: of unfinished ones.
        delivered: counted in the round that they were computed for.
        carried: counted in a later round.
        dropped: not counted.
        handed_over: taken along to another gNB before they were counted.
    """

    offered: int = 0
    staged: int = 0
    delivered: int = 0
    carried: int = 0
    dropped: int = 0
    handed_over: int = 0


@dataclass(frozen=True)
class HandOver:
    """What a gNB passes on when a UE leaves.

    Args:
        ue: name of the UE.
        awaited_round: round in which its update was still awaited, or -1.
        entries: its updates; those counted come as a mark, so that they count nowhere else.
    """

    ue: str
    awaited_round: int
    entries: tuple[Entry, ...]


class Ledger:
    """Entries by update id, the account of their samples and the bytes that staging reserves.

    Args:
        elements: values in an update, which decides its size.
    """

    def __init__(self, elements: int) -> None:
        self.account = Account()
        self.staged_bytes = 0
        self.changed: dict[str, None] = {}
        self._elements = elements
        self._entries: dict[str, Entry] = {}
        self._staged: dict[str, None] = {}  # least recently touched first

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, update_id: str) -> Entry | None:
        """Entry of an update, or None."""
        return self._entries.get(update_id)

    def size_bytes(self, header: UpdateHeader) -> int:
        """Payload size of an update."""
        return payload_bytes(header.dtype, self._elements)

    def stage(self, entry: Entry, now_s: float) -> None:
        """Take in an unfinished update; a dropped one of the same id is taken back."""
        update_id = entry.header.update_id
        known = self._entries.get(update_id)
        if known is not None:
            self._remove(known)
            self.account.offered -= known.header.n_k
        self.account.offered += entry.header.n_k
        self.account.staged += entry.header.n_k
        self.staged_bytes += self.size_bytes(entry.header)
        self._entries[update_id] = entry
        self.touch(entry, now_s)

    def touch(self, entry: Entry, now_s: float) -> None:
        """There is news of a staged update."""
        update_id = entry.header.update_id
        entry.touched_s = now_s
        self._staged.pop(update_id, None)
        self._staged[update_id] = None
        self.changed[update_id] = None

    def oldest_staged(self) -> Entry | None:
        """The staged update without news for longest."""
        for update_id in self._staged:
            return self._entries[update_id]
        return None

    def staged(self) -> list[Entry]:
        """All staged updates."""
        return [self._entries[update_id] for update_id in self._staged]

    def count(self, entry: Entry, counted_round: int) -> None:
        """A staged update is in the sum."""
        self._unstage(entry)
        entry.state, entry.counted_round = COUNTED, counted_round
        if counted_round == entry.header.round:
            self.account.delivered += entry.header.n_k
        else:
            self.account.carried += entry.header.n_k

    def drop(self, entry: Entry, reason: str) -> None:
        """A staged update will not count."""
        self._unstage(entry)
        entry.state, entry.reason = DROPPED, reason
        self.account.dropped += entry.header.n_k

    def record_dropped(self, header: UpdateHeader, reason: str, now_s: float) -> None:
        """A new update is dropped without being staged."""
        self._entries[header.update_id] = Entry(header, DROPPED, now_s, reason=reason)
        self.changed[header.update_id] = None
        self.account.offered += header.n_k
        self.account.dropped += header.n_k

    def leave(self, ue: str, *, keep_chunks: bool) -> tuple[Entry, ...]:
        """Entries of a UE that moves away; what is not counted is no longer known here."""
        moved = []
        for entry in [e for e in self if e.header.ue == ue]:
            held = dict(entry.chunks) if keep_chunks else {}
            moved.append(replace(entry, chunks=held))
            if entry.state != COUNTED:
                self._remove(entry)
                self.account.handed_over += entry.header.n_k
        return tuple(moved)

    def arrive(self, entry: Entry, now_s: float) -> None:
        """Take in an entry of a UE that moved here; an id known here was counted here before."""
        update_id = entry.header.update_id
        if update_id in self._entries:
            return
        if entry.state == STAGED:
            self.stage(replace(entry), now_s)
        elif entry.state == DROPPED:
            self.record_dropped(entry.header, entry.reason, now_s)
        else:
            self._entries[update_id] = replace(entry)
            self.changed[update_id] = None

    def forget_before(self, first_round: int) -> None:
        """Forget finished updates of rounds before ``first_round``."""
        for entry in [e for e in self if e.header.round < first_round and e.state != STAGED]:
            del self._entries[entry.header.update_id]
            self.changed[entry.header.update_id] = None

    def load(self, entries: list[Entry], account: Account) -> None:
        """Fill an empty ledger with what a stored one held, staged entries oldest first."""
        self.account = account
        for entry in entries:
            self._entries[entry.header.update_id] = entry
        for entry in sorted((e for e in entries if e.state == STAGED), key=lambda e: e.touched_s):
            self._staged[entry.header.update_id] = None
            self.staged_bytes += self.size_bytes(entry.header)

    def _unstage(self, entry: Entry) -> None:
        update_id = entry.header.update_id
        del self._staged[update_id]
        entry.chunks = {}
        self.staged_bytes -= self.size_bytes(entry.header)
        self.account.staged -= entry.header.n_k
        self.changed[update_id] = None

    def _remove(self, entry: Entry) -> None:
        if entry.state == STAGED:
            self._unstage(entry)
        else:
            self.account.dropped -= entry.header.n_k
        del self._entries[entry.header.update_id]
        self.changed[entry.header.update_id] = None


def entry_document(entry: Entry) -> dict[str, object]:
    """An entry without its chunks, as plain values."""
    return {
        "header": asdict(entry.header),
        "state": entry.state,
        "touched_s": entry.touched_s,
        "counted_round": entry.counted_round,
        "reason": entry.reason,
    }
