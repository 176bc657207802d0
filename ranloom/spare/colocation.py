"""A workload on a device, ready to run beside any trace under any sharing mechanism."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ranloom.gpu.card import Card
from ranloom.spare.budget import Reservation, rescale
from ranloom.spare.gemm import TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import Outcome, replay
from ranloom.spare.tile_profile import modelled_profile
from ranloom.spare.workload import Workload


@dataclass(frozen=True)
class Colocation:
    """Everything that a replay needs but the trace and the mechanism.

    Args:
        workload: what runs.
        model: the device and its times.
        tiling: extent of a tile.
        jitter_sigma: standard deviation of the logarithm of actual over predicted wave time.
    """

    workload: Workload
    model: TileModel
    tiling: Tiling
    jitter_sigma: float

    @property
    def card(self) -> Card:
        """The device."""
        return self.model.card

    def on_device(self, trace: Reservation, traced_on: Card) -> Reservation:
        """A trace of another device as the same share of this one (WEAVER 7.1.2)."""
        return trace if traced_on == self.card else rescale(trace, traced_on.sm_count, self.card)

    def check_slot(self, slot_us: float) -> None:
        """Refuse tiles that fit in a slot on no partition.

        Raises:
            InputError: on the smallest one, where they share the bandwidth with the fewest others,
                a wave takes longer than a slot.
        """
        smallest = self.card.levels[:1]
        modelled_profile(self.workload.gemms, smallest, self.model, self.tiling).check_slot(slot_us)

    def beside(
        self, trace: Reservation, mechanism: Mechanism, *, seed: int, slot_bounded: bool = True
    ) -> Outcome:
        """Run beside a trace of this device; arguments and errors as in :func:`replay`."""
        return replay(
            trace,
            self.workload,
            mechanism,
            self.model,
            self.tiling,
            jitter_sigma=self.jitter_sigma,
            seed=seed,
            slot_bounded=slot_bounded,
        )

    def tokens_per_s(self, done: Outcome) -> float:
        """Training throughput; 0 for workloads without tokens."""
        return done.units * self.workload.tokens / done.duration_s

    def power_w(self, done: Outcome) -> float:
        """Power of the spare SMs: their share of the board's limit, whatever they get done.

        An upper bound from the device card (WEAVER App. F); no thermal limit is modelled.
        """
        return self.card.power_w * done.spare_sm_s / done.duration_s / self.card.sm_count

    def with_loss(self, loss_us: float) -> Colocation:
        """The same with a further loss at each change of the partition."""
        return replace(self, workload=replace(self.workload, relaunch_us=loss_us))
