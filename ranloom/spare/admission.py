"""Which tiles may start now: the one policy of the replay and of the executors.

A tile is admitted if it is predicted to end with the slot and if its memory traffic fits what
the RAN leaves (WEAVER section 6.2, App. C.1). Tiles run in waves of one tile an SM, so the
question is how many waves fit. Compiled, since the replay asks it once a slot; plain Python
may call it as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import njit


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

    def after(self, used_us: float) -> Headroom:
        """The same slot after some time was used."""
        return Headroom(self.until_slot_end_us - used_us, self.bytes_per_us, self.sm)


@njit(cache=True)
def admitted_waves(
    until_slot_end_us: float, bytes_per_us: float, sm: int, wave_us: float, wave_bytes: float
) -> int:
    """Waves of equal tiles that end in this slot and whose traffic fits the headroom.

    Args:
        until_slot_end_us: time to the end of the slot.
        bytes_per_us: memory bandwidth that the RAN leaves.
        sm: SMs that the RAN leaves.
        wave_us: predicted time of a wave on these SMs.
        wave_bytes: what a wave reads and writes in that time.
    """
    # The margins are those of float64 sums over a slot: a wave that ends just with it is in.
    if sm <= 0 or wave_bytes > wave_us * bytes_per_us * (1.0 + 1e-9):
        return 0
    return max(0, int(until_slot_end_us / wave_us + 1e-9))


def admit(predicted_us: float, traffic_bytes: float, headroom: Headroom) -> bool:
    """Whether one more wave may start.

    Args:
        predicted_us: profiled time of the wave on the SMs of ``headroom``.
        traffic_bytes: what the wave reads and writes in that time.
        headroom: what is left of the slot.
    """
    waves = admitted_waves(
        headroom.until_slot_end_us,
        headroom.bytes_per_us,
        headroom.sm,
        predicted_us,
        traffic_bytes,
    )
    return bool(waves > 0)
