"""Partitions of a GPU: a stream whose kernels run on a given number of SMs.

On a GPU these are CUDA green contexts, made with ``cuda.core`` (it comes with numba-cuda). A green
context never becomes the current one: numba only works in the primary context, and the stream alone
says where a kernel runs. On numba's simulator a partition is a name only: nothing is confined, so
nothing that is timed there means anything.
"""

from __future__ import annotations

import importlib
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
_NEEDED = "needed: an NVIDIA GPU with its driver, and `pip install numba-cuda[cu13]`"


def _cuda_core() -> Any:
    return importlib.import_module("cuda.core")  # an extra: most machines have no GPU


@dataclass(frozen=True)
class Device:
    """The CUDA device at hand.

    Args:
        index: device number.
        name: what the driver calls it, or ``SIMULATOR``.
        compute_capability: ``major.minor``; empty on the simulator.
        sm_count: streaming multiprocessors; 0 on the simulator.
    """

    index: int
    name: str
    compute_capability: str
    sm_count: int

    @property
    def simulated(self) -> bool:
        """Whether numba only simulates it."""
        return self.name == SIMULATOR


def find_device(device: str) -> Device:
    """The device to use, made the current one.

    Args:
        device: ``auto`` for the first one, or its number.

    Raises:
        InputError: there is no such device, or no library to use it.
    """
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return Device(0, SIMULATOR, "", 0)
    try:
        found = list(_cuda_core().Device.get_all_devices())
    except Exception as error:  # no package, no driver, no device: CUDAError has no public name
        reason = str(error).splitlines()[0]
        raise InputError("device", device, f"{_NEEDED} ({reason})") from None
    if not found:
        raise InputError("device", device, _NEEDED)
    if device != "auto" and not (device.isdigit() and int(device) < len(found)):
        raise InputError("device", device, f"allowed: auto, or 0 to {len(found) - 1}")
    index = 0 if device == "auto" else int(device)
    chosen = found[index]
    chosen.set_current()
    major, minor = chosen.compute_capability
    return Device(index, chosen.name, f"{major}.{minor}", chosen.resources.sm.sm_count)


def card_of(device: Device, card: Path | None, folder: Path) -> Card:
    """Device card of a device: the given one, or the one in a folder that names it.

    Raises:
        InputError: no card names this device, or the card says other SMs or another compute
            capability than the device has (another model, or a part of it under MIG).
    """
    if card is not None:
        found = load_card(card)
        if found.device_name_contains not in device.name:
            raise InputError(
                "device", device.name, f"needed: the device of card {found.name}, or its own card"
            )
    else:
        cards = [load_card(path) for path in sorted(folder.glob("*.yaml"))]
        fitting = [c for c in cards if c.device_name_contains in device.name]
        if not fitting:
            raise InputError("device", device.name, f"needed: a device card for it in {folder}")
        # L40S contains L40: the longest name is meant
        found = max(fitting, key=lambda c: len(c.device_name_contains))
    has = (device.sm_count, device.compute_capability)
    if not device.simulated and has != (found.sm_count, found.compute_capability):
        raise InputError(
            f"device {device.name}",
            f"{has[0]} SMs, compute capability {has[1]}",
            f"needed by card {found.name}: {found.sm_count} SMs, {found.compute_capability}",
        )
    return found


@contextmanager
def partition(device: Device, sm: int) -> Iterator[Any]:
    """A numba stream confined to ``sm`` SMs of the current device; all SMs need no partition.

    Raises:
        InputError: the driver does not grant this number of SMs.
    """
    from numba import cuda

    if device.simulated or sm == device.sm_count:
        yield cuda.stream()
        return
    core = _cuda_core()
    current = core.Device(device.index)
    group = _group(current.resources.sm, sm)
    context = current.create_context(core.ContextOptions(resources=[group]))
    stream = context.create_stream()
    try:
        yield cuda.external_stream(int(stream.handle))
    finally:
        stream.close()
        context.close()


def _group(all_sms: Any, sm: int) -> Any:
    """A group of exactly ``sm`` SMs.

    The driver refuses some multiples of the co-scheduling alignment because of where SMs lie on
    the chip; with backfill it takes any.
    """
    options = _cuda_core().SMResourceOptions
    try:
        try:
            groups, _ = all_sms.split(options(count=sm))
        except Exception:  # CUDAError has no public name
            groups, _ = all_sms.split(options(count=sm, backfill=True))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            "sm", sm, f"needed: a partition that the driver grants ({reason})"
        ) from None
    if groups[0].sm_count != sm:
        granted = groups[0].sm_count
        raise InputError("sm", sm, f"needed: the granularity of the device, which grants {granted}")
    return groups[0]


def clock_and_driver(device: Device) -> str:
    """SM clock and driver version as ``nvidia-smi`` tells them, else ``unknown``."""
    tool = shutil.which("nvidia-smi")
    if device.simulated or tool is None:
        return "unknown"
    query = [tool, f"--id={device.index}", "--query-gpu=clocks.sm,clocks.max.sm,driver_version"]
    done = subprocess.run([*query, "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
