"""Timing the decode of whole transport blocks, on whatever decodes: backends ``cpu`` and ``cuda``.

A backend says on how many SMs (or cores) it can decode, and times repeated decodes of given
values. What is decoded, how often, and what becomes of the times is the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.ldpc.transport_block import Receiver, TransportBlockFormat, encode_transport_block
from ranloom.lut.measurements import Measurements, from_cells
from ranloom.nr.mcs import mcs_table
from ranloom.nr.tbs import Allocation, transport_block_bits

# far above the waterfall: a decode that stops early would be short, one that does not is typical
_AMPLITUDE, _NOISE = 4.0, 2.0


class Decodes(Protocol):
    """Where decodes are timed."""

    @property
    def levels(self) -> Sequence[int]:
        """SM (or core) counts to time on."""

    @property
    def settings(self) -> DecoderSettings:
        """How it decodes."""

    def times_us(
        self, values: NDArray[np.int16], form: TransportBlockFormat, level: int, repetitions: int
    ) -> list[float]:
        """Times of that many decodes of all code blocks of a transport block, us."""

    def describe(self) -> Mapping[str, str]:
        """What decoded, and under which conditions; asked for after the last decode."""


def transport_block_format(mcs: int, n_prb: int, allocation: Allocation) -> TransportBlockFormat:
    """Format of a first transmission of one transport block.

    Raises:
        InputError: MCS or PRB outside the table.
    """
    rows = mcs_table(allocation.table)
    tbs_bits = transport_block_bits(n_prb, mcs, **allocation.keywords)
    order = int(rows.modulation_order[mcs])
    return TransportBlockFormat(
        tbs_bits,
        float(rows.code_rate[mcs]),
        order,
        int(allocation.resource_elements(n_prb)) * order * allocation.n_layers,
        allocation.n_layers,
    )


def received(
    mcs: int, n_prb: int, allocation: Allocation, settings: DecoderSettings, seed: int
) -> tuple[NDArray[np.int16], TransportBlockFormat]:
    """Decoder input of one noisy transport block, int16[n_code_blocks, n_columns * Z]."""
    form = transport_block_format(mcs, n_prb, allocation)
    rng = np.random.default_rng(np.random.SeedSequence([seed, mcs, n_prb]))
    sent = encode_transport_block(rng.integers(0, 2, form.tbs_bits, dtype=np.uint8), form)
    receiver = Receiver(form, settings)
    receiver.add(_AMPLITUDE * (1.0 - 2.0 * sent) + rng.normal(0.0, _NOISE, form.coded_bits))
    return receiver.quantised(), form


def measure(
    points: Iterable[tuple[int, int]],
    allocation: Allocation,
    decodes: Decodes,
    *,
    repetitions: int,
    warm_up: int,
    seed: int,
    progress: Callable[[int, int, int, float], None] | None = None,
) -> Measurements:
    """Decode times of transport blocks by MCS, PRB and level.

    Args:
        points: (MCS, PRB) pairs.
        allocation: shape of the allocation.
        decodes: where to decode.
        repetitions: timed decodes a cell.
        warm_up: decodes before those.
        seed: of the transmitted bits and the noise.
        progress: called with MCS, PRB, level and the P99 in us after each cell.

    Raises:
        InputError: no repetition, or a point outside the table.
    """
    if repetitions < 1:
        raise InputError("repetitions", repetitions, "allowed: at least 1")
    if warm_up < 0:
        raise InputError("warm_up", warm_up, "allowed: at least 0")
    cells: dict[tuple[int, int, int], tuple[float, float, int]] = {}
    for mcs, n_prb in points:
        values, form = received(mcs, n_prb, allocation, decodes.settings, seed)
        for level in decodes.levels:
            times_us = decodes.times_us(values, form, level, warm_up + repetitions)[warm_up:]
            p50, p99 = np.quantile(times_us, [0.5, 0.99], method="higher")
            cells[mcs, n_prb, level] = (float(p50), float(p99), repetitions)
            if progress is not None:
                progress(mcs, n_prb, level, float(p99))
    settings = decodes.settings
    how = {
        **decodes.describe(),
        "decoder": f"{settings.schedule} {settings.check_rule} int{settings.message_bits}, "
        f"{settings.iterations} iterations, early stop {settings.early_stop}",
        "allocation": allocation.describe(),
        "repetitions": f"{repetitions} after {warm_up} to warm up",
        "taken": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    return from_cells(cells, "measured", how)
