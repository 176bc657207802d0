"""The intra-site scheduler: tiles of queued products, slot by slot, beside the RAN.

One loop for a GPU (``cuda_device``) and for modelled time (``virtual_device``), with the
admission policy of the replay. In a slot it binds the partition of the budget in force, waits until
the RAN's data of that slot are resident (WEAVER App. E), and launches waves of tiles that are
predicted to end with the slot. At a decode start at which the RAN takes SMs back it looks whether
training still runs on them: a violation (section 7.1.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ranloom.errors import InputError
from ranloom.spare.admission import admitted_waves
from ranloom.spare.tile_profile import TileProfile
from ranloom.spare.tiled_product import TiledProduct


class TrainingDevice(Protocol):
    """What the loop needs of a device."""

    @property
    def in_order(self) -> bool:
        """Whether tiles launched later begin after those launched before are done."""

    def now_us(self) -> float:
        """Clock of the device."""

    def wait_until(self, at_us: float) -> None:
        """Return at that time, not before."""

    def bind(self, sm: int) -> None:
        """Let the next tiles run on the partition with so many SMs."""

    def launch(self, product: TiledProduct, tiles: int, predicted_us: float) -> None:
        """Queue the next tiles of a product on the bound partition, and return."""

    def idle(self) -> bool:
        """Whether all that was launched is done."""

    def wait_idle(self, until_us: float) -> bool:
        """Return once all is done, or at that time; whether all is done."""

    def ran_data_resident(self, slot: int) -> bool:
        """Whether the RAN's input of this slot has been copied to the device."""


@dataclass
class ExecutorReport:
    """What happened.

    Args:
        slots: slots run.
        gated_us: time in which training waited for the RAN's copies.
        tiles: finished tiles.
        useful_flops: their operations.
        rebind_us: time of each change of the partition.
        violations: decode starts at which training still held SMs that the RAN took.
        violation_us: how long each lasted.
    """

    slots: int = 0
    gated_us: float = 0.0
    tiles: int = 0
    useful_flops: float = 0.0
    rebind_us: list[float] = field(default_factory=list)
    violation_us: list[float] = field(default_factory=list)

    @property
    def violations(self) -> int:
        """Number of violations."""
        return len(self.violation_us)


class SlotExecutor:
    """Runs products on what the RAN leaves.

    Args:
        device: where tiles run.
        profile: predicted times; its budgets are those that may be bound.
        bytes_per_us: memory bandwidth that the RAN leaves.
        slot_us: slot duration.
        source: the next product, asked whenever the last one is finished.
        poll_us: how often a closed gate is looked at.
        waves_ahead: waves launched before the device is looked at again. One keeps a violation
            shorter than a tile; more hide the cost of launches, and their delays add up.

    Raises:
        InputError: a wave of the profile does not fit in a slot, or none is to be launched.
    """

    def __init__(
        self,
        device: TrainingDevice,
        profile: TileProfile,
        bytes_per_us: float,
        slot_us: float,
        source: Callable[[], TiledProduct],
        poll_us: float,
        waves_ahead: int = 1,
    ) -> None:
        profile.check_slot(slot_us)
        if waves_ahead < 1:
            raise InputError("executor: waves ahead", waves_ahead, "allowed: 1 or more")
        self._waves_ahead = waves_ahead
        self._device, self._profile = device, profile
        self._bytes_per_us, self._slot_us, self._poll_us = bytes_per_us, slot_us, poll_us
        self._source = source
        self._product: TiledProduct | None = None
        self._bound = 0
        self.report = ExecutorReport()

    def run_slot(self, slot: int, start_us: float, sm: int, *, decodes: bool) -> None:
        """Run one slot; returns when nothing more is admitted, at the latest at its end.

        Args:
            slot: number of the slot.
            start_us: when it starts; the past is no fault, the slot is shorter then.
            sm: budget in force, 0 or one of the profile's.
            decodes: whether the RAN decodes in this slot.

        Raises:
            InputError: a budget that was not profiled.
        """
        device, end_us = self._device, start_us + self._slot_us
        if sm and sm not in self._profile.levels:
            known = ", ".join(str(level) for level in self._profile.levels)
            raise InputError("executor: SM budget", sm, f"allowed: 0, {known}")
        device.wait_until(start_us)
        self.report.slots += 1
        if sm < self._bound and not device.idle():
            # Tiles that run over the slot's end on SMs that the RAN now takes.
            device.wait_idle(float("inf"))
            self.report.violation_us.append(device.now_us() - start_us)
        if sm != self._bound:
            began_us = device.now_us()
            if sm:
                device.bind(sm)
                self.report.rebind_us.append(device.now_us() - began_us)
            self._bound = sm
        if sm == 0 or (decodes and not self._gate(slot, end_us)):
            return
        while self._launch(sm, end_us):
            if not device.wait_idle(end_us):
                return

    def _gate(self, slot: int, end_us: float) -> bool:
        """Wait for the RAN's copies; False if the slot ends before they are there."""
        began_us = self._device.now_us()
        while not self._device.ran_data_resident(slot):
            now_us = self._device.now_us()
            if now_us >= end_us:
                break
            self._device.wait_until(min(end_us, now_us + self._poll_us))
        waited_us = self._device.now_us() - began_us
        self.report.gated_us += waited_us
        return began_us + waited_us < end_us

    def _launch(self, sm: int, end_us: float) -> bool:
        """Launch the next waves that fit before the end of the slot; whether there were any."""
        predicted_end_us = began_us = self._device.now_us()
        ahead = self._waves_ahead
        while ahead:
            # What comes next adds to outputs in flight, or reads them.
            dependent = self._product is None or self._product.starts_over
            if dependent and predicted_end_us > began_us and not self._device.in_order:
                return True
            if self._product is None or self._product.finished:
                self._product = self._source()
            product = self._product
            wave_us, wave_bytes = self._profile.wave(product.gemm, sm)
            fit = admitted_waves(
                end_us - predicted_end_us, self._bytes_per_us, sm, wave_us, wave_bytes
            )
            tiles = min(min(fit, ahead) * sm, product.concurrent)
            if tiles == 0:
                break
            waves = -(-tiles // sm)
            ahead -= waves
            taken_us = waves * wave_us
            self._device.launch(product, tiles, taken_us)
            predicted_end_us += taken_us
            self.report.tiles += tiles
            self.report.useful_flops += product.gemm.flops * tiles / product.total
        return predicted_end_us > began_us
