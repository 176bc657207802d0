"""How a GPU is shared between RAN and training, as far as training feels it (WEAVER Table 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mechanism:
    """A GPU-sharing mechanism.

    Args:
        name: name in tables.
        reconfiguration_us: time after a change of the partition in which training cannot run.
        keeps_state: whether device state survives a change. Where it does not, what was not
            finished restarts and a checkpoint is restored first.
        checkpoint_us: time to save and restore the training state around a change; counts only
            where state is not kept.
    """

    name: str
    reconfiguration_us: float
    keeps_state: bool
    checkpoint_us: float

    @property
    def outage_us(self) -> float:
        """Time lost to training at each change of the partition."""
        return self.reconfiguration_us + (0.0 if self.keeps_state else self.checkpoint_us)
