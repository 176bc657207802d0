"""Pre-created green contexts: for each SM budget a stream for training, and one for what is left.

The two partitions of a budget are the two parts of one split of the device, so that they never
share an SM. (PyTorch's own green contexts all begin with the first SM.) Contexts are made once,
since that takes long and some 20 MB each (WEAVER section 7.3); a re-bind only changes the stream.

``binding`` is ``cuda.bindings.driver``, which comes with CUDA builds of PyTorch; tests give a fake.
**Not yet run on a GPU.**
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.gpu.card import Card

MAX_CONTEXTS = 16  # App. E


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


@dataclass(frozen=True)
class SplitDevice:
    """The device cut in two for one budget.

    Args:
        sm: SMs of the training part.
        ran_sm: SMs of the other part.
        training_stream: handle of a stream on the training part.
        ran_stream: handle of a stream on the other part, 0 where nothing is left.
        training_bytes: device memory that the training context took.
    """

    sm: int
    ran_sm: int
    training_stream: int
    ran_stream: int
    training_bytes: int


def chosen_budgets(card: Card, count: int = MAX_CONTEXTS) -> NDArray[np.int64]:
    """SM budgets to make contexts for: all levels of a card, or that many spread evenly.

    Args:
        card: device.
        count: most contexts.

    Returns:
        int64[n], ascending; the whole device is the last.

    Raises:
        InputError: fewer than one or more than ``MAX_CONTEXTS``.
    """
    if not 1 <= count <= MAX_CONTEXTS:
        raise InputError("green contexts", count, f"allowed: 1 to {MAX_CONTEXTS}")
    levels = card.levels
    if levels.size <= count:
        return levels
    # Counted from the top, so that the whole device is one of them.
    steps = np.rint(np.linspace(levels.size / count - 1, levels.size - 1, count))
    return levels[steps.astype(np.int64)]


def budget_for(free_sm: int, budgets: NDArray[np.int64]) -> int:
    """The largest budget that so many free SMs hold, 0 if none."""
    place = int(np.searchsorted(budgets, free_sm, side="right"))
    return int(budgets[place - 1]) if place else 0


def create_contexts(
    binding: Any, device_index: int, budgets: NDArray[np.int64]
) -> list[SplitDevice]:
    """Split the device for each budget.

    Args:
        binding: ``cuda.bindings.driver``.
        device_index: number of the device.
        budgets: SM budgets, ascending.

    Raises:
        CudaError: the driver refuses.
        InputError: the driver makes partitions of another size than the device card says.
    """
    device = _call(binding, "cuDeviceGet", device_index)
    kind = binding.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = _call(binding, "cuDeviceGetDevResource", device, kind)
    made = []
    for sm in budgets.tolist():
        part, rest = whole, None
        if sm < whole.sm.smCount:
            groups, _, rest = _call(binding, "cuDevSmResourceSplitByCount", 1, whole, 0, sm)
            part = groups[0]
        if part.sm.smCount != sm:
            raise InputError(
                "device card: SM levels", sm, f"the driver makes it {part.sm.smCount} SMs"
            )
        free_before, _ = _call(binding, "cuMemGetInfo")
        training = _stream(binding, device, part)
        free_after, _ = _call(binding, "cuMemGetInfo")
        ran_sm = 0 if rest is None else rest.sm.smCount
        ran = _stream(binding, device, rest) if ran_sm else 0
        made.append(SplitDevice(sm, ran_sm, training, ran, max(0, free_before - free_after)))
    return made


def _stream(binding: Any, device: Any, resource: Any) -> int:
    description = _call(binding, "cuDevResourceGenerateDesc", [resource], 1)
    flags = binding.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = _call(binding, "cuGreenCtxCreate", description, device, flags)
    non_blocking = binding.CUstream_flags.CU_STREAM_NON_BLOCKING
    return int(_call(binding, "cuGreenCtxStreamCreate", context, non_blocking, 0))


def _call(binding: Any, name: str, *arguments: Any) -> Any:
    """Result of a driver call: nothing, one value, or a tuple."""
    error, *values = getattr(binding, name)(*arguments)
    if int(error) != 0:
        raise CudaError(f"{name} failed with CUDA error {int(error)}")
    return values[0] if len(values) == 1 else tuple(values)
