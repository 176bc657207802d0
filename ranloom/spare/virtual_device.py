"""A device whose tiles take modelled time, for the executor on machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable

from ranloom.spare.tiled_product import TiledProduct


class VirtualDevice:
    """Virtual clock; numbers are computed on the host.

    Args:
        rebind_us: time of a change of the partition.
        factor: actual over predicted time of a launch, drawn at each.
        copy_us: when, after its start, the RAN's data of a slot are resident.
        slot_us: slot duration, for that.
        compute: whether the products are computed or only timed.
    """

    in_order = True

    def __init__(
        self,
        *,
        rebind_us: float,
        factor: Callable[[], float],
        copy_us: float,
        slot_us: float,
        compute: bool,
    ) -> None:
        self._now_us = 0.0
        self._busy_until_us = 0.0
        self._rebind_us, self._factor = rebind_us, factor
        self._copy_us, self._slot_us = copy_us, slot_us
        self._compute = compute

    def now_us(self) -> float:
        """Virtual time."""
        return self._now_us

    def wait_until(self, at_us: float) -> None:
        """Move the clock forward."""
        self._now_us = max(self._now_us, at_us)

    def bind(self, sm: int) -> None:  # noqa: ARG002 -- all partitions take equally long
        """Let the time of a re-bind pass."""
        self._now_us += self._rebind_us

    def launch(self, product: TiledProduct, tiles: int, predicted_us: float) -> None:
        """Occupy the device, after what it already has to do."""
        if self._compute:
            product.compute(tiles)
        else:
            product.done += tiles
        began_us = max(self._now_us, self._busy_until_us)
        self._busy_until_us = began_us + predicted_us * self._factor()

    def idle(self) -> bool:
        """Whether all that was launched is done."""
        return self._busy_until_us <= self._now_us

    def wait_idle(self, until_us: float) -> bool:
        """Move the clock to the end of the work, or to that time."""
        self._now_us = max(self._now_us, min(until_us, self._busy_until_us))
        return self.idle()

    def ran_data_resident(self, slot: int) -> bool:
        """Whether the copy of this slot is over."""
        return self._now_us >= slot * self._slot_us + self._copy_us
