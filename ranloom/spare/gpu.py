"""Puts a GPU together for the executor: partitions, lanes, the synthetic RAN.

**Not yet run on a GPU**; its parts run with fakes and on numba's simulator.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.gpu.partition import Device
from ranloom.spare.coexistence import ChainBuffers
from ranloom.spare.cuda_device import CopyGate, CudaDevice, Lane, StreamLane
from ranloom.spare.green_contexts import SplitDevice, create_contexts
from ranloom.spare.ran_load import HOLD_THREADS, RanLoad, hold

Variant = Literal["streams", "persistent"]
QUEUE = 4096  # descriptors of a persistent kernel
torch_cuda: Any = torch.cuda  # streams and events are untyped


@dataclass(frozen=True)
class Gpu:
    """A GPU ready to be shared.

    Args:
        device: what the executor drives.
        ran: the synthetic RAN.
        splits: partitions that were made.
    """

    device: CudaDevice
    ran: RanLoad
    splits: tuple[SplitDevice, ...]


def open_gpu(
    found: Device,
    budgets: NDArray[np.int64],
    buffers: ChainBuffers,
    variant: Variant,
    *,
    decode_us: float,
    decode_bytes: int,
) -> Gpu:
    """Make partitions and everything on them.

    Args:
        found: the device.
        budgets: SM budgets to make partitions for.
        buffers: matrices on the device.
        variant: how tiles get there.
        decode_us: time for which the synthetic RAN holds its SMs in a slot.
        decode_bytes: input of a decode.

    Raises:
        InputError: the device is only simulated, or no driver binding is installed.
        CudaError: the driver refuses.
    """
    if found.simulated:
        raise InputError("device", found.name, "needed: a CUDA GPU")
    try:
        binding: Any = importlib.import_module("cuda.bindings.driver")
        numba_cuda: Any = importlib.import_module("numba.cuda")
    except ImportError as error:
        raise InputError("device", str(error), "needed: cuda-bindings and numba-cuda") from None
    torch_cuda.set_device(found.index)
    torch_cuda.init()
    splits = create_contexts(binding, found.index, budgets)
    lanes: dict[int, Lane] = {}
    streams: dict[int, Any] = {0: torch_cuda.Stream()}
    for split in splits:
        handle = split.ran_stream or torch_cuda.Stream().cuda_stream
        streams[split.sm] = torch_cuda.ExternalStream(handle)
        if variant == "persistent":
            lanes[split.sm] = _persistent(numba_cuda, split, buffers)
        else:
            stream = torch_cuda.ExternalStream(split.training_stream)
            lanes[split.sm] = StreamLane(stream, torch_cuda.stream, torch_cuda.Event)
    gate = CopyGate()
    blocks = max(split.ran_sm for split in splits)
    occupy = _Occupy(numba_cuda, blocks, decode_us)
    samples = torch.zeros(decode_bytes, dtype=torch.uint8).pin_memory()
    ran = RanLoad(
        streams,
        occupy,
        samples,
        samples.to("cuda"),
        torch_cuda.stream,
        torch_cuda.Event,
        gate,
    )
    return Gpu(CudaDevice(lanes, gate), ran, tuple(splits))


def _persistent(numba_cuda: Any, split: SplitDevice, buffers: ChainBuffers) -> Lane:
    from ranloom.spare.persistent_kernel import PersistentLane

    entries = numba_cuda.as_cuda_array(buffers.entries)
    weight = numba_cuda.as_cuda_array(buffers.weight)
    stream = numba_cuda.external_stream(split.training_stream)
    return PersistentLane(split.sm, entries, weight, entries, QUEUE, stream)


class _Occupy:
    """Holds SMs for a set time; the number of rounds is found by timing."""

    def __init__(self, numba_cuda: Any, blocks: int, decode_us: float) -> None:
        self._numba = numba_cuda
        self._blocks = max(1, blocks)
        self._out = numba_cuda.as_cuda_array(torch.zeros(self._blocks, HOLD_THREADS, device="cuda"))
        self._rounds = 10_000
        for _ in range(2):  # the first launch compiles
            began, ended = (torch_cuda.Event(enable_timing=True) for _ in range(2))
            stream = torch_cuda.current_stream()
            began.record(stream)
            self(stream)
            ended.record(stream)
            ended.synchronize()
        self._rounds = max(1, round(self._rounds * decode_us / (1e3 * began.elapsed_time(ended))))

    def __call__(self, stream: Any) -> None:
        hold[self._blocks, HOLD_THREADS, self._numba.external_stream(stream.cuda_stream)](
            self._out, self._rounds
        )
