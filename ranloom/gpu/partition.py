"""Partitions of a GPU: a stream whose kernels run on a given number of SMs.

On a GPU these are CUDA green contexts, through PyTorch. On numba's simulator a partition is a name
only: nothing is confined, so nothing that is timed there means anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranloom.errors import InputError
from ranloom.gpu.card import Card, load_card

SIMULATOR = "numba CUDA simulator"


@dataclass(frozen=True)
class Device:
    """The CUDA device at hand.

    Args:
        index: device number.
        name: what the driver calls it, or ``SIMULATOR``.
        simulated: whether numba only simulates it.
    """

    index: int
    name: str
    simulated: bool


def find_device(device: str) -> Device:
    """The device to use.

    Args:
        device: ``auto`` for the first one, or its number.

    Raises:
        InputError: there is no such device.
    """
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return Device(0, SIMULATOR, simulated=True)
    import torch  # on a machine without a GPU nothing else here needs it

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise InputError("device", device, "needed: a CUDA GPU, and PyTorch built for it")
    if device != "auto" and not (device.isdigit() and int(device) < count):
        raise InputError("device", device, f"allowed: auto, or 0 to {count - 1}")
    index = 0 if device == "auto" else int(device)
    return Device(index, torch.cuda.get_device_name(index), simulated=False)


def card_of(device: Device, card: Path | None, folder: Path) -> Card:
    """Device card of a device: the given one, or the one in a folder that names it.

    Raises:
        InputError: the card is another device's, or no card names this device.
    """
    if card is not None:
        given = load_card(card)
        if given.device_name_contains not in device.name:
            raise InputError(
                "device", device.name, f"needed: the device of card {given.name}, or its own card"
            )
        return given
    cards = [load_card(path) for path in sorted(folder.glob("*.yaml"))]
    fitting = [c for c in cards if c.device_name_contains in device.name]
    if not fitting:
        raise InputError("device", device.name, f"needed: a device card for it in {folder}")
    # GH200 contains no other name, but L40S contains L40: the longest name is meant
    return max(fitting, key=lambda c: len(c.device_name_contains))


@contextmanager
def partition(device: Device, sm: int) -> Iterator[Any]:
    """A numba stream confined to ``sm`` SMs.

    Not yet run on a GPU: green contexts are PyTorch's, launches are numba's.
    """
    from numba import cuda

    if device.simulated:
        yield cuda.stream()
        return
    from torch.cuda.green_contexts import GreenContext

    context: Any = GreenContext.create(num_sms=sm, device_id=device.index)
    context.set_context()
    try:
        yield cuda.external_stream(context.Stream().cuda_stream)
    finally:
        context.pop_context()


def clock_and_driver(device: Device) -> str:
    """SM clock and driver version as ``nvidia-smi`` tells them, else ``unknown``."""
    tool = shutil.which("nvidia-smi")
    if device.simulated or tool is None:
        return "unknown"
    query = [tool, f"--id={device.index}", "--query-gpu=clocks.sm,clocks.max.sm,driver_version"]
    done = subprocess.run([*query, "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
