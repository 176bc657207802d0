"""A synthetic RAN: in each decoding slot a copy to the device, then a kernel that holds SMs.

It stands for the decoder in measurements of coexistence: its input arrives by a copy whose end
opens the gate for training, and its kernel occupies every SM of the RAN's partition for a set
time. **Not yet run on a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from numba import cuda

from ranloom.spare.cuda_device import CopyGate

HOLD_THREADS = 256


@cuda.jit
def hold(out: Any, rounds: Any) -> None:
    """Keep a block busy for so many dependent multiply-adds.

    Args:
        out: float32[blocks, threads]; written, so that nothing is optimised away.
        rounds: multiply-adds of a thread.
    """
    value = out[cuda.blockIdx.x, cuda.threadIdx.x]
    for _ in range(rounds):
        value = value * 0.999 + 1.0
    out[cuda.blockIdx.x, cuda.threadIdx.x] = value


class RanLoad:
    """Decodes on the RAN's part of the device.

    Args:
        streams: stream of the RAN's part, by SM budget of training.
        occupy: runs the holding kernel, given the stream.
        samples: input of a slot in pinned host memory.
        on_device: where it is copied to.
        use: makes a stream current.
        new_event: makes an event.
        gate: opened by the end of each copy.
    """

    def __init__(
        self,
        streams: Mapping[int, Any],
        occupy: Callable[[Any], None],
        samples: torch.Tensor,
        on_device: torch.Tensor,
        use: Callable[[Any], AbstractContextManager[Any]],
        new_event: Callable[[], Any],
        gate: CopyGate,
    ) -> None:
        self._streams, self._occupy = streams, occupy
        self._samples, self._on_device = samples, on_device
        self._use, self._new_event, self._gate = use, new_event, gate

    def decode(self, slot: int, sm: int) -> None:
        """Queue copy and decode of a slot.

        Args:
            slot: number of the slot.
            sm: SM budget of training in force; the RAN has the rest.
        """
        stream = self._streams[sm]
        with self._use(stream):
            self._on_device.copy_(self._samples, non_blocking=True)
            event = self._new_event()
            event.record(stream)
            self._gate.signal(slot, event)
            self._occupy(stream)
