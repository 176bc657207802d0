"""Byte ledger of a run: every byte that a UE offered is in exactly one place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.mac.harq import HarqState
from ranloom.mac.rlc import AM_RANGES, Packets, RlcState


@dataclass(frozen=True, eq=False)
class ByteLedger:
    """Bytes of each UE at the end of a run, int64[n_ue], each term counted on its own.

    Attributes:
        offered: summed over the packets that arrived.
        delivered: summed over packets, when their last byte arrived.
        queued: bytes in the UE's buffer: never sent, or waiting to be repeated by RLC AM.
        in_flight: bytes in transport blocks without final feedback, plus bytes that wait in the
            receiver for the rest of their packet.
        dropped: summed over packets, when they were refused at the buffer limit.
        lost: summed over packets, when the last byte of a packet with a gap was settled.
    """

    offered: NDArray[np.int64]
    delivered: NDArray[np.int64]
    queued: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    dropped: NDArray[np.int64]
    lost: NDArray[np.int64]

    @property
    def error_bytes(self) -> int:
        """Largest imbalance of any UE; 0 unless the simulator is wrong."""
        balance = self.delivered + self.queued + self.in_flight + self.dropped + self.lost
        return int(np.abs(self.offered - balance).max(initial=0))


def byte_ledger(packet: Packets, rlc: RlcState, harq: HarqState) -> ByteLedger:
    """Count all bytes of a finished run.

    Bytes of a packet that is known to be lost but not yet settled count as in flight until its
    last byte is.
    """
    n_ue = len(rlc.offered)
    queued = rlc.end_byte - rlc.sent_byte
    in_flight = np.zeros(n_ue, np.int64)
    for u in range(n_ue):
        ring = (rlc.again_first[u] + np.arange(rlc.n_again[u])) % AM_RANGES
        queued[u] += rlc.again_length[u, ring].sum()
        free = harq.free[u, : harq.n_free[u]]
        busy = np.setdiff1d(np.arange(harq.free.shape[1]), free)
        in_flight[u] = harq.length[u, busy].sum()
        own = slice(packet.base[u], packet.base[u] + rlc.n_accepted[u])
        settled = packet.arrived_bytes[own] + packet.missing_bytes[own]
        unresolved = settled < packet.size_bytes[packet.accepted[own]]
        in_flight[u] += settled[unresolved].sum()
    return ByteLedger(
        rlc.offered.copy(), rlc.delivered.copy(), queued, in_flight, rlc.dropped.copy(),
        rlc.lost.copy(),
    )  # fmt: skip
