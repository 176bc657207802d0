"""Backend ``cpu``: the numba decoder timed on one core.

A correctness reference and a yardstick, not an SM curve: its ``sm`` column counts cores (one),
which is no level of a GPU card. Times are CPU time of the decoding thread: what else runs on the
machine does not count.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ranloom.errors import InputError
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.transport_block import Receiver, TransportBlockFormat, encode_transport_block
from ranloom.lut.characterise import Allocation
from ranloom.lut.measurements import Measurements, from_cells
from ranloom.nr.mcs import mcs_table
from ranloom.nr.tbs import resource_elements, transport_block_bits


def transport_block_format(mcs: int, n_prb: int, allocation: Allocation) -> TransportBlockFormat:
    """Format of a first transmission of one transport block.

    Raises:
        InputError: MCS or PRB outside the table.
    """
    rows = mcs_table(allocation.table)
    tbs_bits = transport_block_bits(
        n_prb,
        mcs,
        table=allocation.table,
        n_layers=allocation.n_layers,
        n_symbols=allocation.n_symbols,
        n_dmrs_per_prb=allocation.n_dmrs_per_prb,
        n_oh=allocation.n_oh,
    )
    n_re = resource_elements(
        n_prb,
        n_symbols=allocation.n_symbols,
        n_dmrs_per_prb=allocation.n_dmrs_per_prb,
        n_oh=allocation.n_oh,
    )
    order = int(rows.modulation_order[mcs])
    return TransportBlockFormat(
        tbs_bits,
        float(rows.code_rate[mcs]),
        order,
        int(n_re) * order * allocation.n_layers,
        allocation.n_layers,
    )


def measure_cpu(
    points: Iterable[tuple[int, int]],
    allocation: Allocation,
    settings: DecoderSettings,
    repetitions: int,
    seed: int,
    progress: Callable[[int, int, float], None] | None = None,
) -> Measurements:
    """Decode times of transport blocks on one core, all iterations run.

    Args:
        points: (MCS, PRB) pairs.
        allocation: shape of the allocation.
        settings: decoder settings; switch off early stop for the worst case.
        repetitions: timed decodes a point, after one that is not timed.
        seed: of the transmitted bits and the noise.
        progress: called with MCS, PRB and the P99 in us after each point.

    Raises:
        InputError: no repetition, or a point outside the table.
    """
    if repetitions < 1:
        raise InputError("repetitions", repetitions, "allowed: at least 1")
    cells: dict[tuple[int, int, int], tuple[float, float, int]] = {}
    for mcs, n_prb in points:
        form = transport_block_format(mcs, n_prb, allocation)
        rng = np.random.default_rng(np.random.SeedSequence([seed, mcs, n_prb]))
        sent = encode_transport_block(rng.integers(0, 2, form.tbs_bits, dtype=np.uint8), form)
        receiver = Receiver(form, settings)
        receiver.add(4.0 * (1.0 - 2.0 * sent) + rng.normal(0.0, 2.0, form.coded_bits))
        values, blocks = receiver.quantised(), form.segmentation
        times_us = []
        for repetition in range(repetitions + 1):
            start = time.thread_time_ns()
            decode(values, form.graph, blocks.lifting_size, settings, form.rows_needed)
            if repetition:
                times_us.append((time.thread_time_ns() - start) / 1e3)
        p50, p99 = np.quantile(times_us, [0.5, 0.99], method="higher")
        cells[mcs, n_prb, 1] = (float(p50), float(p99), repetitions)
        if progress is not None:
            progress(mcs, n_prb, float(p99))
    how = {
        "backend": "cpu (numba, one core, CPU time; sm counts cores)",
        "processor": _processor(),
        "decoder": f"{settings.schedule} {settings.check_rule} int{settings.message_bits}, "
        f"{settings.iterations} iterations, early stop {settings.early_stop}",
        "allocation": f"MCS table {allocation.table}, {allocation.n_layers} layer(s), "
        f"{allocation.n_symbols} symbols, {allocation.n_dmrs_per_prb} DMRS REs",
        "repetitions": str(repetitions),
    }
    return from_cells(cells, "measured", how)


def _processor() -> str:
    """Name of the CPU where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
