"""How much of the GPU LDPC decoding uses, by MCS and PRB (WEAVER section 3.1 and appendix A).

All shares are of one decode deadline (1 ms in the paper) on the whole device:

* slack: what the median decode leaves of the deadline.
* SMU: SM time of the part of the latency that spreads over SMs, ``k W``. Derived.
* GBU: memory traffic of the base-graph edges that the code rate needs, at the bytes per edge of
  appendix A.1, over the memory bandwidth. Derived; nothing is fitted.
* ACU: operations on those edges over the FP32 lanes' instruction rate, times instructions per
  operation. That factor is fitted to the published maximum; useful ACU leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.gpu.card import Card
from ranloom.gpu.latency import LatencyModel
from ranloom.gpu.roofline import BYTES_PER_EDGE, OPS_PER_EDGE
from ranloom.ldpc.base_graph import base_graph
from ranloom.nr.mcs import mcs_table
from ranloom.nr.segmentation import segment_arrays, work_table
from ranloom.nr.tbs import Allocation, tbs_table


def decoder_edges(allocation: Allocation, max_prb: int) -> NDArray[np.int64]:
    """Base-graph edges x lifting size over all code blocks of a slot.

    Rows of the base graph whose parity bits are not sent at the code rate are left out.

    Returns:
        int64[n_mcs, max_prb + 1]; column 0 is 0.
    """
    mcs = mcs_table(allocation.table)
    sizes = tbs_table(max_prb, **allocation.keywords).astype(np.int64)
    n_re = allocation.resource_elements(np.arange(max_prb + 1))
    coded_bits = n_re[None, :] * mcs.modulation_order[:, None] * allocation.n_layers
    blocks = segment_arrays(sizes, mcs.code_rate_x2048[:, None])
    # 38.212 clause 5.4.2.1: blocks differ by one symbol at most; take the longest
    sent = -(-coded_bits // np.maximum(blocks.n_code_blocks, 1))
    filler = blocks.code_block_bits - blocks.payload_bits
    edges = np.zeros(sizes.shape, dtype=np.int64)
    for index in (1, 2):
        graph = base_graph(index)
        rows = graph.rows_needed(sent, filler, blocks.lifting_size)
        edges = np.where(blocks.base_graph == index, graph.edges_of_rows(rows), edges)
    return edges * blocks.n_code_blocks * blocks.lifting_size


@dataclass(frozen=True, eq=False)
class Characterisation:
    """Utilisation of the whole device, one row per MCS and PRB (from 1).

    Attributes:
        mcs: int16[n].
        prb: int16[n].
        tbs_bits: int32[n], transport block size.
        work: int32[n], code blocks x lifting size.
        ops: float64[n], operations of a decode.
        bytes: float64[n], memory traffic of a decode.
        p50_us: float64[n], median latency on all SMs.
        p99_us: float64[n].
        slack_pct: float64[n].
        smu_pct: float64[n].
        acu_pct: float64[n].
        acu_useful_pct: float64[n].
        gbu_pct: float64[n].
    """

    mcs: NDArray[np.int16]
    prb: NDArray[np.int16]
    tbs_bits: NDArray[np.int32]
    work: NDArray[np.int32]
    ops: NDArray[np.float64]
    bytes: NDArray[np.float64]
    p50_us: NDArray[np.float64]
    p99_us: NDArray[np.float64]
    slack_pct: NDArray[np.float64]
    smu_pct: NDArray[np.float64]
    acu_pct: NDArray[np.float64]
    acu_useful_pct: NDArray[np.float64]
    gbu_pct: NDArray[np.float64]


@dataclass(frozen=True)
class Assumptions:
    """What utilisation is computed with.

    Args:
        iterations: decoder iterations.
        deadline_us: time that a decode may take; shares of a slot relate to it.
        instructions_per_op: issued instructions per operation of appendix A.1.
    """

    iterations: int
    deadline_us: float
    instructions_per_op: float


def _lane_ops_per_us(card: Card) -> float:
    return card.fp32_tflops / 2.0 * 1e6  # an FMA counts as two operations


def _bytes_per_us(card: Card) -> float:
    return card.memory_bandwidth_gb_per_s * 1e3


def characterise(
    allocation: Allocation,
    max_prb: int,
    card: Card,
    model: LatencyModel,
    assumed: Assumptions,
) -> Characterisation:
    """Utilisation of the whole device at every MCS and PRB, over one deadline.

    Args:
        allocation: shape of the allocation.
        max_prb: widest allocation.
        card: the device.
        model: its decode latency.
        assumed: iterations, deadline and instructions.
    """
    n_mcs = mcs_table(allocation.table).n_mcs
    mcs, prb = np.meshgrid(np.arange(n_mcs), np.arange(1, max_prb + 1), indexing="ij")
    work = work_table(max_prb, **allocation.keywords)[:, 1:].astype(np.float64)
    edges = assumed.iterations * decoder_edges(allocation, max_prb)[:, 1:].astype(np.float64)
    ops, traffic = edges * OPS_PER_EDGE, edges * BYTES_PER_EDGE
    p50 = model.p50_us(work, card.sm_count)
    busy_us_sm = model.k_us_sm * work / model.p99_over_mean
    deadline_us = assumed.deadline_us
    useful = 100.0 * ops / (_lane_ops_per_us(card) * deadline_us)
    return Characterisation(
        mcs=mcs.ravel().astype(np.int16),
        prb=prb.ravel().astype(np.int16),
        tbs_bits=tbs_table(max_prb, **allocation.keywords)[:, 1:].ravel(),
        work=work.ravel().astype(np.int32),
        ops=ops.ravel(),
        bytes=traffic.ravel(),
        p50_us=p50.ravel(),
        p99_us=model.p99_us(work, card.sm_count).ravel(),
        slack_pct=(100.0 * (1.0 - p50 / deadline_us)).ravel(),
        smu_pct=(100.0 * busy_us_sm / (card.sm_count * deadline_us)).ravel(),
        acu_pct=(useful * assumed.instructions_per_op).ravel(),
        acu_useful_pct=useful.ravel(),
        gbu_pct=(100.0 * traffic / (_bytes_per_us(card) * deadline_us)).ravel(),
    )


@dataclass(frozen=True, eq=False)
class Reservation:
    """One slot decoded on fewer SMs (WEAVER appendix A.2), one row per SM count.

    Attributes:
        sm: int16[n], reserved SMs.
        p99_us: float64[n], 99th percentile of the decode.
        decode_us: float64[n], its median, during which the following shares hold.
        slot_us: float64[n], median with what a slot takes beside the decode.
        smu_pct: float64[n], share of the SMs that is reserved.
        acu_pct: float64[n], arithmetic utilisation of the device while decoding.
        gbu_pct: float64[n], bandwidth utilisation of the device while decoding.
    """

    sm: NDArray[np.int16]
    p99_us: NDArray[np.float64]
    decode_us: NDArray[np.float64]
    slot_us: NDArray[np.float64]
    smu_pct: NDArray[np.float64]
    acu_pct: NDArray[np.float64]
    gbu_pct: NDArray[np.float64]


def reserve(
    usage: Characterisation,
    mcs: int,
    n_prb: int,
    card: Card,
    model: LatencyModel,
    assumed: Assumptions,
    slot_overhead_us: float,
) -> Reservation:
    """Effect of reserving fewer SMs for the decode of one (MCS, PRB).

    The same operations and bytes spread over a longer time, so the shares of the device fall.

    Args:
        usage: of :func:`characterise`, with the same assumptions.
        mcs: MCS index.
        n_prb: PRBs, one of ``usage``.
        card: the device.
        model: its decode latency.
        assumed: iterations, deadline and instructions.
        slot_overhead_us: slot time beside the decode.
    """
    at = int(np.flatnonzero((usage.mcs == mcs) & (usage.prb == n_prb))[0])
    levels, work = card.levels, int(usage.work[at])
    decode_us = model.p50_us(work, levels)
    while_decoding = assumed.deadline_us / decode_us
    return Reservation(
        sm=levels.astype(np.int16),
        p99_us=model.p99_us(work, levels),
        decode_us=decode_us,
        slot_us=decode_us + slot_overhead_us,
        smu_pct=100.0 * levels / card.sm_count,
        acu_pct=usage.acu_pct[at] * while_decoding,
        gbu_pct=usage.gbu_pct[at] * while_decoding,
    )
