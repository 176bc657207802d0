"""Whether a GEMM tile may start now (WEAVER section 6.2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Headroom:
    """What is left of the current RAN slot.

    Args:
        until_slot_end_us: time to the end of the slot.
        bytes_per_us: memory bandwidth that the RAN leaves.
        sm: SMs that the RAN leaves.
    """

    until_slot_end_us: float
    bytes_per_us: float
    sm: int


def admit(predicted_us: float, traffic_bytes: float, headroom: Headroom) -> bool:
    """Admit a tile that ends in this slot and whose traffic fits the headroom.

    Args:
        predicted_us: profiled time of the tile on the SMs of ``headroom``.
        traffic_bytes: what the tile reads and writes in that time.
        headroom: what is left of the slot.
    """
    return (
        headroom.sm > 0
        and predicted_us <= headroom.until_slot_end_us
        and traffic_bytes <= predicted_us * headroom.bytes_per_us
    )
