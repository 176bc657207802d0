"""What a gNB's aggregator is set up with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ranloom.errors import InputError
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.cutoff import CutOff
from ranloom.federated.layout import TensorLayout

LATE_POLICIES = ("carry_over", "carry_discount", "drop")


@dataclass(frozen=True)
class AggregatorConfig:
    """What an aggregator is set up with.

    Args:
        gnb: name of the gNB.
        layout: tensors of every update.
        arithmetic: of the sums (:mod:`ranloom.federated.accumulator`).
        fraction_bits: of ``fixed64`` sums.
        chunk_bytes: size of a chunk; the last one of a payload may be shorter.
        staging_bytes: most payload bytes held for unfinished updates.
        stall_s: an unfinished update without news for this long is dropped; it may come anew.
        cut_off: when to stop waiting in a round.
        wave_max_s: a wave is closed at the latest this long after its first update.
        late: ``carry_over`` counts a late update in the next round with its full weight,
            ``carry_discount`` with n_k (1 + staleness)**-alpha, ``drop`` not at all.
        alpha: exponent of the discount.
        max_staleness: an update more rounds late than this is dropped.

    Raises:
        InputError: a value out of range.
    """

    gnb: str
    layout: TensorLayout
    arithmetic: str
    fraction_bits: int
    chunk_bytes: int
    staging_bytes: int
    stall_s: float
    cut_off: CutOff
    wave_max_s: float
    late: str
    alpha: float
    max_staleness: int

    def __post_init__(self) -> None:
        if self.late not in LATE_POLICIES:
            raise InputError("late", self.late, f"allowed: {', '.join(LATE_POLICIES)}")
        for name in ("chunk_bytes", "staging_bytes", "max_staleness"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "allowed: at least 1")
        for name in ("stall_s", "wave_max_s"):
            if not getattr(self, name) > 0.0:
                raise InputError(name, getattr(self, name), "allowed: above 0")
        if not 0.0 <= self.alpha < math.inf:
            raise InputError("alpha", self.alpha, "allowed: at least 0")

    def new_sums(self) -> Accumulator:
        """An empty sum."""
        return Accumulator(self.layout.elements, self.arithmetic, self.fraction_bits)
